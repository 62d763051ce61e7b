# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Whether the process's own numbers grow by more than its stacks explain: then "no leak" would be a guess, and a leak
that the stacks show is not all of it. Or by much less: then "leak" would be one, since memory from before sampling
began, which is in no stack, is being replaced by memory that is.

jemalloc counts what it has given out and what of it is resident, the kernel what is resident in all, each exactly.
Where threads come and go, an allocator that seeds its sampling badly may miss a leak altogether. Memory that a program
maps by itself is in no stack: it is what is resident and not malloc's, and shows even where malloc's comes and goes, as
the buffers of Node do from one collection to the next.

jemalloc gives each small block that it samples four pages of its own (``arena_prof_promote``), and counts
that as given out and as resident: so its number grows by more than the stacks, and that is not what the samples miss;
and of these pages, those behind the block are not resident.

The scatter of a number is that of the steps between the medians of eighths of the time: of noise that comes and goes
little is left in them, and of a random walk all. Where resident memory grows by no more than that, but by a good part
of itself, and has given little back, it is no "no leak" either: more time must tell.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING

from ...module_utils.formats.jvm_memory import JvmMemory
from ..archive.capture import Capture
from ..base import libraries
from ..base.byte_size import as_text
from ..base.carried_builds import page_of
from ..base.durations import DAY, duration, per_day
from ..model.sampling import CONFIDENCE, EXACT, Sampling, Scheme
from ..model.series import Series
from . import tracking_headers
from .grown import GIVEN_BACK
from .trend import LEAST_EVENTS, PERSISTENT, SIGNIFICANT, Measured, assess, largest_fall, theil_sen, window
from .verdict import Answer, Verdict

if TYPE_CHECKING:
    import numpy as np
else:
    np = libraries.optional("numpy")

_LEAST_POINTS = 6
_PARTS = 8
# Less is next to nothing, however exactly it was counted.
LEAST_GROWTH = 1 << 20
# The part of what is resident that matters even where it may be scatter. Triage says the same.
_MUCH = 0.1
_LARGEST = 1 << 62
# How many pages a sampled block takes at least: SC_LARGE_MINCLASS.
_LEAST_SAMPLED = 4
# Longer than anybody will wait: a hundred years.
_LATEST = 36525 * DAY
_RUNTIMES = {"jvm": re.compile(r"libjvm\.so\Z"), "python": re.compile(r"(lib)?python3")}
_GIVEN_OUT, _RESIDENT = "what malloc has given out", "resident memory other than files"
_MAPPED, _SHARED = "resident memory other than files and malloc's", "shared memory"
_LEFT = {
    _GIVEN_OUT: "which the samples miss",
    _MAPPED: "which the program maps without malloc",
    _RESIDENT: "which the program maps without malloc, or malloc keeps",
    _SHARED: "which no profile of malloc shows",
}
_LEFT_IN_PYTHON = (
    "which malloc keeps, or which Python maps, as it does for objects of up to 512 bytes"
    " (profiled_service_runtime_with: [objects] shows these)"
)


@dataclass(frozen=True)
class OwnNumbers:
    """What a process, or several together, said of its own memory at each time of a series, in bytes as the agent names
    them; ``left`` is what its limit or its host left of memory at the last time, None where that is not known. The
    ``runtime`` is jvm, python or empty; ``tracks`` says that it is a JVM with native memory tracking. ``page`` is the
    size of pages, in bytes, that its jemalloc was built for."""

    memory: Sequence[Mapping[str, object]]
    runtime: str
    left: float | None
    tracks: bool = False
    page: int = 4096

    def of(self, name: str) -> list[float | None]:
        """One of the numbers at each time, None where it was not told."""
        return [told_size(memory.get(name)) for memory in self.memory]


def own_numbers(captures: Sequence[Capture]) -> OwnNumbers:
    """Those of one process, by the captures of its series."""
    memory = [capture.facts.memory for capture in captures]
    files = {os.path.basename(image.path) for capture in captures for image in capture.facts.images}
    runtime = next((name for name, pattern in _RUNTIMES.items() if any(map(pattern.match, files))), "")
    left = told_size(memory[-1].get("left")) if memory else None
    tracks = any(JvmMemory.told(capture.facts.jvm).nmt is not None for capture in captures if capture.facts.jvm)
    page = page_of({image.sha256 for capture in captures for image in capture.images})
    return OwnNumbers(memory, runtime, left, tracks, page)


@dataclass(frozen=True)
class OwnGrowth:
    """Growth of one of a process's own numbers, of which the stacks explain a part, and what the ``rest`` may be. Rates
    are bytes per day, ``error`` is half of the 95 % interval. Where it may be scatter, ``known_after`` is how long the
    process must have been watched to tell, in seconds; else it is 0."""

    name: str
    growth: float
    error: float
    explained: float
    known_after: float
    rest: str

    @property
    def text(self) -> str:
        """``what malloc has given out grows by 1.2 GiB/day ± 20.0 MiB, and the stacks explain 0 B of it: 1.2 GiB/day
        are left, which the samples miss``"""
        explained = f"the stacks explain {as_text(self.explained)} of it"
        left = f"{per_day(self.growth - self.explained)} are left, {self.rest}"
        if self.known_after:
            left += (
                f"; that may be scatter: {duration(self.known_after)} of dumps will tell, and triage which memory it is"
            )
        return f"{self.name} grows by {per_day(self.growth)} ± {as_text(self.error)}, and {explained}: {left}"


def with_own_numbers(verdict: Verdict, series: Series, own: OwnNumbers) -> Verdict:
    """What the process's own numbers say comes first. Where they grow by more than the stacks, it is no "no leak", and
    no "fills up" either; by much less, no leak."""
    if verdict.answer.leaks and (why := replaced(own, series, verdict.growth)) is not None:
        return replace(verdict, answer=Answer.CANNOT_TELL, reason=f"{why}; {verdict.reason}", suspects=[])
    if verdict.answer.leaks and (lasts := until_the_limit(own, series)) is not None:
        verdict = replace(verdict, reason=f"{verdict.reason}; {lasts}")
    if own.tracks and verdict.answer.leaks and (headers := tracking_headers.told(verdict, series)) is not None:
        verdict = replace(verdict, reason=f"{verdict.reason}; {headers}")
    if verdict.answer is Answer.FILLS_UP and own.left is not None:
        verdict = _beside_the_limit(verdict, own.left)
    watched_enough = verdict.answer is not Answer.CANNOT_TELL or verdict.known_after > 0
    found = beyond_the_stacks(own, series) if watched_enough else None
    if found is None or (found.known_after and not verdict.answer.is_calm):
        return verdict
    reason = f"{found.text}; {verdict.reason}"
    # What fills up takes some more than its stacks hold, since an allocator rounds up, and so do huge pages.
    rounded = verdict.answer is Answer.FILLS_UP and found.growth - found.explained < verdict.growth
    if rounded or (not verdict.answer.is_calm and verdict.answer is not Answer.CANNOT_TELL):
        return replace(verdict, reason=reason)
    known_after = max(found.known_after, verdict.known_after)
    return replace(
        verdict,
        answer=Answer.CANNOT_TELL,
        reason=reason,
        unexplained=found.growth,
        known_after=known_after,
        bound=0.0,
        limits=(),
    )


def _beside_the_limit(verdict: Verdict, left: float) -> Verdict:
    """One that fills up, with whether what is to come fits what is ``left`` of memory, in bytes."""
    more, error = verdict.to_come
    room = f"the {as_text(left)} that its limit or its host leaves"
    if more - error > left:
        reason = f"{verdict.reason}; that does not fit {room}"
        return replace(verdict, answer=Answer.OVERFLOWS, reason=reason)
    fits = "fits" if more + error <= left else "may or may not fit"
    return replace(verdict, reason=f"{verdict.reason}; that {fits} {room}")


def beyond_the_stacks(own: OwnNumbers, series: Series) -> OwnGrowth | None:
    """The first of the own numbers that grows by more than the stacks, or else resident memory if that may; they were
    told at the times of the series."""
    sampled = series.bytes.sum(axis=0).tolist()
    promoted, untouched = _promoted(series, own.page), _promoted(series, own.page, own.page)
    kinds: list[tuple[str, tuple[str, ...], tuple[str, ...]]] = [(_GIVEN_OUT, ("allocated",), ())]
    # A JVM's heap is resident too as it fills, and how large it was, the JVM is asked for the newest dump alone.
    if own.runtime != "jvm":
        kinds.append((_MAPPED, ("rss", "resident"), ("rss_file", "rss_shmem")))
        kinds.append((_RESIDENT, ("rss",), ("rss_file", "rss_shmem")))
        kinds.append((_SHARED, ("rss_shmem",), ()))
    perhaps = None
    for name, needed, parts in kinds:
        known = []
        for at, (time, live, memory) in enumerate(zip(series.times, sampled, own.memory, strict=True)):
            told = [size for one in needed if (size := told_size(memory.get(one))) is not None]
            if len(told) == len(needed):
                whole = told[0] - math.fsum(told_size(memory.get(part)) or 0.0 for part in parts)
                apart = math.fsum(told[1:])
                apart += promoted[at] if name == _GIVEN_OUT else 0.0
                apart -= untouched[at] if name == _MAPPED else 0.0
                known.append((time, whole - apart, live if name in (_GIVEN_OUT, _RESIDENT) else 0.0, whole))
        times, numbers, lives, wholes = ([row[column] for row in known] for column in range(4))
        found = growth_beyond(times, numbers, lives, series.sampling)
        # Malloc may free what nobody has ever touched, which was not resident.
        if found is None or (name == _MAPPED and theil_sen(times, wholes) * DAY < PERSISTENT * found[0]):
            continue
        in_python = name in (_MAPPED, _RESIDENT) and own.runtime == "python"
        growth = OwnGrowth(name, *found, _LEFT_IN_PYTHON if in_python else _LEFT[name])
        if not growth.known_after:
            return growth
        if name == _RESIDENT:
            perhaps = growth
    return perhaps


def _promoted(series: Series, page: int, unit: int = 1) -> list[float]:
    """At each time, by how many bytes more than their size, in whole units, sampled blocks are counted by jemalloc."""
    if series.sampling.scheme is not Scheme.POISSON or series.sampling.interval <= 1:
        return [0.0] * len(series.times)
    sizes = series.bytes / np.maximum(series.objects, 1.0)
    recorded = series.objects * -np.expm1(-sizes / series.sampling.interval)
    taken = np.ceil(sizes / unit) * unit
    promoted: list[float] = (recorded * np.clip(_LEAST_SAMPLED * page - taken, 0.0, None)).sum(axis=0).tolist()
    return promoted


def replaced(own: OwnNumbers, series: Series, growth: float) -> str | None:
    """Why a leak of ``growth`` bytes per day may be none: malloc's own count lags behind the stacks by half of that."""
    sampled = series.bytes.sum(axis=0).tolist()
    rows = [
        (time, given_out - more, live)
        for time, live, more, given_out in zip(
            series.times, sampled, _promoted(series, own.page), own.of("allocated"), strict=True
        )
        if given_out is not None
    ]
    chosen = window([row[0] for row in rows])
    if len(chosen) < _LEAST_POINTS:
        return None
    times, numbers, lives = ([rows[position][column] for position in chosen] for column in range(3))
    unseen = [given_out - live for given_out, live in zip(numbers, lives, strict=True)]
    span, fall = times[-1] - times[0], -theil_sen(times, unseen)
    chance = _scatter(times, unseen, -fall) + series.sampling.scatter * max(theil_sen(times, lives), 0.0) * span
    if fall * span < SIGNIFICANT * math.sqrt(chance) or fall * DAY < growth / 2:
        return None
    return (
        f"what malloc has given out grows by {per_day(max(theil_sen(times, numbers), 0.0) * DAY)}, not by all that the"
        f" stacks do: {per_day(fall * DAY)} of what was there before sampling began is freed, and may be replaced"
    )


def until_the_limit(own: OwnNumbers, series: Series) -> str | None:
    """How long what the unit's limit or its host leaves of memory will last at the rate at which resident memory grows.

    None where that is not known, or where resident memory does not grow.
    """
    rows = [
        (time, rss - (files or 0.0))
        for time, rss, files in zip(series.times, own.of("rss"), own.of("rss_file"), strict=True)
        if rss is not None
    ]
    chosen = window([time for time, _rss in rows])
    if own.left is None or len(chosen) < _LEAST_POINTS:
        return None
    times, sizes = ([rows[position][column] for position in chosen] for column in range(2))
    # What began late goes on as it does now.
    slope = assess(Measured(times, [0.0] * len(times), sizes), EXACT).slope
    if slope * (times[-1] - times[0]) < LEAST_GROWTH:
        return None
    return (
        f"resident memory grows by {per_day(slope * DAY)}, and the {as_text(own.left)} that its limit or its host"
        f" leaves last {duration(min(own.left / slope, _LATEST))}"
    )


def growth_beyond(
    times: Sequence[float], numbers: Sequence[float], sampled: Sequence[float], sampling: Sampling
) -> tuple[float, float, float, float] | None:
    """(growth, error, what sampled memory grows) of a number in bytes per day, at these times (seconds, ascending), and
    how long it must be watched to tell that from scatter, in seconds, 0 where that is told.

    None where the samples explain it, where it does not go on, or where there is too little to tell.
    """
    chosen, watched = window(times), times[-1] - times[0] if times else 0.0
    if len(chosen) < _LEAST_POINTS:
        return None
    times, numbers, sampled = ([values[position] for position in chosen] for values in (times, numbers, sampled))
    span = times[-1] - times[0]
    slope, explained = theil_sen(times, numbers), max(theil_sen(times, sampled), 0.0)
    own = _scatter(times, numbers, slope)
    chance = _scatter(times, sampled, explained) + sampling.scatter * max(slope, 0.0) * span
    rest = (slope - explained) * span
    told = max(SIGNIFICANT * math.sqrt(own + chance), LEAST_EVENTS * sampling.scatter, LEAST_GROWTH)
    known_after = 0.0 if rest >= told else watched * max(2.0, told / max(rest, 1.0))
    if known_after and (rest < max(_MUCH * median(numbers), LEAST_GROWTH) or largest_fall(numbers) > GIVEN_BACK * rest):
        return None
    # A third of the time may be less than one breath.
    for part in (len(times) // 2, len(times) * 2 // 3)[: 1 if known_after else 2]:
        if theil_sen(times[part:], numbers[part:]) < PERSISTENT * slope:
            return None
    return slope * DAY, CONFIDENCE * math.sqrt(own) / span * DAY, explained * DAY, known_after


def _scatter(times: Sequence[float], values: Sequence[float], slope: float) -> float:
    """The variance of growth over the whole time, in square bytes: see the head of this file."""
    parts = min(_PARTS, len(times))
    bounds = [len(times) * part // parts for part in range(parts + 1)]
    middles = [median(values[i] - slope * times[i] for i in range(start, end)) for start, end in pairwise(bounds)]
    return math.fsum((later - earlier) ** 2 for earlier, later in pairwise(middles))


def told_size(value: object) -> float | None:
    """A size in bytes that some host has told, unless it is none."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < _LARGEST:
        return None
    return float(value)
