# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""By how much something has grown over several looks, and how surely.

The line of least squares says how much. From five looks on, it goes through five means of looks that follow one
another, and their scatter around it says how surely: looks that are close together are alike, means of them less so. Of
fewer looks nobody can tell the scatter, so that of a quiet process is assumed, as if four looks had shown it, and what
they do show is added (the posterior of a variance: Gelman et al., Bayesian Data Analysis, 2.6).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

#: between looks, in seconds: what grows within less is noise, and the rate would be out of all proportion
SHORTEST = 1.0
_MEANS, _ASSUMED = 5, 4
# What 95 % and 99.5 % of Student's t lie within, by the number of looks, or means: of 4, 5, 6 and 3 degrees of freedom.
_T = {2: (2.776, 5.598), 3: (2.571, 4.773), 4: (2.447, 4.317), 5: (3.182, 7.453)}
#: what the difference of two looks must exceed to be no chance, in deviations of one look
OF_TWO_LOOKS = _T[2][1] * math.sqrt(2)


@dataclass(frozen=True)
class Rise:
    """``size`` is in bytes over the time watched, ``error`` half of its 95 % interval. What is no more than ``chance``
    is seen in 199 of 200 times where nothing rises or falls."""

    size: float = 0.0
    error: float = 0.0
    chance: float = 0.0

    def times(self, factor: float) -> Rise:
        return Rise(self.size * factor, self.error * factor, self.chance * factor)


NONE = Rise()


def rise(times: Sequence[float], sizes: Sequence[float], usual: float, among: int = 1) -> Rise:
    """The rise of ``sizes`` (bytes) over ``times`` (seconds, ascending, at least two, not all the same).

    ``usual`` is the scatter (standard deviation, bytes) of what does not rise, at least; ``among`` how many are looked
    at, of which any may be told to rise: Student's t of three degrees of freedom exceeds far values as their cubes.
    """
    span = times[-1] - times[0]
    times, sizes = _means(times), _means(sizes)
    count = len(times)
    middle, mean = _mean(times), _mean(sizes)
    apart = [time - middle for time in times]
    lever = math.fsum(one * one for one in apart)
    slope = math.fsum(one * (size - mean) for one, size in zip(apart, sizes, strict=True)) / lever
    left = math.fsum((size - mean - slope * one) ** 2 for one, size in zip(apart, sizes, strict=True))
    if count < _MEANS:
        variance = (left + _ASSUMED * usual * usual) / (count - 2 + _ASSUMED)
    else:
        variance = max(left / (count - 2), usual * usual)
    deviation = span * math.sqrt(variance / lever)
    likely, possible = _T[count]
    if count == _MEANS:
        possible *= among ** (1 / 3)
    return Rise(slope * span, likely * deviation, possible * deviation)


def since(times: Sequence[float], sizes: Sequence[float], usual: float) -> int:
    """The position of the first look that counts: the first of all, or of the newer half if there are enough and that
    surely rises or falls in another way, since something has filled up, or begun to grow."""
    half = len(times) // 2
    if len(times) < 2 * _MEANS or times[-1] - times[half] < SHORTEST:
        return 0
    newer = rise(times[half:], sizes[half:], usual)
    before = rise(times, sizes, usual).size * (times[-1] - times[half]) / (times[-1] - times[0])
    return half if abs(newer.size - before) > newer.chance else 0


def together(rises: Iterable[Rise]) -> Rise:
    """The sum of rises that have nothing to do with one another."""
    found = list(rises)
    return Rise(
        math.fsum(one.size for one in found),
        math.hypot(*(one.error for one in found)),
        math.hypot(*(one.chance for one in found)),
    )


def _means(values: Sequence[float]) -> list[float]:
    parts = min(len(values), _MEANS)
    ends = [len(values) * number // parts for number in range(parts + 1)]
    return [_mean(values[start:end]) for start, end in pairwise(ends)]


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)
