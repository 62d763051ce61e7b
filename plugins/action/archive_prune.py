# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Remove old captures from an archive, on the controller."""

from __future__ import annotations

import time
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase

from ..module_utils.formats.errors import OffheapError
from ..plugin_utils.archive import far_archive, retention
from ..plugin_utils.base import libraries
from ..plugin_utils.base.durations import DAY
from ..plugin_utils.base.options import size, whole_number

_ARGUMENTS: dict[str, dict[str, Any]] = {
    "archive": {"type": "path", "required": True},
    "keep_days": {"type": "float", "default": 0.0},
    "keep_captures": {"type": whole_number, "default": 0},
    "keep_size": {"type": size, "default": "0"},
}


class ActionModule(ActionBase):
    """Connects to no host."""

    _requires_connection = False
    _supports_check_mode = True
    _supports_async = False
    TRANSFERS_FILES = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result: dict[str, Any] = super().run(tmp, task_vars)
        _validation, arguments = self.validate_argument_spec(_ARGUMENTS)  # type: ignore[no-untyped-call]
        keep = retention.Keep(
            age=arguments["keep_days"] * DAY, count=arguments["keep_captures"], size=arguments["keep_size"]
        )
        if not all(limit >= 0 for limit in (keep.age, keep.count, keep.size)):  # nor is nan, which all is older than
            raise AnsibleActionFail("a limit of archive_prune is negative or no number; use 0 for no limit")
        try:
            libraries.require("zstandard")
            archive = far_archive.opened(arguments["archive"])
            removed, freed = retention.prune(archive, keep, time.time(), self._task.check_mode)
        except (OffheapError, OSError) as error:
            raise AnsibleActionFail(str(error)) from None
        paths = [archive.name_of(capture) for capture in removed]
        result.update(changed=bool(removed), removed=paths, bytes=freed)
        if not any((keep.age, keep.count, keep.size)):
            result["warnings"] = ["nothing is pruned without keep_days, keep_captures or keep_size"]
        return result
