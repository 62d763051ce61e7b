# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""The memory of one process over time, by stack and by code path."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

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
_RUNTIME = (Kind.JIT, Kind.JAVA, Kind.PYTHON, Kind.JS)


class Stack(NamedTuple):
    """A stack without the allocator's frames, leaf first.

    ``members`` are its functions without repeats in a row, ``key`` the part of them that stacks are compared by.
    """

    frames: tuple[Frame, ...]
    members: Key
    key: Key


def stack_of(frames: tuple[Frame, ...]) -> Stack:
    return Stack(frames, without_repeats([frame.group for frame in frames]), stack_key(frames))


class Moment(NamedTuple):
    """What one profile holds at ``time`` (seconds since the epoch): by stack, numbered as the reader likes, ``objects``
    and ``bytes``, unbiased."""

    time: float
    measure: Measure
    sampling: Sampling
    stacks: Integers
    objects: Numbers
    bytes: Numbers


@dataclass(frozen=True)
class Paths:
    """Code paths by point in time: stacks with the same functions are one. ``times`` (seconds since the epoch) ascend.

    ``members[i]`` are the functions of path ``i`` without repeats in a row, leaf first, ``keys[i]`` the part of them
    that paths are compared by (stack_key), ``frames[i]`` an example of it in full. ``objects[i, t]`` and
    ``bytes[i, t]`` are those at ``times[t]``.
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
    """Stacks by point in time; ``times`` (seconds since the epoch) ascend.

    ``objects[i, t]`` and ``bytes[i, t]`` are what ``stacks[i]`` has at ``times[t]``, by ``measure``; ``sampling`` is
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
        """Stacks with the same functions together; of them, the one that holds most in the end is the example."""
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
    """The series of these moments, which ascend in time; ``name`` tells what the numbers of stacks stand for.

    Raises MeasureError where they measure different things.
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
    """The series of profiles and their times (seconds since the epoch), oldest first. Raises MeasureError."""
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
    """Positions of at most ``most`` of the points (times ascend), evenly spread over the time, with the last one.

    jemalloc's dumps come by bytes allocated: a dozen in the first second, then one a minute. Left like that, the first
    second would decide everything.
    """
    if not times:
        return []
    first, span = times[0], times[-1] - times[0]
    if span <= 0:
        return [len(times) - 1]
    slots = {int((time - first) / span * (most - 1)): position for position, time in enumerate(times)}
    return sorted(slots.values())


def rises(times: Sequence[float], values: Numbers, growth: float) -> Flags:
    """Which rows' Theil-Sen slope times the span may be ``growth`` bytes: a quick test that never errs on this side.

    A median of slopes is at least s where half of the pairs of points rise by s, and comparing is all that this takes.
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
    """What stacks (leaf first) are compared by: functions without repeats in a row, up to the first compiled code."""
    names: list[str] = []
    for frame in frames:
        if frame.kind in _RUNTIME:
            names.append("[jit]")
            break
        names.append(frame.group)
    return without_repeats(names)


def without_repeats(names: Sequence[str]) -> Key:
    return tuple([name for position, name in enumerate(names) if position == 0 or names[position - 1] != name])
