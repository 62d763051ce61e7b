# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Report what leaks, from an archive, on the controller."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ansible import constants
from ansible.errors import AnsibleActionFail
from ansible.module_utils.basic import missing_required_lib
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

from ..module_utils.spool import SpoolError, check_unit
from ..plugin_utils import hints, leak_reports
from ..plugin_utils.archive import Archive, ArchiveError, directory_name
from ..plugin_utils.export.flamegraph import jinja2_missing
from ..plugin_utils.function_names import demangler_missing
from ..plugin_utils.hints import HintError
from ..plugin_utils.leak_reports import Report
from ..plugin_utils.report import page, ticket
from ..plugin_utils.report.fleet_data import Fleet, without_stacks
from ..plugin_utils.samples import numpy_missing
from ..plugin_utils.suspects import Answer, Suspect
from ..plugin_utils.symbols import symbolic_missing

_ARGUMENTS: dict[str, dict[str, Any]] = {
    "archive": {"type": "path", "required": True},
    "dest": {"type": "path", "default": "offheap/report"},
    "units": {"type": "list", "elements": "str", "default": []},
    "hosts": {"type": "list", "elements": "str", "default": []},
    "top": {"type": "int", "default": 5},
    "min_span": {"type": "int", "default": 60},
    "force": {"type": "bool", "default": True},
    "show": {"type": "bool", "default": True},
    "hints": {"type": "list", "elements": "path", "default": []},
}
_FLEET = {"page": "report.html", "json": "report.json", "text": "report.txt"}
_KINDS = {"text": "txt", "folded": "folded", "flamegraph": "html"}
# Of a stack, so many frames are returned; the files have all of them.
_MOST_FRAMES = 64

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
        libraries = {
            "symbolic": symbolic_missing(),
            "pydemumble": demangler_missing(),
            "jinja2": jinja2_missing(),
            "numpy": numpy_missing(),
        }
        for library, missing in libraries.items():
            if missing:
                raise AnsibleActionFail(missing_required_lib(library))
        warnings: list[str] = []
        try:
            limits = leak_reports.Limits(
                units=[check_unit(unit) for unit in arguments["units"]],
                hosts=arguments["hosts"],
                top=max(arguments["top"], 0),
                least_span=max(arguments["min_span"], 0),
                hints=hints.load([_from_here(path) for path in arguments["hints"]]),
            )
            archive = Archive.open(_from_here(arguments["archive"]))
            seen = Fleet()
            with _symcaches(archive, self._task.check_mode) as symcaches:
                found = list(leak_reports.reports(archive, symcaches, limits, warnings.append, seen))
            dest = _from_here(arguments["dest"])
            files, changed = self._write(found, dest, arguments["force"])
            fleet_files = self._write_fleet(seen.data(), dest, arguments["force"], changed) if found else {}
        except (ArchiveError, HintError, SpoolError) as error:
            raise AnsibleActionFail(str(error)) from error
        except OSError as error:
            raise AnsibleActionFail(f"{error.filename or arguments['dest']}: {error.strerror or error}") from error
        if not found:
            warnings.append(f"the archive {archive.root} has no captures of the units and hosts asked for")
        pages = [Path(paths["flamegraph"]) if paths else None for paths in files]
        lines = leak_reports.summary(list(zip(found, pages, strict=True)))
        if fleet_files:
            lines.append((None, f"all of it: {fleet_files['page']}"))
        if arguments["show"]:
            _show(lines)
        result.update(
            changed=bool(changed),
            dest=str(dest),
            files=fleet_files,
            reports=[_returned(report, paths) for report, paths in zip(found, files, strict=True)],
            summary=[line for _answer, line in lines],
        )
        if self._task.diff and changed:
            result["diff"] = [{"prepared": "".join(f"report written: {path}\n" for path in changed)}]
        if warnings:
            result["warnings"] = warnings
        return result

    def _write(self, found: list[Report], dest: Path, force: bool) -> tuple[list[dict[str, str]], list[str]]:
        """(paths by kind for each report, paths whose content is new); writes them unless in check mode."""
        all_paths: list[dict[str, str]] = []
        changed: list[str] = []
        for report in found:
            paths: dict[str, str] = {}
            for kind, suffix in _KINDS.items():
                if suffix not in report.files:
                    continue
                path = dest / directory_name(report.unit) / f"{directory_name(report.host)}.{suffix}"
                paths[kind] = self._bring(path, report.files[suffix], force, changed)
            all_paths.append(paths)
        return all_paths, changed

    def _write_fleet(self, data: dict[str, Any], dest: Path, force: bool, changed: list[str]) -> dict[str, str]:
        """The report on all hosts together: paths by kind."""
        contents = {
            "page": page.render(data),
            "json": json.dumps(without_stacks(data), separators=(",", ":")) + "\n",
            "text": ticket.render(data),
        }
        return {kind: self._bring(dest / _FLEET[kind], text, force, changed) for kind, text in contents.items()}

    def _bring(self, path: Path, text: str, force: bool, changed: list[str]) -> str:
        """Write a file where that is to be done, and remember it when its content is new."""
        content = text.encode("utf-8", "replace")
        if not path.exists() or (force and path.read_bytes() != content):
            changed.append(str(path))
            if not self._task.check_mode:
                _write_atomically(path, content)
        return str(path)


def _from_here(path: str) -> Path:
    return Path.cwd() / Path(path).expanduser()


@contextlib.contextmanager
def _symcaches(archive: Archive, check_mode: bool) -> Iterator[Path]:
    """The archive's directory of symcaches, or a passing one where nothing may be or can be written."""
    if not check_mode:
        with contextlib.suppress(OSError):
            if os.access(archive.symcaches, os.W_OK):
                yield archive.symcaches
                return
    with tempfile.TemporaryDirectory(prefix="offheap-") as directory:
        yield Path(directory)


def _write_atomically(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{path.name[:40]}.", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(content)
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(name, 0o666 & ~mask)
        os.replace(name, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise


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
                "growth_bytes_per_day": round(suspect.growth),
                "growth_error": round(suspect.error),
                "live_bytes": round(suspect.live),
                "stacks": suspect.stacks,
                "hints": [
                    {"id": hint.id, "title": hint.title, "check": hint.check, "link": hint.link} for hint in known
                ],
            }
            for suspect, known in zip(report.suspects, report.hints, strict=True)
        ],
        "process": verdict.process,
        "captures": report.captures,
        "files": files,
    }


def _frames(suspect: Suspect) -> list[str]:
    return [frame.label for frame in suspect.path[:_MOST_FRAMES]]


def _show(lines: list[tuple[Answer | None, str]]) -> None:
    colors = {
        Answer.LEAK: "COLOR_ERROR",
        Answer.NO_LEAK: "COLOR_OK",
        Answer.CANNOT_TELL: "COLOR_WARN",
    }
    for answer, line in lines:
        display.display(line, color=constants.config.get_config_value(colors[answer]) if answer else None)
