# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Commands on dumps and on an archive's captures: they ask no host."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fabric import task
from invoke.context import Context
from invoke.exceptions import Exit

from ..plugins.module_utils.formats.errors import OffheapError
from ..plugins.plugin_utils.base.byte_size import as_text
from ..plugins.plugin_utils.base.durations import duration, moment
from ..plugins.plugin_utils.base.options import user_path
from ..plugins.plugin_utils.base.printable import printable_lines
from . import screen
from .fab_program import at_least

if TYPE_CHECKING:
    from ..plugins.module_utils.formats.capture_facts import CaptureFacts
    from ..plugins.plugin_utils.archive.archive import Archive

ARCHIVE = "offheap/archive"
ARCHIVE_HELP = f"directory of the archive, or its address ({ARCHIVE})"
ONLY_HELP = "only this service; may be given several times"
# Of what is worth trying; docs/costs.md has what each costs.
_EXPONENTS, _DEFAULT = range(13, 21), 19
#: how often --unit was given, and with what
Units = list[str] | None
_FILE_HELP = {
    "archive": f"where UNIT@HOST is looked up ({ARCHIVE})",
    "binary_path": "where executables and libraries are, in the form of PPROF_BINARY_PATH",
    "source": "measure:unit:interval where the file does not say it, as in live:bytes:1",
}
_MEASURE_HELP = {"measure": "inuse_objects, alloc_space or alloc_objects in place of inuse_space"}
_JSON_HELP = {"json": "print JSON"}
# Fabric has no types.
command: Callable[..., Callable[[Callable[..., None]], Any]] = task


def _paths(text: str) -> list[Path]:
    return [user_path(path) for path in text.split(":") if path]


@contextmanager
def failing() -> Iterator[None]:
    """Turn errors of the library into a message and an exit status."""
    try:
        yield
    except OffheapError as error:
        raise Exit(str(error), 2) from error


def _dump_named(name: str, archive: str) -> Path:
    from . import offline

    with failing():
        return offline.dump_named(name, archive)


@command(help={**_JSON_HELP, "leak": "what the service loses in a day, such as 60MiB"})
def wait(_context: Context, leak: str, json: bool = False) -> None:
    """
    How long a leak of so much a day has to be watched until it is told, by how finely memory is sampled.

        fab wait 60MiB
    """
    from ..plugins.plugin_utils.base import byte_size
    from ..plugins.plugin_utils.leaks.waiting import until_told

    show = screen.Screen(json)
    with failing():
        rate = byte_size.parse(leak)
        if not rate:
            raise byte_size.ByteSizeError("what does not leak is never told: name what is lost in a day, such as 60MiB")
    rows = [(lg, until_told(rate, 1 << lg)) for lg in _EXPONENTS]
    if json:
        show.json([{"lg_prof_sample": lg, "interval": 1 << lg, "seconds": round(seconds)} for lg, seconds in rows])
        return
    told = [(f"{lg}{' (default)' if lg == _DEFAULT else ''}", as_text(1 << lg), duration(time)) for lg, time in rows]
    show.table(("LG_PROF_SAMPLE", "ONE SAMPLE IN", "TOLD AFTER"), told, (1,))


@command(help={**_JSON_HELP, "archive": ARCHIVE_HELP, "unit": ONLY_HELP}, iterable=["unit"])
def captures(_context: Context, archive: str = ARCHIVE, unit: Units = None, json: bool = False) -> None:
    """
    What is in the archive: each process's captures, with the name by which other commands take the newest.

        fab captures
    """
    from . import offline

    show = screen.Screen(json)
    with failing():
        found = offline.captures(archive, unit or [], lambda text: show.say(text, "yellow"))
    if json:
        keys = ("unit", "host", "process", "time")
        show.json([{"path": str(each.path), **{key: getattr(each, key) for key in keys}} for each in found])
        return
    rows = []
    for (name, process), group in groupby(found, key=lambda each: (offline.name_of(each), each.process)):
        own = list(group)
        resident = own[-1].facts.memory.get("rss")
        size = "" if resident is None else as_text(resident)
        rows.append((name, process, str(len(own)), moment(own[0].time), moment(own[-1].time), size))
    show.table(("NAME", "PROCESS", "CAPTURES", "FIRST", "LAST", "RSS"), rows, (2, 5))


@command(
    name="import",
    help={
        **{key: _FILE_HELP[key] for key in ("binary_path", "source")},
        **_JSON_HELP,
        "files": "a file, a directory, a pattern in quotes, or the address of a Parca or Pyroscope",
        "unit": "the service",
        "host": "the host that they come from",
        "time": "when a single profile was taken, as 2026-11-22T03:00:00 in UTC (what it says, or its file's time)",
        "process": "the process's number, where the unit has several (0)",
        "archive": ARCHIVE_HELP,
        "query": 'what to take from such an address, as memory:inuse_space:bytes:space:bytes{instance="app1:6060"}',
        "since": "from when on to take it, as 2026-11-22T03:00:00 in UTC (for a day)",
        "headers": "a file with headers for such an address, one a line, as Authorization: Bearer ...",
    },
)
def import_files(
    _context: Context,
    files: str,
    unit: str,
    host: str,
    time: str = "",
    process: int = 0,
    archive: str = ARCHIVE,
    binary_path: str = "",
    source: str = "",
    query: str = "",
    since: str = "",
    headers: str = "",
    json: bool = False,
) -> None:
    """
    Profiles of other tools into the archive, where `fab report` judges them.

        fab import 'profiles/*.pb.gz' --unit frontend --host app1
        fab import https://parca.example.org --query '...{instance="app1:6060"}' --unit frontend --host app1
    """
    from ..plugins.plugin_utils.base import progress
    from ..plugins.plugin_utils.base.durations import seconds_of
    from ..plugins.plugin_utils.driver.imports import Origin
    from ..plugins.plugin_utils.driver.told_options import told_in_short
    from . import offline

    show = screen.Screen(json)
    with failing():
        when = seconds_of(time) if time else None
        origin = Origin(unit, host, int(process), time=when, told=told_in_short(source))
        told = progress.for_people(show.say)
        with offline.profiles(files, query, since, Path(headers) if headers else None, told) as there:
            found = offline.imported(there, origin, archive, _paths(binary_path))
    if json:
        show.json([{"src": str(one.file), "path": str(one.path), "new": one.new} for one in found])
        return
    rows = [
        (str(one.file), one.facts.source, one.facts.measure, moment(one.facts.dump.time), "" if one.new else "known")
        for one in found
    ]
    show.table(("FILE", "SOURCE", "MEASURE", "TAKEN", ""), rows, ())


def _analyzed(path: Path, images: tuple[str, str], measure: str, show: screen.Screen, **request: Any) -> bytes:
    """``images`` are the options binary_path and source."""
    from ..plugins.plugin_utils.driver.formats import Request
    from . import offline

    with failing():
        request["measure"] = offline.measure(measure)
        places = offline.places(_paths(images[0]), images[1])
        return offline.analyzed(Request(**request), path, places, lambda text: show.say(text, "yellow"))


def show_captures(store: Archive, captures: list[CaptureFacts], rows: int, show: screen.Screen) -> int:
    """What each holds and, if that was asked, who holds it. Returns how many cannot be read: they hide no other."""
    from . import offline

    unreadable = 0
    for capture in captures:
        try:
            sys.stdout.write(top_text(store.place(capture), "", rows, False, ("", ""), "", show))
            with failing():
                sys.stdout.writelines(f"{line}\n" for line in offline.held(store, capture, rows, show.say))
        except Exit as problem:
            unreadable += 1
            show.say(f"{capture.host}: {problem.message}", "red")
    return unreadable


def top_text(
    path: Path, focus: str, rows: int, cumulative: bool, images: tuple[str, str], measure: str, show: screen.Screen
) -> str:
    """The functions that hold most, or JSON if the screen shows that."""
    from ..plugins.plugin_utils.export.top import Look
    from ..plugins.plugin_utils.views.selection import Selection

    with failing():
        at_least(1, rows=rows)
    look = Look(cumulative, rows, False)
    kind = "json" if show.as_json else "text"
    content = _analyzed(path, images, measure, show, kind=kind, look=look, selection=Selection(focus))
    return printable_lines(content.decode("utf-8", "replace"))


@command(
    help={
        **_FILE_HELP,
        **_MEASURE_HELP,
        **_JSON_HELP,
        "focus": "only stacks with a frame that matches",
        "rows": "functions to show (20)",
        "cum": "sort by what callees hold, too",
    }
)
def top(
    _context: Context,
    dump: str,
    focus: str = "",
    measure: str = "",
    rows: int = 20,
    cum: bool = False,
    archive: str = ARCHIVE,
    binary_path: str = "",
    source: str = "",
    json: bool = False,
) -> None:
    """
    What holds the memory in a dump: a file, a capture's directory, or the newest capture of UNIT@HOST.

        fab top frontend@app1
    """
    path = _dump_named(dump, archive)
    sys.stdout.write(top_text(path, focus, rows, cum, (binary_path, source), measure, screen.Screen(json)))


@command(
    help={
        **_FILE_HELP,
        **_MEASURE_HELP,
        **_JSON_HELP,
        "focus": "only stacks with a frame that matches",
        "rows": "differences to show (20)",
    }
)
def diff(
    _context: Context,
    before: str,
    after: str,
    focus: str = "",
    measure: str = "",
    rows: int = 20,
    archive: str = ARCHIVE,
    binary_path: str = "",
    source: str = "",
    json: bool = False,
) -> None:
    """
    What grew, shrank, appeared and vanished between two dumps, and which of it is more than chance.

        fab diff a.heap frontend@app1
    """
    from ..plugins.plugin_utils.driver.compare_dumps import CompareRequest
    from ..plugins.plugin_utils.views.selection import Selection
    from . import offline

    show = screen.Screen(json)
    paths = _dump_named(before, archive), _dump_named(after, archive)
    with failing():
        at_least(1, rows=rows)
        places = offline.places(_paths(binary_path), source)
        request = CompareRequest(offline.measure(measure), selection=Selection(focus), as_json=json, limit=rows)
        text = offline.compared(*paths, request, places, lambda text: show.say(text, "yellow"))
    sys.stdout.write(printable_lines(text))


@command(
    help={
        **_FILE_HELP,
        **_MEASURE_HELP,
        "dest": "where to write it (x.html for x.heap)",
        "force": "replace an existing file",
    }
)
def flame(
    _context: Context,
    dump: str,
    dest: str = "",
    force: bool = False,
    measure: str = "",
    archive: str = ARCHIVE,
    binary_path: str = "",
    source: str = "",
) -> None:
    """
    A dump as a flame graph: one HTML file that needs no network.

        fab flame frontend@app1
    """
    from ..plugins.plugin_utils.base.output_file import write

    path = _dump_named(dump, archive)
    page = Path(dest) if dest else Path.cwd() / f"{Path(dump).name.removesuffix('.heap') or 'dump'}.html"
    content = _analyzed(path, (binary_path, source), measure, screen.Screen(), kind="flamegraph")
    with failing():
        write(page, content, force)
    print(page)


@command(help={**_FILE_HELP, **_MEASURE_HELP, "focus": "the functions, as a regular expression"})
def peek(
    _context: Context,
    dump: str,
    focus: str,
    measure: str = "",
    archive: str = ARCHIVE,
    binary_path: str = "",
    source: str = "",
) -> None:
    """
    Who calls the functions that match, and what they call.

        fab peek frontend@app1 --focus inflate
    """
    path = _dump_named(dump, archive)
    content = _analyzed(path, (binary_path, source), measure, screen.Screen(), kind="peek", function=focus)
    sys.stdout.write(printable_lines(content.decode("utf-8", "replace")))
