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

The numbers stay as they are in the file: sampled, not yet unbiased.

A dump comes from a host that is not trusted. Whatever the bytes are, ``parse`` either returns Records
or raises HeapFormatError, and needs memory in proportion to the size of its input.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from . import heap_stacks

from ...module_utils.formats import maps
from ...module_utils.formats.maps import Mapping
from ..model.raw import CountColumns, Counts, Records, Thread
from ..model.sampling import Measure, Sampling, Scheme
from .format_error import FormatError

_MAPS_HEADING = b"\nMAPPED_LIBRARIES:\n"
_MAPS_LINE = "a line of /proc/<pid>/maps"
_LARGEST = (1 << 64) - 1
_NUMBERS = "numbers of at most 64 bits"

# Twenty digits hold any 64-bit number. jemalloc writes no more, and more would make int() slow.
_COUNTS = rb"(\d{1,20}): (\d{1,20}) \[(\d{1,20}): (\d{1,20})\]"
_HEADER = re.compile(rb"heap_v2/(\d{1,20})\n")
_TOTAL = re.compile(rb"  t\*: " + _COUNTS + rb"\n")
_THREAD = re.compile(rb"  t(\d{1,20}): " + _COUNTS + rb"(?: ([^\n]*))?\n")
# Only to say what is wrong when heap_stacks refuses a block, so it also accepts bad addresses and large numbers.
_STACK = re.compile(
    rb"@((?: [0-9a-fx ]*)?)\n  t\*: " + _COUNTS + rb"\n((?:  t\d{1,20}: \d{1,20}: \d{1,20} \[\d{1,20}: \d{1,20}\]\n)*)"
)
_NUMBER = re.compile(rb"\d+")
_ADDRESS = re.compile(rb"0x[0-9a-f]{1,16}")


class HeapFormatError(FormatError):
    """A dump is not what jemalloc writes."""


def parse(data: bytes, name: str) -> Records:
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
    # An empty line follows the stacks.
    stacks = _read_stacks(data, position, body_end - data.endswith(b"\n\n", position - 1, body_end), name)
    return Records(
        file=name,
        measure=Measure.LIVE,
        sampling=Sampling(Scheme.POISSON, interval),
        total=total,
        threads=threads,
        addresses=stacks.addresses,
        stack_places=stacks.stack_addresses,
        stack_ends=stacks.stack_ends,
        counts=_count_columns(stacks.counts),
        thread_stack=stacks.thread_stack,
        thread_uid=stacks.thread_uid,
        thread_counts=_count_columns(stacks.thread_counts),
        mappings=list(_parse_mappings(data, heading + len(_MAPS_HEADING), name)),
    )


def mappings(data: bytes, name: str) -> list[Mapping]:
    """Those of a dump alone. Raises HeapFormatError."""
    heading = data.rfind(_MAPS_HEADING)
    if heading < 0:
        _refuse_without_maps(data, name)
    return list(_parse_mappings(data, heading + len(_MAPS_HEADING), name))


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


def _count_columns(columns: Sequence[array[int]]) -> CountColumns:
    counts = CountColumns()
    counts.objects, counts.bytes, counts.accum_objects, counts.accum_bytes = columns
    return counts


def _read_stacks(data: bytes, position: int, end: int, name: str) -> heap_stacks.StackColumns:
    from . import heap_stacks  # it needs numpy, and not every importer of this module parses a dump

    try:
        return heap_stacks.read(data, position, end)
    except heap_stacks.Irregular as block:
        _refuse_stacks(data, block.start, block.end, name)


def _refuse_stacks(data: bytes, position: int, end: int, name: str) -> NoReturn:
    """Say what is wrong with the first irregular record."""
    while (match := _STACK.match(data, position, end)) is not None:
        stack, *counts, threads = match.groups()
        if not all(map(_ADDRESS.fullmatch, stack.split(b" ")[1:])):
            _fail(data, position, name, "addresses like 0x7f0123456789")
        if any(int(number) > _LARGEST for number in [*counts, *_NUMBER.findall(threads)]):
            _fail(data, position, name, _NUMBERS)
        position = match.end()
    _fail(data, position, name, "a stack '@ 0x...' with its '  t*: <n>: <n> [<n>: <n>]' and thread lines")


def _parse_mappings(data: bytes, position: int, name: str) -> Iterator[Mapping]:
    while position < len(data):
        end = data.find(b"\n", position)
        if end < 0:
            _fail(data, position, name, f"{_MAPS_LINE} (the dump is cut off here)")
        try:
            yield maps.parse_line(data[position:end])
        except maps.MapsError:
            _fail(data, position, name, _MAPS_LINE)
        position = end + 1


def _refuse_without_maps(data: bytes, name: str) -> NoReturn:
    lines = data.count(b"\n") + (not data.endswith(b"\n"))
    raise HeapFormatError(name, lines, "'MAPPED_LIBRARIES:' before the end of the file (the dump is cut off)")


def _fail(data: bytes, position: int, name: str, expected: str) -> NoReturn:
    end = data.find(b"\n", position)
    found = data[position : end if end >= 0 else None]
    raise HeapFormatError(name, data.count(b"\n", 0, position) + 1, expected, found)
