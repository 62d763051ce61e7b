# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Dumps on this machine: which there are, and what heap_analyze, heap_compare and leak_report do with them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from glob import glob
from pathlib import Path

from ..plugins.module_utils.formats import unit_name
from ..plugins.module_utils.formats.capture_facts import CaptureFacts
from ..plugins.module_utils.formats.dump_name import PERF_MAP, beside
from ..plugins.plugin_utils.archive import far_archive
from ..plugins.plugin_utils.archive.archive import INDEX, Archive, ArchiveError
from ..plugins.plugin_utils.archive.capture import Capture, capture_of
from ..plugins.plugin_utils.base import libraries
from ..plugins.plugin_utils.base.options import user_path
from ..plugins.plugin_utils.base.progress import Progress
from ..plugins.plugin_utils.columns.series_reader import reading
from ..plugins.plugin_utils.driver.analyze import analyze_dump
from ..plugins.plugin_utils.driver.compare_dumps import CompareRequest, compare_dumps
from ..plugins.plugin_utils.driver.formats import Request
from ..plugins.plugin_utils.driver.imports import Imported, Origin, import_profiles
from ..plugins.plugin_utils.driver.sources import AnalysisError, Places
from ..plugins.plugin_utils.driver.told_options import told_in_short
from ..plugins.plugin_utils.leaks import hints, who_holds
from ..plugins.plugin_utils.leaks.scope import Scope, of_now
from ..plugins.plugin_utils.model.stack_summary import render as short_path
from ..plugins.plugin_utils.report import files
from ..plugins.plugin_utils.report.host_report import Limits
from ..plugins.plugin_utils.views.table import Measure

Warn = Callable[[str], None]
_MOST_NAMES = 8


def captures(archive: str | Path, units: Sequence[str] = (), warn: Warn | None = None) -> list[Capture]:
    """The archive's captures, or those of services, by unit and host, oldest first. Raises OffheapError.

    ``warn`` is told of captures that are damaged, and of services that have none.
    """
    store = far_archive.opened(archive)
    names = list(dict.fromkeys(unit_name.service(unit) for unit in units))
    store.require(names)
    if warn is not None:
        for text in store.absent(names):
            warn(text)
    wanted: Sequence[str | None] = names or [None]
    found = [capture for name in wanted for capture in store.captures(name, warn=warn)]
    return sorted(found, key=lambda capture: (capture.unit, capture.host, capture.time))


def name_of(capture: Capture) -> str:
    """The short name of a capture's unit on its host, which ``dump_named`` takes: ``frontend@app1``."""
    return f"{capture.unit.removesuffix('.service')}@{capture.host}"


def dump_named(name: str, archive: str | Path) -> Path:
    """The dump that a user means: a file, a capture's directory, or the newest capture of ``UNIT@HOST``.

    Raises OffheapError if it is none of them, with names that would do.
    """
    path = user_path(name)
    if (path / INDEX).is_file():
        raise ArchiveError(f"{name} is an archive: name one of its captures, which `fab captures` lists")
    unit, at, host = name.rpartition("@")
    if path.exists():
        return path
    if not at:
        raise ArchiveError(f"there is no file {name}: name a dump's file, or UNIT@HOST, which `fab captures` lists")
    own = far_archive.opened(archive).captures(unit_name.service(unit), host)
    if own:
        newest = max(of_now(own, lambda _ahead: None), key=lambda capture: capture.time)
        newest.files()  # brings them here from an address
        return newest.path
    known = list(dict.fromkeys(name_of(capture) for capture in captures(archive)))
    more = f" and {len(known) - _MOST_NAMES} more" if len(known) > _MOST_NAMES else ""
    there = f"it has {', '.join(known[:_MOST_NAMES])}{more}"
    raise ArchiveError(f"{name} is neither a file nor a unit and host with captures in {archive}: {there}")


@contextmanager
def profiles(place: str, query: str, since: str, headers: Path | None, told: Progress) -> Iterator[str]:
    """Where the files of such a place are: a pattern or a directory, as it is, or what a server at its address keeps.

    ``headers`` is a file with a header a line, as secrets don't belong on a command line. Raises OffheapError.
    """
    if "://" not in place:
        if query or since or headers:
            raise AnalysisError(f"--query, --since and --headers are for a server, and {place} is no address")
        yield place
        return
    from ..plugins.plugin_utils.publish.profile_server import Server
    from ..plugins.plugin_utils.publish.stored_profiles import brought

    with brought(Server(place, headers=_headers(headers)), query, since, told) as files:
        yield str(files[0].parent)


def _headers(path: Path | None) -> dict[str, str]:
    try:
        lines = user_path(path).read_text().splitlines() if path else []
    except (OSError, UnicodeDecodeError) as error:
        raise AnalysisError(f"{path}: {getattr(error, 'strerror', None) or error}") from error
    named = (line.partition(":") for line in lines if line.strip())
    return {name.strip() if colon else "": value.strip() for name, colon, value in named}


def imported(pattern: str, origin: Origin, archive: str | Path, binary_path: Sequence[Path]) -> list[Imported]:
    """The files that match a pattern, or all of a directory, imported, oldest first. Raises OffheapError.

    What lies beside a dump comes along with it.
    """
    path = user_path(pattern)
    found = sorted(path.iterdir() if path.is_dir() else map(Path, glob(str(path))))
    files = [file for file in found if file.is_file() and file.suffix != PERF_MAP and not _lies_beside_another(file)]
    if not files:
        raise ArchiveError(f"there is no file {pattern}")
    done = import_profiles(files, origin, archive, binary_path)
    return sorted(done, key=lambda one: one.facts.dump.time)


def _lies_beside_another(file: Path) -> bool:
    name = beside(file.name)
    return name != file.name and file.with_name(name).is_file()


def analyzed(request: Request, dump: Path, places: Places, warn: Warn) -> bytes:
    """One dump, analyzed as requested. Raises ControllerError."""
    return analyze_dump(request, dump, None, places, warn).content


def places(binary_path: Sequence[Path], source: str) -> Places:
    """Where the images are, and what the user says of the dump (told_in_short). Raises ControllerError."""
    return Places(binary_path=binary_path, told=told_in_short(source))


def measure(name: str) -> Measure:
    """The measure of this name, bytes in use if it is empty. Raises AnalysisError."""
    try:
        return Measure(name or "inuse_space")
    except ValueError:
        choices = ", ".join(one.value for one in Measure)
        raise AnalysisError(f"--measure is {name!r}, which is not one of {choices}") from None


def compared(before: Path, after: Path, request: CompareRequest, places: Places, warn: Warn) -> str:
    """The differences between two dumps. Raises ControllerError."""
    done = compare_dumps(request, before, after, places)
    for warning in done.warnings:
        warn(warning)
    return done.content


def held(store: Archive, facts: CaptureFacts, rows: int, warn: Warn) -> list[str]:
    """Who held what lived when a capture was taken, in lines: the paths of which most lived. Raises ControllerError."""
    capture = capture_of(store.place(facts), facts)
    with reading(store, warn) as reader:
        found = reader.holders([capture], reader.maps([capture]))
    if found is None:
        return []
    lines = []
    for path, holding in who_holds.of_paths(found)[:rows]:
        lines += [short_path(path), f"    {holding.text}", f"    {holding.next_step}"]
    return lines


def reported(archive: str | Path, dest: Path, units: Sequence[str], warn: Warn, progress: Progress) -> files.Files:
    """The reports on an archive, written. Raises ArchiveError, MissingLibraryError, OutputError, UnitNameError."""
    libraries.require(*libraries.JUDGING, "jinja2", "yaml")
    scope = Scope(units=[unit_name.service(unit) for unit in units])
    here = Path.cwd()
    triage = here / "offheap" / "triage"
    store = far_archive.opened(archive)
    store.require(scope.units)
    limits = Limits(hints=hints.load([]))
    return files.make(store, scope, limits, here / user_path(dest), True, False, warn, triage, progress)
