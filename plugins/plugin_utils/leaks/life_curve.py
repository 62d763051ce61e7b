# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""How the objects of a path live, for the eye: what share reaches which age, and when those were born that live still.

What leaks is the curve that does not fall.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..base import libraries
from ..model.lives import BUCKETS, Lives, youngest

if TYPE_CHECKING:
    import numpy as np
else:
    np = libraries.optional("numpy")

_PARTS = 48


@dataclass(frozen=True)
class LifeCurve:
    """``alive[i]`` is the share of the objects that reach ``ages[i]`` seconds; ``born[i]`` is how many bytes live still
    of what was born in the i-th of equal parts of the time from ``began`` to ``now`` (seconds since the epoch)."""

    ages: list[float]
    alive: list[float]
    born: list[float]
    began: float
    now: float


def life_curve(lives: Lives, rows: Collection[int]) -> LifeCurve | None:
    """That of these stacks together, None if nothing was born there.

    Deaths are known by intervals of age, and what lives may die later, so the share is the life table's: of those that
    reach an interval, so many die in it, and who is still that young counts as half (Cutler and Ederer 1958; with fine
    intervals it is Kaplan and Meier's).
    """
    chosen = list(rows)
    mine = np.isin(lives.stack, chosen)
    starts = np.array([youngest(bucket) for bucket in range(BUCKETS)])
    deaths = lives.deaths[chosen].sum(axis=0)
    living = np.bincount(np.searchsorted(starts, lives.age[mine], side="right") - 1, minlength=BUCKETS)
    reach = float(deaths.sum() + living.sum())
    if reach == 0:
        return None
    share, ages, alive = 1.0, [0.0], [1.0]
    for bucket in range(BUCKETS - 1):
        if starts[bucket + 1] > lives.span or reach <= living[bucket] / 2:
            break
        share *= 1 - min(deaths[bucket] / (reach - living[bucket] / 2), 1.0)
        reach -= float(deaths[bucket] + living[bucket])
        ages.append(float(starts[bucket + 1]))
        alive.append(float(share))
    born, _edges = np.histogram(
        lives.born[mine], bins=_PARTS, range=(lives.began, max(lives.now, lives.began + 1)), weights=lives.weight[mine]
    )
    return LifeCurve(ages, alive, born.tolist(), lives.began, lives.now)
