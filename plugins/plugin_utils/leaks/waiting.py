# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""How long until a steady leak is told by lives: the slower it is and the fewer objects are sampled, the longer."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ..base import libraries
from ..base.durations import DAY
from ..model.lives import BUCKETS
from . import hazard
from .by_lives import OUTLIVES
from .trend import WARM_UP
from .verdict import LEAST_SPAN

if TYPE_CHECKING:
    import numpy as np
else:
    np = libraries.optional("numpy")

# The code paths of a large service, which are tested together.
_PATHS = 1000
# Of all leaks as fast as that, nineteen in twenty are told by then: the quantile of the normal distribution.
_SURE = 1.645


def until_told(rate: float, interval: float) -> float:
    """Seconds until a leak of ``rate`` bytes per day is told, if one object is sampled in each ``interval`` bytes.

    After a time T, samples have been born at the rate l = rate / interval since the start-up (WARM_UP), and none has
    died. Together they were watched for X = l (0.9 T)^2 / 2 seconds, with a variance of l (0.9 T)^3 / 3, as of any
    Poisson process (Campbell). They are known to be kept once hazard.at_most(0, X) <= 1 / (OUTLIVES T), which is
    X >= OUTLIVES T e, with e the exposure that rules out a hazard of 1. In x = sqrt(l T) that is a quadratic equation.
    Nothing is told before LEAST_SPAN.
    """
    ruled_out = float(hazard.at_most(np.zeros(1), np.ones(1), (BUCKETS - 1) * _PATHS)[0])
    later = 1 - WARM_UP
    mean, spread = later**2 / 2, _SURE * math.sqrt(later**3 / 3)
    root = (spread + math.sqrt(spread**2 + 4 * mean * OUTLIVES * ruled_out)) / (2 * mean)
    return max(root**2 * interval / rate * DAY, LEAST_SPAN)
