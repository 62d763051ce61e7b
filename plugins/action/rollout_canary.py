# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Go first in a rollout of several runs, or wait for the run that does, on the controller."""

from __future__ import annotations

import platform
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

from ..module_utils.formats.errors import OffheapError
from ..plugin_utils.archive.canary import Rollout
from ..plugin_utils.base.options import whole_number

_ARGUMENTS: dict[str, dict[str, Any]] = {
    "archive": {"type": "str", "required": True},
    "rollout": {"type": "str", "required": True},
    "hosts": {"type": "list", "elements": "str", "required": True},
    "outcome": {"type": "str", "choices": ["well", "broken"]},
    "timeout": {"type": whole_number, "default": 1800},
}

display = Display()


class ActionModule(ActionBase):
    """Talks to the archive and connects to no host."""

    _requires_connection = False
    _supports_check_mode = True
    _supports_async = False
    TRANSFERS_FILES = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result: dict[str, Any] = super().run(tmp, task_vars)
        _validation, arguments = self.validate_argument_spec(_ARGUMENTS)  # type: ignore[no-untyped-call]
        result.update(changed=False, first=False, hosts=arguments["hosts"])
        if self._task.check_mode or not arguments["hosts"]:
            return result
        job = (task_vars or {}).get("awx_job_id")
        try:
            rollout = Rollout(arguments["archive"], arguments["rollout"])
            if arguments["outcome"]:
                rollout.tell(arguments["outcome"] == "well")
            elif rollout.go_first(arguments["hosts"], f"AWX job {job}" if job else f"the run on {platform.node()}"):
                result["first"] = True
            else:
                rollout.wait(arguments["timeout"], display.display)
        except OffheapError as error:
            raise AnsibleActionFail(str(error)) from None
        return result
