# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""The lives of a process's sampled objects: per stack how many were born, at what age they died, and which live still.

A book of lives begins when sampling does, and ends at a look: what lives then has an age, and will die later or never.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from ..base import libraries
from .sampling import Sampling, Scheme
from .series import Stack

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Integers = NDArray[np.int64]
    Numbers = NDArray[np.float64]
else:
    np = libraries.optional("numpy")

#: how many intervals ages fall into: below 64 ms, below 128 ms, and so on, each twice as wide as the one before
BUCKETS = 32
_FIRST = 0.064


def youngest(bucket: int) -> float:
    """The age in seconds at which a bucket begins."""
    return _FIRST * 2.0 ** (bucket - 1) if bucket else 0.0


@dataclass(frozen=True)
class Lives:
    """A book from ``began`` to ``now`` (seconds since the epoch).

    Of stack ``i``, ``births[i]`` sampled objects were born. Of those that died, ``deaths[i, k]`` had an age within
    bucket ``k``, and all of these ages together are ``ages[i, k]`` seconds. Those that live are rows of ``stack``,
    ``born`` (seconds since the epoch) and ``size`` (bytes, of the one object that was sampled). ``lost`` is how many
    births found no place in the book, which then cannot say what stays. ``watched`` is for how long deaths were seen
    (seconds), None for all of the time: of a sum, the mean of its books.
    """

    began: float
    now: float
    sampling: Sampling
    stacks: list[Stack]
    births: Numbers
    deaths: Numbers
    ages: Numbers
    stack: Integers
    born: Numbers
    size: Numbers
    lost: int = 0
    watched: float | None = None

    @property
    def span(self) -> float:
        return self.now - self.began

    @property
    def of_deaths(self) -> float:
        return self.span if self.watched is None else self.watched

    @cached_property
    def age(self) -> Numbers:
        """Of what lives, in seconds."""
        result: Numbers = np.maximum(self.now - self.born, 0.0)
        return result

    @cached_property
    def weight(self) -> Numbers:
        """How many bytes each living object stands for: what was sampled, over the chance of being so."""
        result: Numbers = self.size / self._chance
        return result

    @cached_property
    def held(self) -> Numbers:
        """The bytes that live, by stack."""
        result: Numbers = np.bincount(self.stack, self.weight, len(self.stacks)).astype(np.float64)
        return result

    @cached_property
    def variance(self) -> Numbers:
        """What each living object adds to the variance of a sum of weights, in square bytes."""
        result: Numbers = self.weight**2 * (1 - self._chance)
        return result

    @property
    def _chance(self) -> Numbers:
        interval = self.sampling.interval
        if interval <= 1 or self.sampling.scheme not in (Scheme.POISSON, Scheme.SYSTEMATIC):
            return np.ones(len(self.size))
        share = np.maximum(self.size, 1.0) / interval
        result: Numbers = -np.expm1(-share) if self.sampling.scheme is Scheme.POISSON else np.minimum(share, 1.0)
        return result
