# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""The controller's half of unit_enable: a connection that notices when the host falls silent."""

from __future__ import annotations

from typing import Any

from ansible.plugins.action import ActionBase

from ..plugin_utils.fetch import ansible_ssh


class ActionModule(ActionBase):
    """Runs the module of the same name on the host."""

    _supports_check_mode = True
    _supports_async = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result: dict[str, Any] = super().run(tmp, task_vars)
        ansible_ssh.prepare(self._connection)
        result.update(
            self._execute_module(
                module_name="offheap.profiler.unit_enable", module_args=self._task.args, task_vars=task_vars
            )
        )
        return result
