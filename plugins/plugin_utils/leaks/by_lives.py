# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""From the lives of a process's objects to findings: what leaks has no deaths.

Of each code path, objects older than some age are looked at, at ages that double. Whether they still die, and how fast,
has bounds that hold at every look (hazard.py):

* If so few have died that those which are left will surely live for twice the time watched on average, they are kept,
  unless those that grow older surely die: entries with a term look like a leak until it is over.
  When they were born (diary.py) says whether that goes on, comes in bursts, or has ended.
* If they surely die faster than that, the path levels off: at its births times their mean life.
* Of all that was born up to some age ago, no more can stay than is still there. That holds for any shape of growth, and
  bounds what may leak in all paths together. What was born since is too young to tell.

What was born in the first tenth of the time, when programs start up, is expected to stay.

Stacks are compared by function up to any compiled code, then by the eight, four, two and one functions nearest to the
allocation, then all together, as levels are (code_paths.py): a leak may be spread over many stacks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..base import libraries
from ..model.lives import BUCKETS, Lives, youngest
from ..model.sampling import CONFIDENCE
from ..model.series import Key
from . import hazard
from .diary import Diary, diary
from .trend import LEAST_EVENTS, SIGNIFICANT, WARM_UP

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from ..model.lives import Integers, Numbers
else:
    np = libraries.optional("numpy")

_DEPTHS = (None, 8, 4, 2, 1, 0)
#: how much longer than the time watched the mean remaining life has to be for what lives to be kept
OUTLIVES = 2.0
# The ages looked at, as parts of the time watched. Of what is older than a quarter, there is too little to say that it
# stays, though enough may have died to say that it does not.
_YOUNGEST, _OLDEST, _OLDEST_BOUND = 1 / 512, 1 / 4, 1 / 2
# How long the oldest of what is kept has lived at least, as a part of the time watched. Younger ones may have a term.
_SEEN = 1 / 4
# Paths that are tested together, at least.
_TESTS = 16


@dataclass(frozen=True)
class Found:
    """Stacks ``rows`` of the lives whose first functions are ``key``, and what is known of their objects.

    ``outlives`` is how long those that are left surely live on average, in seconds, if they die at any age alike, and
    ``oldest`` the age that they have reached whatever kills them. ``diary`` is that of the births of what is kept;
    ``growth`` and ``error`` (half of the 95 % interval) are bytes per second, ``size`` is the bytes that are kept.
    Where a path fills up, ``size`` is what it will hold more than now, give or take ``error`` bytes, and ``after`` the
    seconds until then. Where nobody can tell yet, ``after`` is how long to watch in all.
    """

    key: Key
    rows: list[int]
    size: float = 0.0
    growth: float = 0.0
    error: float = 0.0
    outlives: float = 0.0
    oldest: float = 0.0
    after: float = 0.0
    diary: Diary | None = None

    @property
    def births(self) -> Diary:
        """The diary of one whose survivors' births were looked at, as those of all that is kept are."""
        if self.diary is None:
            raise AssertionError("nobody looked at the births of its survivors")
        return self.diary


@dataclass(frozen=True)
class Findings:
    """``kept``, ``filling``, ``open`` and ``dying`` paths. No more than ``bound`` bytes per second of what was born
    up to ``until`` (seconds since the epoch) stays, in all paths together; ``young`` bytes were born since."""

    kept: list[Found] = field(default_factory=list)
    filling: list[Found] = field(default_factory=list)
    open: list[Found] = field(default_factory=list)
    dying: list[Found] = field(default_factory=list)
    bound: float = math.inf
    until: float = 0.0
    young: float = 0.0


class _Book:
    """The lives of a process, by stack, age and group of stacks."""

    def __init__(self, lives: Lives) -> None:
        self.lives = lives
        self.settled = lives.began + WARM_UP * lives.span
        looked_at = [bucket for bucket in range(1, BUCKETS) if youngest(bucket) >= _YOUNGEST * lives.span]
        self.bounding = [bucket for bucket in looked_at if youngest(bucket) <= _OLDEST_BOUND * lives.span]
        self.buckets = [bucket for bucket in looked_at if youngest(bucket) < lives.span]
        self.starts = np.array([youngest(bucket) for bucket in self.buckets])
        self.judging = self.starts <= _OLDEST * lives.span
        self.late = lives.born >= self.settled

    def oldest_of(self, group_of: Integers, count: int) -> Numbers:
        """By group, the age of the oldest object that lives and was not there since the start."""
        result = np.zeros(count)
        if len(self.lives.stack):
            group = group_of[self.lives.stack]
            mine = self.late & (group >= 0)
            np.maximum.at(result, group[mine], self.lives.age[mine])
        return result

    def members(self, group_of: Integers, count: int) -> tuple[Numbers, Numbers, Numbers, Numbers, Numbers]:
        """By group and age looked at: deaths, exposure (without, and with what the start-up left), and how many live
        (the same). ``group_of`` is the group of each stack, -1 of those in none."""
        lives = self.lives
        of_living = group_of[lives.stack] if len(lives.stack) else np.zeros(0, dtype=np.int64)
        some, mine = group_of >= 0, of_living >= 0
        columns: list[tuple[NDArray[Any], ...]] = []
        for bucket, start in zip(self.buckets, self.starts.tolist(), strict=True):
            died = lives.deaths[some, bucket:].sum(axis=1)
            beyond = np.maximum(lives.ages[some, bucket:].sum(axis=1) - start * died, 0.0)
            of_dead = np.bincount(group_of[some], beyond, count)
            old = mine & (lives.age > start)
            late = old & self.late
            columns.append(
                (
                    np.bincount(group_of[some], died, count),
                    of_dead + np.bincount(of_living[late], lives.age[late] - start, count),
                    of_dead + np.bincount(of_living[old], lives.age[old] - start, count),
                    np.bincount(of_living[late], minlength=count),
                    np.bincount(of_living[old], minlength=count),
                )
            )
        deaths, exposure, whole, alive, all_alive = (np.column_stack(each) for each in zip(*columns, strict=True))
        return deaths, exposure, whole, alive, all_alive


def find(lives: Lives) -> Findings:
    """What these lives, none of which is lost, say of each path."""
    book = _Book(lives)
    if not book.judging.any():
        return Findings()
    found = Findings()
    left = list(range(len(lives.stacks)))
    judged: set[frozenset[int]] = set()
    for depth in _DEPTHS:
        groups: dict[Key, list[int]] = {}
        for row in left:
            groups.setdefault(lives.stacks[row].key[:depth], []).append(row)
        # A group of one path was looked at before.
        groups = {key: rows for key, rows in groups.items() if frozenset(rows) not in judged}
        judged.update(map(frozenset, groups.values()))
        decided = set[int]().union(*_decide(book, groups, found, depth is None))
        left = [row for row in left if row not in decided]
    bound, until, young = _may_stay(book)
    return Findings(found.kept, found.filling, found.open, found.dying, bound, until, young)


def _decide(book: _Book, groups: dict[Key, list[int]], found: Findings, whole: bool) -> list[set[int]]:
    """Adds to what is found. Returns the rows of groups that need no other look."""
    lives = book.lives
    group_of = np.full(len(lives.stacks), -1, dtype=np.int64)
    for number, rows in enumerate(groups.values()):
        group_of[rows] = number
    deaths, exposure, whole_exposure, alive, all_alive = book.members(group_of, len(groups))
    tests = (BUCKETS - 1) * max(_TESTS, len(groups))
    enough = (alive >= LEAST_EVENTS) & book.judging
    outlives = np.zeros(alive.shape)
    longest, late = np.full(alive.shape, np.inf), np.full(alive.shape, np.inf)
    with np.errstate(divide="ignore"):
        outlives[enough] = 1 / hazard.at_most(deaths[enough], exposure[enough], tests)
        seen = deaths + all_alive >= LEAST_EVENTS
        longest[seen] = 1 / hazard.at_least(deaths[seen], whole_exposure[seen], tests)
        # What the start-up left is not what is kept.
        late[seen] = 1 / hazard.at_least(deaths[seen], exposure[seen], tests)
    oldest = book.oldest_of(group_of, len(groups))
    # At each age, whether what reaches it, or any greater one, surely dies.
    dies = np.logical_or.accumulate(late[:, ::-1] < OUTLIVES * lives.span, axis=1)[:, ::-1]
    kept = ~dies & (outlives >= OUTLIVES * lives.span) & (oldest >= _SEEN * lives.span)[:, None]
    done: list[set[int]] = []
    for number, (key, rows) in enumerate(groups.items()):
        if not enough[number].any():
            continue
        if kept[number].any():
            found.kept.append(_kept(book, key, rows, int(np.argmax(kept[number])), float(outlives[number].max())))
            done.append(set(rows))
            continue
        at = int(np.flatnonzero(enough[number])[-1])
        if longest[number, at] < OUTLIVES * lives.span:
            # Only of a path by itself: what a group holds that dies may hide what one of it keeps.
            if whole:
                path = _filling(book, key, rows, at, float(deaths[number, at] + all_alive[number, at]))
                (found.filling if path.size else found.dying).append(path)
                done.append(set(rows))
            continue
        counts = float(deaths[number, at]), float(exposure[number, at]), float(alive[number, at])
        after = _known_after(lives.span, counts, float(oldest[number]), tests)
        path = Found(key, rows, size=_weight(book, rows), after=after)
        if whole or not any(set(one.rows) <= set(rows) for one in found.open):
            found.open.append(path)
    return done


def _kept(book: _Book, key: Key, rows: list[int], at: int, outlives: float) -> Found:
    lives, age = book.lives, float(book.starts[at])
    chosen = np.isin(lives.stack, rows) & (lives.age > age) & book.late
    order = np.argsort(lives.born[chosen], kind="stable")
    born, weight, variance = (column[chosen][order] for column in (lives.born, lives.weight, lives.variance))
    end = lives.now - age
    told = diary(born.tolist(), book.settled, end, _yet_to_die(book, rows, at))
    # The first of what began later only says when it did.
    begun, first = (book.settled, 0) if told.ever else (told.since, 1)
    span = max(end - begun, 1e-9)
    size = float(weight[first:].sum())
    error = CONFIDENCE * math.sqrt(float(variance[first:].sum())) / span
    return Found(key, rows, float(weight.sum()), size / span, error, outlives, float(lives.now - born[0]), diary=told)


def _yet_to_die(book: _Book, rows: list[int], at: int) -> float:
    """How many at any time, on average, were older than that age and died later."""
    lives, age, bucket = book.lives, float(book.starts[at]), book.buckets[at]
    beyond = float(lives.ages[rows, bucket:].sum() - age * lives.deaths[rows, bucket:].sum())
    return max(beyond, 0.0) / (lives.of_deaths - age)


def _filling(book: _Book, key: Key, rows: list[int], at: int, reached: float) -> Found:
    """A path whose objects die, and what it will hold more than it does."""
    lives, age = book.lives, float(book.starts[at])
    mean, deviation = _lives_on(book, rows, at)
    level = reached / (lives.of_deaths - age) * mean
    chosen = np.isin(lives.stack, rows) & (lives.age > age)
    alive = float(chosen.sum())
    each = float(lives.weight[chosen].mean())
    deviation = level * math.hypot(deviation / mean, 1 / math.sqrt(reached))
    more = level - alive
    if more < max(LEAST_EVENTS, SIGNIFICANT * deviation):
        return Found(key, rows)
    after = mean * math.log(max(more / (0.05 * level), 1.0))
    return Found(key, rows, more * each, error=CONFIDENCE * deviation * each, after=after)


def _lives_on(book: _Book, rows: list[int], at: int) -> tuple[float, float]:
    """For how long what reaches that age lives on, on average, and the standard deviation of that.

    Within a bucket the hazard is taken as constant, and after the last that has deaths enough: one hazard for all ages
    would promise entries that have a term twice as long as that.
    """
    lives, start = book.lives, book.starts[at:]
    died, ages = (each[rows][:, book.buckets[at:]].sum(axis=0) for each in (lives.deaths, lives.ages))
    enough = np.flatnonzero(np.cumsum(died[::-1])[::-1] >= LEAST_EVENTS)
    last = int(enough[-1]) if len(enough) else 0
    beyond = np.maximum(np.append(start[1:], lives.span) - start, 0.0)
    exposure = np.clip(lives.age[np.isin(lives.stack, rows)][:, None] - start, 0.0, beyond).sum(axis=0)
    exposure += ages - start * died + (died.sum() - np.cumsum(died)) * beyond
    deaths = float(died[last:].sum())
    mean = float(exposure[last:].sum()) / deaths
    variance = mean**2 / deaths
    for part, exposed, width in zip(died[:last][::-1], exposure[:last][::-1], beyond[:last][::-1], strict=True):
        if not part:
            mean += width
            continue
        rate = part / max(exposed, 1e-9)
        share = math.exp(-rate * width)
        inside = (1 - share) / rate
        slope = width * share * mean + (inside - width * share) / rate
        variance = share**2 * variance + slope**2 * rate**2 / part
        mean = inside + share * mean
    return mean, math.sqrt(variance)


def _weight(book: _Book, rows: list[int]) -> float:
    chosen = np.isin(book.lives.stack, rows) & book.late
    return float(book.lives.weight[chosen].sum())


def _known_after(span: float, counts: tuple[float, float, float], oldest: float, tests: int) -> float:
    """How long to watch in all until what lives is known to be kept, if none of it dies."""
    deaths, exposure, alive = counts
    later = span * 1.1 ** np.arange(1, 60)
    known = 1 / hazard.at_most(np.full(len(later), deaths), exposure + alive * (later - span), tests)
    reached = np.flatnonzero((known >= OUTLIVES * later) & (later - span + oldest >= _SEEN * later))
    return float(later[reached[0]]) if len(reached) else float(later[-1])


def _may_stay(book: _Book) -> tuple[float, float, float]:
    """(bytes per second, up to when, bytes that are too young): the age is chosen that bounds most."""
    lives = book.lives
    best = (math.inf, lives.began, float(lives.weight.sum()))
    coarse = float(max(lives.sampling.interval, 1))
    ages = [age for age in map(youngest, book.bounding) if lives.now - age > book.settled]
    old = [book.late & (lives.age > age) for age in ages]
    count = np.array([float(each.sum()) for each in old])
    beyond = hazard.at_most(count, np.ones(len(count)), BUCKETS - 1) - count
    for age, each, more in zip(ages, old, beyond.tolist(), strict=True):
        rate = (float(lives.weight[each].sum()) + more * coarse) / (lives.now - age - book.settled)
        if rate < best[0]:
            best = rate, lives.now - age, float(lives.weight[lives.age <= age].sum())
    return best


def by_rate(found: Sequence[Found]) -> list[Found]:
    """The fastest first."""
    return sorted(found, key=lambda one: one.growth, reverse=True)
