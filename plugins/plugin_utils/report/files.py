# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""The reports on an archive as files: a directory per unit with each host's files, and the page for the fleet."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

from ..archive.archive import Archive
from ..base.directory_name import directory_name
from ..base.output_file import write
from ..base.progress import Progress
from ..leaks.scope import Scope
from ..leaks.verdict import Answer
from ..triage import findings
from . import host_report, lives_picture, page, ticket
from .fleet import Fleet
from .host_report import Limits, Report

_FLEET = {"page": "report.html", "json": "report.json", "text": "report.txt", "picture": "report.svg"}
# Lines that are still in sight at the end.
_SCREEN = 40
_LINKS = {"flamegraph": "page", "text": "text", "folded": "folded"}
_KINDS = {"text": "txt", "folded": "folded", "flamegraph": "html"}


@dataclass
class Files:
    """Reports with the paths of their files by kind, those of the fleet, and the paths with new content. ``units``
    has a sentence on each unit, with its answer, the gravest last."""

    reports: list[tuple[Report, dict[str, str]]] = field(default_factory=list)
    units: list[tuple[Answer, str]] = field(default_factory=list)
    fleet: dict[str, str] = field(default_factory=dict)
    changed: list[str] = field(default_factory=list)

    def lines(self) -> list[tuple[Answer | None, str]]:
        """The verdicts for a terminal, each line with the answer that colours it. A long list ends with its sum."""
        pages = [(report, Path(paths["flamegraph"]) if paths else None) for report, paths in self.reports]
        lines = host_report.summary(pages)
        if len(lines) > _SCREEN:
            lines += [(None, ""), *self.units]
        return [*lines, (None, f"full report: {self.fleet['page']}")] if self.fleet else lines


def make(
    archive: Archive,
    scope: Scope,
    limits: Limits,
    dest: Path,
    force: bool,
    check_mode: bool,
    warn: Callable[[str], None],
    triage: Path | None = None,
    progress: Progress | None = None,
    cluster: str = "",
    inventories: Sequence[str] = (),
) -> Files:
    """Read the archive and write the reports below ``dest``. Without ``force`` existing files stay as they are.

    ``triage`` is a directory of samples (triage_samples.py), whose verdicts are shown if it exists. In check mode
    nothing is written, and ``changed`` lists what would be. ``cluster`` is the address of one that judges, and
    ``inventories`` are what the next commands need with -i. Raises ArchiveError, ClusterError, OutputError.
    """
    progress = progress or Progress()
    seen = Fleet()
    found = host_report.reports(archive, scope, limits, warn, check_mode, seen, progress, cluster)
    progress.at(f"writing the report to {dest}")
    files = Files()

    def bring(path: Path, text: str) -> str:
        if (force or not path.exists()) and write(path, text.encode("utf-8", "replace"), force, check_mode):
            files.changed.append(str(path))
        return str(path)

    for report in found:
        stem = dest / directory_name(report.unit) / directory_name(report.host)
        paths = {
            kind: bring(stem.with_name(f"{stem.name}.{suffix}"), report.files[suffix])
            for kind, suffix in _KINDS.items()
            if suffix in report.files
        }
        files.reports.append((report, paths))
    if found:
        looked = []
        if triage and triage.is_dir():
            looked = findings.findings(triage, scope.units, scope.hosts, warn, inventories)
        data = {**seen.data(), "triage": [finding.data for finding in looked]}
        _link(data["units"], files.reports, dest)
        told = [(Answer(unit["answer"]), ticket.sentence(unit)) for unit in data["units"]]
        files.units = sorted(told, key=lambda one: list(Answer).index(one[0]), reverse=True)
        files.fleet = {kind: bring(dest / _FLEET[kind], text) for kind, text in of_fleet(data).items()}
    return files


def _link(units: list[dict[str, Any]], reports: list[tuple[Report, dict[str, str]]], dest: Path) -> None:
    """Tell each host its own files, as addresses relative to the fleet's page."""
    own = {(report.unit, report.host): paths for report, paths in reports}
    for unit in units:
        for host in unit["hosts"]:
            paths = own.get((unit["unit"], host["host"]), {})
            relative = {kind: Path(path).relative_to(dest).as_posix() for kind, path in paths.items()}
            host["files"] = {_LINKS[kind]: quote(path) for kind, path in relative.items()}


def of_fleet(data: dict[str, Any]) -> dict[str, str]:
    """The contents of the fleet's files by kind; of the picture only where a suspect's lives are known."""
    picture = lives_picture.render(data)
    shown = f"\n![How the objects of the leaking paths live]({_FLEET['picture']})\n" if picture else ""
    files = {
        "page": page.render(data),
        "json": json.dumps(without_stacks(data), separators=(",", ":")) + "\n",
        "text": ticket.fenced(ticket.render(data)) + shown,
    }
    return files | {"picture": picture} if picture else files


def without_stacks(data: Mapping[str, Any]) -> dict[str, Any]:
    """The data for other programs: verdicts, suspects, curves, reconciliations, but neither tree nor frames."""
    hidden = {"nodes", "bytes"}

    def of_host(host: Mapping[str, Any]) -> dict[str, Any]:
        trimmed = {
            name: [{key: value for key, value in item.items() if key not in hidden} for item in host[name]]
            for name in ("dumps", "threads", "suspects")
        }
        return {**host, **trimmed}

    units = [
        {
            **{key: value for key, value in unit.items() if key != "tree"},
            "hosts": [of_host(host) for host in unit["hosts"]],
        }
        for unit in data["units"]
    ]
    return {**{key: value for key, value in data.items() if key != "frames"}, "units": units}
