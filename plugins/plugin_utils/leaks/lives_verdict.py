# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""The verdict on a process whose lives are known; on any other, that of its levels.

Lives say what is kept, what dies and what is too young. They do not see one object that grows by realloc, whose newest
birth is its only one alive: there the levels still speak (grown.py), so long as lives do not show that a path dies.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from statistics import mean, stdev

from ..base.byte_size import as_text
from ..base.durations import DAY, duration, moment, per_day
from ..model.frame import Frame
from ..model.lives import Lives
from ..model.sampling import Measure
from ..model.series import Key, Paths, Series
from ..model.stack_summary import render as short_path
from . import by_lives, grown, workers
from .by_lives import Findings, Found
from .code_paths import Extent, Suspect, first_frames
from .diary import Course
from .life_curve import life_curve
from .patterns import changes
from .trend import SIGNIFICANT, WARM_UP, Measured, Shape, assess, window
from .verdict import LEAST_POINTS, LEAST_SPAN, Answer, Verdict, judge


def verdict_on(key: str, series: Series, lives: Lives | None, least_span: float = LEAST_SPAN) -> Verdict:
    """The verdict on one process (``key`` is its name)."""
    if lives is None or series.measure is not Measure.LIVE or math.isinf(lives.sampling.scatter):
        return judge(key, series, least_span)
    if lives.lost:
        levels = judge(key, series, least_span)
        return replace(
            levels, reason=f"{levels.reason}; its lives are not whole, since some births or deaths are not known"
        )
    if lives.span < least_span:
        return judge(key, series, least_span)
    found = by_lives.find(lives)
    verdict = _Spoken(lives, found, series.paths).verdict()
    if verdict.answer.is_calm:
        verdict = _with_levels(verdict, found, series.paths) or judge(key, series, least_span)
    return replace(verdict, process=key, points=len(series.times), span=lives.span)


def verdict_on_generations(each: Sequence[tuple[Series, Lives | None]]) -> Verdict | None:
    """What processes that ended before they could be judged say together, by their lives, or by their levels where
    there are none; None where they keep nothing, or nobody can tell."""
    known = [lives for _series, lives in each if lives is not None]
    if not known:
        return _by_levels([series for series, _lives in each if series.measure is Measure.LIVE])
    whole = [one for one in known if not one.lost]
    lives = workers.generations(whole)
    kept = [] if lives is None else by_lives.find(lives).kept
    if lives is None or not kept:
        return None
    spans, size = [one.span for one in whole], math.fsum(one.size for one in kept)
    worst = max(kept, key=lambda one: one.size)
    paths = "one code path" if len(kept) == 1 else f"{len(kept)} code paths"
    reason = (
        f"{len(whole)} processes ended after {duration(mean(spans))} on average, too soon to be judged one by one;"
        f" together they show that what {paths} allocates stays until they end, {as_text(size / len(whole))} in each"
        f"{_where(lives, worst)}; whether it would level off in one that lives for longer,"
        " nobody can tell"
    )
    return Verdict(Answer.CANNOT_TELL, reason, unexplained=size / math.fsum(spans) * DAY)


def _by_levels(each: Sequence[Series]) -> Verdict | None:
    """The same of processes that gained more, from their first dump to their last, than differs from one to the
    next."""
    each = [one for one in each if len(one.times) > 1 and one.times[-1] > one.times[0]]
    if len(each) < LEAST_POINTS:
        return None
    gained = [float(one.bytes[:, -1].sum() - one.bytes[:, 0].sum()) for one in each]
    spans = [one.times[-1] - one.times[0] for one in each]
    if mean(gained) <= SIGNIFICANT * stdev(gained) / math.sqrt(len(gained)):
        return None
    reason = (
        f"{len(each)} processes ended after {duration(mean(spans))} on average, too soon to be judged one by one;"
        f" they gained {as_text(mean(gained))} each until then; whether that would level off in one that lives for"
        " longer, nobody can tell"
    )
    return Verdict(Answer.CANNOT_TELL, reason, unexplained=math.fsum(gained) / math.fsum(spans) * DAY)


def _with_levels(verdict: Verdict, found: Findings, watched: Paths) -> Verdict | None:
    """The verdict, unless the levels of a path have grown of which lives say nothing; None if there are too few."""
    chosen = window(watched.times)
    if len(chosen) < LEAST_POINTS:
        return None
    known = [one.key for one in (*found.dying, *found.filling)]
    settled = [row for row, key in enumerate(watched.keys) if key in known]
    stays = grown.largest(watched.at(chosen), watched.times[0], settled)
    if stays is None:
        return verdict
    known_after = max(stays.known_after, 2 * (watched.times[-1] - watched.times[0]))
    reason = f"{stays.text}{stays.where}; it is judged again after {duration(known_after)} of dumps"
    return Verdict(Answer.CANNOT_TELL, reason, changes=verdict.changes, shape=Shape.STEPPED, known_after=known_after)


def _trend(watched: Paths) -> tuple[float, float]:
    """That of all live memory, in bytes per day, and its error."""
    chosen = window(watched.times)
    if len(chosen) < LEAST_POINTS:
        return 0.0, 0.0
    times = [watched.times[position] for position in chosen]
    objects, sizes = (column.sum(axis=0)[chosen].tolist() for column in (watched.objects, watched.bytes))
    trend = assess(Measured(times, objects, sizes), watched.sampling)
    return trend.slope * DAY, trend.error * DAY


class _Spoken:
    """What was found, in words."""

    def __init__(self, lives: Lives, found: Findings, watched: Paths) -> None:
        self._lives = lives
        self._found = found
        self._watched = watched
        self._over = f"over {duration(lives.span)}"
        self._by_beginning: dict[int, dict[Key, list[int]]] = {}

    def verdict(self) -> Verdict:
        kept = by_lives.by_rate(self._found.kept)
        by_course = {course: [one for one in kept if one.diary and one.diary.course is course] for course in Course}
        if leaking := by_course[Course.GOES_ON]:
            return self._losing(Answer.LEAK, leaking, self._leak(leaking))
        if bursting := by_course[Course.BURSTS]:
            return self._losing(Answer.BURSTS, bursting, self._bursts(bursting[0]))
        if ended := by_course[Course.ENDED]:
            return self._grew(max(ended, key=lambda one: one.size))
        if self._found.open:
            return self._too_young(max(self._found.open, key=lambda one: one.size))
        if self._found.filling:
            return self._fills(max(self._found.filling, key=lambda one: one.size))
        return self._no_leak()

    def _losing(self, answer: Answer, kept: Sequence[Found], reason: str) -> Verdict:
        growth = math.fsum(one.growth for one in kept)
        error = math.hypot(*(one.error for one in kept))
        # All paths together are no path.
        suspects = [self._suspect(one, growth) for one in kept if one.key]
        rows = {row for suspect in suspects for row in self._beginning_with(suspect.key)}
        kept_rows = {row for one in kept for row in one.rows}
        return Verdict(
            answer,
            reason,
            growth * DAY,
            error * DAY,
            suspects,
            changes=changes(self._watched, rows),
            shape=Shape.GROWS,
            others=life_curve(self._lives, set(range(len(self._lives.stacks))) - kept_rows),
        )

    def _leak(self, kept: Sequence[Found]) -> str:
        longer = duration(min(one.outlives for one in kept))
        if not kept[0].key:
            what = "memory that is spread over many paths stays"
        else:
            what = "one code path keeps what it allocates" if len(kept) == 1 else f"{len(kept)} code paths keep"
            what += "" if len(kept) == 1 else " what they allocate"
        worst = kept[0].diary
        since = f", since {moment(worst.since)}" if worst and not worst.ever else ""
        pauses = ", with pauses" if worst and len(worst.bursts) > 1 else ""
        oldest = duration(min(one.oldest for one in kept))
        alike = (
            f"a cache would look the same only if its entries live longer than {longer} on average, or longer than"
            f" {oldest} where they have a term"
        )
        return f"{what}{since}{pauses} ({self._over}): {alike}"

    def _bursts(self, one: Found) -> str:
        count = len(one.births.bursts)
        return (
            f"one code path keeps what it allocates, and comes in bursts, {count} so far, of"
            f" {as_text(one.size / count)} each, the last at {moment(one.births.until)}"
            f" ({self._over}){_where(self._lives, one)}"
        )

    def _grew(self, one: Found) -> Verdict:
        stood = self._lives.now - one.births.until
        after = max((one.births.until - self._lives.began) / WARM_UP, 2 * self._lives.span)
        since = self._lives.began if one.births.ever else one.births.since
        when = f"from {moment(since)} to {moment(one.births.until)}"
        reason = (
            f"{self._who(one)} grew by {as_text(one.size)} {when} and keeps it, but has stood for"
            f" {duration(stood)} since{_where(self._lives, one)}; it is judged again after {duration(after)} of dumps"
        )
        return self._without_suspects(Answer.GREW, reason, after)

    def _too_young(self, one: Found) -> Verdict:
        paths = "" if len(self._found.open) == 1 else f", and {len(self._found.open) - 1} more"
        reason = (
            f"{self._who(one)} holds {as_text(one.size)} of what it allocated while it was watched, too young to say"
            f" whether it stays ({self._over}){_where(self._lives, one)}{paths};"
            f" {duration(one.after)} of lives will tell"
        )
        return self._without_suspects(Answer.CANNOT_TELL, reason, one.after)

    def _fills(self, one: Found) -> Verdict:
        now = float(self._lives.weight.sum())
        more = math.fsum(each.size for each in self._found.filling)
        error = math.hypot(*(each.error for each in self._found.filling))
        count = len(self._found.filling)
        paths = "one code path fills up" if count == 1 else f"{count} code paths fill up"
        after = duration(max(each.after for each in self._found.filling))
        reason = (
            f"{paths}, and what is allocated there dies: live memory levels off at {as_text(now + more)} ±"
            f" {as_text(error)} in {after}{_where(self._lives, one)}"
        )
        return replace(self._without_suspects(Answer.FILLS_UP, reason), to_come=(more, error))

    def _no_leak(self) -> Verdict:
        if not math.isfinite(self._found.bound):
            return self._without_suspects(Answer.CANNOT_TELL, f"nothing is old enough yet ({self._over})", 60.0)
        bound = self._found.bound * DAY
        reason = (
            f"of what was allocated up to {moment(self._found.until)} no more than {per_day(bound)} stays, in all code"
            f" paths together; {as_text(self._found.young)} are too young to tell"
        )
        return replace(self._without_suspects(Answer.NO_LEAK, reason), bound=bound)

    def _without_suspects(self, answer: Answer, reason: str, known_after: float = 0.0) -> Verdict:
        growth, error = _trend(self._watched)
        moved = changes(self._watched, ())
        return Verdict(answer, reason, growth, error, changes=moved, known_after=known_after)

    def _who(self, one: Found) -> str:
        return "one code path" if one.key else "memory that is spread over many paths"

    def _beginning_with(self, key: Key) -> list[int]:
        """Rows of the series: those of one length are all found at once, since a host may send many."""
        if len(key) not in self._by_beginning:
            found: dict[Key, list[int]] = {}
            for row, whole in enumerate(self._watched.keys):
                found.setdefault(whole[: len(key)], []).append(row)
            self._by_beginning[len(key)] = found
        return self._by_beginning[len(key)].get(key, [])

    def _suspect(self, one: Found, whole: float) -> Suspect:
        chosen = self._beginning_with(one.key)
        sizes = self._watched.bytes[chosen].sum(axis=0).tolist()
        is_whole = all(self._lives.stacks[row].key == one.key for row in one.rows)
        return Suspect(
            path=_example(self._lives, one),
            key=one.key,
            extent=Extent.KEY if is_whole else Extent.BEGINNING,
            stacks=len(one.rows),
            growth=one.growth * DAY,
            error=one.error * DAY,
            live=sizes[-1] if chosen else one.size,
            share=one.growth / whole if whole > 0 else 0.0,
            first_seen=self._lives.began if one.births.ever else one.births.since,
            lives=life_curve(self._lives, one.rows),
        )


def _where(lives: Lives, one: Found) -> str:
    return f": {short_path(_example(lives, one))}" if one.key else ""


def _example(lives: Lives, one: Found) -> tuple[Frame, ...]:
    """Of the stacks that hold most, the part that is the path's own."""
    frames = lives.stacks[max(one.rows, key=lambda row: lives.held[row])]
    return frames.frames if frames.key == one.key else tuple(first_frames(list(frames.frames), len(one.key)))
