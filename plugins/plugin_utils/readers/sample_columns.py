# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""pprof's samples in columns. They are decoded many at a time, since an object for each of a million would take most of
the time that reading a profile takes.

A sample is made of varints alone: ids of its locations and its values, packed or one by one, and labels. So all varints
of a piece of the file are decoded at once, and then the first field of all of its samples, the second, and so on.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from ...module_utils.formats.protobuf_fields import BYTES, VARINT, Damaged
from ..base import libraries, profile_proto

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Integers = NDArray[np.int64]
    Naturals = NDArray[np.unsignedinteger[Any]]
else:
    np = libraries.optional("numpy")

# Keys of a sample's fields.
_LOCATION, _VALUE = (number << 3 | VARINT for number in (1, 2))
_LOCATIONS, _VALUES, _LABEL = (number << 3 | BYTES for number in (1, 2, 3))
# A packed sample has two fields, and its labels. With more, as from an old writer that packs nothing, the protobuf
# library is faster.
_MOST_FIELDS = 16
_LONGEST_VARINT = 10


class SampleColumns(NamedTuple):
    """How many locations and values each sample has, and both, one after the other."""

    lengths: Integers
    locations: Naturals
    widths: Integers
    values: Integers

    @classmethod
    def of(cls, samples: Sequence[Any]) -> SampleColumns:
        """Those of messages."""
        lengths, locations, widths, values = array("q"), array("Q"), array("q"), array("q")
        for sample in samples:
            of_sample, counted = sample.location_id[:], sample.value[:]  # lists, which are faster to go through
            locations.extend(of_sample)
            lengths.append(len(of_sample))
            values.extend(counted)
            widths.append(len(counted))
        numbers = np.frombuffer(locations, dtype=np.uint64) if locations else np.zeros(0, dtype=np.uint64)
        lengths_, widths_, values_ = (np.array(column, dtype=np.int64) for column in (lengths, widths, values))
        return cls(lengths_, _narrow(numbers), widths_, values_)

    def counts(self, types: int, columns: Sequence[int]) -> Integers:
        """A row for each sample: the values in these columns, 0 for column -1. Raises Damaged."""
        wrong = self.widths[self.widths != types]
        if len(wrong):
            raise Damaged(f"a sample with {wrong[0]} instead of {types} values")
        rows = np.append(self.values.reshape(len(self.widths), types), np.zeros((len(self.widths), 1), np.int64), 1)
        return rows[:, list(columns)]


def decoded(data: bytes, begins: Sequence[int], ends: Sequence[int]) -> list[SampleColumns]:
    """The samples whose messages lie between these positions, which ascend. Raises what the protobuf library does."""
    if not begins:
        return []
    low = begins[0]
    varints = _Varints(data[low : ends[-1]])
    positions, stops = (np.array(column, dtype=np.int64) - low for column in (begins, ends))
    odd = np.full(len(positions), varints.longest > _LONGEST_VARINT)
    # Of each field that was met: the samples that have it there, and its first varint and the one after its last.
    locations_at: list[tuple[Integers, Integers, Integers]] = []
    values_at: list[tuple[Integers, Integers, Integers]] = []
    left = np.flatnonzero(~odd & (positions < stops))
    at = varints.number(positions[left])
    for _field in range(_MOST_FIELDS):
        keys = varints.values[at]
        single = (keys == _LOCATION) | (keys == _VALUE)
        packed = (keys == _LOCATIONS) | (keys == _VALUES) | (keys == _LABEL)
        first = at + np.where(single, 1, 2)
        sizes = np.minimum(varints.values[at + 1], len(data)).astype(np.int64)
        after_bytes = np.where(single, varints.starts[at + 2], varints.starts[first] + sizes)
        after = varints.number(after_bytes)
        usual = (single | packed) & (after_bytes <= stops[left]) & (varints.starts[after] == after_bytes)
        odd[left[~usual]] = True
        for runs, some, one in ((locations_at, _LOCATIONS, _LOCATION), (values_at, _VALUES, _VALUE)):
            chosen = usual & ((keys == some) | (keys == one))
            runs.append((left[chosen], first[chosen], after[chosen]))
        further = usual & (after_bytes < stops[left])
        left, at = left[further], after[further]
        if not len(left):
            break
    odd[left] = True
    lengths, locations = varints.joined(locations_at, odd)
    widths, values = varints.joined(values_at, odd)
    columns = [SampleColumns(lengths, _narrow(locations), widths, values.astype(np.uint64).view(np.int64))]
    if odd.any():
        message = profile_proto.message_class("Sample")
        columns.append(
            SampleColumns.of([message.FromString(data[begins[n] : ends[n]]) for n in np.flatnonzero(odd).tolist()])
        )
    return columns


class _Varints:
    """All varints of a text of bytes, that begins with one: where each starts, and its value. Three more after the last
    start behind the end, and are 0, which no field begins with."""

    def __init__(self, data: bytes) -> None:
        text = np.frombuffer(data + bytes(4), dtype=np.uint8)
        ends = text[: len(data)] < 0x80
        # How many start before each position, the one behind the end as well.
        self._before = np.cumsum(np.append(np.array([0, 1], np.uint8), ends.view(np.uint8)), dtype=np.int32)
        after = np.flatnonzero(ends) + 1
        self.starts = np.zeros(len(after) + 4, dtype=np.int64)
        self.starts[1:-3] = after
        self.starts[-3:] = len(data) + 1
        starts = self.starts[: len(after)]
        sizes = after - starts
        self.longest = int(sizes.max(initial=0))
        self.values: Naturals = np.zeros(len(after) + 4, dtype=np.uint32 if self.longest <= 4 else np.uint64)
        # Four bytes at once are all of most varints.
        words = np.ndarray(len(data), dtype="<u4", buffer=text, strides=(1,)).take(starts)
        last = ~words & 0x80808080  # its lowest bit is in the last byte, if that is among the four
        words &= last ^ (last - 1)
        self.values[: len(after)] = (
            (words & 0x7F) | (words >> 1 & 0x7F << 7) | (words >> 2 & 0x7F << 14) | (words >> 3 & 0x7F << 21)
        )
        longer = np.flatnonzero(sizes > 4)
        for byte in range(4, _LONGEST_VARINT):
            longer = longer[sizes[longer] > byte]
            part = text[starts[longer] + byte].astype(np.uint64) & np.uint64(0x7F)
            self.values[longer] |= part << np.uint64(7 * byte)

    def number(self, positions: Integers) -> NDArray[np.int32]:
        """The first varint that starts there or later."""
        return self._before.take(positions, mode="clip")

    def joined(
        self, runs: Sequence[tuple[Integers, Integers, Integers]], odd: NDArray[np.bool_]
    ) -> tuple[Integers, Naturals]:
        """(how many varints each sample has that is not odd, all of them)"""
        samples, first, after = (np.concatenate(column) for column in zip(*runs, strict=True))
        order = np.flatnonzero(~odd[samples])
        order = order[np.argsort(samples[order], kind="stable")]
        sizes = (after - first)[order]
        ends = np.cumsum(sizes)
        which = np.arange(ends[-1] if len(ends) else 0) + np.repeat(first[order] - ends + sizes, sizes)
        lengths = np.bincount(samples[order], sizes, len(odd)).astype(np.int64)
        return lengths[~odd], self.values.take(which)


def _narrow(numbers: NDArray[np.uint64]) -> Naturals:
    """In as many bytes as the largest one needs: two, nearly always."""
    narrowed: Naturals = numbers.astype(np.min_scalar_type(int(numbers.max(initial=0))))
    return narrowed
