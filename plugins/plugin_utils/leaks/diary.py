# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""When what stays was born: since when, until when, in how many bursts.

Births at a steady rate are apart by gaps of an exponential law, so the longest of n gaps surely stays below their mean
times log(n / chance). A longer one is a pause, if it takes a hundredth of the time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import pairwise

from .trend import LEAST_EVENTS

# How often a steady rate may seem to pause, or to have ended.
_CHANCE = 0.001
_LEAST_BURSTS = 3
# The part of the time that bursts take together at most, that a pause and an end take at least; and how many times the
# longest pause so far is an end.
_SHORT, _PAUSE, _END, _AN_END = 0.5, 1 / 100, 1 / 10, 2.0


class Course(Enum):
    GOES_ON = "goes on"
    BURSTS = "bursts"
    ENDED = "ended"


@dataclass(frozen=True)
class Diary:
    """Times are seconds since the epoch. ``ever`` is whether it was so from the beginning; ``bursts`` are the first and
    last position of the births of each stretch without a pause."""

    course: Course
    since: float
    until: float
    ever: bool
    bursts: list[tuple[int, int]]


def diary(born: Sequence[float], began: float, end: float, strays: float = 0.0) -> Diary:
    """Of births at these times (ascending, two at least) that were watched from ``began`` to ``end``. At any time, so
    many as ``strays`` on average are there only since they have yet to die: few of them, after a stretch of many, do
    not say that it goes on."""
    count, first, last = len(born), born[0], born[-1]
    longest = max((last - first) / (count - 1) * math.log(count / _CHANCE), _PAUSE * (end - began))
    starts = [0, *(at for at, (one, other) in enumerate(pairwise(born), 1) if other - one > longest)]
    bursts = [(start, following - 1) for start, following in pairwise([*starts, count])]
    lasted = math.fsum(born[at] - born[start] for start, at in bursts)
    sure = [(start, at) for start, at in bursts if at - start + 1 >= LEAST_EVENTS]
    after = count - 1 - sure[-1][1] if sure else 0
    # More are not there by chance (the bound of Poisson's law).
    if not 0 < after < LEAST_EVENTS or strays**after / math.factorial(after) < _CHANCE:
        sure = bursts
    until = born[sure[-1][1]]
    pause = max((born[start] - born[at] for (_start, at), (start, _at) in pairwise(sure)), default=0.0)
    ended = end - until > max(longest, _AN_END * pause, _END * (end - began))
    course = Course.GOES_ON
    if ended:
        course = Course.ENDED
    elif len(bursts) >= _LEAST_BURSTS and lasted < _SHORT * (last - first):
        course = Course.BURSTS
    return Diary(course, first, until if ended else last, first - began <= longest, bursts)
