# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Dumps on this machine: what heap_analyze, heap_compare and leak_report do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from ..plugins.module_utils.formats import unit_name
from ..plugins.plugin_utils.archive.archive import Archive
from ..plugins.plugin_utils.base import libraries
from ..plugins.plugin_utils.driver.analyze import analyze_dump
from ..plugins.plugin_utils.driver.compare_dumps import CompareRequest, compare_dumps
from ..plugins.plugin_utils.driver.formats import Request
from ..plugins.plugin_utils.driver.sources import Places
from ..plugins.plugin_utils.driver.told_options import told_in_short
from ..plugins.plugin_utils.leaks import hints
from ..plugins.plugin_utils.leaks.survey import Scope
from ..plugins.plugin_utils.report import files
from ..plugins.plugin_utils.report.host_report import Limits
from ..plugins.plugin_utils.views.selection import Selection

Warn = Callable[[str], None]


def analyzed(request: Request, dump: Path, places: Places, warn: Warn) -> bytes:
    """One dump, analyzed as requested. Raises ControllerError."""
    return analyze_dump(request, dump, None, places, warn).content


def places(binary_path: Sequence[Path], source: str) -> Places:
    """Where the images are, and what the user says of the dump (told_in_short). Raises ControllerError."""
    return Places(binary_path=binary_path, told=told_in_short(source))


def compared(before: Path, after: Path, focus: str, limit: int, as_json: bool, places: Places, warn: Warn) -> str:
    """The differences between two dumps. Raises ControllerError."""
    request = CompareRequest(selection=Selection(focus, ""), as_json=as_json, limit=limit)
    done = compare_dumps(request, before, after, places)
    for warning in done.warnings:
        warn(warning)
    return done.content


def reported(archive: Path, dest: Path, unit: str, warn: Warn) -> files.Files:
    """The reports on an archive, written. Raises ArchiveError, MissingLibraryError, OutputError, UnitNameError."""
    libraries.require(*libraries.JUDGING, "jinja2", "yaml")
    scope = Scope(units=[unit_name.service(unit)] if unit else [])
    here = Path.cwd()
    triage = here / "offheap" / "triage"
    return files.make(
        Archive.open(here / archive), scope, Limits(hints=hints.load([])), here / dest, True, False, warn, triage
    )
