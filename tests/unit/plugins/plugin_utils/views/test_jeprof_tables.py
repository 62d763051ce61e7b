# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Our table of functions against jeprof's, row by row, on programs of many kinds.

Names and numbers are compared separately, so that a difference in a name does not hide one in a number:

- With jeprof's own names for the addresses, our table of functions must be jeprof's, flat and cumulative, to the byte.
- For each address our name must be jeprof's, or the difference must be one of those in ``why_different``, each a fault
  of jeprof's.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from ansible_collections.offheap.profiler.plugins.plugin_utils.driver.sources import DumpReader, Images, Source
from ansible_collections.offheap.profiler.plugins.plugin_utils.model.frame import Frame, Kind
from ansible_collections.offheap.profiler.plugins.plugin_utils.model.location import Location
from ansible_collections.offheap.profiler.plugins.plugin_utils.model.raw import Records
from ansible_collections.offheap.profiler.plugins.plugin_utils.model.samples import BYTES, Samples, located, named
from ansible_collections.offheap.profiler.plugins.plugin_utils.readers import heap_v2
from ansible_collections.offheap.profiler.plugins.plugin_utils.views.table import Granularity, Measure, Table
from ansible_collections.offheap.profiler.tests.unit.plugins.plugin_utils.readers.test_jeprof import _jeprof
from ansible_collections.offheap.profiler.tests.unit.plugins.plugin_utils.views import profiled_programs

ROW = re.compile(r" *(-?\d+) +\S+ +\S+ +(-?\d+) +\S+ (.*)")
ALLOCATOR = Frame("malloc", "")
UNKNOWN = "?? ??:0"


@dataclass(frozen=True)
class Said:
    """What jeprof says of a dump: (name, flat, cumulative) of functions, and the rows of each address, innermost first.

    A function without a name has a separate row for each address, always called UNKNOWN.
    """

    total: int
    functions: list[tuple[str, int, int]]
    names: dict[int, list[str]]
    lines: dict[int, list[str]]


@dataclass(frozen=True)
class Case:
    kind: str
    dump: Records
    source: Source
    said: Said


def jeprof(program: str, dump: Path, *options: str) -> str:
    command = [_jeprof(), "--text", "--show_bytes", *options, program, str(dump)]
    done = subprocess.run(command, capture_output=True, check=True, timeout=300)
    return done.stdout.decode("utf-8", "replace")


def ask(program: str, dump: Path, source: Source) -> Said:
    text = jeprof(program, dump)
    found = re.match(r"Total: (\d+)", text)
    assert found, text
    functions = [(name, int(flat), int(cumulative)) for flat, cumulative, name in ROW.findall(text)]
    known = {name for name, _flat, _cumulative in functions}
    order = {at.address - 1: [short(frame.label) for frame in frames] for at, frames in places(source.samples)}
    lines: dict[int, list[str]] = {}
    for _flat, _cumulative, row in ROW.findall(jeprof(program, dump, "--addresses")):
        address, _space, rest = row.partition(" ")
        lines.setdefault(int(address, 16), []).append(rest)
    names = {}
    for address, rows in lines.items():
        named = {_name(row, known): row for row in rows}
        # jeprof's table does not order inlined calls, and leaves only the outermost one unmarked.
        inside = order.get(address, [])
        names[address] = sorted(named, key=lambda name, inside=inside: _depth(name, inside))  # type: ignore[misc]
        lines[address] = [named[name] for name in names[address]]
    return Said(int(found[1]), functions, names, lines)


def _depth(name: str, inside: list[str]) -> int:
    if not name.endswith(" (inline)"):
        return len(inside)
    return inside.index(short(name)) if short(name) in inside else 0


def _name(row: str, known: set[str]) -> str:
    ends = [position for position in range(len(row), 0, -1) if position == len(row) or row[position] == " "]
    return next((row[:end] for end in ends if row[:end] in known), row)


def places(samples: Samples) -> list[tuple[Location, list[Frame]]]:
    """Each location with its frames, the innermost first."""
    frames: list[list[Frame]] = [[] for _location in samples.locations]
    for frame, at in zip(samples.place_frame.tolist(), samples.place_location.tolist(), strict=True):
        frames[at].append(samples.frames[frame])
    return list(zip(samples.locations, frames, strict=True))


SLOW = {"python", "java", "node"}
PARAMETERS = [
    pytest.param(kind, id=kind.name, marks=[pytest.mark.slow] if kind.name in SLOW else [])
    for kind in profiled_programs.KINDS
]


@pytest.fixture(scope="module", params=PARAMETERS)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    directory = tmp_path_factory.mktemp(request.param.name)
    program, path = profiled_programs.run(request.param, directory)
    dump = heap_v2.parse(path.read_bytes(), path.name)
    source = DumpReader(Images([Path("/")]), directory / "symcaches").read(path)
    return Case(request.param.name, dump, source, ask(program, path, source))


def with_jeprofs_names(case: Case) -> Samples:
    leaves = {case.dump.addresses[stack[0]] for stack in case.dump.stacks() if stack}

    def resolve(locations: Sequence[Location]) -> Sequence[Sequence[Frame]]:
        frames: list[Sequence[Frame]] = []
        for address in (location.address for location in locations):
            names = case.said.names.get(address - 1) or (case.said.names.get(address) if address in leaves else None)
            # jeprof has cut off what it never shows, as part of the allocator.
            shown = [name if name != UNKNOWN else f"{name} {address:#x}" for name in names or []]
            frames.append([Frame(name, "") for name in shown] or [ALLOCATOR])
        return frames

    return named(located(case.dump, {}), resolve)


def about(value: float) -> set[int]:
    """jeprof adds up in the order of a Perl hash: its last bits differ from run to run, and may cross an integer."""
    return {int(value - 1e-6), int(value + 1e-6)}


@pytest.mark.slow
def test_functions_flat_and_cumulative_are_jeprofs(case: Case) -> None:
    table = Table(with_jeprofs_names(case), Granularity.FUNCTIONS, Measure.INUSE_SPACE)
    assert case.said.total in about(table.total)
    rows = [row for row in table.rows() if row.name != "[no stack]"]
    ours = sorted((re.sub(r" 0x[0-9a-f]+$", "", row.name), row.flat, row.cumulative) for row in rows)
    theirs = sorted(case.said.functions)
    assert [name for name, _flat, _cumulative in ours] == [name for name, _flat, _cumulative in theirs]
    different = [
        (mine, its)
        for mine, its in zip(ours, theirs, strict=True)
        if its[1] not in about(mine[1]) or its[2] not in about(mine[2])
    ]
    assert different == []


def short(name: str) -> str:
    """The name by jeprof's ShortFunctionName, without what it or addr2line adds."""
    name = name.removesuffix(" (inline)")
    name = re.sub(r"@@?[A-Z][A-Za-z_0-9.]*$|@[0-9a-f]+$", "", name)
    while (shorter := re.sub(r"\([^()]*\)(\s*const)?", "", name)) != name:
        name = shorter
    while (shorter := re.sub(r"<[^<>]*>", "", name)) != name:
        name = shorter
    name = re.sub(r"^.*\s+(\w+::)", r"\1", name)
    return re.sub(r"\.(?:part|cold|constprop|isra|localalias)(?:\.\d+)?|\[clone[^\]]*\]", "", name).strip()


def why_different(case: Case, location: Location, ours: list[Frame]) -> str:
    """What explains a difference, empty if nothing does. All but the last are faults of jeprof's."""
    rows = case.said.lines[location.address - 1]
    if not location.in_file:
        return "memory of no file is given to the main program, or is a bare number"
    if not ours[0].function and any(re.search(r"\?\?:|:\?$|:0$", row) for row in rows):
        return "the nearest symbol below is blamed, though it ends before the address"
    if rows[0].startswith(("0x", "??", "0000")):
        return "nothing is known of a file without .so at the end of its line (deleted, or a second program)"
    if case.said.names[location.address - 1] == ["__start_context"]:
        return "the nearest symbol below is blamed, though it ends before the address"
    if any(Path("/usr/lib/debug").glob("*")) and location.path.startswith(("/usr/lib", "/lib")):
        return "the distribution's debug files in /usr/lib/debug are read, which Images was not given"
    return ""


def test_names_are_jeprofs_but_for_its_faults(case: Case) -> None:
    unexplained = []
    for location, ours in places(case.source.samples):
        theirs = case.said.names.get(location.address - 1)
        if theirs is None or [short(frame.label) for frame in ours] == [short(name) for name in theirs]:
            continue
        if not why_different(case, location, ours):
            unexplained.append((hex(location.address), [f.label for f in ours], case.said.lines[location.address - 1]))
    assert unexplained == []


def test_inlined_calls_are_marked(case: Case) -> None:
    if case.kind == "c":
        names = {frame.function for frame in case.source.samples.frames if frame.kind is Kind.INLINED}
        assert {"inner", "outer"} <= names


def test_threads_add_up_where_each_has_its_own_stacks(case: Case) -> None:
    samples = case.source.samples
    parts = sum(samples.of_thread(uid).total(BYTES) for uid in samples.thread_uids())
    # Unbiasing thread by thread does not give the same as stack by stack, but nearly.
    assert parts == pytest.approx(samples.total(BYTES), rel=0.1)
