# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Compare two dumps, on the controller."""

from __future__ import annotations

from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

from ..module_utils.formats.errors import OffheapError
from ..plugin_utils.base.options import from_here, from_here_if_any
from ..plugin_utils.base.output_file import write
from ..plugin_utils.base.printable import printable_lines
from ..plugin_utils.driver import told_options
from ..plugin_utils.driver.compare_dumps import CompareRequest, compare_dumps
from ..plugin_utils.driver.sources import Places
from ..plugin_utils.views.compare import By
from ..plugin_utils.views.selection import Selection
from ..plugin_utils.views.table import Measure

_ARGUMENTS: dict[str, dict[str, Any]] = {
    "before": {"type": "path", "required": True},
    "after": {"type": "path", "required": True},
    "archive": {"type": "path"},
    "binary_path": {"type": "list", "elements": "path", "default": []},
    "symcaches": {"type": "path"},
    **told_options.ARGUMENTS,
    "measure": {"type": "str", "choices": [item.value for item in Measure], "default": "inuse_space"},
    "by": {"type": "str", "choices": [item.value for item in By], "default": "stacks"},
    "focus": {"type": "str", "default": ""},
    "ignore": {"type": "str", "default": ""},
    "format": {"type": "str", "choices": ["text", "json"], "default": "text"},
    "limit": {"type": "int", "default": 0},
    "dest": {"type": "path"},
    "force": {"type": "bool", "default": False},
    "show": {"type": "bool"},
}

display = Display()


class ActionModule(ActionBase):
    """Reads two dumps, shows or writes the differences, returns the largest. Connects to no host."""

    _requires_connection = False
    _supports_check_mode = True
    _supports_async = False
    TRANSFERS_FILES = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result: dict[str, Any] = super().run(tmp, task_vars)
        _validation, arguments = self.validate_argument_spec(_ARGUMENTS)  # type: ignore[no-untyped-call]
        dest = from_here_if_any(arguments["dest"])
        limit = max(arguments["limit"], 0)
        request = CompareRequest(
            Measure(arguments["measure"]),
            By(arguments["by"]),
            Selection(arguments["focus"], arguments["ignore"]),
            arguments["format"] == "json",
            limit,
        )
        try:
            places = Places(
                arguments["archive"],
                [from_here(path) for path in arguments["binary_path"]],
                from_here_if_any(arguments["symcaches"]),
                self._task.check_mode,
                told_options.told(arguments),
            )
            compared = compare_dumps(request, from_here(arguments["before"]), from_here(arguments["after"]), places)
            content = compared.content.encode("utf-8", "replace")
            changed = dest is not None and write(dest, content, arguments["force"], self._task.check_mode)
        except OffheapError as error:
            raise AnsibleActionFail(str(error)) from None
        if arguments["show"] if arguments["show"] is not None else dest is None:
            display.display(printable_lines(compared.content.rstrip("\n")))
        result.update(changed=changed, **compared.data(limit))
        if dest is not None:
            result["dest"] = str(dest)
            if self._task.diff and changed:
                result["diff"] = [{"prepared": f"written: {dest}\n"}]
        if compared.warnings:
            result["warnings"] = compared.warnings
        return result
