# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""From the series of a process to a verdict: leak, no leak, or cannot tell, and which code path it is.

Stacks are compared by function, so addresses, source lines and offsets do not matter, and only up to the first code
that a runtime has compiled. Frames of such code change as it is compiled, inlined and compiled better, so a leak would
seem to stop in one stack and begin in another.

A leak may be spread over stacks that differ far from the allocation. So stacks that do not grow by themselves are
grouped by the eight, four, two and one functions nearest to the allocation. If that shows nothing either although live
memory as a whole grows, they are grouped by any function in them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from itertools import pairwise
from typing import TYPE_CHECKING

from ..base import libraries
from ..base.durations import duration, per_day
from ..model.frame import Frame
from ..model.series import Key, Paths, Series, rises, stack_key, without_repeats
from .inlining import least_inlined
from .patterns import Movement, changes
from .trend import LEAST_EVENTS, LEAST_GROWTH, SIGNIFICANT, Measured, Shape, Trend, assess, window

if TYPE_CHECKING:
    import numpy as np
else:
    np = libraries.optional("numpy")

DAY = 86400.0
LEAST_POINTS = 3
LEAST_SPAN = 60.0
_DEPTHS = (8, 4, 2, 1)
# Callers in compiled code are suspects of their own if so few of them, each growing by itself, are so much of a leak.
_MOST_CALLERS = 4
_SHARE_OF_CALLERS = 0.85
# The share of a spread leak that must be below a function for it to be the suspect.
_SHARE_OF_FUNCTION = 0.85


class Answer(Enum):
    LEAK = "leak"
    NO_LEAK = "no-leak"
    CANNOT_TELL = "cannot-tell"


class Extent(Enum):
    """Which stacks a suspect stands for: those with its KEY, those whose key has it as its BEGINNING, the one whole
    stack with its names (a CALLER in compiled code, which no key has), or those through the FUNCTION that it names."""

    KEY = "key"
    BEGINNING = "beginning"
    CALLER = "caller"
    FUNCTION = "function"


@dataclass(frozen=True)
class Suspect:
    """A code path whose live bytes grow.

    ``path``, leaf first, is the part that all of its stacks share, or a stack from its function on. Of stacks that
    differ only in compiled code, it is the one that grows fastest, as it was before calls were inlined.
    ``key`` is what was compared. ``extent`` and ``names`` (of CALLER and FUNCTION) say which stacks it stands for,
    ``stacks`` how many. ``growth`` and ``error`` (half of the 95 % interval) are bytes per day, ``live`` is bytes in
    the newest profile. ``share`` is its part of the growth of all live memory (0 to 1), ``first_seen`` the time of the
    first dump with any of it (seconds since the epoch), ``monotonic`` the share of steps from dump to dump that do not
    fall.
    """

    path: tuple[Frame, ...]
    key: Key
    extent: Extent
    stacks: int
    growth: float
    error: float
    live: float
    names: Key = ()
    share: float = 0.0
    first_seen: float = 0.0
    monotonic: float = 0.0

    def covers(self, frames: Sequence[Frame]) -> bool:
        """Whether a stack (leaf first) belongs to this suspect."""
        match self.extent:
            case Extent.KEY:
                return stack_key(frames) == self.key
            case Extent.BEGINNING:
                return stack_key(frames)[: len(self.key)] == self.key
            case Extent.CALLER:
                return without_repeats([frame.group for frame in frames]) == self.names
            case Extent.FUNCTION:
                return any(frame.group in self.names for frame in frames)


@dataclass(frozen=True)
class Verdict:
    """What is known about a unit on a host. Rates are bytes per day; ``reason`` is one sentence without a full stop.

    ``unexplained`` is how fast one of the process's own numbers grows beyond the stacks, if that keeps the answer open.
    ``limit`` is the rate of the slowest leak that would show, where the answer is NO_LEAK. ``changes`` are the largest
    changes of paths that are no suspects.
    """

    answer: Answer
    reason: str
    growth: float = 0.0
    error: float = 0.0
    suspects: list[Suspect] = field(default_factory=list)
    process: str = ""
    points: int = 0
    span: float = 0.0
    changes: list[Movement] = field(default_factory=list)
    unexplained: float = 0.0
    limit: float = 0.0

    @property
    def counts(self) -> bool:
        """Whether this process was watched for long enough to speak for its unit, in the place of earlier ones."""
        return self.answer is not Answer.CANNOT_TELL or self.unexplained > 0


def judge(key: str, series: Series, least_span: float = LEAST_SPAN) -> Verdict:
    """The verdict on one process (``key`` is its name)."""
    watched = series.paths
    count = len(watched.times)
    span = watched.times[-1] - watched.times[0] if watched.times else 0.0
    if count < LEAST_POINTS:
        reason = f"only {_count(count, 'dump')} of process {key}, at least {LEAST_POINTS} are needed"
        return Verdict(Answer.CANNOT_TELL, reason, process=key, points=count, span=span)
    if span < least_span:
        reason = f"the dumps of process {key} span only {duration(span)}, at least {duration(least_span)} are needed"
        return Verdict(Answer.CANNOT_TELL, reason, process=key, points=count, span=span)
    chosen = window(watched.times)
    if len(chosen) < LEAST_POINTS:
        reason = f"the dumps of process {key} lie too close together in time"
        return Verdict(Answer.CANNOT_TELL, reason, process=key, points=count, span=span)
    if math.isinf(series.sampling.scatter):
        reason = f"it is unknown how the profiles of process {key} were sampled, so growth cannot be told from chance"
        return Verdict(Answer.CANNOT_TELL, reason, process=key, points=count, span=span)
    table = _Table(watched, chosen)
    total = table.total()
    suspects, settling = table.suspects()
    if total.shape is Shape.GROWS and not suspects:
        suspects = settling or table.below_a_function(total)
    verdict = _weigh(watched, total, suspects, table)
    return replace(verdict, process=key, points=count, span=span, changes=changes(watched, table.leaking))


def _weigh(watched: Paths, total: Trend, suspects: list[Suspect], table: _Table) -> Verdict:
    over = f"over {duration(watched.times[-1] - watched.times[0])} and {len(watched.times)} dumps"
    if suspects:
        growth = math.fsum(suspect.growth for suspect in suspects)
        whole = max(growth, total.slope * DAY)
        suspects = [replace(suspect, share=suspect.growth / whole) for suspect in suspects]
        error = math.sqrt(math.fsum(suspect.error**2 for suspect in suspects))
        paths = "one code path grows" if len(suspects) == 1 else f"{len(suspects)} code paths grow"
        return Verdict(Answer.LEAK, f"{paths} steadily {over}", growth, error, suspects)
    growth, error = total.slope * DAY, total.error * DAY
    if total.shape is Shape.GROWS:
        return Verdict(Answer.LEAK, f"live memory grows steadily {over}, but spread over many paths", growth, error)
    if total.shape is Shape.SETTLES and total.late:
        reason = f"live memory still grows, but ever slower ({over}): it may be starting up, collect again later"
        return Verdict(Answer.CANNOT_TELL, reason, growth, error)
    why = {
        Shape.FLAT: "no code path grows beyond what sampling explains",
        Shape.SETTLES: "live memory grew and then stopped",
        Shape.BREATHES: "live memory rises and falls back",
    }[total.shape]
    limit = table.smallest_visible(total) * DAY
    hidden = f"a leak of less than {per_day(limit)} would not show yet"
    return Verdict(Answer.NO_LEAK, f"{why} {over} ({hidden})", growth, error, limit=limit)


class _Table:
    """Live objects and bytes by code path and point in time; a path is a row of the series."""

    def __init__(self, watched: Paths, chosen: Sequence[int]) -> None:
        self._watched = watched
        self._series = watched.at(chosen)
        self._times = self._series.times
        self._sampling = self._series.sampling
        self._keys = self._series.keys
        self.leaking: set[int] = set()
        self._peak = self._series.bytes.max(axis=1, initial=0.0)
        self._gain = self._series.bytes[:, -1] - self._series.bytes[:, 0]

    def total(self) -> Trend:
        return self._trend(list(range(len(self._keys))))

    def smallest_visible(self, total: Trend) -> float:
        """The rate (bytes per second) below which sampling hides a leak beside everything else."""
        span = self._times[-1] - self._times[0]
        return max(LEAST_EVENTS * max(self._sampling.scatter, 1) / span, SIGNIFICANT / 2 * total.error)

    def suspects(self) -> tuple[list[Suspect], list[Suspect]]:
        """(paths that grow, paths that grow ever slower), the fastest first."""
        growing: list[Suspect] = []
        settling: list[Suspect] = []
        left = list(range(len(self._keys)))
        for depth in (None, *_DEPTHS):
            groups: dict[Key, list[int]] = {}
            for row in left:
                groups.setdefault(self._keys[row][:depth], []).append(row)
            left = []
            candidates = self._candidates(list(groups.values()))
            for (group, rows), is_candidate in zip(groups.items(), candidates, strict=True):
                looked_at_before = depth is not None and len({self._keys[row] for row in rows}) == 1
                trend = self._trend(rows) if is_candidate and not looked_at_before else None
                if trend is not None and trend.shape is Shape.GROWS:
                    self.leaking.update(rows)
                    growing += self._by_caller(group, rows, trend) or [self._suspect(group, rows, trend)]
                    continue
                if depth is None and trend is not None and trend.shape is Shape.SETTLES and trend.late:
                    settling.append(self._suspect(group, rows, trend))
                left.extend(rows)
        for found in (growing, settling):
            found.sort(key=lambda suspect: suspect.growth, reverse=True)
        return growing, settling

    def below_a_function(self, total: Trend) -> list[Suspect]:
        """The function nearest to the allocations that has nearly all growth of live memory below it, if any."""
        members = self._series.members
        rows_of: dict[str, list[int]] = {}
        for row, member in enumerate(members):
            for name in set(member):
                rows_of.setdefault(name, []).append(row)
        # A function in all stacks says nothing.
        named = {name: rows for name, rows in rows_of.items() if 1 < len(rows) < len(members) and name != "[jit]"}
        found = []
        for (name, rows), is_candidate in zip(named.items(), self._candidates(list(named.values())), strict=True):
            trend = self._trend(rows) if is_candidate else None
            if trend and trend.shape is Shape.GROWS and trend.slope >= _SHARE_OF_FUNCTION * total.slope:
                found.append((len(rows), sum(members[row].index(name) for row in rows) / len(rows), name, trend))
        if not found:
            return []
        _count, _depth, name, trend = min(found, key=lambda one: one[:3])
        rows = rows_of[name]
        self.leaking.update(rows)
        suspect = self._suspect((name,), rows, trend)
        best = max(rows, key=self._gain.__getitem__)
        frames = self._series.frames[best]
        start = next(number for number, frame in enumerate(frames) if frame.group == name)
        return [replace(suspect, path=frames[start:], extent=Extent.FUNCTION, names=(name,))]

    def _by_caller(self, group: Key, rows: list[int], together: Trend) -> list[Suspect]:
        """The suspects of a group whose stacks differ only in compiled code, if a few of them make up its growth."""
        if len(rows) == 1 or len({self._keys[row] for row in rows}) > 1:
            return []
        candidates = zip(rows, self._candidates([[row] for row in rows]), strict=True)
        trends = {row: self._trend([row]) for row, is_candidate in candidates if is_candidate}
        alone = [row for row, trend in trends.items() if trend.shape is Shape.GROWS]
        share = math.fsum(trends[row].slope for row in alone) / together.slope
        if not 1 < len(alone) <= _MOST_CALLERS or share < _SHARE_OF_CALLERS:
            return []
        members = self._series.members
        found = [(self._suspect(group, [row], trends[row]), members[row]) for row in alone]
        return [replace(suspect, extent=Extent.CALLER, names=names) for suspect, names in found]

    def _candidates(self, groups: list[list[int]]) -> list[bool]:
        """Which groups of rows need statistics. The test is cheap and generous, and spares most of them."""
        if not groups:
            return []
        rows = np.array([row for group in groups for row in group])
        group_of = np.repeat(np.arange(len(groups)), [len(group) for group in groups])
        gain = np.bincount(group_of, self._peak[rows])
        may = (gain > self._sampling.scatter) & (np.bincount(group_of, self._gain[rows]) > -gain / 2)
        number = np.cumsum(may) - 1
        chosen = may[group_of]
        values = np.zeros((int(may.sum()), len(self._times)))
        np.add.at(values, number[group_of[chosen]], self._series.bytes[rows[chosen]])
        may[may] = rises(self._times, values, LEAST_GROWTH * self._sampling.scatter)
        found: list[bool] = may.tolist()
        return found

    def _trend(self, rows: list[int]) -> Trend:
        objects = self._series.objects[rows].sum(axis=0).tolist()
        values = self._series.bytes[rows].sum(axis=0).tolist()
        return assess(Measured(self._times, objects, values), self._sampling)

    def _suspect(self, group: Key, rows: list[int], trend: Trend) -> Suspect:
        live = self._series.bytes[:, -1]
        members = self._series.members
        ranked = sorted(rows, key=self._gain.__getitem__, reverse=True)
        best = ranked[0]
        same = {members[row]: float(live[row]) for row in rows if self._keys[row] == self._keys[best]}
        shown = members[best]
        if len(same) > 1:
            shown = least_inlined(shown, same)
        frames = list(self._series.frames[next(row for row in rows if members[row] == shown)])
        # The median of the slopes may rise where no path ends higher than it began: then one stands for all.
        shared = _shared(
            [self._keys[row] for row in ranked if row == best or self._gain[row] > 0.05 * self._gain[best]]
        )
        whole = shared == self._keys[best]
        values = self._watched.bytes[rows].sum(axis=0)
        steps = [later >= earlier for earlier, later in pairwise(values.tolist())]
        return Suspect(
            path=tuple(frames if whole else _first_frames(frames, len(shared))),
            key=group,
            extent=Extent.KEY if len({self._keys[row] for row in rows}) == 1 else Extent.BEGINNING,
            stacks=len(rows),
            growth=trend.slope * DAY,
            error=trend.error * DAY,
            live=float(live[rows].sum()),
            first_seen=self._watched.times[int(np.argmax(values > 0))],
            monotonic=sum(steps) / len(steps),
        )


def _shared(keys: Sequence[Key]) -> Key:
    """The longest beginning that all keys have."""
    shortest = min(keys, key=len)
    for length, names in enumerate(zip(*keys, strict=False)):
        if len(set(names)) > 1:
            return shortest[:length]
    return shortest


def _first_frames(frames: list[Frame], count: int) -> list[Frame]:
    """The frames from the leaf whose key has ``count`` names."""
    for end in range(len(frames), 0, -1):
        if len(stack_key(frames[:end])) <= count:
            return frames[:end]
    return []


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
