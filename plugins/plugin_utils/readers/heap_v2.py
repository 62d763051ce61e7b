# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""jemalloc's heap profile text, ``heap_v2``, into raw columns.

The format is written by ``prof_data.c`` of jemalloc (4 to 5.3)::

    heap_v2/<sample interval in bytes>
      t*: <objects>: <bytes> [<accumulated objects>: <accumulated bytes>]
      t<n>: <the same>[ <thread name>]
    @ 0x<leaf> 0x<caller> ... 0x<root>
      t*: <the same>
      t<n>: <the same>

    MAPPED_LIBRARIES:
    <verbatim /proc/<pid>/maps>

Numbers here are as they stand in the file: sampled, not yet unbiased.

A dump comes from a host that is not trusted. Whatever the bytes are, :func:`parse` either returns a :class:`Dump`
or raises :class:`HeapFormatError`, and needs memory in proportion to the size of its input.
"""

from __future__ import annotations

import re
import sys
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NoReturn

from ..base.errors import ControllerError

_MAPS_HEADING = b"\nMAPPED_LIBRARIES:\n"
_SHOWN = 60
_LARGEST = (1 << 64) - 1
_NUMBERS = "numbers of at most 64 bits"

# Twenty digits hold any 64-bit number; more is no counter of jemalloc's, and would make int() slow.
_COUNTS = rb"(\d{1,20}): (\d{1,20}) \[(\d{1,20}): (\d{1,20})\]"
_HEADER = re.compile(rb"heap_v2/(\d{1,20})\n")
_TOTAL = re.compile(rb"  t\*: " + _COUNTS + rb"\n")
_THREAD = re.compile(rb"  t(\d{1,20}): " + _COUNTS + rb"(?: ([^\n]*))?\n")
# A stack is one run of bytes here: what is in it is looked at once per distinct address, not once per occurrence.
_STACK = re.compile(
    rb"@((?: [0-9a-fx ]*)?)\n  t\*: " + _COUNTS + rb"\n((?:  t\d{1,20}: \d{1,20}: \d{1,20} \[\d{1,20}: \d{1,20}\]\n)*)"
)
_STACK_THREAD = re.compile(rb"  t(\d+): " + _COUNTS + rb"\n")
_ADDRESS = re.compile(rb"0x[0-9a-f]{1,16}")
_MAPPING = re.compile(
    rb"([0-9a-f]{1,16})-([0-9a-f]{1,16}) ([r-][w-][x-][ps]) ([0-9a-f]{1,16}) "
    rb"[0-9a-f]+:[0-9a-f]+ \d{1,20}(?: +([^\n]*))?\n"
)
_DELETED = b" (deleted)"


class HeapFormatError(ControllerError):
    """A dump is not what jemalloc writes: names the file, the line (from 1) and what was expected there."""

    def __init__(self, file: str, line: int, expected: str, found: bytes | None = None) -> None:
        self.file = file
        self.line = line
        self.expected = expected
        shown = ""
        if found is not None:
            text = found[:_SHOWN].decode("ascii", "backslashreplace").encode("unicode_escape").decode("ascii")
            shown = f", found {text!r}" + ("..." if len(found) > _SHOWN else "")
        super().__init__(f"{file}, line {line}: expected {expected}{shown}")


@dataclass(frozen=True, slots=True)
class Mapping:
    """One line of the process's memory map; ``path`` is empty for anonymous memory and without " (deleted)"."""

    start: int
    end: int
    permissions: str
    offset: int
    path: str
    deleted: bool

    @property
    def executable(self) -> bool:
        return "x" in self.permissions


@dataclass(frozen=True, slots=True)
class Counts:
    """Objects and bytes as sampled: live now, and (with ``prof_accum``) since the start."""

    objects: int
    bytes: int
    accum_objects: int
    accum_bytes: int


@dataclass(frozen=True, slots=True)
class Thread:
    """A thread of the header. ``uid`` is jemalloc's own number, not the kernel's thread id."""

    uid: int
    counts: Counts
    name: str


class CountColumns:
    """The four counters of many records, one array each (unsigned 64 bit)."""

    __slots__ = ("accum_bytes", "accum_objects", "bytes", "objects")

    def __init__(self) -> None:
        self.objects = array("Q")
        self.bytes = array("Q")
        self.accum_objects = array("Q")
        self.accum_bytes = array("Q")

    def append(self, objects: bytes, size: bytes, accum_objects: bytes, accum_bytes: bytes) -> None:
        """Add one record, given as digits. OverflowError if a number has more than 64 bits."""
        self.objects.append(int(objects))
        self.bytes.append(int(size))
        self.accum_objects.append(int(accum_objects))
        self.accum_bytes.append(int(accum_bytes))

    def __len__(self) -> int:
        return len(self.objects)


@dataclass(frozen=True)
class Dump:
    """A parsed dump, in columns.

    ``addresses`` holds each distinct address once; stack ``i`` is the slice ``stack_ends[i-1]:stack_ends[i]`` of
    ``stack_addresses``, indices into ``addresses``, leaf first. ``counts`` has one record per stack (its ``t*`` line).
    ``thread_stack`` / ``thread_uid`` / ``thread_counts`` have one record per thread line of a stack.
    """

    name: str
    sample_interval: int
    total: Counts
    threads: list[Thread]
    addresses: array[int]
    stack_addresses: array[int]
    stack_ends: array[int]
    counts: CountColumns
    thread_stack: array[int]
    thread_uid: array[int]
    thread_counts: CountColumns
    mappings: list[Mapping]

    def stacks(self) -> Iterator[array[int]]:
        """Each stack as indices into ``addresses``, leaf first."""
        start = 0
        for end in self.stack_ends:
            yield self.stack_addresses[start:end]
            start = end


def parse(data: bytes, name: str) -> Dump:
    """The dump in ``data``; ``name`` is only for messages. Raises HeapFormatError."""
    header = _HEADER.match(data)
    if header is None:
        raise HeapFormatError(name, 1, "the header 'heap_v2/<sample interval>'", data.split(b"\n", 1)[0])
    # The last such line counts: the kernel escapes line feeds in paths, so no memory map contains another one.
    heading = data.rfind(_MAPS_HEADING)
    if heading < 0:
        _refuse_without_maps(data, name)
    body_end = heading + 1
    interval = int(header[1])
    if interval > _LARGEST:
        raise HeapFormatError(name, 1, _NUMBERS, header[0])
    total, threads, position = _parse_header(data, header.end(), name)
    stacks = _StackReader(data, name)
    position = stacks.read(position, body_end)
    if data[position:body_end] not in (b"", b"\n"):
        _fail(data, position, name, "a stack '@ 0x...' with its '  t*: <n>: <n> [<n>: <n>]' and thread lines")
    mappings = list(_parse_mappings(data, heading + len(_MAPS_HEADING), name))
    return Dump(
        name=name,
        sample_interval=interval,
        total=total,
        threads=threads,
        addresses=stacks.addresses,
        stack_addresses=stacks.stack_addresses,
        stack_ends=stacks.stack_ends,
        counts=stacks.counts,
        thread_stack=stacks.thread_stack,
        thread_uid=stacks.thread_uid,
        thread_counts=stacks.thread_counts,
        mappings=mappings,
    )


def _parse_header(data: bytes, position: int, name: str) -> tuple[Counts, list[Thread], int]:
    match = _TOTAL.match(data, position)
    if match is None:
        _fail(data, position, name, "the totals '  t*: <n>: <n> [<n>: <n>]'")
    threads = []
    try:
        total = _counts(match.groups())
        position = match.end()
        while (match := _THREAD.match(data, position)) is not None:
            uid, *counts, thread_name = match.groups()
            threads.append(Thread(int(uid), _counts(counts), (thread_name or b"").decode("utf-8", "backslashreplace")))
            position = match.end()
    except OverflowError:
        _fail(data, position, name, _NUMBERS)
    return total, threads, position


def _counts(digits: tuple[bytes, ...] | list[bytes]) -> Counts:
    numbers = [int(number) for number in digits]
    if max(numbers) > _LARGEST:
        raise OverflowError
    return Counts(*numbers)


class _StackReader:
    """Reads the records between the header and the memory map into columns."""

    def __init__(self, data: bytes, name: str) -> None:
        self.data = data
        self.name = name
        self.addresses = array("Q")
        self.stack_addresses = array("I")
        self.stack_ends = array("Q")
        self.counts = CountColumns()
        self.thread_stack = array("I")
        self.thread_uid = array("Q")
        self.thread_counts = CountColumns()

    def read(self, position: int, end: int) -> int:
        """Read records from ``position`` on; the position after the last good one."""
        index: dict[bytes, int] = {}
        stack_addresses, stack_ends, counts = self.stack_addresses, self.stack_ends, self.counts
        add_threads, match_stack, lookup = self._add_threads, _STACK.match, index.__getitem__
        while (match := match_stack(self.data, position, end)) is not None:
            stack, objects, size, accum_objects, accum_bytes, threads = match.groups()
            tokens = stack.split()
            try:
                stack_addresses.extend(map(lookup, tokens))
            except KeyError:
                # Some address is new. What was added before it is taken back, so that nothing is counted twice.
                del stack_addresses[stack_ends[-1] if stack_ends else 0 :]
                self._learn(tokens, index, position)
                stack_addresses.extend(map(lookup, tokens))
            stack_ends.append(len(stack_addresses))
            try:
                counts.append(objects, size, accum_objects, accum_bytes)
                if threads:
                    add_threads(len(stack_ends) - 1, threads)
            except OverflowError:
                _fail(self.data, position, self.name, _NUMBERS)
            position = match.end()
        return position

    def _learn(self, tokens: list[bytes], index: dict[bytes, int], position: int) -> None:
        for token in tokens:
            if token not in index:
                if _ADDRESS.fullmatch(token) is None:
                    _fail(self.data, position, self.name, "addresses like 0x7f0123456789")
                index[token] = len(self.addresses)
                self.addresses.append(int(token, 16))

    def _add_threads(self, stack: int, lines: bytes) -> None:
        for uid, objects, size, accum_objects, accum_bytes in _STACK_THREAD.findall(lines):
            self.thread_stack.append(stack)
            self.thread_uid.append(int(uid))
            self.thread_counts.append(objects, size, accum_objects, accum_bytes)


def _parse_mappings(data: bytes, position: int, name: str) -> Iterator[Mapping]:
    while position < len(data):
        match = _MAPPING.match(data, position)
        if match is None:
            expected = "a line of /proc/<pid>/maps"
            if data.find(b"\n", position) < 0:
                expected += " (the dump is cut off here)"
            _fail(data, position, name, expected)
        start, end, permissions, offset, path = match.groups()
        path = path or b""
        deleted = path.endswith(_DELETED)
        if deleted:
            path = path[: -len(_DELETED)]
        yield Mapping(
            start=int(start, 16),
            end=int(end, 16),
            permissions=sys.intern(permissions.decode("ascii")),
            offset=int(offset, 16),
            path=path.decode("utf-8", "surrogateescape"),
            deleted=deleted,
        )
        position = match.end()


def _refuse_without_maps(data: bytes, name: str) -> NoReturn:
    lines = data.count(b"\n") + (not data.endswith(b"\n"))
    raise HeapFormatError(name, lines, "'MAPPED_LIBRARIES:' before the end of the file (the dump is cut off)")


def _fail(data: bytes, position: int, name: str, expected: str) -> NoReturn:
    end = data.find(b"\n", position)
    found = data[position : end if end >= 0 else None]
    raise HeapFormatError(name, data.count(b"\n", 0, position) + 1, expected, found)
