# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""The text of gperftools, of tcmalloc's text endpoints, and of Go's with debug=1.

    heap profile: <objects>: <bytes> [<accumulated objects>: <accumulated bytes>] @ <kind>
    <objects>: <bytes> [<accumulated objects>: <accumulated bytes>] @ 0x<leaf> ... 0x<root>

    MAPPED_LIBRARIES:
    <verbatim /proc/<pid>/maps>

Go has no maps, but may name each frame below its stack: ``#\t0x<call>\t<function>+0x<offset>\t<file>:<line>``. Older
tools head the maps with ``--- Memory map: ---`` and shorten their lines: ``<start>-<end>: $source/app``.

The kind says what the numbers are, as google/pprof reads it (profile/legacy_profile.go, parseHeap):

- ``heap_v2/R``, ``heapz_v2/R``: live samples, one in R bytes. tcmalloc repeats them in the brackets, so these do not
  count what was allocated.
- ``heap/N``: the same with R = N / 2, as Go writes it, where the brackets do count what was allocated.
- ``heapprofile``: every allocation (HEAPPROFILE of gperftools), live and since the start.
- ``growth``, ``growthz``: what the allocator took from the kernel and has kept: not live memory.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from ...module_utils.formats import maps
from ...module_utils.formats.maps import Mapping
from ..model.frame import Frame
from ..model.raw import Records, Told
from ..model.sampling import EXACT, Measure, Sampling, Scheme
from .format_error import FormatError, UnusableError
from .stack_builder import LARGEST, StackBuilder

_COUNTS = rb" *(\d{1,20}): *(\d{1,20}) *\[ *(\d{1,20}): *(\d{1,20}) *\] *@ *"
_HEADER = re.compile(rb"heap profile:" + _COUNTS + rb"([a-z][a-z0-9_]{0,19})(?:/(\d{1,20}))? *\n")
_STACK = re.compile(_COUNTS + rb"((?:0x[0-9a-f]{1,16}(?: |$))*)$")
_MAPS = (b"MAPPED_LIBRARIES:", b"--- Memory map: ---")
# gperftools itself, before its maps: what the tool $PPROF_PATH would find.
_BESIDE_MAPS = b"#"
_SHORT_MAP = re.compile(rb"\s*([0-9a-f]{1,16})-([0-9a-f]{1,16}): *([^\s\0]{1,4096})\s*\Z")
# A name that the paths below it stand for: build=<path>, source=<path>
_SHORTENED = re.compile(rb"\s*([a-z]{1,20})=([^\n\0]{0,4096})\Z")
_NAMED_BY_GO = re.compile(rb"#\t0x[0-9a-f]{1,16}\t+([^\t]{1,4096})\+0x[0-9a-f]{1,16}\t+([^\t]{1,4096}):(\d{1,9})\Z")
_WARNING = b"%warn"


def recognizes(data: bytes) -> bool:
    return data.startswith((b"heap profile:", _WARNING))


def parse(data: bytes, name: str, _told: Told) -> Records:
    """The profile in ``data``; ``name`` is only for messages. Raises FormatError, UnusableError."""
    if data.startswith(_WARNING):
        raise UnusableError(
            name,
            "has no samples, since they are off in its program: set TCMALLOC_SAMPLE_PARAMETER=524288 (bytes between"
            " samples) and start it again",
        )
    header = _HEADER.match(data)
    if header is None:
        raise FormatError(name, 1, "'heap profile: <n>: <n> [<n>: <n>] @ <kind>'", data.split(b"\n", 1)[0])
    kind = header[5].decode("ascii")
    measure, sampling = _kind(kind, int(header[6] or 0), name)
    stacks = _Stacks(StackBuilder(name), 4 if kind in ("heapprofile", "heap") else 2)
    mappings: list[Mapping] | None = [] if kind == "heap" else None
    lines = enumerate(data[header.end() :].split(b"\n"), 2)
    for number, line in lines:
        if line.startswith(_MAPS):
            mappings = list(_mappings(lines, name))
        elif line.startswith(b"#"):
            stacks.comment(line)
        elif line.strip():
            match = _STACK.match(line)
            if match is None:
                raise FormatError(name, number, "a stack '<n>: <n> [<n>: <n>] @ 0x...'", line)
            stacks.begin(match)
    if mappings is None:
        raise FormatError(name, data.count(b"\n"), "'MAPPED_LIBRARIES:' before the end of the file (it is cut off)")
    return stacks.ended().records(measure, sampling, mappings)


class _Stacks:
    """Takes lines of stacks, each perhaps with comments that name its frames, to the builder."""

    def __init__(self, builder: StackBuilder, kept: int) -> None:
        self._builder = builder
        self._kept = kept
        self._stack: re.Match[bytes] | None = None
        self._names: list[int] = []

    def begin(self, stack: re.Match[bytes]) -> None:
        self.ended()
        self._stack = stack

    def comment(self, line: bytes) -> None:
        frame = _NAMED_BY_GO.match(line)
        if frame is not None and self._stack is not None:
            function, file = (text.decode("utf-8", "replace") for text in frame.groups()[:2])
            self._names.append(self._builder.named(Frame(function, "", file=file, line=int(frame[3]))))

    def ended(self) -> StackBuilder:
        """The builder, with all that came so far."""
        if self._stack is not None:
            *counts, addresses = self._stack.groups()
            places = self._names or [self._builder.address(int(address, 16)) for address in addresses.split()]
            self._builder.add(places, [int(count) for count in counts[: self._kept]])
        self._stack, self._names = None, []
        return self._builder


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
    shortened: dict[bytes, bytes] = {}
    for number, line in lines:
        if not line or line.startswith(_BESIDE_MAPS):
            continue
        named = _SHORTENED.match(line)
        short = _SHORT_MAP.match(line)
        if named is not None:
            shortened[named[1]] = named[2]
        elif short is not None:
            start, end, path = int(short[1], 16), int(short[2], 16), short[3]
            for key, stands_for in shortened.items():
                path = path.replace(b"$" + key, stands_for)
            yield Mapping(start, end, "r-xp", 0, path[:4096].decode("utf-8", "replace"), False)
        else:
            try:
                yield maps.parse_line(line)
            except maps.MapsError:
                raise FormatError(name, number, "a line of /proc/<pid>/maps", line) from None
