# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""From the series of a process to a verdict: leak, no leak, or cannot tell, and which code paths it is."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import Enum

from ..base.durations import DAY, duration, per_day
from ..model.sampling import Measure
from ..model.series import Paths, Series
from ..model.stack_summary import render as short_path
from .code_paths import CodePaths, Limit, Suspect
from .life_curve import LifeCurve
from .patterns import Movement, changes
from .trend import Shape, window

LEAST_POINTS = 3
LEAST_SPAN = 60.0


class Answer(Enum):
    """The gravest first. BURSTS, OVERFLOWS, GREW and FILLS_UP are answers from lives (lives_verdict.py)."""

    LEAK = "leak"
    BURSTS = "bursts"
    OVERFLOWS = "overflows"
    GREW = "grew"
    CANNOT_TELL = "cannot-tell"
    FILLS_UP = "fills-up"
    NO_LEAK = "no-leak"

    @property
    def is_open(self) -> bool:
        """Whether it is neither a leak nor none: growth that has ended may go on, and what cannot be told, too."""
        return self in (Answer.GREW, Answer.CANNOT_TELL)

    @property
    def leaks(self) -> bool:
        return self in (Answer.LEAK, Answer.BURSTS)

    @property
    def is_calm(self) -> bool:
        """Whether it says that nothing is to be done, which growth that no stack explains forbids."""
        return self in (Answer.NO_LEAK, Answer.FILLS_UP)


@dataclass(frozen=True)
class Verdict:
    """What is known about a unit on a host. Rates are bytes per day; ``reason`` is one sentence without a full stop.

    ``unexplained`` is the growth that keeps the answer open: of one of the process's own numbers beyond the stacks, of
    processes without an agent, or of each of those that ended too soon to be judged.
    ``shape`` is that of the growth that decided. ``limits`` are the slowest leaks that would show, where the answer is
    NO_LEAK by levels; by lives, no more than ``bound`` stays of what is allocated. ``known_after`` is how long the
    process must have been watched for an answer, in seconds, where time will tell. ``changes`` are the largest changes
    of paths that are no suspects. Where it fills up, ``to_come`` is how many bytes more it will hold, and half of the
    95 % interval. ``others`` is how the objects of all paths but the suspects live, None where nobody knows.
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
    shape: Shape = Shape.FLAT
    limits: Sequence[Limit] = ()
    known_after: float = 0.0
    bound: float = 0.0
    to_come: tuple[float, float] = (0.0, 0.0)
    others: LifeCurve | None = None

    @property
    def counts(self) -> bool:
        """Whether this process was watched for long enough to speak for its unit, in the place of earlier ones."""
        return self.answer is not Answer.CANNOT_TELL or self.unexplained > 0


def judge(key: str, series: Series, least_span: float = LEAST_SPAN) -> Verdict:
    """The verdict on one process (``key`` is its name) by the levels of its live memory."""
    watched = series.paths
    count = len(watched.times)
    span = watched.times[-1] - watched.times[0] if watched.times else 0.0
    if series.measure is not Measure.LIVE:
        reason = f"the profiles of process {key} are of memory {series.measure.caution}"
        return Verdict(Answer.CANNOT_TELL, reason, process=key, points=count, span=span)
    if count < LEAST_POINTS:
        reason = (
            f"only {_count(count, 'dump')} of process {key}, at least {LEAST_POINTS} are needed: wait for the next, or"
            " take one now with fab dump, or the playbook switch_profiling and -e state=dump"
        )
        return Verdict(Answer.CANNOT_TELL, reason, process=key, points=count, span=span)
    if span < least_span:
        reason = (
            f"the dumps of process {key} span only {duration(span)}, at least {duration(least_span)} are needed:"
            f" one taken {duration(math.ceil(least_span - span))} after the last will do"
        )
        return Verdict(Answer.CANNOT_TELL, reason, process=key, points=count, span=span)
    chosen = window(watched.times)
    if len(chosen) < LEAST_POINTS:
        reason = f"the dumps of process {key} lie too close together in time"
        return Verdict(Answer.CANNOT_TELL, reason, process=key, points=count, span=span)
    if math.isinf(series.sampling.scatter):
        reason = f"it is unknown how the profiles of process {key} were sampled, so growth cannot be told from chance"
        return Verdict(Answer.CANNOT_TELL, reason, process=key, points=count, span=span)
    verdict = _weigh(CodePaths(watched, chosen), watched)
    return replace(verdict, process=key, points=count, span=span)


def _weigh(table: CodePaths, watched: Paths) -> Verdict:
    span = watched.times[-1] - watched.times[0]
    over = f"over {duration(span)} and {len(watched.times)} dumps"
    judged = table.suspects()
    total = table.total()
    with_the_day = [one for found in judged for one in found if span < DAY and table.follows_the_day(one, span)]
    suspects, slowing, climbing = ([one for one in found if one not in with_the_day] for found in judged)
    if total.shape is Shape.GROWS and not (suspects or slowing or climbing or with_the_day):
        suspects = table.below_a_function(total)
    moved = changes(watched, table.leaking)
    if suspects:
        growth, error = _sum(suspects)
        whole = max(growth, total.slope * DAY)
        suspects = [replace(suspect, share=suspect.growth / whole) for suspect in suspects]
        paths = "one code path grows" if len(suspects) == 1 else f"{len(suspects)} code paths grow"
        reason = f"{paths} steadily {over}"
        return Verdict(Answer.LEAK, reason, growth, error, suspects, changes=moved, shape=Shape.GROWS)
    if slowing:
        growth, error = _sum(slowing)
        paths = "one code path still grows" if len(slowing) == 1 else f"{len(slowing)} code paths still grow"
        reason = f"{paths}, but ever slower ({over}): {short_path(slowing[0].path)}{_known_after(2 * span)}"
        return _open(reason, growth, error, moved, Shape.SLOWING, 2 * span)
    if climbing:
        growth, error = _sum(climbing)
        paths = "one code path rises and falls" if len(climbing) == 1 else f"{len(climbing)} code paths rise and fall"
        reason = f"{paths}, and more rises than falls ({over}): {short_path(climbing[0].path)}{_known_after(2 * span)}"
        return _open(reason, growth, error, moved, Shape.CLIMBS, 2 * span)
    growth, error = total.slope * DAY, total.error * DAY
    if with_the_day:
        reason = (
            f"live memory grows ({over}), but in many paths alike, as load does by day: "
            f"{short_path(with_the_day[0].path)} most{_known_after(DAY)}"
        )
        return _open(reason, growth, error, moved, Shape.BREATHES, DAY)
    if total.shape is Shape.GROWS:
        reason = f"live memory grows steadily {over}, but spread over many paths"
        return Verdict(Answer.LEAK, reason, growth, error, changes=moved, shape=Shape.GROWS)
    if total.shape is Shape.SLOWING:
        reason = f"live memory still grows, but ever slower ({over}): it may be starting up{_known_after(2 * span)}"
        return _open(reason, growth, error, moved, Shape.SLOWING, 2 * span)
    if total.shape is Shape.CLIMBS:
        reason = f"live memory rises and falls, and more rises than falls ({over}){_known_after(2 * span)}"
        return _open(reason, growth, error, moved, Shape.CLIMBS, 2 * span)
    stays = table.grown()
    if stays is not None:
        known_after = max(stays.known_after, 2 * span)
        reason = f"{stays.text} ({over}){stays.where}; it is judged again after {duration(known_after)} of dumps"
        return _open(reason, growth, error, moved, Shape.STEPPED, known_after)
    why = {
        Shape.FLAT: table.quiet(),
        Shape.STEPPED: "live memory grew in steps, no code path steadily",
        Shape.FILLED: "live memory grew and then stopped",
        Shape.BREATHES: "live memory rises and falls back",
    }[total.shape]
    limits = table.limits()
    hidden = f"a leak of less than {per_day(limits[0].rate)} on average in one path would not show yet"
    if len(limits) > 1:
        hidden += f", nor of less than {per_day(limits[1].rate)} in {short_path(limits[1].path)}, which changes most"
    reason = f"{why} {over} ({hidden})"
    return Verdict(Answer.NO_LEAK, reason, growth, error, changes=moved, shape=total.shape, limits=limits)


def _open(reason: str, growth: float, error: float, moved: list[Movement], shape: Shape, known_after: float) -> Verdict:
    return Verdict(Answer.CANNOT_TELL, reason, growth, error, changes=moved, shape=shape, known_after=known_after)


def _known_after(seconds: float) -> str:
    return f"; {duration(seconds)} of dumps will tell"


def _sum(suspects: Sequence[Suspect]) -> tuple[float, float]:
    """The growth of all, and its error."""
    growth = math.fsum(suspect.growth for suspect in suspects)
    return growth, math.hypot(*(suspect.error for suspect in suspects))


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
