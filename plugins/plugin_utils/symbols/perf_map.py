# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Perf maps: where a language runtime's compiled code lay, in the format that Linux's perf reads.

One line per piece of code, ``<start> <size> <name>``: hexadecimal numbers (HotSpot writes ``0x`` before them, Node and
CPython do not), then a name that may have spaces (tools/perf/Documentation/jit-interface.txt). Code is freed and its
memory reused, so pieces may overlap: the later line is right. HotSpot's maps end with lines of ours, one byte long: the
address of an interpreted method, or of one call with all methods that it stands for (hotspot_methods.py).
A map comes from a host that is not trusted. Invalid lines are skipped, and so is an unfinished last line, since
runtimes append to the file while they run.
"""

from __future__ import annotations

import gzip
import heapq
import json
import re
import zlib
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path

from ...module_utils.formats import limits
from ...module_utils.formats.perf_map_line import INLINED, MOST_CALLS
from ..base import child
from ..base.errors import ControllerError
from ..model import frame_table
from ..model.frame import Frame
from .runtime_frames import frame_of

#: the most pieces of code that a map may hold; a code cache has some 100,000 at most
_MOST_ENTRIES = 2_000_000
_LINE = re.compile(rb"(?:0[xX])?([0-9A-Fa-f]{1,16}) (?:0[xX])?([0-9A-Fa-f]{1,16}) ([^\n]{1,65536})\n")
_HIGHEST = 1 << 64
# As many maps as of one process are asked.
_KEPT = 12
# How many times smaller a packed map is, at most, unless it is a strange one.
_USUAL_RATIO = 20
#: characters of a method's name that are looked at
_LONGEST_NAME = 4096


class PerfMapError(ControllerError):
    """A perf map cannot be read. The message says which and why."""


class PerfMap:
    """Names of code by address. An address that no piece of code covers has none."""

    def __init__(self, entries: list[tuple[int, int, bytes]]) -> None:
        """``entries`` are start, end and name, in the order of the file."""
        self._starts: list[int] = []
        self._ends: list[int] = []
        self._names: list[bytes] = []
        self._frames: dict[int, tuple[Frame, ...]] = {}
        for start, end, name in _without_overlaps(entries):
            self._starts.append(start)
            self._ends.append(end)
            self._names.append(name)

    def __len__(self) -> int:
        return len(self._starts)

    def name(self, address: int) -> str | None:
        """The name as the map has it, or None."""
        position = self._position(address)
        return None if position is None else self._names[position].decode("utf-8", "replace")

    def _position(self, address: int) -> int | None:
        position = bisect_right(self._starts, address) - 1
        return None if position < 0 or address >= self._ends[position] else position

    def frames(self, address: int, executable: bool = True) -> tuple[Frame, ...]:
        """The frames at an address, the innermost (inlined) first; empty if the map has none.

        In memory that is not ``executable``, only the address of a method counts, which has a line of one byte.
        """
        position = self._position(address)
        if position is None or not (executable or self._ends[position] - self._starts[position] == 1):
            return ()
        frames = self._frames.get(position)
        if frames is None:
            frames = self._frames[position] = _frames(self._names[position].decode("utf-8", "replace"))
        return frames


def _frames(name: str) -> tuple[Frame, ...]:
    if not name.startswith(INLINED):
        return (frame_of(name[:_LONGEST_NAME]),)
    calls = name[len(INLINED) :].split(";")
    return tuple(frame_of(call[:_LONGEST_NAME]) for call in calls if call) if len(calls) <= MOST_CALLS else ()


def parse(text: bytes) -> PerfMap:
    """The map in ``text``. Raises PerfMapError if it has more pieces of code than any runtime."""
    entries: list[tuple[int, int, bytes]] = []
    for match in _lines(text):
        start, size = int(match[1], 16), int(match[2], 16)
        if size and start + size <= _HIGHEST and match[3].strip():
            entries.append((start, start + size, match[3].strip()))
            if len(entries) > _MOST_ENTRIES:
                raise PerfMapError(f"has more than {_MOST_ENTRIES} pieces of code")
    return PerfMap(entries)


def _lines(text: bytes) -> Iterator[re.Match[bytes]]:
    position = 0
    while position < len(text):
        match = _LINE.match(text, position)
        if match:
            yield match
            position = match.end()
            continue
        position = text.find(b"\n", position) + 1
        if not position:
            return


def read(path: Path) -> PerfMap:
    """The map in a file, compressed with gzip or not. Raises PerfMapError."""
    try:
        with path.open("rb") as stream:
            packed = stream.read(2) == b"\x1f\x8b"
        with gzip.open(path, "rb") if packed else path.open("rb") as stream:
            text = stream.read(limits.LARGEST_PERF_MAP + 1)
        if len(text) > limits.LARGEST_PERF_MAP:
            raise PerfMapError(f"is larger than {limits.LARGEST_PERF_MAP} bytes")
        return parse(text)
    except (OSError, EOFError, zlib.error, PerfMapError) as error:
        raise PerfMapError(f"{path}: {error}") from error


def named(path: Path, places: Sequence[tuple[int, bool]]) -> list[tuple[Frame, ...]]:
    """What the map says of each place: (address, whether its memory is executable). Raises ControllerError, OSError.

    It is read in the child process (base/child.py).
    """
    size = min(_USUAL_RATIO * path.stat().st_size, limits.LARGEST_PERF_MAP)
    found = frame_table.unpacked(json.loads(child.call(_named, path, list(places), size=size)))
    if len(found) != len(places):
        raise PerfMapError(f"{path}: got {len(found)} names for {len(places)} places")
    return found


def _named(path: Path, places: Sequence[tuple[int, bool]]) -> bytes:
    known = _read_once(path)
    return json.dumps(frame_table.packed(known.frames(*place) for place in places)).encode()


@lru_cache(maxsize=_KEPT)
def _read_once(path: Path) -> PerfMap:
    return read(path)


def _without_overlaps(entries: list[tuple[int, int, bytes]]) -> Iterator[tuple[int, int, bytes]]:
    """The pieces by address; where several overlap, the last one in ``entries`` wins.

    Sweeps over all starts and ends, with a heap of the open pieces, the latest on top.
    """
    order = sorted(range(len(entries)), key=lambda number: entries[number][0])
    bounds = sorted({bound for start, end, _name in entries for bound in (start, end)})
    active: list[int] = []
    following = 0
    pending: tuple[int, int, int] | None = None
    for position, bound in enumerate(bounds[:-1]):
        while following < len(order) and entries[order[following]][0] == bound:
            heapq.heappush(active, -order[following])
            following += 1
        while active and entries[-active[0]][1] <= bound:
            heapq.heappop(active)
        if not active:
            continue
        top = -active[0]
        if pending is not None and pending[2] == top and pending[1] == bound:
            pending = (pending[0], bounds[position + 1], top)
            continue
        if pending is not None:
            yield pending[0], pending[1], entries[pending[2]][2]
        pending = (bound, bounds[position + 1], top)
    if pending is not None:
        yield pending[0], pending[1], entries[pending[2]][2]
