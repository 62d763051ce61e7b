# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Whether a series of sampled live bytes grows, how fast, and how sure that is.

The statistics, in words. The slope is Theil-Sen's: the median of the slopes of all pairs, which bears outliers. Its
error has three parts, as variances of the growth over the whole time: the larger of the first two, plus the third.

* Growth is itself a sample: G bytes that came and stayed have variance R * G, where R is the sample interval.
* Memory that was live before may have been replaced by other allocations, sampled anew: at most R * (L_first + L_last).
  If the increments scatter less than that, less was replaced, and their own scatter counts.
* The scatter around the line, whatever causes it, as in any regression.

A significant slope alone is no leak: caches fill, and heaps breathe. Growth must go on in the later part of the time
(else it SETTLES), and must not be given back (else it BREATHES): if a series falls a lot, only the rise of its low
points counts. The first part of the time, when programs start up, is ignored if enough is left.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING, Any

from ..base import libraries
from ..model.sampling import CONFIDENCE, Sampling
from ..model.series import evenly_spread

if TYPE_CHECKING:
    import numpy as np
else:
    np = libraries.optional("numpy")

# Standard deviations that growth has to exceed: with a thousand stacks, one in thirty healthy reports would err.
SIGNIFICANT = 4.0
# Sampled allocations that growth has to consist of. Fewer may be coincidence.
LEAST_EVENTS = 20
# The part of the time that counts as the program's start-up.
WARM_UP = 0.2
# How much more the slope of a line through a random walk varies than its net growth.
_WALK = 6 / 5
# The growth, in sample intervals, below which none can be significant.
LEAST_GROWTH = _WALK * SIGNIFICANT * SIGNIFICANT
_MOST_POINTS = 100
PERSISTENT = 0.35
_SLOWER = 0.55
_GIVEN_BACK = 0.5


class Shape(Enum):
    FLAT = "flat"
    GROWS = "grows"
    SETTLES = "settles"
    BREATHES = "breathes"


@dataclass(frozen=True)
class Trend:
    """``slope`` and ``error`` (half of the 95 % interval) are in bytes per second, ``growth`` is in bytes.

    ``late`` says whether the later part alone still grows.
    """

    shape: Shape
    slope: float
    error: float
    growth: float
    late: bool


@dataclass(frozen=True)
class Measured:
    """Live objects and bytes (unbiased) of something at several times (seconds, ascending)."""

    times: Sequence[float]
    objects: Sequence[float]
    bytes: Sequence[float]

    def select(self, positions: Sequence[int]) -> Measured:
        return Measured(
            [self.times[position] for position in positions],
            [self.objects[position] for position in positions],
            [self.bytes[position] for position in positions],
        )


def window(times: Sequence[float]) -> list[int]:
    """Positions of the points to judge: evenly spread, without the program's start-up if there are enough others."""
    positions = evenly_spread(times, _MOST_POINTS)
    if not positions:
        return []
    settled = [position for position in positions if times[position] >= times[0] + WARM_UP * (times[-1] - times[0])]
    return settled if len(settled) >= 4 else positions


def assess(measured: Measured, sampling: Sampling) -> Trend:
    """The trend of at least three points that ``window`` has chosen."""
    times, values = measured.times, measured.bytes
    span = times[-1] - times[0]
    slope = theil_sen(times, values)
    growth = slope * span
    deviation = _growth_deviation(times, values, slope, sampling)
    error = CONFIDENCE * deviation / span
    if not _is_significant(measured, growth, deviation, sampling):
        return Trend(Shape.FLAT, slope, error, growth, late=False)
    noise = CONFIDENCE * math.sqrt(sampling.scatter * max(values))
    if _largest_fall(values) > _GIVEN_BACK * growth + noise:
        lows = _low_points(times, values)
        rise = lows[-1][1] - lows[0][1]
        steps = [later[1] - earlier[1] for earlier, later in pairwise(lows)]
        if len(lows) < 4 or rise < SIGNIFICANT * deviation or min(steps) < PERSISTENT * rise / len(steps):
            return Trend(Shape.BREATHES, slope, error, growth, late=False)
    shape, late = _persistence(measured, slope, sampling)
    return Trend(shape, slope, error, growth, late)


def theil_sen(times: Sequence[float], values: Sequence[float]) -> float:
    """The median of the slopes between all pairs of points with different times."""
    left, right = _pairs(len(times))
    moments, numbers = np.array(times, dtype=np.float64), np.array(values, dtype=np.float64)
    apart = moments[right] - moments[left]
    slopes = (numbers[right] - numbers[left])[apart > 0] / apart[apart > 0]
    return float(np.median(slopes)) if len(slopes) else 0.0


@lru_cache(maxsize=256)
def _pairs(count: int) -> tuple[Any, Any]:
    """All pairs of positions, the smaller first."""
    return np.triu_indices(count, 1)


def _growth_deviation(times: Sequence[float], values: Sequence[float], slope: float, sampling: Sampling) -> float:
    """Standard deviation of ``slope`` times the span, in bytes: see the head of this file."""
    count, span = len(values), times[-1] - times[0]
    interval = sampling.scatter
    arrived = _WALK * interval * abs(slope) * span
    replaced = interval * (values[0] + values[-1])
    if count >= 6:
        scatter = [
            values[index + 1] - values[index] - slope * (times[index + 1] - times[index]) for index in range(count - 1)
        ]
        replaced = min(replaced, math.fsum(step * step for step in scatter))
    middle = median(values[index] - slope * times[index] for index in range(count))
    residual = 1.4826 * median(abs(values[index] - slope * times[index] - middle) for index in range(count))
    return math.sqrt(max(arrived, replaced) + 12 * residual * residual / count)


def _is_significant(measured: Measured, growth: float, deviation: float, sampling: Sampling) -> bool:
    if growth <= 0 or growth < SIGNIFICANT * deviation:
        return False
    return _events(measured, growth, sampling) >= LEAST_EVENTS


def _events(measured: Measured, growth: float, sampling: Sampling) -> float:
    """About how many sampled allocations make up the growth."""
    objects = theil_sen(measured.times, measured.objects) * (measured.times[-1] - measured.times[0])
    if objects <= 0:
        return 0.0
    interval = sampling.scatter
    return objects * (1 - math.exp(-growth / objects / interval)) if interval else objects


def _largest_fall(values: Sequence[float]) -> float:
    highest, fall = values[0], 0.0
    for value in values:
        highest = max(highest, value)
        fall = max(fall, highest - value)
    return fall


def _low_points(times: Sequence[float], values: Sequence[float]) -> list[tuple[float, float]]:
    """The lowest point of each fifth of the time that has any points."""
    first, span = times[0], times[-1] - times[0]
    lows: dict[int, tuple[float, float]] = {}
    for time, value in zip(times, values, strict=True):
        part = min(int(5 * (time - first) / span), 4)
        if part not in lows or value < lows[part][1]:
            lows[part] = (time, value)
    return [lows[part] for part in sorted(lows)]


def _persistence(measured: Measured, slope: float, sampling: Sampling) -> tuple[Shape, bool]:
    """Whether growth goes on as before in the later half and the last third, and whether that half grows at all.

    With few points, every single step has to be part of the growth: three random numbers rise one time in six.
    """
    times, values = measured.times, measured.bytes
    interval = sampling.scatter
    middle = (times[0] + times[-1]) / 2
    last = bisect_left(times, times[-1] - (times[-1] - times[0]) / 3)
    split = min(max(bisect_left(times, middle), 1), len(times) - 2)
    early = theil_sen(times[: split + 1], values[: split + 1]) * (times[split] - times[0])
    late_slope = theil_sen(times[split:], values[split:])
    late = late_slope * (times[-1] - times[split])
    last = min(last, len(times) - 2)
    steady = late_slope >= PERSISTENT * slope and theil_sen(times[last:], values[last:]) >= PERSISTENT * slope
    # Compared as rates, allowing one standard deviation of the difference for sampling.
    share = (times[-1] - times[split]) / (times[split] - times[0])
    expected = _SLOWER * share * early
    if late < expected - math.sqrt(interval * (max(late, 0.0) + _SLOWER * max(expected, 0.0))):
        steady = False
    if len(times) < 6:
        steps = zip(times, times[1:], values, values[1:], strict=False)
        steady = steady and all(later - earlier >= PERSISTENT * slope * (t2 - t1) for t1, t2, earlier, later in steps)
    # Beyond its own 95 % sampling error (of variance R * late), and more than next to nothing.
    still = late_slope >= 0.1 * slope and late > CONFIDENCE * CONFIDENCE * max(interval, 1)
    return Shape.GROWS if steady else Shape.SETTLES, still
