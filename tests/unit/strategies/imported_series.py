# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Profiles of other tools, imported ten minutes apart, and what is said of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ansible_collections.offheap.profiler.plugins.plugin_utils.archive.archive import Archive
from ansible_collections.offheap.profiler.plugins.plugin_utils.columns.series_reader import reading
from ansible_collections.offheap.profiler.plugins.plugin_utils.driver.imports import Origin, import_profiles
from ansible_collections.offheap.profiler.plugins.plugin_utils.driver.told_options import told_in_short
from ansible_collections.offheap.profiler.plugins.plugin_utils.leaks.scope import Scope
from ansible_collections.offheap.profiler.plugins.plugin_utils.leaks.survey import Host, survey

START, APART = 1763780400, 600
#: by this a growth from one profile to the next becomes one of bytes a day
A_DAY = 86400 // APART


def judged(files: Sequence[Path], directory: Path, told: str = "", images: Sequence[Path] = ()) -> Host:
    """What is said of the files, in this order. ``images`` are those of the program, for profiles without names; the
    system's are missed."""
    for step, file in enumerate(files):
        origin = Origin("web", "app1", time=START + float(APART) * step, told=told_in_short(told))
        import_profiles([file], origin, directory / "archive", images)
    (host,) = surveyed(directory / "archive", "libc.so.6: no image with build-id" if images else "")
    return host


def surveyed(root: Path, expected: str = "") -> list[Host]:
    """What is said of each host in an archive, without a warning but the expected one."""
    archive, warnings = Archive.open(root), list[str]()
    with reading(archive, warnings.append) as reader:
        found = list(survey(archive, reader, Scope(), warnings.append))
    assert [warning for warning in warnings if not expected or not warning.startswith(expected)] == []
    return found
