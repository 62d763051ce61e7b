# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""From the profiles of a unit on a host to a verdict: leak, no leak, or cannot tell, and which code path it is.

Each process is a series of its own. Stacks are compared by function, so that addresses, source lines and offsets do
not matter, and only as far as machine code that was there from the beginning goes: what a runtime compiles has other
frames once it is compiled, inlined, compiled better, and a leak would seem to stop in one stack and begin in another.

A leak may be spread over stacks that differ far from the allocation: what shows no growth stack by stack is looked at
again by the eight, four, two functions nearest to the allocation, and by that function alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum

from . import byte_size
from .inlining import least_inlined
from .profile import Frame, Kind, Profile
from .trend import LEAST_EVENTS, SIGNIFICANT, Measured, Shape, Trend, assess, window

DAY = 86400.0
LEAST_POINTS = 3
LEAST_SPAN = 60.0
_DEPTHS = (8, 4, 2, 1)
# Callers in compiled code are told apart where so few of them make up so much of a leak, each growing by itself.
_MOST_CALLERS = 4
_SHARE_OF_CALLERS = 0.85
_RUNTIME = (Kind.JIT, Kind.JAVA, Kind.PYTHON, Kind.JS)

Key = tuple[str, ...]


class Answer(Enum):
    LEAK = "leak"
    NO_LEAK = "no-leak"
    CANNOT_TELL = "cannot-tell"


@dataclass(frozen=True)
class Point:
    """A profile and when its dump was written (seconds since the epoch)."""

    time: float
    profile: Profile


@dataclass(frozen=True)
class Suspect:
    """A code path whose live bytes grow.

    ``path`` is leaf first; ``whole`` says whether it is a whole stack or only the part that several stacks share. Of
    stacks that differ in compiled code only, it is the one that grows fastest, as it was before calls were inlined.
    ``key`` is what was compared, and
    ``caller`` the whole stack's names where one such stack is a suspect of its own.
    ``growth`` and ``error`` (half of the 95 % interval) are bytes per day, ``live`` is bytes in the newest profile.
    """

    path: tuple[Frame, ...]
    key: Key
    whole: bool
    stacks: int
    growth: float
    error: float
    live: float
    caller: Key = ()

    def covers(self, frames: Sequence[Frame]) -> bool:
        """Whether a stack (leaf first) is one of this suspect's."""
        if self.caller:
            return _without_repeats([frame.group for frame in frames]) == self.caller
        key = stack_key(frames)
        return key == self.key if self.whole else key[: len(self.key)] == self.key


@dataclass(frozen=True)
class Verdict:
    """What is known about a unit on a host. Rates are bytes per day; ``reason`` is one sentence without a full stop."""

    answer: Answer
    reason: str
    growth: float = 0.0
    error: float = 0.0
    suspects: list[Suspect] = field(default_factory=list)
    process: str = ""
    points: int = 0
    span: float = 0.0


def judge(series: Mapping[str, Sequence[Point]], least_span: float = LEAST_SPAN) -> Verdict:
    """The verdict over all processes of a unit on a host (process key -> its points, in any order).

    The newest process that can be judged decides, together with those that lived beside it (workers). Earlier ones
    are named where they say something else.
    """
    ordered = {key: sorted(points, key=lambda point: point.time) for key, points in series.items() if points}
    verdicts = {key: judge_process(key, points, least_span) for key, points in ordered.items()}
    if not verdicts:
        return Verdict(Answer.CANNOT_TELL, "there are no captures")
    newest_first = sorted(verdicts, key=lambda key: ordered[key][-1].time, reverse=True)
    judged = [key for key in newest_first if verdicts[key].answer is not Answer.CANNOT_TELL]
    if not judged:
        return max((verdicts[key] for key in newest_first), key=lambda verdict: (verdict.points, verdict.span))
    newest = ordered[judged[0]]
    beside = [key for key in judged if ordered[key][-1].time >= newest[0].time]
    leaking = [verdicts[key] for key in beside if verdicts[key].answer is Answer.LEAK]
    if leaking:
        return _add_up(leaking)
    earlier = [key for key in judged if key not in beside and verdicts[key].answer is Answer.LEAK]
    verdict = max((verdicts[key] for key in beside), key=lambda verdict: verdict.span)
    if earlier:
        number = "an earlier process" if len(earlier) == 1 else f"{len(earlier)} earlier processes"
        return replace(verdict, reason=f"{verdict.reason}; but {number} (newest: {earlier[0]}) leaked")
    return verdict


def judge_process(key: str, points: Sequence[Point], least_span: float = LEAST_SPAN) -> Verdict:
    """The verdict on one process from its points, oldest first."""
    span = points[-1].time - points[0].time if points else 0.0
    if len(points) < LEAST_POINTS:
        reason = f"only {_count(len(points), 'dump')} of process {key}, at least {LEAST_POINTS} are needed"
        return Verdict(Answer.CANNOT_TELL, reason, process=key, points=len(points), span=span)
    if span < least_span:
        reason = f"the dumps of process {key} span only {duration(span)}, at least {duration(least_span)} are needed"
        return Verdict(Answer.CANNOT_TELL, reason, process=key, points=len(points), span=span)
    kept = [points[position] for position in window([point.time for point in points])]
    if len(kept) < LEAST_POINTS:
        reason = f"the dumps of process {key} lie too close together in time"
        return Verdict(Answer.CANNOT_TELL, reason, process=key, points=len(points), span=span)
    table = _Table(kept)
    total = table.total()
    suspects, settling = table.suspects()
    if total.shape is Shape.GROWS and not suspects:
        suspects = settling
    return replace(_weigh(points, total, suspects, table), process=key, points=len(points), span=span)


def _weigh(points: Sequence[Point], total: Trend, suspects: list[Suspect], table: _Table) -> Verdict:
    over = f"over {duration(points[-1].time - points[0].time)} and {len(points)} dumps"
    if suspects:
        growth = math.fsum(suspect.growth for suspect in suspects)
        error = math.sqrt(math.fsum(suspect.error**2 for suspect in suspects))
        paths = "one code path grows" if len(suspects) == 1 else f"{len(suspects)} code paths grow"
        return Verdict(Answer.LEAK, f"{paths} steadily {over}", growth, error, suspects)
    growth, error = total.slope * DAY, total.error * DAY
    if total.shape is Shape.GROWS:
        return Verdict(Answer.LEAK, f"live memory grows steadily {over}, but spread over many paths", growth, error)
    if total.shape is Shape.SETTLES and total.late:
        reason = f"live memory still grows, but ever slower ({over}): this may be a start, collect again later"
        return Verdict(Answer.CANNOT_TELL, reason, growth, error)
    why = {
        Shape.FLAT: "no code path grows beyond what sampling explains",
        Shape.SETTLES: "live memory grew and then stopped",
        Shape.BREATHES: "live memory rises and falls back",
    }[total.shape]
    limit = f"a leak of less than {per_day(table.smallest_visible(total) * DAY)} would not show yet"
    return Verdict(Answer.NO_LEAK, f"{why} {over} ({limit})", growth, error)


class _Table:
    """Live objects and bytes by code path and point in time."""

    def __init__(self, points: Sequence[Point]) -> None:
        self._times = [point.time for point in points]
        self._newest = points[-1].profile
        self._interval = max(point.profile.sample_interval for point in points)
        self._keys: dict[Key, Key] = {}
        self._objects: dict[Key, list[float]] = {}
        self._bytes: dict[Key, list[float]] = {}
        self._example: dict[Key, tuple[Profile, tuple[int, ...], float]] = {}
        for position, point in enumerate(points):
            self._add(position, point.profile)

    def _add(self, position: int, profile: Profile) -> None:
        for number, stack in enumerate(profile.stacks):
            frames = [profile.frames[index] for index in stack]
            member = _without_repeats([frame.group for frame in frames])
            if member not in self._bytes:
                self._keys[member] = stack_key(frames)
                self._objects[member] = [0.0] * len(self._times)
                self._bytes[member] = [0.0] * len(self._times)
            self._objects[member][position] += profile.objects[number]
            self._bytes[member][position] += profile.bytes[number]
            example = self._example.get(member)
            # Of the stacks with these functions, the largest in the newest profile that has any.
            if example is None or example[0] is not profile or example[2] < profile.bytes[number]:
                self._example[member] = (profile, stack, profile.bytes[number])

    def total(self) -> Trend:
        return self._trend(list(self._bytes))

    def smallest_visible(self, total: Trend) -> float:
        """The rate (bytes per second) below which a leak beside everything else is not told from sampling."""
        span = self._times[-1] - self._times[0]
        interval = max(self._interval, 1)
        return max(LEAST_EVENTS * interval / span, SIGNIFICANT / 2 * total.error)

    def suspects(self) -> tuple[list[Suspect], list[Suspect]]:
        """(paths that grow, paths that grow ever slower), the fastest first."""
        growing: list[Suspect] = []
        settling: list[Suspect] = []
        left = list(self._bytes)
        for depth in (None, *_DEPTHS):
            groups: dict[Key, list[Key]] = {}
            for member in left:
                groups.setdefault(self._keys[member][:depth], []).append(member)
            left = []
            for group, members in groups.items():
                looked_at_before = depth is not None and len({self._keys[member] for member in members}) == 1
                trend = None if looked_at_before or not self._may_grow(members) else self._trend(members)
                if trend is not None and trend.shape is Shape.GROWS:
                    growing += self._by_caller(group, members, trend) or [self._suspect(group, members, trend)]
                    continue
                if depth is None and trend is not None and trend.shape is Shape.SETTLES and trend.late:
                    settling.append(self._suspect(group, members, trend))
                left.extend(members)
        for found in (growing, settling):
            found.sort(key=lambda suspect: suspect.growth, reverse=True)
        return growing, settling

    def _by_caller(self, group: Key, members: list[Key], together: Trend) -> list[Suspect]:
        """The suspects of a group whose stacks differ in compiled code, where a few of these make it up."""
        if len(members) == 1 or len({self._keys[member] for member in members}) > 1:
            return []
        trends = {member: self._trend([member]) for member in members if self._may_grow([member])}
        alone = [member for member, trend in trends.items() if trend.shape is Shape.GROWS]
        share = math.fsum(trends[member].slope for member in alone) / together.slope
        if not 1 < len(alone) <= _MOST_CALLERS or share < _SHARE_OF_CALLERS:
            return []
        return [replace(self._suspect(group, [member], trends[member]), caller=member) for member in alone]

    def _may_grow(self, members: list[Key]) -> bool:
        """Cheap and generous: most paths need no statistics."""
        gain = math.fsum(max(self._bytes[key]) for key in members)
        return (
            gain > self._interval
            and math.fsum(self._bytes[key][-1] - self._bytes[key][0] for key in members) > -gain / 2
        )

    def _trend(self, keys: list[Key]) -> Trend:
        count = len(self._times)
        objects = [math.fsum(self._objects[key][position] for key in keys) for position in range(count)]
        values = [math.fsum(self._bytes[key][position] for key in keys) for position in range(count)]
        return assess(Measured(self._times, objects, values), self._interval)

    def _suspect(self, group: Key, members: list[Key], trend: Trend) -> Suspect:
        gains = {member: self._bytes[member][-1] - self._bytes[member][0] for member in members}
        ranked = sorted(members, key=gains.__getitem__, reverse=True)
        same = {member: self._bytes[member][-1] for member in members if self._keys[member] == self._keys[ranked[0]]}
        profile, stack, _bytes = self._example[least_inlined(ranked[0], same)]
        frames = [profile.frames[index] for index in stack]
        shared = _shared([self._keys[member] for member in ranked if gains[member] > 0.05 * gains[ranked[0]]])
        whole = shared == self._keys[ranked[0]]
        return Suspect(
            path=tuple(frames if whole else _first_frames(frames, len(shared))),
            key=group,
            whole=len({self._keys[member] for member in members}) == 1,
            stacks=len(members),
            growth=trend.slope * DAY,
            error=trend.error * DAY,
            live=math.fsum(self._bytes[member][-1] for member in members),
        )


def stack_key(frames: Iterable[Frame]) -> Key:
    """What stacks (leaf first) are compared by: functions without repeats in a row, up to the first compiled code."""
    names: list[str] = []
    for frame in frames:
        if frame.kind in _RUNTIME:
            names.append("[jit]")
            break
        names.append(frame.group)
    return _without_repeats(names)


def _without_repeats(names: Sequence[str]) -> Key:
    return tuple([name for position, name in enumerate(names) if position == 0 or names[position - 1] != name])


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


def _add_up(leaking: list[Verdict]) -> Verdict:
    """One verdict for processes that leak side by side: the worst one's, with the growth of all."""
    worst = max(leaking, key=lambda verdict: verdict.growth)
    if len(leaking) == 1:
        return worst
    growth = math.fsum(verdict.growth for verdict in leaking)
    error = math.sqrt(math.fsum(verdict.error**2 for verdict in leaking))
    reason = f"{worst.reason} in process {worst.process}, the worst of {len(leaking)} that leak"
    return replace(worst, growth=growth, error=error, reason=reason)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def duration(seconds: float) -> str:
    """Seconds as people say them: ``45 s``, ``12 min``, ``3 h 20 min``, ``4 d 2 h``."""
    whole = int(seconds)
    if whole < 120:
        return f"{whole} s"
    minutes, hours, days = whole // 60, whole // 3600, whole // 86400
    if minutes < 120:
        return f"{minutes} min"
    if hours < 48:
        return f"{hours} h {minutes % 60} min" if minutes % 60 else f"{hours} h"
    return f"{days} d {hours % 24} h" if hours % 24 else f"{days} d"


def per_day(value: float) -> str:
    """A rate in bytes per day: ``64.0 MiB/day``."""
    return f"{byte_size.as_text(value)}/day"
