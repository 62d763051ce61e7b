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
from ..plugin_utils.base.printable import printable_lines
from ..plugin_utils.driver import told_options
from ..plugin_utils.driver.analyze import analyze_dump
from ..plugin_utils.driver.formats import FORMATS, Request
from ..plugin_utils.driver.sources import Places
from ..plugin_utils.export.graph import GraphLimits
from ..plugin_utils.export.top import Look
from ..plugin_utils.views.selection import Selection
from ..plugin_utils.views.table import Granularity, Measure

_ARGUMENTS: dict[str, dict[str, Any]] = {
    "src": {"type": "path", "required": True},
    "base": {"type": "path"},
    "archive": {"type": "path"},
    "binary_path": {"type": "list", "elements": "path", "default": []},
    "source_path": {"type": "list", "elements": "path", "default": []},
    "symcaches": {"type": "path"},
    **told_options.ARGUMENTS,
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
            raise AnsibleActionFail(f"the format {kind} is not text that can be shown: it needs 'dest'")
        request = _request(arguments)
        try:
            places = Places(
                arguments["archive"],
                [from_here(path) for path in arguments["binary_path"]],
                from_here_if_any(arguments["symcaches"]),
                self._task.check_mode,
                told_options.told(arguments),
            )
            analysis = analyze_dump(
                request, from_here(arguments["src"]), from_here_if_any(arguments["base"]), places, warnings.append
            )
            changed = dest is not None and write(dest, analysis.content, arguments["force"], self._task.check_mode)
        except OffheapError as error:
            raise AnsibleActionFail(str(error)) from None
        show = arguments["show"] if arguments["show"] is not None else dest is None
        if show and FORMATS[kind].is_text:
            display.display(printable_lines(analysis.content.decode("utf-8", "replace").rstrip("\n")))
        result.update(changed=changed, format=kind, **analysis.data(request.look))
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
        limits=GraphLimits(
            max(arguments["node_count"], 1),
            max(0.0, arguments["node_fraction"]),  # nan is 0, too
            max(0.0, arguments["edge_fraction"]),
            max(arguments["max_degree"], 1),
        ),
        function=arguments["function"],
        thread=arguments["thread"],
        drop_negative=arguments["drop_negative"],
        source_path=[from_here(path) for path in arguments["source_path"]],
    )
