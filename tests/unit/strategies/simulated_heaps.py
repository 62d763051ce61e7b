# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Processes whose allocations are known, seen through a sampling profiler: series with a seed."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from itertools import pairwise

from ansible_collections.offheap.profiler.plugins.plugin_utils.leaks.trend import Measured


def poisson(generator: random.Random, mean: float) -> int:
    """A Poisson number; beyond 500 by its normal approximation."""
    if mean > 500:
        return max(0, round(generator.gauss(mean, math.sqrt(mean))))
    limit, product, count = math.exp(-mean), generator.random(), 0
    while product > limit:
        product *= generator.random()
        count += 1
    return count


def sampled(
    live: Callable[[float], float],
    times: list[float],
    *,
    interval: int,
    size: int,
    lifetime: float,
    generator: random.Random,
) -> Measured:
    """Live objects of ``size`` bytes as a sampling profiler sees them.

    ``live(time)`` is the true number of live bytes. Objects live for ``lifetime`` seconds on average (infinite: what
    came stays) and are replaced as ``live`` demands, each new one being sampled with its own luck.
    """
    probability = 1 - math.exp(-size / interval)
    scale = 1 / probability
    seen = poisson(generator, live(times[0]) / size * probability)
    counts = [seen]
    for earlier, later in pairwise(times):
        kept = math.exp(-(later - earlier) / lifetime) if math.isfinite(lifetime) else 1.0
        before, after = live(earlier), live(later)
        surviving = min(before * kept, after)
        share = surviving / before if before else 0.0
        seen = sum(generator.random() < share for _object in range(seen))
        seen += poisson(generator, (after - surviving) / size * probability)
        counts.append(seen)
    return Measured(times, [count * scale for count in counts], [count * scale * size for count in counts])
