# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""An action plugin with a task of its own, as Ansible would make it."""

from __future__ import annotations

from types import ModuleType
from typing import Any
from unittest.mock import MagicMock

from ansible.playbook.play_context import PlayContext
from ansible.playbook.task import Task


def action(plugin: ModuleType, check: bool = False, diff: bool = False, **arguments: Any) -> Any:
    """The plugin's action, ready to run; its connection answers to nothing."""
    task = Task()
    task.action = f"offheap.profiler.{plugin.__name__.rpartition('.')[2]}"
    task.args = arguments
    task.check_mode, task.diff, task.delegate_to = check, diff, None
    return plugin.ActionModule(
        task=task,
        connection=MagicMock(transport="local"),
        play_context=PlayContext(),
        loader=MagicMock(),
        templar=MagicMock(),
        shared_loader_obj=MagicMock(),
    )


def run_action(plugin: ModuleType, check: bool = False, diff: bool = False, **arguments: Any) -> dict[str, Any]:
    """The task's result, for a host named app1."""
    result: dict[str, Any] = action(plugin, check, diff, **arguments).run(task_vars={"inventory_hostname": "app1"})
    return result
