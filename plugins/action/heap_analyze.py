# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Look at one dump, on the controller."""

from __future__ import annotations

from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

from ..module_utils.formats.errors import OffheapError
from ..plugin_utils.base.options import from_here, from_here_if_any
from ..plugin_utils.base.output_file import write
from ..plugin_utils.driver.analyze import analyze, require
from ..plugin_utils.driver.formats import FORMATS, Request
from ..plugin_utils.driver.sources import Source, open_reader
from ..plugin_utils.export.graph import Limits
from ..plugin_utils.export.top import Look
from ..plugin_utils.views.selection import Selection
from ..plugin_utils.views.table import Granularity, Measure, Table

_ARGUMENTS: dict[str, dict[str, Any]] = {
    "src": {"type": "path", "required": True},
    "base": {"type": "path"},
    "archive": {"type": "path"},
    "binary_path": {"type": "list", "elements": "path", "default": []},
    "source_path": {"type": "list", "elements": "path", "default": []},
    "symcaches": {"type": "path"},
    "format": {"type": "str", "choices": list(FORMATS), "default": "text"},
    "measure": {"type": "str", "choices": [item.value for item in Measure], "default": "inuse_space"},
    "granularity": {"type": "str", "choices": [item.value for item in Granularity], "default": "functions"},
    "sort": {"type": "str", "choices": ["flat", "cumulative"], "default": "flat"},
    "function": {"type": "str", "default": ""},
    "focus": {"type": "str", "default": ""},
    "ignore": {"type": "str", "default": ""},
    "retain": {"type": "str", "default": ""},
    "exclude": {"type": "str", "default": ""},
    "thread": {"type": "str", "default": ""},
    "drop_negative": {"type": "bool", "default": False},
    "node_count": {"type": "int", "default": 80},
    "node_fraction": {"type": "float", "default": 0.005},
    "edge_fraction": {"type": "float", "default": 0.001},
    "max_degree": {"type": "int", "default": 8},
    "exact": {"type": "bool", "default": False},
    "limit": {"type": "int", "default": 0},
    "dest": {"type": "path"},
    "force": {"type": "bool", "default": False},
    "show": {"type": "bool"},
}
_MOST_ROWS = 100

display = Display()


class ActionModule(ActionBase):
    """Reads one dump, shows or writes it, returns the first rows. Connects to no host."""

    _requires_connection = False
    _supports_check_mode = True
    _supports_async = False
    TRANSFERS_FILES = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result: dict[str, Any] = super().run(tmp, task_vars)
        _validation, arguments = self.validate_argument_spec(_ARGUMENTS)  # type: ignore[no-untyped-call]
        warnings: list[str] = []
        kind = arguments["format"]
        dest = from_here_if_any(arguments["dest"])
        if dest is None and not FORMATS[kind].is_text:
            raise AnsibleActionFail(f"the format {kind} is no text to show: it needs 'dest'")
        base_path = from_here_if_any(arguments["base"])
        paths = [from_here(arguments["src"]), *([base_path] if base_path else [])]
        try:
            require(kind)
            with open_reader(
                paths,
                from_here_if_any(arguments["archive"]),
                [from_here(path) for path in arguments["binary_path"]],
                from_here_if_any(arguments["symcaches"]),
                self._task.check_mode,
            ) as reader:
                sources = [reader.read(path) for path in paths]
                base = sources[1] if base_path is not None else None
                answer = analyze(_request(arguments), sources[0], base, reader.images)
                changed = dest is not None and write(dest, answer.content, arguments["force"], self._task.check_mode)
                warnings += dict.fromkeys(reader.warnings)
        except OffheapError as error:
            raise AnsibleActionFail(str(error)) from None
        show = arguments["show"] if arguments["show"] is not None else dest is None
        if show and FORMATS[kind].is_text:
            display.display(answer.content.decode("utf-8", "replace").rstrip("\n"))
        result.update(changed=changed, format=kind, **_returned(answer.table, sources[0], arguments))
        if dest is not None:
            result["dest"] = str(dest)
            if self._task.diff and changed:
                result["diff"] = [{"prepared": f"written: {dest}\n"}]
        if warnings:
            result["warnings"] = warnings
        return result


def _request(arguments: dict[str, Any]) -> Request:
    return Request(
        kind=arguments["format"],
        granularity=Granularity(arguments["granularity"]),
        measure=Measure(arguments["measure"]),
        selection=Selection(*[arguments[name] for name in ("focus", "ignore", "retain", "exclude")]),
        look=Look(arguments["sort"] == "cumulative", max(arguments["limit"], 0), arguments["exact"]),
        limits=Limits(
            max(arguments["node_count"], 1),
            max(arguments["node_fraction"], 0.0),
            max(arguments["edge_fraction"], 0.0),
            max(arguments["max_degree"], 1),
        ),
        function=arguments["function"],
        thread=arguments["thread"],
        drop_negative=arguments["drop_negative"],
        source_path=[from_here(path) for path in arguments["source_path"]],
    )


def _returned(table: Table, source: Source, arguments: dict[str, Any]) -> dict[str, Any]:
    rows, limit = table.rows(arguments["sort"] == "cumulative"), arguments["limit"]
    return {
        "measure": table.measure.value,
        "unit": table.measure.unit,
        "total": round(table.total),
        "total_error": round(table.total_error),
        "sample_interval": table.interval,
        "rows": [
            {
                "name": row.name,
                "flat": round(row.flat),
                "cumulative": round(row.cumulative),
                "error": round(row.error),
            }
            for row in rows[: min(limit, _MOST_ROWS) if limit > 0 else _MOST_ROWS]
        ],
        "row_count": len(rows),
        "dump": source.facts,
    }
