# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""The memory of one process over time, by stack and by code path."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from ..base import libraries
from .frame import Frame, Kind
from .samples import BYTES, OBJECTS, Samples
from .sampling import Measure, Sampling, coarsest, common_measure

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Integers = NDArray[np.int64]
    Numbers = NDArray[np.float64]
    Flags = NDArray[np.bool_]
else:
    np = libraries.optional("numpy")

Key = tuple[str, ...]
Name = TypeVar("Name")
_RUNTIME = (Kind.JIT, Kind.JAVA, Kind.PYTHON, Kind.JS)


class Stack(NamedTuple):
    """A stack without the allocator's frames, leaf first.

    ``members`` are its functions without consecutive repeats, ``key`` is the part of them that stacks are compared by.
    """

    frames: tuple[Frame, ...]
    members: Key
    key: Key


def stack_of(frames: tuple[Frame, ...]) -> Stack:
    return Stack(frames, without_repeats([frame.group for frame in frames]), stack_key(frames))


class Moment(NamedTuple):
    """What one profile holds at ``time`` (seconds since the epoch): unbiased ``objects`` and ``bytes`` of ``stacks``,
    numbers that the reader chooses."""

    time: float
    measure: Measure
    sampling: Sampling
    stacks: Integers
    objects: Numbers
    bytes: Numbers


@dataclass(frozen=True)
class Paths:
    """Code paths over time: stacks with the same functions are one path. ``times`` (seconds since the epoch) ascend.

    ``members[i]`` are the functions of path ``i`` without consecutive repeats, leaf first; ``keys[i]`` is the part of
    them that paths are compared by (stack_key); ``frames[i]`` is an example in full. ``objects[i, t]`` and
    ``bytes[i, t]`` are what it holds at ``times[t]``.
    """

    times: list[float]
    sampling: Sampling
    members: list[Key]
    keys: list[Key]
    frames: list[tuple[Frame, ...]]
    objects: Numbers
    bytes: Numbers

    def at(self, positions: Sequence[int]) -> Paths:
        """Only these points in time."""
        chosen = list(positions)
        times = [self.times[position] for position in chosen]
        return replace(self, times=times, objects=self.objects[:, chosen], bytes=self.bytes[:, chosen])


@dataclass(frozen=True)
class Series:
    """Stacks over time; ``times`` (seconds since the epoch) ascend.

    ``objects[i, t]`` and ``bytes[i, t]`` are what ``stacks[i]`` holds at ``times[t]``, by ``measure``; ``sampling`` is
    the coarsest of all profiles.
    """

    times: list[float]
    measure: Measure
    sampling: Sampling
    stacks: list[Stack]
    objects: Numbers
    bytes: Numbers

    @cached_property
    def paths(self) -> Paths:
        """Stacks with the same functions, merged; the one that holds most at the end is the example."""
        rows: dict[Key, int] = {}
        row_of = np.array([rows.setdefault(stack.members, len(rows)) for stack in self.stacks], dtype=np.int64)
        examples: dict[int, Stack] = {}
        newest = self.bytes[:, -1] if self.times else np.zeros(0)
        for number in np.argsort(-newest, kind="stable").tolist():
            examples.setdefault(int(row_of[number]), self.stacks[number])
        table = np.zeros((2, len(rows), len(self.times)))
        for column, values in zip(table, (self.objects, self.bytes), strict=True):
            np.add.at(column, row_of, values)
        shown = [examples[row] for row in range(len(rows))]
        return Paths(
            times=self.times,
            sampling=self.sampling,
            members=list(rows),
            keys=[stack.key for stack in shown],
            frames=[stack.frames for stack in shown],
            objects=table[0],
            bytes=table[1],
        )


def gather(moments: Sequence[Moment], name: Callable[[list[int]], list[Stack]]) -> Series:
    """The series of these moments, which ascend in time; ``name`` turns stack numbers into stacks.

    Raises MeasureError if they measure different things.
    """
    lengths = [len(moment.stacks) for moment in moments]
    every = np.concatenate([moment.stacks for moment in moments]) if moments else np.zeros(0, dtype=np.int64)
    numbers, row = np.unique(every, return_inverse=True)
    shape = (len(numbers), len(moments))
    cell = row * shape[1] + np.repeat(np.arange(len(moments)), lengths)
    tables = np.zeros((2, *shape))
    if len(cell):
        for table, columns in zip(tables, ([m.objects for m in moments], [m.bytes for m in moments]), strict=True):
            table[:] = np.bincount(cell, np.concatenate(columns), table.size).reshape(shape)
    return Series(
        times=[moment.time for moment in moments],
        measure=common_measure(moment.measure for moment in moments),
        sampling=coarsest(moment.sampling for moment in moments),
        stacks=name(numbers.tolist()),
        objects=tables[0],
        bytes=tables[1],
    )


def of_samples(profiles: Iterable[tuple[float, Samples]]) -> Series:
    """The series of profiles, given with their times (seconds since the epoch), oldest first. Raises MeasureError."""
    known: dict[tuple[Frame, ...], int] = {}
    moments = []
    for time, samples in profiles:
        stacks = [known.setdefault(frames, len(known)) for frames in samples.each_stack_of_frames()]
        values = samples.values
        ids = np.array(stacks, dtype=np.int64)
        moments.append(Moment(time, samples.measure, samples.sampling, ids, values[OBJECTS], values[BYTES]))
    named = [stack_of(frames) for frames in known]
    return gather(moments, lambda numbers: [named[number] for number in numbers])


def evenly_spread(times: Sequence[float], most: int) -> list[int]:
    """Positions of at most ``most`` points (times ascend), spread evenly over the time and including the last.

    jemalloc dumps by bytes allocated: a dozen dumps in the first second, then one a minute. Without thinning, the
    first second would decide everything.
    """
    if not times:
        return []
    first, span = times[0], times[-1] - times[0]
    if span <= 0:
        return [len(times) - 1]
    slots = {int((time - first) / span * (most - 1)): position for position, time in enumerate(times)}
    return sorted(slots.values())


def rises(times: Sequence[float], values: Numbers, growth: float) -> Flags:
    """Which rows may grow by ``growth`` bytes, as Theil-Sen slope times the span: a quick test that misses none.

    A median of slopes is at least s if half of the pairs of points rise by s, which takes comparisons only.
    """
    moments = np.array(times)
    if np.any(np.diff(moments) <= 0):
        return np.ones(len(values), dtype=np.bool_)
    tilted = values - growth / (moments[-1] - moments[0]) * (1 - 1e-9) * (moments - moments[0])
    count = np.zeros(len(values), dtype=np.int64)
    for distance in range(1, len(moments)):
        count += np.count_nonzero(tilted[:, distance:] >= tilted[:, :-distance], axis=1)
    result: Flags = 4 * count >= len(moments) * (len(moments) - 1)
    return result


def stack_key(frames: Iterable[Frame]) -> Key:
    """What stacks (leaf first) are compared by: functions without consecutive repeats, up to any compiled code."""
    names: list[str] = []
    for frame in frames:
        if frame.kind in _RUNTIME:
            names.append("[jit]")
            break
        names.append(frame.group)
    return without_repeats(names)


def without_repeats(names: Sequence[Name]) -> tuple[Name, ...]:
    """Those that repeat in a row once: that is recursion, whose depth says nothing."""
    return tuple([name for position, name in enumerate(names) if position == 0 or names[position - 1] != name])
