# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""What the numbers of a profile measure, how they were sampled, and how far off they may therefore be."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from ..base.byte_size import as_text
from ..base.errors import ControllerError

# A 95 % interval in standard deviations. Every "+-" that a user sees is this wide.
CONFIDENCE = 1.96


class MeasureError(ControllerError):
    """Numbers that measure different things cannot be added or compared."""


class Measure(Enum):
    """What the numbers count: LIVE memory, allocated and not freed; memory ALLOCATED since some moment, freed or not;
    memory GROWN, which was mapped or faulted in; or the LARGEST part of live memory that a tool shows."""

    LIVE = "live"
    LARGEST = "largest"
    ALLOCATED = "allocated"
    GROWN = "grown"

    @property
    def caution(self) -> str:
        """What a reader must know of numbers that are not live memory; empty for live ones."""
        return _CAUTIONS.get(self.value, "")


_CAUTIONS = {
    "allocated": "allocated since the source began to count, freed or not: not what is live",
    "largest": "of which its tool shows a part only: there may be more",
    "grown": "mapped or faulted in since the source began to count: not what is live",
}


def common_measure(measures: Iterable[Measure]) -> Measure:
    """The measure that all share, LIVE if there are none. Raises MeasureError."""
    found = sorted(set(measures), key=lambda measure: measure.value)
    if len(found) > 1:
        names = " and ".join(measure.value for measure in found)
        raise MeasureError(f"{names} memory cannot be added or compared: choose profiles with one measure")
    return found[0] if found else Measure.LIVE


class Scheme(Enum):
    """How allocations were chosen: POISSON at random, once per interval on average (jemalloc, tcmalloc, Go);
    SYSTEMATIC once per interval (async-profiler); EXACT all of them; UNKNOWN if the source does not say."""

    POISSON = "poisson"
    SYSTEMATIC = "systematic"
    EXACT = "exact"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Sampling:
    """How a profile was sampled; ``interval`` is in bytes, 0 if there is none."""

    scheme: Scheme
    interval: int = 0

    @property
    def scatter(self) -> float:
        """The variance that sampling adds per byte, in bytes; infinite if the scheme is unknown.

        A Poisson sample of objects of Z bytes contributes Z^2 e^(-Z/R) / (1 - e^(-Z/R)) <= R * Z to the variance of a
        sum (jemalloc's doc_internal/PROFILING_INTERNALS.md), so R is an upper bound, which small objects reach. It
        bounds a systematic sample too: which path every R-th byte falls into is as good as random.
        """
        if self.scheme is Scheme.UNKNOWN:
            return math.inf
        # An interval of 0 or 1 records every allocation.
        return float(self.interval) if self.scheme is not Scheme.EXACT and self.interval > 1 else 0.0

    @property
    def known_interval(self) -> int | None:
        """The interval, from which a page reckons errors; None if the scheme is unknown, and so are they."""
        return None if self.scheme is Scheme.UNKNOWN else self.interval

    @property
    def text(self) -> str:
        """The interval, for people."""
        match self.scheme:
            case Scheme.EXACT:
                return "every allocation"
            case Scheme.UNKNOWN:
                return "unknown, and so are all errors"
        return as_text(self.interval)

    @property
    def remark(self) -> str:
        """What sizes sampled like this are, as a sentence."""
        match self.scheme:
            case Scheme.EXACT:
                return "Every allocation was recorded."
            case Scheme.UNKNOWN:
                return "Nobody knows how these sizes were sampled, nor how far off they are."
        return f"Sizes are estimates from samples, one in {self.text}; ± is the 95 % interval."

    def unbias(self, objects: int, size: int) -> tuple[float, float]:
        """What a sampled record stands for: see the function ``unbias``."""
        return unbias(objects, size, self.interval if self.scheme is Scheme.POISSON else 0)

    def deviation(self, size: float) -> float:
        """The standard deviation of an unbiased sum of ``size`` bytes, in bytes."""
        return math.sqrt(self.scatter * size) if size > 0 else 0.0

    def error(self, size: float) -> float:
        """Half of the 95 % interval of an unbiased sum of ``size`` bytes, in bytes."""
        return CONFIDENCE * self.deviation(size)


def whole(error: float) -> int | None:
    """An error as a whole number for programs; None if it is unknown."""
    return round(error) if math.isfinite(error) else None


EXACT = Sampling(Scheme.EXACT)


def coarsest(samplings: Iterable[Sampling]) -> Sampling:
    """The sampling with the largest errors, EXACT if there are none: its bounds hold for the sum."""
    return max(samplings, key=lambda sampling: (sampling.scatter, sampling.interval), default=EXACT)


def unbias(objects: int, size: int, sample_interval: int) -> tuple[float, float]:
    """What a sampled record stands for: (objects, bytes), both times 1 / (1 - exp(-(bytes / objects) / interval)).

    An allocation of Z bytes is sampled with probability 1 - exp(-Z / R). The formula, applied to each record before
    anything is summed, is jeprof's (AdjustSamples) and pprof's (scaleHeapSample); the order of the operations is
    jeprof's too, so the results are the same doubles. With an interval of 0 or 1, every allocation was recorded.
    """
    if objects == 0 or sample_interval <= 1:
        return float(objects), float(size)
    scale = unbias_scale(size / objects, sample_interval)
    return objects * scale, size * scale


def unbias_scale(object_size: float, sample_interval: int) -> float:
    """How many objects a sampled one stands for. ``object_size`` is their mean in bytes; the interval is at least 2."""
    probability = 1 - math.exp(-(object_size / sample_interval))
    # The size is zero, or too small for a double to tell from zero: no allocator has such objects.
    return 1 / probability if probability > 0 else 1.0
