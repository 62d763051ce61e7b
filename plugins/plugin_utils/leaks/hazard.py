# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""How fast objects die, with bounds that hold at all looks at once: who looks each hour is not fooled more often.

The deaths of objects are a counting process whose intensity is their hazard times the number alive, whatever their
births did. So the likelihood ratio against a hazard that is smaller (or larger) by some factor is a supermartingale; so
is its weighted mean over several factors, which stays below m / alpha at all times but for a chance of alpha / m
(Ville 1939; Howard, Ramdas, McAuliffe and Sekhon, Time-uniform, nonparametric, nonasymptotic confidence sequences,
Annals of Statistics 49, 2021). What is rejected at some look was worth rejecting, however many looks there were, and
for m numbers that are tested together. ``make bench-truth`` measures it.

With an exposure of 1, these are bounds for the mean of a Poisson count.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from ..base import libraries

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Numbers = NDArray[np.floating[Any]]
else:
    np = libraries.optional("numpy")

# How often anything said of a process at any look may be false.
ALPHA = 0.01
# The factors by which the hazard may differ that is tested against: a half to a thousandth.
_FACTORS = 10
# Halvings of what is looked through: to a millionth of the bound.
_STEPS = 30


def at_most(deaths: Numbers, exposure: Numbers, tests: int) -> Numbers:
    """The largest hazards (per unit of exposure) that so few deaths leave possible; infinite without exposure."""
    smaller = 2.0 ** -np.arange(1, _FACTORS + 1)
    # Half of the weight is on the smallest: a leak's objects do not die at all, and so it is told sooner.
    weights = np.array([*[0.5 / (_FACTORS - 1)] * (_FACTORS - 1), 0.5])
    low = np.zeros(len(deaths))
    with np.errstate(divide="ignore"):
        high = (deaths + math.log(tests / ALPHA) + 10) * 50 / exposure
    some = np.isfinite(high)
    result = np.full(len(deaths), np.inf)
    result[some] = _bisect(deaths[some], exposure[some], low[some], high[some], (smaller, weights), tests, above=True)
    return result


def at_least(deaths: Numbers, exposure: Numbers, tests: int) -> Numbers:
    """The smallest hazards that so many deaths leave possible."""
    larger, weights = 2.0 ** np.arange(1, _FACTORS + 1), np.full(_FACTORS, 1 / _FACTORS)
    result = np.zeros(len(deaths))
    some = (deaths > 0) & (exposure > 0)
    high = deaths[some] / exposure[some]
    result[some] = _bisect(
        deaths[some], exposure[some], np.zeros(len(high)), high, (larger, weights), tests, above=False
    )
    return result


def _bisect(
    deaths: Numbers,
    exposure: Numbers,
    low: Numbers,
    high: Numbers,
    mixture: tuple[Numbers, Numbers],
    tests: int,
    above: bool,
) -> Numbers:
    """Where the evidence against a hazard reaches its threshold: above the likeliest one, or below. ``mixture`` is the
    factors and the weight of each."""
    factors, weights = mixture
    threshold = math.log(tests / ALPHA)
    for _step in range(_STEPS):
        middle = (low + high) / 2
        each = np.outer(deaths, np.log(factors)) + np.outer(middle * exposure, 1 - factors)
        most = each.max(axis=1)
        evidence = most + np.log(np.exp(each - most[:, None]) @ weights)
        possible = evidence < threshold
        low = np.where(possible == above, middle, low)
        high = np.where(possible == above, high, middle)
    result: Numbers = (low + high) / 2
    return result
