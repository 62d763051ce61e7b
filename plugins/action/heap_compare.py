# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Compare two dumps, on the controller."""

from __future__ import annotations

from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

from ..module_utils.formats.errors import OffheapError
from ..plugin_utils.base import libraries
from ..plugin_utils.base.options import from_here, from_here_if_any
from ..plugin_utils.base.output_file import write
from ..plugin_utils.driver.sources import Source, open_reader
from ..plugin_utils.export import comparison as output
from ..plugin_utils.views.compare import By, Change, Comparison, Side, compare
from ..plugin_utils.views.selection import Selection
from ..plugin_utils.views.table import Measure

_ARGUMENTS: dict[str, dict[str, Any]] = {
    "before": {"type": "path", "required": True},
    "after": {"type": "path", "required": True},
    "archive": {"type": "path"},
    "binary_path": {"type": "list", "elements": "path", "default": []},
    "symcaches": {"type": "path"},
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
_MOST_ROWS = 100
_MOST_FRAMES = 64

display = Display()


class ActionModule(ActionBase):
    """Reads two dumps, shows or writes what is different, returns the largest differences. Connects to no host."""

    _requires_connection = False
    _supports_check_mode = True
    _supports_async = False
    TRANSFERS_FILES = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result: dict[str, Any] = super().run(tmp, task_vars)
        _validation, arguments = self.validate_argument_spec(_ARGUMENTS)  # type: ignore[no-untyped-call]
        warnings: list[str] = []
        paths = [from_here(arguments[name]) for name in ("before", "after")]
        dest = from_here_if_any(arguments["dest"])
        limit = max(arguments["limit"], 0)
        try:
            libraries.require(*libraries.DUMPS)
            with open_reader(
                paths,
                from_here_if_any(arguments["archive"]),
                [from_here(path) for path in arguments["binary_path"]],
                from_here_if_any(arguments["symcaches"]),
                self._task.check_mode,
            ) as reader:
                selection = Selection(arguments["focus"], arguments["ignore"])
                before, after = [_side(reader.read(path), selection) for path in paths]
                warnings += dict.fromkeys(reader.warnings)
            found = compare(before, after, Measure(arguments["measure"]), By(arguments["by"]))
            if arguments["format"] == "json":
                content = output.as_json(found, before, after)
            else:
                content = output.text(found, before, after, limit)
            encoded = content.encode("utf-8", "replace")
            changed = dest is not None and write(dest, encoded, arguments["force"], self._task.check_mode)
        except OffheapError as error:
            raise AnsibleActionFail(str(error)) from None
        if arguments["show"] if arguments["show"] is not None else dest is None:
            display.display(content.rstrip("\n"))
        result.update(changed=changed, **_returned(found, before, after, limit))
        if dest is not None:
            result["dest"] = str(dest)
            if self._task.diff and changed:
                result["diff"] = [{"prepared": f"written: {dest}\n"}]
        warnings += found.warnings
        if warnings:
            result["warnings"] = warnings
        return result


def _side(source: Source, selection: Selection) -> Side:
    return Side(selection.apply(source.samples), source.executable, {"dump": str(source.path), **source.facts})


def _returned(found: Comparison, before: Side, after: Side, limit: int) -> dict[str, Any]:
    significant = [item for item in found.differences if item.change is not Change.NOT_SIGNIFICANT]
    return {
        "measure": found.measure.value,
        "unit": found.measure.unit,
        "before": dict(before.facts),
        "after": dict(after.facts),
        "total": output.returned(found.total),
        "counts": {change.name.lower(): len(found.of(change)) for change in Change},
        "differences": [
            output.returned(item, _MOST_FRAMES)
            for item in significant[: min(limit, _MOST_ROWS) if limit else _MOST_ROWS]
        ],
        "comparable": not found.warnings,
    }
