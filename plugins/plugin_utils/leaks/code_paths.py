# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""The code paths of a process: which of them grow, and how fast one would have to grow to show.

Stacks are compared by function, so addresses, source lines and offsets do not matter, and only up to the first code
that a runtime has compiled. Frames of such code change as it is compiled, inlined and compiled better, so a leak would
seem to stop in one stack and begin in another.

A leak may be spread over stacks that differ far from the allocation. So stacks that do not grow by themselves are
grouped by the eight, four, two and one functions nearest to the allocation, without those that are known to move in
another way. If that shows nothing either although live memory as a whole grows, they are grouped by any function.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING

from ..base import libraries
from ..base.durations import DAY
from ..model.frame import Frame
from ..model.series import Key, Paths, rises, stack_key, without_repeats
from . import grown
from .holding import Holding
from .inlining import least_inlined
from .life_curve import LifeCurve
from .trend import LEAST_GROWTH, SIGNIFICANT, Measured, Shape, Trend, assess, smallest_growth

if TYPE_CHECKING:
    import numpy as np
else:
    np = libraries.optional("numpy")

_DEPTHS = (8, 4, 2, 1)
# Callers in compiled code are suspects of their own if so few of them, each growing by itself, are so much of a leak.
_MOST_CALLERS = 4
_SHARE_OF_CALLERS = 0.85
# The share of a spread leak that must be below a function for it to be the suspect.
_SHARE_OF_FUNCTION = 0.85
# Load that follows the time of day: by how much of its mean it rises and falls at most, and how much less than a path
# the other memory may rise if it is the load that both follow.
_MOST_OF_A_DAY = 0.5
_LEAST_OF_OTHERS = 0.05
# Paths whose limits are computed, those that change most.
_MOST_LIMITS = 4


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
    first dump with any of it (seconds since the epoch). ``lives`` is how its objects live, ``holding`` who holds them,
    ``freed`` the share of what it allocated while it was watched that was freed (0 to 1), None where nobody knows.
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
    lives: LifeCurve | None = None
    holding: Holding | None = None
    freed: float | None = None

    def is_same(self, other: Suspect) -> bool:
        """Whether the functions of one begin (at the allocation) with all those of the other."""
        common = min(len(self.key), len(other.key))
        return self.key[:common] == other.key[:common] and (common > 0 or self.key == other.key)

    def covers(self, frames: Sequence[Frame], key: Key | None = None) -> bool:
        """Whether a stack (leaf first) belongs to this suspect; its ``key`` is that of its frames, if it is known."""
        match self.extent:
            case Extent.KEY:
                return (stack_key(frames) if key is None else key) == self.key
            case Extent.BEGINNING:
                return (stack_key(frames) if key is None else key)[: len(self.key)] == self.key
            case Extent.CALLER:
                return without_repeats([frame.group for frame in frames]) == self.names
            case Extent.FUNCTION:
                return any(frame.group in self.names for frame in frames)


@dataclass(frozen=True)
class Limit:
    """A steady leak of ``rate`` bytes per day shows in nine of ten cases, in this ``path`` as it changes besides; if
    that is empty, in any path that is new or holds still. It is never less than what was seen to stay."""

    rate: float
    path: tuple[Frame, ...] = ()


class CodePaths:
    """Live objects and bytes by code path and point in time; a path is a row of the series."""

    def __init__(self, watched: Paths, chosen: Sequence[int]) -> None:
        self._watched = watched
        self._series = watched.at(chosen)
        self._times = self._series.times
        self._sampling = self._series.sampling
        self._keys = self._series.keys
        self.leaking: set[int] = set()
        # Rows that moved beyond chance, but in another way than a leak.
        self._moved: set[int] = set()
        self._peak = self._series.bytes.max(axis=1, initial=0.0)
        self._gain = self._series.bytes[:, -1] - self._series.bytes[:, 0]

    def total(self) -> Trend:
        return self._trend(self._unmoved(list(range(len(self._keys)))))

    def quiet(self) -> str:
        """Why nothing leaks although or because live memory as a whole does not grow."""
        count = len({self._keys[row] for row in self._moved})
        if not count:
            return "no code path grows beyond what sampling explains"
        return f"no code path grows steadily, {count} in steps, until full, or back and forth"

    def grown(self) -> grown.Grown | None:
        """What has grown most and not given back, in whatever way."""
        return grown.largest(self._series, self._watched.times[0], self.leaking)

    def limits(self) -> list[Limit]:
        """That of a path which holds still, and of the one where a leak has to be fastest, if that differs much."""
        days = (self._times[-1] - self._times[0]) / DAY
        nothing = Measured(self._times, [0.0] * len(self._times), [0.0] * len(self._times))
        still = Limit(max(smallest_growth(nothing, self._sampling), grown.LEAST_GROWN) / days)
        most = np.argsort(-self._series.bytes.std(axis=1))[:_MOST_LIMITS].tolist()
        found = []
        for row in most:
            hidden = max(smallest_growth(self._measured([row]), self._sampling), self._gain[row])
            found.append(Limit(float(hidden) / days, self._series.frames[row]))
        worst = max(found, key=lambda limit: limit.rate, default=still)
        return [still, worst] if worst.rate > 2 * still.rate else [still]

    def follows_the_day(self, suspect: Suspect, span: float) -> bool:
        """Whether growth over less than a day may be that of load by day: no more than a wave rises in that time, and
        shared by the other memory. A sine of height h times its mean rises by at most 2 pi h in a period, and a line
        through half a period by 24 / pi^2 h."""
        each = zip(self._series.frames, self._keys, strict=True)
        rows = [row for row, (frames, key) in enumerate(each) if suspect.covers(frames, key)]
        if not rows:
            return False
        mine = self._series.bytes[rows].mean(axis=1).sum()
        days = (self._times[-1] - self._times[0]) / DAY
        rise = (suspect.growth - suspect.error) * days / mine
        if rise > _MOST_OF_A_DAY * min(2 * math.pi * span / DAY, 24 / math.pi**2):
            return False
        rest = sorted(set(range(len(self._keys))) - set(rows))
        others = self._trend(rest)
        mean = self._series.bytes[rest].mean(axis=1).sum()
        return bool(others.slope > others.error and others.growth > _LEAST_OF_OTHERS * rise * mean)

    def suspects(self) -> tuple[list[Suspect], list[Suspect], list[Suspect]]:
        """(paths that grow, paths that grow ever slower, paths that climb), the fastest first."""
        growing: list[Suspect] = []
        slowing: list[Suspect] = []
        climbing: list[Suspect] = []
        left = list(range(len(self._keys)))
        for depth in (None, *_DEPTHS):
            groups: dict[Key, list[int]] = {}
            for row in left:
                groups.setdefault(self._keys[row][:depth], []).append(row)
            left = []
            members = [self._unmoved(rows) for rows in groups.values()]
            candidates = self._candidates(members)
            if depth is None:
                others = [rows for rows, is_candidate in zip(members, candidates, strict=True) if not is_candidate]
                self._moved.update(self._stepped(others))
            for (group, rows), judged, is_candidate in zip(groups.items(), members, candidates, strict=True):
                looked_at_before = depth is not None and len({self._keys[row] for row in judged}) == 1
                trend = self._trend(judged) if is_candidate and not looked_at_before else None
                if trend is not None and trend.shape is Shape.GROWS:
                    self.leaking.update(judged)
                    growing += self._by_caller(group, judged, trend) or [self._suspect(group, judged, trend)]
                    continue
                if depth is None and trend is not None and trend.shape is not Shape.FLAT:
                    self._moved.update(rows)
                    if trend.shape in (Shape.SLOWING, Shape.CLIMBS):
                        found = slowing if trend.shape is Shape.SLOWING else climbing
                        found.append(self._suspect(group, rows, trend))
                left.extend(rows)
        for found in (growing, slowing, climbing):
            found.sort(key=lambda suspect: suspect.growth, reverse=True)
        return growing, slowing, climbing

    def _stepped(self, groups: list[list[int]]) -> list[int]:
        """The rows of groups that hold more at the end than at the beginning, beyond chance."""
        if not groups:
            return []
        few = max(len(self._times) // 12, 1)
        rows = np.array([row for group in groups for row in group])
        group_of = np.repeat(np.arange(len(groups)), [len(group) for group in groups])
        first = np.bincount(group_of, self._series.bytes[rows, :few].mean(axis=1))
        last = np.bincount(group_of, self._series.bytes[rows, -few:].mean(axis=1))
        stepped = last - first > SIGNIFICANT * np.sqrt(max(self._sampling.scatter, 1) * (first + last))
        found: list[int] = rows[stepped[group_of]].tolist()
        return found

    def _unmoved(self, rows: list[int]) -> list[int]:
        """These rows without those that are known to move in another way, unless most of them do: then they may take
        turns at one leak."""
        still = [row for row in rows if row not in self._moved]
        return still if 2 * len(still) >= len(rows) else rows

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
            if trend and trend.shape is Shape.GROWS and trend.growth >= _SHARE_OF_FUNCTION * total.growth:
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
        share = math.fsum(trends[row].growth for row in alone) / together.growth
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
        return assess(self._measured(rows), self._sampling)

    def _measured(self, rows: list[int]) -> Measured:
        objects = self._series.objects[rows].sum(axis=0).tolist()
        return Measured(self._times, objects, self._series.bytes[rows].sum(axis=0).tolist())

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
        shared = shared_key(
            [self._keys[row] for row in ranked if row == best or self._gain[row] > 0.05 * self._gain[best]]
        )
        whole = shared == self._keys[best]
        values = self._watched.bytes[rows].sum(axis=0)
        return Suspect(
            path=tuple(frames if whole else first_frames(frames, len(shared))),
            key=group,
            extent=Extent.KEY if len({self._keys[row] for row in rows}) == 1 else Extent.BEGINNING,
            stacks=len(rows),
            growth=trend.slope * DAY,
            error=trend.error * DAY,
            live=float(live[rows].sum()),
            first_seen=self._watched.times[int(np.argmax(values > 0))],
        )


def shared_key(keys: Sequence[Key]) -> Key:
    """The longest beginning that all keys have."""
    shortest = min(keys, key=len)
    for length, names in enumerate(zip(*keys, strict=False)):
        if len(set(names)) > 1:
            return shortest[:length]
    return shortest


def first_frames(frames: list[Frame], count: int) -> list[Frame]:
    """The frames from the leaf whose key has ``count`` names."""
    for end in range(len(frames), 0, -1):
        if len(stack_key(frames[:end])) <= count:
            return frames[:end]
    return []
