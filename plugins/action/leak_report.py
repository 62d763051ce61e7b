# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Report what leaks, from an archive, on the controller."""

from __future__ import annotations

from collections import Counter
from typing import Any

from ansible import constants, context
from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

from ..module_utils.formats import unit_name
from ..module_utils.formats.errors import OffheapError
from ..plugin_utils.archive import far_archive
from ..plugin_utils.base import libraries, progress
from ..plugin_utils.base.options import from_here, whole_number
from ..plugin_utils.leaks import hints
from ..plugin_utils.leaks.code_paths import Suspect
from ..plugin_utils.leaks.scope import Scope
from ..plugin_utils.leaks.verdict import Answer
from ..plugin_utils.report import files as report_files
from ..plugin_utils.report import host_report
from ..plugin_utils.report.host_report import Report

_ARGUMENTS: dict[str, dict[str, Any]] = {
    "archive": {"type": "path", "required": True},
    "dest": {"type": "path", "default": "offheap/report"},
    "units": {"type": "list", "elements": "str", "default": []},
    "hosts": {"type": "list", "elements": "str", "default": []},
    "top": {"type": whole_number, "default": 5},
    "min_span": {"type": whole_number, "default": 60},
    "force": {"type": "bool", "default": True},
    "show": {"type": "bool", "default": True},
    "hints": {"type": "list", "elements": "path", "default": []},
    "triage": {"type": "path", "default": "offheap/triage"},
    "cluster": {"type": "str", "default": ""},
}
# Most frames of a stack that are returned; the files have all of them.
_MOST_FRAMES = 64
# What is passed on in a workflow becomes variables of its next jobs, so it is kept small.
_MOST_WORST, _MOST_NAMED = 10, 5

display = Display()


class ActionModule(ActionBase):
    """Reads the archive, writes the reports, returns the verdicts. Connects to no host."""

    _requires_connection = False
    _supports_check_mode = True
    _supports_async = False
    TRANSFERS_FILES = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result: dict[str, Any] = super().run(tmp, task_vars)
        _validation, arguments = self.validate_argument_spec(_ARGUMENTS)  # type: ignore[no-untyped-call]
        warnings: list[str] = []
        try:
            libraries.require(*libraries.JUDGING, "jinja2", "yaml")
            units = [unit_name.service(unit) for unit in arguments["units"]]
            scope = Scope(units, arguments["hosts"], max(arguments["min_span"], 0))
            limits = host_report.Limits(
                top=max(arguments["top"], 0),
                hints=hints.load([from_here(path) for path in arguments["hints"]]),
            )
            archive = far_archive.opened(arguments["archive"])
            archive.require(scope.units, scope.hosts)
            dest = from_here(arguments["dest"])
            files = report_files.make(
                archive,
                scope,
                limits,
                dest,
                arguments["force"],
                self._task.check_mode,
                warnings.append,
                from_here(arguments["triage"]),
                progress.for_people(lambda text: display.display(text, stderr=True)),
                arguments["cluster"],
                context.CLIARGS.get("inventory") or (),
            )
        except OffheapError as error:
            raise AnsibleActionFail(str(error)) from None
        lines = files.lines()
        if arguments["show"]:
            _show(lines)
        result.update(
            changed=bool(files.changed),
            dest=str(dest),
            files=files.fleet,
            reports=[_returned(report, paths) for report, paths in files.reports],
            found=_found([report for report, _paths in files.reports]),
            summary=[line for _answer, line in lines],
        )
        if self._task.diff and files.changed:
            result["diff"] = [{"prepared": "".join(f"report written: {path}\n" for path in files.changed)}]
        if warnings:
            result["warnings"] = warnings
        return result


def _returned(report: Report, files: dict[str, str]) -> dict[str, Any]:
    verdict = report.verdict
    return {
        "unit": report.unit,
        "host": report.host,
        "verdict": verdict.answer.value,
        "reason": verdict.reason,
        "growth_bytes_per_day": round(verdict.growth),
        "growth_error": round(verdict.error),
        "path": _frames(report.suspects[0]) if report.suspects else [],
        "suspects": [
            {
                "path": _frames(suspect),
                "sources": sources[:_MOST_FRAMES],
                "growth_bytes_per_day": round(suspect.growth),
                "growth_error": round(suspect.error),
                "live_bytes": round(suspect.live),
                "stacks": suspect.stacks,
                "held": suspect.holding.text if suspect.holding else "",
                "hints": [
                    {"id": hint.id, "title": hint.title, "check": hint.check, "link": hint.link} for hint in known
                ],
            }
            for suspect, known, sources in zip(report.suspects, report.hints, report.sources, strict=True)
        ],
        "process": verdict.process,
        "captures": report.captures,
        "files": files,
    }


def _found(reports: list[Report]) -> dict[str, Any]:
    counts = Counter(report.verdict.answer for report in reports)
    leaking = [report for report in reports if report.verdict.answer.leaks]
    return {
        "leaks": len(leaking),
        "overflows": counts[Answer.OVERFLOWS],
        "no_leaks": counts[Answer.NO_LEAK] + counts[Answer.FILLS_UP],
        "cannot_tell": counts[Answer.CANNOT_TELL] + counts[Answer.GREW],
        "worst": [
            {
                "unit": report.unit,
                "host": report.host,
                "path": " < ".join(_frames(report.suspects[0])[:_MOST_NAMED]) if report.suspects else "",
                "growth_bytes_per_day": round(report.verdict.growth),
            }
            for report in sorted(leaking, key=lambda report: -report.verdict.growth)[:_MOST_WORST]
        ],
    }


def _frames(suspect: Suspect) -> list[str]:
    return [frame.label for frame in suspect.path[:_MOST_FRAMES]]


def _show(lines: list[tuple[Answer | None, str]]) -> None:
    colors = {
        Answer.LEAK: "COLOR_ERROR",
        Answer.BURSTS: "COLOR_ERROR",
        Answer.OVERFLOWS: "COLOR_ERROR",
        Answer.GREW: "COLOR_WARN",
        Answer.CANNOT_TELL: "COLOR_WARN",
        Answer.FILLS_UP: "COLOR_OK",
        Answer.NO_LEAK: "COLOR_OK",
    }
    for answer, line in lines:
        display.display(line, color=constants.config.get_config_value(colors[answer]) if answer else None)
