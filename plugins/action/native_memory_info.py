# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""The controller's half of native_memory_info: keeps the module's samples if asked to."""

from __future__ import annotations

from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase

from ..module_utils.formats.errors import OffheapError
from ..plugin_utils.base.options import from_here
from ..plugin_utils.triage import snapshots


class ActionModule(ActionBase):
    """Runs the module of the same name on the host."""

    _supports_check_mode = True
    _supports_async = False
    TRANSFERS_FILES = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result: dict[str, Any] = super().run(tmp, task_vars)
        keep = self._task.args.get("keep")
        answer = self._execute_module(
            module_name="offheap.profiler.native_memory_info", module_args=self._task.args, task_vars=task_vars
        )
        result.update(answer)
        if keep and not result.get("failed"):
            host = str(self._task.delegate_to or (task_vars or {})["inventory_hostname"])
            try:
                path = snapshots.keep(from_here(str(keep)), host, result.get("samples"))
            except OffheapError as error:
                raise AnsibleActionFail(f"the samples of {host} cannot be kept: {error}") from None
            result["kept"] = str(path)
        return result
