# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""A recording of async-profiler without the frees that say nothing.

It records some allocations, but every free (src/mallocTracer.cpp), so nearly all of a recording is frees of what it has
not recorded. Of a recorded allocation, the first free of its address after it says when it died. So a free stays if it
is that. Nothing else is left out, and what is left is a recording.

This module is private to the collection.
"""

from __future__ import annotations

import bisect
import os
import re
from array import array
from types import TracebackType
from typing import Iterable, NamedTuple, Pattern

from ansible_collections.offheap.profiler.plugins.module_utils.formats import jfr_layout
from ansible_collections.offheap.profiler.plugins.module_utils.formats.jfr_header import HEADER, JfrError

_MALLOC, _FREE = "profiler.Malloc", "profiler.Free"
_NUMBER = rb"(?:[\x80-\xff]{0,7}[\x00-\x7f]|[\x80-\xff]{8}[\x00-\xff])"
# Root keeps 300 bytes of each for a while. An honest chunk has some 8 MiB, 25 bytes of each.
_MOST_MALLOCS = 1 << 19
# Where the header has a chunk's size, its constants, and the description of its types.
_SIZE, _CONSTANTS, _TYPES = 3, 4, 5


class _Thin(NamedTuple):
    """What stays of a chunk, the recorded addresses that are live at its end, and how many frees it had."""

    chunk: bytes
    live: set[bytes]
    frees: int


class Thinned:
    """A file in memory that chunks of one recording are added to. Use it as a context manager.

    ``fd`` is the file, ``size`` its bytes; ``frees`` were recorded, kept or not.
    """

    def __init__(self) -> None:
        self.fd = os.memfd_create("recording")
        self.size = self.frees = 0
        self._live: set[bytes] = set()

    def __enter__(self) -> Thinned:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self.fd)

    def add(self, chunks: Iterable[bytes]) -> None:
        """Add finished chunks, each the next of the recording. Raises JfrError."""
        for chunk in chunks:
            thin = self._thin(chunk)
            self.size += os.pwrite(self.fd, thin.chunk, self.size)
            self.frees += thin.frees
            self._live = thin.live

    def _thin(self, chunk: bytes) -> _Thin:
        types = jfr_layout.describe(chunk, HEADER.unpack_from(chunk)[_TYPES])
        events = jfr_layout.sort_events(chunk, types)
        numbers = {found.name: number for number, found in types.items()}
        if len(events[jfr_layout.CONSTANTS]) != 1 or not {_MALLOC, _FREE} <= numbers.keys():
            return _Thin(chunk, self._live, 0)
        mallocs, frees = (events[numbers[name]] for name in (_MALLOC, _FREE))
        if len(mallocs) > _MOST_MALLOCS:
            raise JfrError(f"it has more than {_MOST_MALLOCS} allocations in one chunk: record less of them (interval)")
        malloc, free = (_pattern(types, numbers[name]) for name in (_MALLOC, _FREE))
        born: dict[bytes, list[tuple[int, bytes]]] = {address: [(0, b"")] for address in self._live}
        for at in mallocs:
            when, address = _read(malloc, chunk, at)
            born.setdefault(address, []).append(when)
        for times in born.values():
            times.sort()  # the events of a chunk are in no order
        died: dict[tuple[bytes, int], tuple[tuple[int, bytes], int]] = {}
        for at in frees:
            when, address = _read(free, chunk, at)
            number = bisect.bisect_right(born.get(address, []), when) - 1
            if number >= 0:
                died[address, number] = min(died.get((address, number), (when, at)), (when, at))
        live = {address for address, times in born.items() if (address, len(times) - 1) not in died}
        # One free stays in any case: a recording without says that none were recorded.
        needed = {at for _when, at in died.values()}.union(frees[:1])
        return _Thin(_without(chunk, array("q", (at for at in frees if at not in needed))), live, len(frees))


def _pattern(types: dict[int, jfr_layout.Type], number: int) -> Pattern[bytes]:
    """What matches an event of this type, up to the last of the two that are wanted. Raises JfrError."""
    wanted = {"startTime", "address"}
    pattern = [_NUMBER * 2]  # its size, and its type
    for field in types[number].fields:
        width = jfr_layout.width(types, field)
        if width is None:
            break
        number_there = b".{%d}" % width if width else _NUMBER
        if field.name in wanted:
            wanted.remove(field.name)
            number_there = b"(?P<%s>%s)" % (field.name.encode(), number_there)
        pattern.append(number_there)
        if not wanted:
            return re.compile(b"".join(pattern), re.DOTALL)
    raise JfrError(f"{types[number].name} has no {' and no '.join(sorted(wanted))}")


def _read(pattern: Pattern[bytes], chunk: bytes, at: int) -> tuple[tuple[int, bytes], bytes]:
    """When an event was, in a form that compares, and its address, as it is written. Raises JfrError."""
    found = pattern.match(chunk, at)
    if found is None:
        raise JfrError("an event is cut off")
    when = found["startTime"]
    return (len(when), when[::-1]), found["address"]  # the lowest bits are written first


def _without(chunk: bytes, dropped: array[int]) -> bytes:
    """The chunk without the events at these places. Its header tells where two others are."""
    header = list(HEADER.unpack_from(chunk))
    ends = sorted((header[_CONSTANTS], header[_TYPES], len(chunk)))
    thin, begin = bytearray(), 0
    moved: dict[int, int] = {}
    for end in ends:
        for at in dropped[bisect.bisect_left(dropped, begin) : bisect.bisect_left(dropped, end)]:
            thin += chunk[begin:at]
            begin = at + jfr_layout.Cursor(chunk, at, len(chunk)).number()
        thin += chunk[begin:end]
        begin, moved[end] = end, len(thin)
    header[_SIZE], header[_CONSTANTS], header[_TYPES] = len(thin), moved[header[_CONSTANTS]], moved[header[_TYPES]]
    thin[: HEADER.size] = HEADER.pack(*header)
    return bytes(thin)
