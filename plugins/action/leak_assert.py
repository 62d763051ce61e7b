# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Fail if an archive shows a leak beyond the limits, on the controller."""

from __future__ import annotations

from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

from ..module_utils.formats import unit_name
from ..module_utils.formats.errors import OffheapError
from ..plugin_utils.archive import far_archive
from ..plugin_utils.base import libraries, output_file, progress
from ..plugin_utils.base.options import from_here, size, whole_number
from ..plugin_utils.leaks import baseline, ranking
from ..plugin_utils.leaks.ranking import Leak
from ..plugin_utils.leaks.scope import Scope
from ..plugin_utils.report import junit

_ARGUMENTS: dict[str, dict[str, Any]] = {
    "archive": {"type": "path", "required": True},
    "units": {"type": "list", "elements": "str", "default": []},
    "hosts": {"type": "list", "elements": "str", "default": []},
    "max_growth": {"type": size},
    "baseline": {"type": "path"},
    "record": {"type": "path"},
    "junit": {"type": "path"},
    "min_span": {"type": whole_number, "default": 60},
    "require_verdict": {"type": "bool", "default": True},
    "cluster": {"type": "str", "default": ""},
}
_MOST_FRAMES = 64

display = Display()


class ActionModule(ActionBase):
    """Reads the archive and connects to no host."""

    _requires_connection = False
    _supports_check_mode = True
    _supports_async = False
    TRANSFERS_FILES = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result: dict[str, Any] = super().run(tmp, task_vars)
        _validation, arguments = self.validate_argument_spec(_ARGUMENTS)  # type: ignore[no-untyped-call]
        warnings: list[str] = []
        try:
            libraries.require(*libraries.JUDGING)
            units = [unit_name.service(unit) for unit in arguments["units"]]
            known = baseline.read_baseline(from_here(arguments["baseline"])) if arguments["baseline"] else None
            archive = far_archive.opened(arguments["archive"])
            scope = Scope(units, arguments["hosts"], max(arguments["min_span"], 0))
            told = progress.for_people(lambda text: display.display(text, stderr=True))
            leaks, watched = ranking.rank(
                archive, warnings.append, scope, self._task.check_mode, told, arguments["cluster"]
            )
        except (OffheapError, OSError) as error:
            raise AnsibleActionFail(str(error)) from None
        limit = arguments["max_growth"]
        if limit is None and known is None:
            limit = 0
        offences = baseline.too_much(leaks, watched, limit, known)
        judged = [process for process in watched if not process.verdict.answer.is_open]
        result.update(
            leaks=[_returned(leak) for leak in leaks],
            offences=[offence.text for offence in offences],
            judged=len(judged),
        )
        missing = ""
        if arguments["require_verdict"] and not judged:
            why = watched[-1].verdict.reason if watched else archive.nothing(units, arguments["hosts"])
            missing = f"cannot tell whether anything leaks: {why}"
        if offences:
            more = f" (and {len(offences) - 1} more)" if len(offences) > 1 else ""
            result.update(failed=True, msg=f"{offences[0].text}{more}")
        elif missing:
            result.update(failed=True, msg=missing)
        else:
            result["msg"] = f"processes judged: {len(judged)}, leaks: {len(leaks)}, beyond the limits: 0"
        try:
            # A leak that has just failed must not be a known one when the job is run again.
            record = None if known is not None and result.get("failed") else arguments["record"]
            result["changed"] = self._written(baseline.baseline(leaks).encode("utf-8", "replace"), record)
            result["changed"] |= self._written(junit.render(offences, watched, missing), arguments["junit"])
        except (OffheapError, OSError) as error:
            raise AnsibleActionFail(str(error)) from None
        if warnings:
            result["warnings"] = warnings
        return result

    def _written(self, content: bytes, target: str | None) -> bool:
        """Write a file if it is asked for. Returns whether it changed."""
        if not target:
            return False
        return output_file.write(from_here(target), content, force=True, check_mode=self._task.check_mode)


def _returned(leak: Leak) -> dict[str, Any]:
    return {
        "unit": leak.unit,
        "path": [frame.label for frame in leak.path[:_MOST_FRAMES]],
        "growth_bytes_per_day": round(leak.growth),
        "growth_error": round(leak.error),
        "hosts": {host: round(rate) for host, rate in leak.hosts.items()},
        "watched": leak.watched,
        "outliers": leak.outliers,
        "processes": leak.processes,
        "share": round(leak.share, 3),
        "first_seen": leak.first_seen,
        "label": leak.label,
    }
