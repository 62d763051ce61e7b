# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Dumps that lie on this machine, looked at: what heap_analyze, heap_compare and leak_report do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from ..plugins.module_utils.formats import unit_name
from ..plugins.plugin_utils.archive.archive import Archive
from ..plugins.plugin_utils.base import libraries
from ..plugins.plugin_utils.driver.analyze import analyze, require
from ..plugins.plugin_utils.driver.formats import Request
from ..plugins.plugin_utils.driver.sources import Source, open_reader
from ..plugins.plugin_utils.export import comparison
from ..plugins.plugin_utils.leaks import hints
from ..plugins.plugin_utils.leaks.survey import Scope
from ..plugins.plugin_utils.report import files
from ..plugins.plugin_utils.report.host_report import Limits
from ..plugins.plugin_utils.views.compare import By, Side, compare
from ..plugins.plugin_utils.views.selection import Selection
from ..plugins.plugin_utils.views.table import Measure

Warn = Callable[[str], None]


def analyzed(request: Request, dump: Path, binary_path: Sequence[Path], warn: Warn) -> bytes:
    """One dump, as asked for. Raises ControllerError."""
    require(request.kind)
    with open_reader([dump], None, binary_path, None, False) as reader:
        source = reader.read(dump)
        answer = analyze(request, source, None, reader.images)
        for warning in dict.fromkeys(reader.warnings):
            warn(warning)
    return answer.content


def compared(
    before: Path, after: Path, focus: str, limit: int, as_json: bool, binary_path: Sequence[Path], warn: Warn
) -> str:
    """What is different between two dumps. Raises ControllerError."""
    libraries.require(*libraries.DUMPS)
    with open_reader([before, after], None, binary_path, None, False) as reader:
        first, second = (_side(reader.read(path), Selection(focus, "")) for path in (before, after))
        for warning in dict.fromkeys(reader.warnings):
            warn(warning)
    found = compare(first, second, Measure.INUSE_SPACE, By.STACKS)
    for warning in found.warnings:
        warn(warning)
    if as_json:
        return comparison.as_json(found, first, second)
    return comparison.text(found, first, second, limit)


def reported(archive: Path, dest: Path, unit: str, warn: Warn) -> files.Files:
    """The reports on an archive, written. Raises ArchiveError, MissingLibraryError, OutputError, UnitNameError."""
    libraries.require(*libraries.JUDGING, "jinja2", "yaml")
    scope = Scope(units=[unit_name.service(unit)] if unit else [])
    here = Path.cwd()
    triage = here / "offheap" / "triage"
    return files.make(
        Archive.open(here / archive), scope, Limits(hints=hints.load([])), here / dest, True, False, warn, triage
    )


def _side(source: Source, selection: Selection) -> Side:
    return Side(selection.apply(source.samples), source.executable, {"dump": str(source.path), **source.facts})
