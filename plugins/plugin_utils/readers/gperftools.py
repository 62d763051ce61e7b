# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""The text of gperftools and of tcmalloc's text endpoints.

    heap profile: <objects>: <bytes> [<accumulated objects>: <accumulated bytes>] @ <kind>
    <objects>: <bytes> [<accumulated objects>: <accumulated bytes>] @ 0x<leaf> ... 0x<root>

    MAPPED_LIBRARIES:
    <verbatim /proc/<pid>/maps>

The kind says what the numbers are, as google/pprof reads it (profile/legacy_profile.go, parseHeap):

- ``heap_v2/R``, ``heapz_v2/R``: live samples, one in R bytes; ``heap/N`` is the same with R = N / 2. tcmalloc repeats
  them in the brackets, so these do not count what was allocated.
- ``heapprofile``: every allocation (HEAPPROFILE of gperftools), live and since the start.
- ``growth``, ``growthz``: what the allocator took from the kernel and has kept: not live memory.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from ...module_utils.formats import maps
from ...module_utils.formats.maps import Mapping
from ..model.raw import Records, Told
from ..model.sampling import EXACT, Measure, Sampling, Scheme
from .format_error import FormatError, UnusableError
from .stack_builder import LARGEST, StackBuilder

_COUNTS = rb" *(\d{1,20}): *(\d{1,20}) *\[ *(\d{1,20}): *(\d{1,20}) *\] *@ *"
_HEADER = re.compile(rb"heap profile:" + _COUNTS + rb"([a-z][a-z0-9_]{0,19})(?:/(\d{1,20}))? *\n")
_STACK = re.compile(_COUNTS + rb"((?:0x[0-9a-f]{1,16}(?: |$))*)$")
_MAPS = b"MAPPED_LIBRARIES:"
# gperftools itself, before its maps: what the tool $PPROF_PATH would find, and build=<path> for shortened paths.
_BESIDE_MAPS = (b"build=", b"#")


def recognizes(data: bytes) -> bool:
    return data.startswith(b"heap profile:")


def parse(data: bytes, name: str, _told: Told) -> Records:
    """The profile in ``data``; ``name`` is only for messages. Raises FormatError, UnusableError."""
    header = _HEADER.match(data)
    if header is None:
        raise FormatError(name, 1, "'heap profile: <n>: <n> [<n>: <n>] @ <kind>'", data.split(b"\n", 1)[0])
    measure, sampling = _kind(header[5].decode("ascii"), int(header[6] or 0), name)
    kept = 4 if measure is Measure.LIVE and sampling is EXACT else 2
    builder = StackBuilder(name)
    mappings: list[Mapping] | None = None
    lines = enumerate(data[header.end() :].split(b"\n"), 2)
    for number, line in lines:
        if line.startswith(_MAPS):
            mappings = list(_mappings(lines, name))
        elif line:
            match = _STACK.match(line)
            if match is None:
                raise FormatError(name, number, "a stack '<n>: <n> [<n>: <n>] @ 0x...'", line)
            *counts, stack = match.groups()
            places = [builder.address(int(address, 16)) for address in stack.split()]
            builder.add(places, [int(count) for count in counts[:kept]])
    if mappings is None:
        raise FormatError(name, data.count(b"\n"), "'MAPPED_LIBRARIES:' before the end of the file (it is cut off)")
    return builder.records(measure, sampling, mappings)


def _kind(kind: str, number: int, name: str) -> tuple[Measure, Sampling]:
    if number > LARGEST:
        raise FormatError(name, 1, "numbers of at most 64 bits")
    if kind in ("heap_v2", "heapz_v2"):
        return Measure.LIVE, Sampling(Scheme.POISSON, number) if number else Sampling(Scheme.UNKNOWN)
    if kind == "heap":
        return Measure.LIVE, Sampling(Scheme.POISSON, number // 2) if number > 1 else Sampling(Scheme.UNKNOWN)
    if kind == "heapprofile":
        return Measure.LIVE, EXACT
    if kind in ("growth", "growthz"):
        return Measure.GROWN, EXACT
    raise UnusableError(
        name, f"is a profile of {kind}, which is not memory that a program holds; ask for a heap profile"
    )


def _mappings(lines: Iterator[tuple[int, bytes]], name: str) -> Iterator[Mapping]:
    for number, line in lines:
        if not line or line.startswith(_BESIDE_MAPS):
            continue
        try:
            yield maps.parse_line(line)
        except maps.MapsError:
            raise FormatError(name, number, "a line of /proc/<pid>/maps", line) from None
