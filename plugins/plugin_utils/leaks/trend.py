# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Whether a series of sampled live bytes grows, how fast, and how sure that is; if it is no steady growth, what it is.

The statistics, in words. The slope is Theil-Sen's: the median of the slopes of all pairs, which bears outliers (Sen,
JASA 63, 1968). Its error has three parts, as variances of the growth over the whole time: the larger of the first two,
plus the third.

* Growth is itself a sample: G bytes that came and stayed have variance R * G, where R is the sample interval.
* Memory that was live before may have been replaced by other allocations, sampled anew: at most R * (L_first + L_last).
  If the increments scatter less than that, less was replaced, and their own scatter counts.
* The scatter around the line, whatever causes it, as in any regression.

A significant slope alone is no leak: caches fill, deploys take steps, and heaps breathe. So, in this order:

* Growth that is given back does not count (else it BREATHES): if a series falls a lot, only its low points are judged.
  They have to rise all the time. If they only end higher than they began, it CLIMBS, and more time must tell.
* Growth must exceed what a random walk with the same steps does by chance (else it STEPPED): the levels of a dozen
  parts of the time are compared. One step that makes all the growth could as well have gone down. If the low points
  do rise all the time, it CLIMBS as well.
* Growth must not come earlier than that of a line does on average. That is Laplace's test of a trend in the rate of
  events (Cox and Lewis, The Statistical Analysis of Series of Events, 1966, section 3.3), here with bytes for events.
* It must go on in the later half and in the last third. SLOWING, it still grows there; FILLED, it does not.

If growth comes later than that of a line by the same test, the slope is that of the last third: what began late leaks
faster than a line through all of the time rises.

The first tenth of the time, when programs start up, is ignored if enough is left.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from itertools import pairwise
from statistics import fmean, median
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
# The same of a walk that says itself how much it varies: of eleven steps, Student's t exceeds 5.6 once in 10,000.
_UNLIKE_A_WALK = 5.6
# Sampled allocations that growth has to consist of. Fewer may be coincidence.
LEAST_EVENTS = 20
# The part of the time that counts as the program's start-up.
WARM_UP = 0.1
# How much more the slope of a line through a random walk varies than its net growth.
_WALK = 6 / 5
# The growth, in sample intervals, below which none can be significant.
LEAST_GROWTH = _WALK * SIGNIFICANT * SIGNIFICANT
_MOST_POINTS = 100
# With fewer points, each has to be part of the growth.
_FEW = 6
_PARTS, _LOWS = 12, 5
# No process holds so much.
_LARGEST = 2.0**62
PERSISTENT = 0.35
_GIVEN_BACK = 0.25
# When growth comes on average, as part of the time: of a line 0.5, of a square root 0.42. It slows down if it comes
# about halfway between them, and surely (one line in 250 does by chance) before that of a line.
_EARLY = 0.47
_SURELY = 2.65


class Shape(Enum):
    """``FILLED`` grew and no longer does, ``STEPPED`` grew in a few steps, ``CLIMBS`` breathes ever higher."""

    FLAT = "flat"
    GROWS = "grows"
    STEPPED = "stepped"
    SLOWING = "slowing"
    FILLED = "filled"
    BREATHES = "breathes"
    CLIMBS = "climbs"


@dataclass(frozen=True)
class Trend:
    """``slope`` and ``error`` (half of the 95 % interval) are in bytes per second, ``growth`` is in bytes, of a line
    through all of the time."""

    shape: Shape
    slope: float
    error: float
    growth: float


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


@dataclass(frozen=True)
class Levels:
    """What parts of the time hold: their mean ``times`` and ``sizes``."""

    times: list[float]
    sizes: list[float]

    @property
    def rise(self) -> float:
        return self.sizes[-1] - self.sizes[0]

    @property
    def steps(self) -> list[float]:
        return [later - earlier for earlier, later in pairwise(self.sizes)]

    @property
    def early(self) -> float:
        """The rise times how much earlier than the middle of the time it comes, as part of the time: 0 of a line."""
        return math.fsum((0.5 - at) * step for at, step in zip(self._middles(), self.steps, strict=True))

    @property
    def scatter(self) -> float:
        """The scatter of the steps around a parabola, as the variance of the growth of a random walk."""
        middles, steps = self._middles(), self.steps
        apart = [later - earlier for earlier, later in pairwise(self.times)]
        lever = math.fsum((0.5 - at) ** 2 for at in middles)
        bend = self.early / lever if lever else 0.0
        slope = self.rise / (self.times[-1] - self.times[0])
        straight = [step - slope * time for step, time in zip(steps, apart, strict=True)]
        return math.fsum((step - bend * (0.5 - at)) ** 2 for step, at in zip(straight, middles, strict=True))

    def _middles(self) -> list[float]:
        """The times of the steps, as parts of the whole (0 to 1)."""
        first, span = self.times[0], self.times[-1] - self.times[0]
        return [((earlier + later) / 2 - first) / span for earlier, later in pairwise(self.times)]


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

    def trend(shape: Shape) -> Trend:
        return Trend(shape, slope, CONFIDENCE * deviation / span, growth)

    if not _is_significant(measured, growth, deviation, sampling):
        return trend(Shape.FLAT)
    noise = CONFIDENCE * math.sqrt(sampling.scatter * max(values))
    breathes = largest_fall(values) > _GIVEN_BACK * growth + noise
    found = levels(times, values, lowest=breathes)
    if breathes and not _floor_rises(found, deviation):
        return trend(Shape.CLIMBS if found.rise > _GIVEN_BACK * growth + noise else Shape.BREATHES)
    if not breathes and found.rise < _UNLIKE_A_WALK * math.sqrt(found.scatter):
        floor = levels(times, values, lowest=True)
        return trend(Shape.CLIMBS if _floor_rises(floor, deviation) else Shape.STEPPED)
    if _goes_on(times, values, slope) and not _beyond_a_line(found, found.early, sampling):
        late = _last_third(times)
        if breathes or len(times) - late < _FEW or not _beyond_a_line(found, -found.early, sampling):
            return trend(Shape.GROWS)
        times, values = times[late:], values[late:]
        span, slope = times[-1] - times[0], theil_sen(times, values)
        deviation = _growth_deviation(times, values, slope, sampling)
        return trend(Shape.GROWS)
    return trend(Shape.SLOWING if _still_grows(times, values, slope, sampling) else Shape.FILLED)


def smallest_growth(measured: Measured, sampling: Sampling) -> float:
    """The growth in bytes, over the whole time, of a leak that would show in nine of ten cases, if what was measured
    went on as it does and leaked as well: twice the largest that ``assess`` takes for something else, and three
    standard deviations more."""
    times = measured.times
    interval = max(sampling.scatter, 1.0)
    size = max(interval / 64, 1.0)

    def with_leak(growth: float) -> Trend:
        leaked = [growth * (time - times[0]) / (times[-1] - times[0]) for time in times]
        objects = [count + leak / size for count, leak in zip(measured.objects, leaked, strict=True)]
        return assess(
            Measured(times, objects, [was + leak for was, leak in zip(measured.bytes, leaked, strict=True)]), sampling
        )

    tried = visible = LEAST_GROWTH * interval
    while tried <= 2.25 * visible and tried < _LARGEST:
        if with_leak(tried).shape is not Shape.GROWS:
            visible = 2 * tried
        tried *= 1.5
    visible = max(visible, _UNLIKE_A_WALK * _UNLIKE_A_WALK * interval)
    return visible + 3 * with_leak(visible).error / CONFIDENCE * (times[-1] - times[0])


def theil_sen(times: Sequence[float], values: Sequence[float]) -> float:
    """The median of the slopes between all pairs of points with different times."""
    found = _slopes(times, values)
    return float(np.median(found)) if len(found) else 0.0


def middle_slopes(times: Sequence[float], values: Sequence[float]) -> tuple[float, float]:
    """Between these two is the middle half of such slopes."""
    found = _slopes(times, values)
    low, high = np.quantile(found, (0.25, 0.75)) if len(found) else (0.0, 0.0)
    return float(low), float(high)


def _slopes(times: Sequence[float], values: Sequence[float]) -> Any:
    left, right = _pairs(len(times))
    moments, numbers = np.array(times, dtype=np.float64), np.array(values, dtype=np.float64)
    apart = moments[right] - moments[left]
    return (numbers[right] - numbers[left])[apart > 0] / apart[apart > 0]


@lru_cache(maxsize=256)
def _pairs(count: int) -> tuple[Any, Any]:
    """All pairs of positions, the smaller first."""
    return np.triu_indices(count, 1)


def levels(times: Sequence[float], values: Sequence[float], lowest: bool = False) -> Levels:
    """The medians of a dozen parts of the points, or the ``lowest`` of five, which are to hold a whole breath each."""
    parts = min(_LOWS if lowest else _PARTS, len(values))
    bounds = [len(values) * part // parts for part in range(parts + 1)]
    within = list(pairwise(bounds))
    sizes = [min(values[start:end]) if lowest else median(values[start:end]) for start, end in within]
    moments = [fmean(times[start:end]) for start, end in within]
    return Levels(moments, sizes)


def largest_fall(values: Sequence[float]) -> float:
    highest, fall = values[0], 0.0
    for value in values:
        highest = max(highest, value)
        fall = max(fall, highest - value)
    return fall


def _growth_deviation(times: Sequence[float], values: Sequence[float], slope: float, sampling: Sampling) -> float:
    """Standard deviation of ``slope`` times the span, in bytes: see the head of this file."""
    count, span = len(values), times[-1] - times[0]
    interval = sampling.scatter
    arrived = _WALK * interval * abs(slope) * span
    replaced = interval * (values[0] + values[-1])
    if count >= _FEW:
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
    """About how many sampled allocations make up the growth, which some sources do not count."""
    if not any(measured.objects):
        return growth / sampling.scatter if sampling.scatter else math.inf
    objects = theil_sen(measured.times, measured.objects) * (measured.times[-1] - measured.times[0])
    if objects <= 0:
        return 0.0
    interval = sampling.scatter
    return objects * (1 - math.exp(-growth / objects / interval)) if interval else objects


def _floor_rises(found: Levels, deviation: float) -> bool:
    """Whether the low points rise, every one of them."""
    enough = len(found.sizes) >= 4 and found.rise >= SIGNIFICANT * deviation
    return enough and min(found.steps) >= PERSISTENT * found.rise / len(found.steps)


def _beyond_a_line(found: Levels, early: float, sampling: Sampling) -> bool:
    """Whether growth comes so much earlier than a line's beyond what sampling and the scatter of the steps explain, or
    so much later, of the negative."""
    chance = math.sqrt(max(sampling.scatter * found.rise, found.scatter) / 12)
    return early > max((0.5 - _EARLY) * found.rise, _SURELY * chance)


def _goes_on(times: Sequence[float], values: Sequence[float], slope: float) -> bool:
    """Whether growth goes on in the later half and the last third.

    With few points, every single step has to be part of the growth: three random numbers rise one time in six.
    """
    if len(times) < _FEW:
        steps = zip(times, times[1:], values, values[1:], strict=False)
        if not all(later - earlier >= PERSISTENT * slope * (t2 - t1) for t1, t2, earlier, later in steps):
            return False
    return all(theil_sen(times[at:], values[at:]) >= PERSISTENT * slope for at in (_middle(times), _last_third(times)))


def _still_grows(times: Sequence[float], values: Sequence[float], slope: float, sampling: Sampling) -> bool:
    """Whether the later half grows beyond its own 95 % sampling error (of variance R * late), by more than a little."""
    split = _middle(times)
    late_slope = theil_sen(times[split:], values[split:])
    late = late_slope * (times[-1] - times[split])
    return late_slope >= 0.1 * slope and late > CONFIDENCE * CONFIDENCE * max(sampling.scatter, 1)


def _last_third(times: Sequence[float]) -> int:
    return min(bisect_left(times, times[-1] - (times[-1] - times[0]) / 3), len(times) - 2)


def _middle(times: Sequence[float]) -> int:
    return min(max(bisect_left(times, (times[0] + times[-1]) / 2), 1), len(times) - 2)
