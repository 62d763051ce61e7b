# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Processes of a unit as one: those that run side by side, and those that took one another's place.

Workers that leak alike leak together, and what "no leak" of each of them leaves open adds up as well. Sums are of what
they did at the same time, so those that began much later than the first are left out of them.

Workers that are replaced each few minutes end before anybody could judge them. Their lives at the same age are those of
one worker, seen often.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import mean
from typing import TYPE_CHECKING

from ..base import libraries
from ..model.lives import Lives
from ..model.sampling import coarsest, common_measure
from ..model.series import Key, Series, Stack
from .own_numbers import OwnNumbers, told_size
from .trend import WARM_UP

if TYPE_CHECKING:
    import numpy as np
else:
    np = libraries.optional("numpy")

# How much of the longest time that one of them was watched each must have been, and how much before the end at most its
# newest dump is: they were then watched together for a quarter of that time at least.
_WATCHED, _BEFORE_THE_END = 1 / 2, 1 / 4


def beside(spans: Sequence[tuple[float, float]]) -> list[int]:
    """The positions of those (first and last time) that make a sum."""
    longest = max((end - start for start, end in spans), default=0.0)
    newest = max((end for _start, end in spans), default=0.0)
    return [
        position
        for position, (start, end) in enumerate(spans)
        if end - start >= _WATCHED * longest and newest - end <= _BEFORE_THE_END * longest
    ]


def common_times(each: Sequence[Series]) -> list[float]:
    """When all of these were watched: the times of the one with most dumps between the last start and the first end."""
    start, end = max(one.times[0] for one in each), min(one.times[-1] for one in each)
    return max(([time for time in one.times if start <= time <= end] for one in each), key=len)


def _at(one: Series, times: Sequence[float]) -> list[int]:
    """The newest dump at each of the times."""
    return [bisect_right(one.times, time) - 1 for time in times]


def sum_of_series(each: Sequence[Series], times: Sequence[float]) -> Series:
    """What all hold together at these times, each by its newest dump. Raises MeasureError if they measure different
    things."""
    rows: dict[Key, int] = {}
    stacks: list[Stack] = []
    tables: list[tuple[list[int], Series, list[int]]] = []
    for one in each:
        paths = one.paths
        for members, key, frames in zip(paths.members, paths.keys, paths.frames, strict=True):
            if members not in rows:
                rows[members] = len(rows)
                stacks.append(Stack(frames, members, key))
        tables.append(([rows[members] for members in paths.members], one, _at(one, times)))
    objects, sizes = np.zeros((2, len(rows), len(times)))
    for row_of, one, positions in tables:
        objects[row_of] += one.paths.objects[:, positions]
        sizes[row_of] += one.paths.bytes[:, positions]
    return Series(
        times=list(times),
        measure=common_measure(one.measure for one in each),
        sampling=coarsest(one.sampling for one in each),
        stacks=stacks,
        objects=objects,
        bytes=sizes,
    )


def sum_of_lives(each: Sequence[Lives]) -> Lives | None:
    """The lives of all, in a book that began with the last of them: what others had before counts as there from the
    start. None where they were sampled in different ways."""
    if not each or any(one.sampling != each[0].sampling for one in each):
        return None
    now, span = max(one.now for one in each), min(one.span for one in each)
    rows: dict[Key, int] = {}
    stacks: list[Stack] = []
    row_of: list[list[int]] = []
    for one in each:
        for stack in one.stacks:
            if stack.members not in rows:
                rows[stack.members] = len(rows)
                stacks.append(stack)
        row_of.append([rows[stack.members] for stack in one.stacks])
    births = np.zeros(len(rows))
    deaths, ages = np.zeros((2, len(rows), each[0].deaths.shape[1]))
    for chosen, one in zip(row_of, each, strict=True):
        np.add.at(births, chosen, one.births)
        np.add.at(deaths, chosen, one.deaths)
        np.add.at(ages, chosen, one.ages)
    return replace(
        each[0],
        began=now - span,
        now=now,
        stacks=stacks,
        births=births,
        deaths=deaths,
        ages=ages,
        stack=np.concatenate([np.array(chosen, np.int64)[one.stack] for chosen, one in zip(row_of, each, strict=True)]),
        born=np.concatenate([now - one.age for one in each]),
        size=np.concatenate([one.size for one in each]),
        lost=sum(one.lost for one in each),
        watched=mean(one.of_deaths for one in each),
    )


def generations(each: Sequence[Lives]) -> Lives | None:
    """The lives of processes that came one after another, as if they had begun at once: what was born in the start-up
    of each is left out, what lived when one ended might have lived on. None as for a sum."""
    span = max((one.span for one in each), default=0.0)
    later = [one.born >= one.began + WARM_UP * span for one in each]
    whole = sum_of_lives(
        [
            replace(one, stack=one.stack[chosen], born=one.born[chosen], size=one.size[chosen])
            for one, chosen in zip(each, later, strict=True)
        ]
    )
    return None if whole is None else replace(whole, began=whole.now - span)


def sum_of_own_numbers(each: Sequence[tuple[Series, OwnNumbers]], times: Sequence[float]) -> OwnNumbers:
    """What all said of themselves together; a number that one of them does not tell is told by none."""
    memory: list[Mapping[str, object]] = []
    positions = [_at(series, times) for series, _own in each]
    for at in range(len(times)):
        told = [own.memory[chosen[at]] for chosen, (_series, own) in zip(positions, each, strict=True)]
        names = set(told[0]).intersection(*told[1:])
        sizes = {name: [told_size(one[name]) for one in told] for name in names}
        memory.append({name: sum(known) for name, known in _whole(sizes).items()})
    last = max(each, key=lambda one: one[0].times[-1])[1]
    return OwnNumbers(memory, last.runtime, last.left, any(own.tracks for _series, own in each), last.page)


def _whole(sizes: Mapping[str, Sequence[float | None]]) -> dict[str, list[float]]:
    known = {name: [size for size in of_all if size is not None] for name, of_all in sizes.items()}
    return {name: found for name, found in known.items() if len(found) == len(sizes[name])}
