# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""pprof's ``profile.proto``, as Go, Rust (jemalloc_pprof), tcmalloc and ddprof write it.

The values are already scaled to what the samples stand for, so nothing is unbiased again; the period is the interval
of the Poisson sample that they come from. What a value means is the name of its type:

- ``inuse_space`` and ``inuse_objects`` (ddprof writes dashes) are live, and so are ``heap-space`` and
  ``heap-live-samples`` of dd-trace-py; ``alloc_space`` and ``alloc_objects`` (Datadog's: ``alloc-samples``) are what
  was allocated since the start, or since Datadog's last upload. ``grown_space`` is our own, for memory that was
  mapped, and so is ``largest_space``, for live memory of which a tool shows a part only.
- tcmalloc names them ``space`` and ``objects`` in all of its profiles. The one of the live heap also has
  ``resident_space``, and that of allocations shows objects first (its internal/profile_builder.cc). Of any other the
  user must say what it is.

A Profile is read piece by piece: fields at its top level may be cut anywhere into several Profiles, and one piece at a
time bounds the memory that a few bytes can ask for. Samples may come before the locations that they name, so their
numbers are kept in columns until all is read.

mimalloc-pprof (1.1.1, by its comment) tells all of an image as one mapping, which begins where the image does. So its
addresses are linked ones, and no offsets in a file, for which other readers take them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from ...module_utils.formats.capture_facts import is_build_id
from ...module_utils.formats.maps import Mapping
from ...module_utils.formats.protobuf_fields import BYTES, VARINT, Damaged, varint
from ..base import libraries, profile_proto
from ..base.printable import printable
from ..model.frame import Frame, Kind
from ..model.location import LINKED
from ..model.raw import Records, Told
from ..model.sampling import EXACT, Measure, Sampling, Scheme
from .format_error import FormatError, UnusableError
from .protobuf_pieces import pieces_apart
from .sample_columns import SampleColumns, decoded
from .stack_builder import LARGEST, StackBuilder

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Integers = NDArray[np.int64]
else:
    np = libraries.optional("numpy")

_MOST_STACKS = 10_000_000
_WHOLE_IMAGES = re.compile(r"dropped_samples=[0-9]+ stack_table_overflows=[0-9]+")
# Locations, functions, mappings or texts. A Go service of 100 MB has some 200,000 functions.
_MOST_ENTRIES = 1 << 22
_MOST_LINES = 256
# For an image whose addresses are as they were linked.
_ROOM = 1 << 40
_LARGEST_NUMBER = 15
_SAMPLE = 2 << 3 | BYTES
_LOOKED_AT = 64
# No place and no position has this number.
_NONE = -(1 << 31)


def _keys(*numbers: int, kind: int = BYTES) -> bytes:
    return bytes(number << 3 | kind for number in numbers)


# By key (number and wire type): how a field's message may begin, which is with a key of its own. A writer may leave out
# any of them, and may pack numbers or not. Any byte begins a text.
_ANY = bytes(range(256))
_BEGINNINGS = {
    **dict.fromkeys(_keys(1, 11), _keys(1, 2, kind=VARINT)),
    _keys(2)[0]: _keys(1, 2, 3) + _keys(1, 2, kind=VARINT),
    _keys(3)[0]: _keys(*range(1, 11), kind=VARINT),
    _keys(4)[0]: _keys(4) + _keys(1, 2, 3, 5, kind=VARINT),
    _keys(5)[0]: _keys(1, 2, 3, 4, 5, kind=VARINT),
    **dict.fromkeys(_keys(6, 13), _ANY),
    **dict.fromkeys(_keys(7, 8, 9, 10, 12, 13, 14, 15, kind=VARINT), b""),
}
_OBJECTS = {
    "inuse_space": ("inuse_objects",),
    "heap_space": ("heap_live_samples",),
    "alloc_space": ("alloc_objects", "alloc_samples"),
    "grown_space": ("grown_objects",),
    "largest_space": ("largest_objects",),
    "space": ("objects",),
}
# Native memory as async-profiler exports it to OTLP, with its option total: the sizes of what it sampled, not of what
# that stands for (a thousandth, for allocations of a thousandth of the interval), and no numbers to scale them with.
_TRACED = ("malloc_tracer", "bytes")


def recognizes(data: bytes) -> bool:
    """A profile's fields come in any order (libdatadog writes samples first), so the first of them must all be fields
    of a profile, and each message among them must begin as its own kind does."""
    position = messages = 0
    try:
        for _field in range(_LOOKED_AT):
            if position == len(data):
                break
            key, position = varint(data, position)
            if key not in _BEGINNINGS:
                return False
            length, position = varint(data, position)
            if key & 7 == BYTES:
                first = data[position : position + 1]
                if length and first not in _BEGINNINGS[key]:
                    return False
                position += length
                messages += _BEGINNINGS[key] is not _ANY and position <= len(data)
    except Damaged:  # a file may be cut off
        pass
    return messages > 0


def parse(data: bytes, name: str, told: Told) -> Records:
    """The profile in ``data``; ``name`` is only for messages. Raises FormatError, UnusableError."""
    return assembled(_parts(data), name, told)


def _parts(data: bytes) -> Iterator[Any]:
    message = profile_proto.profile_class("bytes")
    for begins, ends, others in pieces_apart(data, _SAMPLE, _LARGEST_NUMBER):
        yield message.FromString(others)
        yield from decoded(data, begins, ends)


def assembled(parts: Iterable[Any], name: str, told: Told) -> Records:
    """The profile in messages that are each a part of it, or SampleColumns. Raises as ``parse`` does."""
    try:
        found = _Profile(name)
        for part in parts:
            if not isinstance(part, SampleColumns):
                found.learn(part)
                part = SampleColumns.of(part.sample)
            found.learn_samples(part)
        columns, measure = found.meaning(told)
        sampling = found.sampling(told)
        builder = StackBuilder(name)
        found.add_stacks(builder, found.places(builder), columns)
    except (Damaged, ValueError, profile_proto.decode_error()) as error:
        why = printable(str(error)) or "its protobuf is damaged"
        raise FormatError(name, 1, f"a profile.proto, as pprof reads it ({why})") from None
    return builder.records(measure, sampling, found.mappings, unbiased=True, time=found.time, build_ids=found.build_ids)


class _Profile:
    """Everything but the samples."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._types: list[tuple[int, int]] = []
        self._strings: list[str] = []
        self._comments: list[int] = []
        # location id -> (mapping id, address, ((function id, line), ...))
        self._locations: dict[int, tuple[int, int, tuple[tuple[int, int], ...]]] = {}
        self._functions: dict[int, tuple[int, int]] = {}
        self._mappings: dict[int, tuple[int, int, int, int, int]] = {}
        self._period = self._period_unit = self._default = 0
        self.time = 0.0
        self._samples: list[SampleColumns] = []
        self._stacks = 0
        self.mappings: list[Mapping] = []
        self.build_ids: dict[str, str] = {}

    def learn(self, piece: Any) -> None:
        """Take what a piece of the profile has, but for its samples."""
        self._types += [(kind.type, kind.unit) for kind in piece.sample_type]
        self._strings += [text.decode("utf-8", "replace") for text in piece.string_table]
        self._comments += piece.comment
        for location in piece.location:
            if len(location.line) > _MOST_LINES:
                raise Damaged(f"a location with more than {_MOST_LINES} lines")
            lines = tuple([(line.function_id, line.line) for line in location.line])
            self._locations[location.id] = (location.mapping_id, location.address, lines)
        for function in piece.function:
            self._functions[function.id] = (function.name or function.system_name, function.filename)
        for one in piece.mapping:
            self._mappings[one.id] = (one.memory_start, one.memory_limit, one.file_offset, one.filename, one.build_id)
        self._period = piece.period or self._period
        self._period_unit = piece.period_type.unit or self._period_unit
        self._default = piece.default_sample_type or self._default
        self.time = piece.time_nanos / 1e9 or self.time
        entries = (self._types, self._strings, self._comments, self._locations, self._functions, self._mappings)
        if any(len(some) > _MOST_ENTRIES for some in entries):
            raise Damaged(f"it has more than {_MOST_ENTRIES} functions or texts")

    def learn_samples(self, samples: SampleColumns) -> None:
        self._samples.append(samples)
        self._stacks += len(samples.lengths)
        if self._stacks > _MOST_STACKS:
            raise Damaged(f"it has more than {_MOST_STACKS} samples")

    def _text(self, number: int) -> str:
        if not 0 <= number < len(self._strings):
            raise Damaged(f"it has no text {number}")
        return self._strings[number]

    def _named_types(self) -> list[tuple[str, str]]:
        return [(self._text(kind).replace("-", "_"), self._text(unit)) for kind, unit in self._types]

    def meaning(self, told: Told) -> tuple[list[int], Measure]:
        """The columns of objects and bytes, and both again if the other pair counts what was allocated."""
        types = self._named_types()
        names = [kind for kind, _unit in types]
        inuse, heap, alloc, grown, largest, space = (self._pair(names, kind) for kind in _OBJECTS)
        if inuse or heap:
            return (inuse or heap) + alloc, Measure.LIVE
        if alloc:
            return alloc, Measure.ALLOCATED
        if grown:
            return grown, Measure.GROWN
        if largest:
            return largest, Measure.LARGEST
        if space:
            if "resident_space" in names:
                return space, Measure.LIVE
            if told.measure is not None:
                return space, told.measure
            if self._text(self._default) == "objects":
                return space, Measure.ALLOCATED
            why = (
                "its type 'space' does not say of what: set source_measure to live, allocated or grown (fab: --source"
                " live)"
            )
            raise UnusableError(self._name, why)
        if _TRACED in types:
            return [-1, types.index(_TRACED)], Measure.ALLOCATED
        columns = [number for number, (_kind, unit) in enumerate(types) if unit == "bytes"]
        shown = ", ".join(f"{kind}/{unit}" for kind, unit in types[:8]) or "nothing"
        if len(columns) == 1 and told.measure is not None:
            return [-1, *columns], told.measure
        why = f"is a profile of {shown}, and none of it is known to be memory"
        if len(columns) == 1:
            why += ": if it is, set source_measure to live, allocated or grown (fab: --source live::1)"
        elif any(kind == _TRACED[0] for kind, _unit in types):
            why += ": async-profiler counts samples, so record with its option total"
        elif not columns:
            counts_time = any(unit.endswith("seconds") for _kind, unit in types)
            why += f": {'it counts time; ' if counts_time else ''}ask the service for its heap (Go: /debug/pprof/heap)"
        raise UnusableError(self._name, why)

    @staticmethod
    def _pair(names: Sequence[str], space: str) -> list[int]:
        """Columns of objects (-1: none) and bytes; empty if the profile has no such bytes."""
        if space not in names:
            return []
        objects = next((names.index(kind) for kind in _OBJECTS[space] if kind in names), -1)
        return [objects, names.index(space)]

    def sampling(self, told: Told) -> Sampling:
        """Poisson with the period, if that is in bytes; the user may know it where the file does not."""
        if _TRACED in self._named_types():
            return EXACT if self._period == 1 else Sampling(Scheme.UNKNOWN)
        if self._text(self._period_unit) == "bytes" and 0 < self._period <= LARGEST:
            return Sampling(Scheme.POISSON, self._period)
        return Sampling(Scheme.POISSON, told.interval) if told.interval else told.sampling

    def places(self, builder: StackBuilder) -> dict[int, tuple[int, ...]]:
        """The places of each location, the innermost call first."""
        modules = {
            number: PurePosixPath(self._text(file)).name for number, (*_range, file, _id) in self._mappings.items()
        }
        in_process = self._in_process()
        linked = {} if in_process else self._linked()
        found = {}
        for number, (mapping, address, lines) in self._locations.items():
            module = modules.get(mapping, "")
            if lines:
                frames = [self._frame(function, line, module) for function, line in lines]
                inlined = [builder.named(frame._replace(kind=Kind.INLINED)) for frame in frames[:-1]]
                found[number] = (*inlined, builder.named(frames[-1]))
            elif in_process or not module:
                # pprof's addresses are those of calls, ours of returns.
                found[number] = (builder.address((address + 1) & LARGEST),)
            elif mapping in linked and address < _ROOM - 1:
                found[number] = (builder.address(linked[mapping] + address + 1),)
            else:
                found[number] = (builder.named(Frame("", module, offset=address)),)
        return found

    def _frame(self, function: int, line: int, module: str) -> Frame:
        if function not in self._functions:
            raise Damaged(f"it has no function {function}")
        name, file = map(self._text, self._functions[function])
        return Frame(name or f"[function {function}]", module, Kind.NATIVE, file=file, line=max(line, 0) & 0xFFFFFFFF)

    def _in_process(self) -> bool:
        """Learn the mappings. Returns whether addresses are those in the process."""
        ranges = sorted((start, end) for start, end, *_more in self._mappings.values())
        if any(start == 0 for start, _end in ranges) or any(one[1] > next_one[0] for one, next_one in pairwise(ranges)):
            return False
        whole = any(_WHOLE_IMAGES.fullmatch(self._text(comment)) for comment in self._comments)
        for start, end, offset, file, build_id in self._mappings.values():
            self._learn_mapping(start, end, LINKED if whole and not offset else offset, file, build_id)
        return True

    def _linked(self) -> dict[int, int]:
        """jemalloc_pprof lets every image begin at 0, and gives addresses as they were linked. Learn a mapping for each
        image, somewhere; returns where, by the number of the profile's own mapping."""
        places: dict[int, int] = {}
        found = {}
        for number, (start, _end, _offset, file, build_id) in self._mappings.items():
            if start == 0 and is_build_id(self._text(build_id).lower()) and self._text(file).startswith("/"):
                if file not in places:
                    places[file] = _ROOM * (1 + len(places))
                    self._learn_mapping(places[file], places[file] + _ROOM, LINKED, file, build_id)
                found[number] = places[file]
        return found

    def _learn_mapping(self, start: int, end: int, offset: int, file: int, build_id: int) -> None:
        path = self._text(file)
        self.mappings.append(Mapping(start, end, "r-xp", offset, path, False))
        if is_build_id(self._text(build_id).lower()):
            self.build_ids[path] = self._text(build_id).lower()

    def add_stacks(self, builder: StackBuilder, places: dict[int, tuple[int, ...]], columns: list[int]) -> None:
        """Add the samples, without those of which nothing is counted."""
        known = np.array(sorted(places), dtype=np.uint64)
        each = [places[number] for number in known.tolist()]
        lengths = np.array([len(of_location) for of_location in each], dtype=np.int64)
        flat = np.array([place for of_location in each for place in of_location], dtype=np.int64)
        starts, inlined = np.cumsum(lengths) - lengths, (lengths != 1).any()
        for samples in self._emptied():
            counts = samples.counts(len(self._types), columns)
            counted = counts.any(axis=1)
            own, ids = samples.lengths[counted], samples.locations
            if not counted.all():
                ids = ids[np.repeat(counted, samples.lengths)]
            at = _each(ids, known, np.arange(len(known)) if inlined else flat)
            if inlined:  # a location with inlined calls has a place for each of them
                ends = np.append(0, np.cumsum(lengths[at]))
                at = flat[np.arange(ends[-1]) + np.repeat(starts[at] - ends[:-1], lengths[at])]
                own = np.diff(ends[np.append(0, np.cumsum(own))])
            builder.add_all(at, own, counts[counted])

    def _emptied(self) -> Iterator[SampleColumns]:
        """The samples, piece by piece; each is let go once the next is asked for."""
        self._samples.reverse()
        while self._samples:
            yield self._samples.pop()


def _each(wanted: NDArray[np.unsignedinteger[Any]], known: NDArray[np.uint64], values: Integers) -> Integers:
    """For each number its value; ``values`` are those of the numbers that are known, which ascend."""
    if len(known) and known[-1] < 4 * len(known):  # as nearly always: then a table is ten times as fast
        table = np.full(int(known[-1]) + 2, _NONE, dtype=np.int32)
        table[known] = values
        last = min(len(table) - 1, np.iinfo(wanted.dtype).max)
        found: Integers = table.take(np.minimum(wanted, wanted.dtype.type(last)).astype(np.int64))
        missing = np.flatnonzero(found == _NONE)
    else:
        at = np.searchsorted(known, wanted)
        missing = np.flatnonzero((at == len(known)) | (np.append(known, np.uint64(0))[at] != wanted))
        found = np.append(values, _NONE)[at]
    if len(missing):
        raise Damaged(f"it has no location {wanted[missing[0]]}")
    return found
