# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Samples by function, source line, file, address or module: flat, cumulative, and who calls whom."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from enum import Enum
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from ..base import libraries
from ..base.byte_size import as_text
from ..model.frame import Frame, Kind
from ..model.location import Location
from ..model.samples import ACCUM_BYTES, ACCUM_OBJECTS, BYTES, OBJECTS, Samples
from ..model.sampling import CONFIDENCE
from ..model.sampling import Measure as Counted
from ..model.series import without_repeats

if TYPE_CHECKING:
    import numpy as np

    from ..model.samples import Integers, Numbers
else:
    np = libraries.optional("numpy")

NO_STACK = "[no stack]"
_PART = 1 << 14


class Granularity(Enum):
    """What counts as one row."""

    FUNCTIONS = "functions"
    LINES = "lines"
    FILES = "files"
    ADDRESSES = "addresses"
    MODULES = "modules"


_NAMED = {Counted.LIVE: "inuse", Counted.LARGEST: "inuse", Counted.ALLOCATED: "allocated", Counted.GROWN: "grown"}


class Measure(Enum):
    """Which of the four numbers a table shows."""

    INUSE_SPACE = "inuse_space"
    INUSE_OBJECTS = "inuse_objects"
    ALLOC_SPACE = "alloc_space"
    ALLOC_OBJECTS = "alloc_objects"

    @property
    def row(self) -> int:
        rows = {"inuse_space": BYTES, "inuse_objects": OBJECTS, "alloc_space": ACCUM_BYTES}
        return rows.get(self.value, ACCUM_OBJECTS)

    @property
    def unit(self) -> str:
        return "bytes" if self.value.endswith("space") else "objects"

    @property
    def accumulated(self) -> bool:
        return self.value.startswith("alloc")

    def named(self, counted: Counted) -> str:
        """The name of the numbers: memory that is not live is not called in use."""
        return self.value if self.accumulated else self.value.replace("inuse", _NAMED[counted])

    def text(self, value: float, exact: bool = False) -> str:
        """A number for people; ``exact`` gives whole bytes."""
        return self.writer(exact)(value)

    def writer(self, exact: bool = False) -> Callable[[float], str]:
        """``text`` as a function, for many numbers."""
        return as_text if self.unit == "bytes" and not exact else _whole


def _whole(value: float) -> str:
    return str(round(value)) if math.isfinite(value) else "unknown"


class Row(NamedTuple):
    """One name: ``flat`` is what it allocated itself, ``cumulative`` includes all that it called (recursion once).

    ``error`` is half of the 95 % interval of ``cumulative`` from sampling.
    """

    name: str
    flat: float
    cumulative: float
    error: float


class Table:
    """Stacks of names with one number each.

    Stack ``i`` is ``all_entries[bounds[i]:bounds[i + 1]]``, indices into ``names``, leaf first. As in jeprof, a name
    counts once in a stack, at its place nearest to the leaf, except in ``calls``, where recursion is a call like any.
    """

    def __init__(self, samples: Samples, granularity: Granularity, measure: Measure) -> None:
        self.measure = measure
        self.granularity = granularity
        self.interval = samples.sampling.interval
        self.samples = samples
        self.values: Numbers = samples.values[measure.row]
        self.variance: Numbers = samples.variance[measure.row]
        self.names, self.name_of_place = _names(samples, granularity)

    @cached_property
    def all_entries(self) -> Integers:
        """The names of all stacks, one after the other."""
        return self.name_of_place[self.samples.stacks]

    @cached_property
    def stack_of(self) -> Integers:
        """For each entry, the stack that it belongs to."""
        return self.samples.stack_of()

    @property
    def counted(self) -> str:
        """The name of the numbers."""
        return self.measure.named(self.samples.measure)

    @property
    def total(self) -> float:
        return float(self.values.sum())

    @property
    def total_error(self) -> float:
        return self.error(float(self.variance.sum()))

    @staticmethod
    def error(variance: float) -> float:
        return CONFIDENCE * math.sqrt(variance)

    @cached_property
    def leaves(self) -> Integers:
        """The name of each stack's leaf; -1 for stacks without frames."""
        bounds = self.samples.bounds
        leaves = np.full(len(self.samples), -1, dtype=np.int64)
        some = bounds[1:] > bounds[:-1]
        leaves[some] = self.name_of_place[self.samples.stacks[bounds[:-1][some]]]
        return leaves

    @cached_property
    def flat(self) -> Numbers:
        some = self.leaves >= 0
        return _sums(self.leaves[some], self.values[some], len(self.names))

    @property
    def cumulative(self) -> Numbers:
        """For each name, the sum over the stacks that it is in."""
        values, _variance = self._with_callees
        return values

    @property
    def cumulative_variance(self) -> Numbers:
        _values, variance = self._with_callees
        return variance

    @cached_property
    def _with_callees(self) -> tuple[Numbers, Numbers]:
        """The values, and their variance, of the stacks that each name is in."""
        sums = np.zeros(len(self.names)), np.zeros(len(self.names))
        bounds, name_of = self.samples.bounds, self.name_of_place.astype(np.min_scalar_type(len(self.names)))
        # In parts: the numbers of all entries at once would take more memory than all else.
        for start in range(0, len(self.samples), _PART):
            part = slice(start, min(start + _PART, len(self.samples)))
            names = name_of[self.samples.stacks[bounds[start] : bounds[part.stop]]]
            order = _stable_order(names)
            lengths = np.diff(bounds[start : part.stop + 1])
            stacks = np.repeat(np.arange(len(lengths), dtype=np.uint16), lengths)
            ordered, its_stacks = names.take(order), stacks.take(order)
            again = order[1:][(ordered[1:] == ordered[:-1]) & (its_stacks[1:] == its_stacks[:-1])]
            for total, values in zip(sums, (self.values, self.variance), strict=True):
                found = np.repeat(values[part], lengths)
                found[again] = 0
                total += _sums(names, found, len(self.names))
        return sums

    def rows(self, by_cumulative: bool = False) -> list[Row]:
        """All names with a number other than 0, the largest first."""
        errors = CONFIDENCE * np.sqrt(self.cumulative_variance)
        columns = (self.flat.tolist(), self.cumulative.tolist(), errors.tolist())
        found = [row for row in map(Row, self.names, *columns) if row.flat or row.cumulative]
        without = self.leaves < 0
        size = float(self.values[without].sum())
        if size:
            found.append(Row(NO_STACK, size, size, self.error(float(self.variance[without].sum()))))
        if by_cumulative:
            return sorted(found, key=lambda row: (-row.cumulative, -row.flat, row.name))
        return sorted(found, key=lambda row: (-row.flat, -row.cumulative, row.name))

    @cached_property
    def calls(self) -> dict[tuple[int, int], float]:
        """(caller, callee) -> what was allocated through that call; a call that recurs in a stack counts once."""
        within = self.stack_of[1:] == self.stack_of[:-1]
        size = max(len(self.names), 1)
        pair = (self.all_entries[1:] * size + self.all_entries[:-1])[within]
        distinct, number = np.unique(pair, return_inverse=True)
        if not len(distinct):
            return {}
        once = _distinct(self.stack_of[1:][within] * len(distinct) + number)
        sums = np.bincount(once % len(distinct), self.values[once // len(distinct)], len(distinct))
        keys = zip((distinct // size).tolist(), (distinct % size).tolist(), strict=True)
        return dict(zip(keys, sums.tolist(), strict=True))

    def stacks(self) -> Iterator[tuple[tuple[str, ...], float, float]]:
        """(names, leaf first, without consecutive repeats; the number; its error) of each stack, largest first."""
        found: dict[tuple[int, ...], list[float]] = {}
        bounds = self.samples.bounds.tolist()
        entries = self.all_entries.tolist()
        columns = (self.values.tolist(), self.variance.tolist())
        for start, end, value, variance in zip(bounds[:-1], bounds[1:], *columns, strict=True):
            stack = entries[start:end]
            key = without_repeats(stack)
            sums = found.setdefault(key, [0.0, 0.0])
            sums[0] += value
            sums[1] += variance
        ordered = sorted(found.items(), key=lambda item: (-abs(item[1][0]), item[0]))
        for stack_key, (value, variance) in ordered:
            if value:
                yield tuple([self.names[name] for name in stack_key]) or (NO_STACK,), value, self.error(variance)


def _distinct(numbers: Integers) -> Integers:
    """Each number once, in order; sorts in place, in a fifth of the time of numpy.unique."""
    numbers.sort()
    first = np.ones(len(numbers), dtype=np.bool_)
    np.not_equal(numbers[1:], numbers[:-1], out=first[1:])
    return numbers[first]


def _stable_order(numbers: Integers) -> Integers:
    """What sorts numbers of up to 32 bits, and leaves equal ones in their order: 16 at a time, which numpy does without
    comparisons."""
    if numbers.itemsize <= 2:
        return np.argsort(numbers, kind="stable")
    order = np.argsort(numbers.astype(np.uint16), kind="stable")
    return order[np.argsort((numbers >> 16).astype(np.uint16)[order], kind="stable")]


def _sums(groups: Integers, values: Numbers, count: int) -> Numbers:
    # Given no values, bincount returns counts, as integers.
    return np.bincount(groups, values, count).astype(np.float64)


def _names(samples: Samples, granularity: Granularity) -> tuple[list[str], Integers]:
    """(distinct names, the index of each place's name)"""
    name_of = _NAMES[granularity]
    known: dict[str, int] = {}
    numbers = [
        known.setdefault(name_of(samples.frames[frame], samples.locations[at]), len(known))
        for frame, at in zip(samples.place_frame.tolist(), samples.place_location.tolist(), strict=True)
    ]
    return list(known), np.array(numbers, dtype=np.int64)


def _function(frame: Frame, _location: Location) -> str:
    return frame.label


def _line(frame: Frame, _location: Location) -> str:
    return f"{frame.label} {frame.file}:{frame.line}" if frame.file else frame.label


def _file(frame: Frame, location: Location) -> str:
    return frame.file or _module(frame, location)


def _address(frame: Frame, location: Location) -> str:
    inlined = " (inline)" if frame.kind is Kind.INLINED else ""
    return f"{location.address:#x} {_line(frame, location)}{inlined}"


def _module(frame: Frame, _location: Location) -> str:
    return f"[{frame.module.strip('[]')}]" if frame.module else frame.label


_NAMES: dict[Granularity, Callable[[Frame, Location], str]] = {
    Granularity.FUNCTIONS: _function,
    Granularity.LINES: _line,
    Granularity.FILES: _file,
    Granularity.ADDRESSES: _address,
    Granularity.MODULES: _module,
}
