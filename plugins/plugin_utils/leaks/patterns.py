# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""How memory changes without a leak: it starts up, takes a step, or comes and goes."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from ..base import libraries
from ..model.frame import Frame
from ..model.sampling import Sampling
from ..model.series import Paths
from .trend import SIGNIFICANT, largest_fall

if TYPE_CHECKING:
    import numpy as np
else:
    np = libraries.optional("numpy")

# The part of a rise that must be given back to count as a fall, and the part of its mean rate below which it has ended.
_PART = 0.5
# The part of the time that counts as a program's start.
_START = 0.2
_MOST = 5


class Pattern(Enum):
    """START_UP rises in the first fifth of the time, STEP rises later and then stays (a cache that fills), SAW_TOOTH
    falls back, RISES goes on but not steadily or surely enough for a leak, NOISE is what sampling explains."""

    START_UP = "start-up"
    STEP = "step"
    SAW_TOOTH = "saw-tooth"
    RISES = "rises"
    NOISE = "noise"


@dataclass(frozen=True)
class Movement:
    """A code path (leaf first) that is no suspect but whose live bytes change, by ``size`` bytes."""

    path: tuple[Frame, ...]
    pattern: Pattern
    size: float
    live: float


def changes(watched: Paths, leaking: Collection[int], most: int = _MOST) -> list[Movement]:
    """The largest changes among the paths that do not leak."""
    if len(watched.times) < 2 or not len(watched.members):
        return []
    size = watched.bytes.max(axis=1) - watched.bytes.min(axis=1)
    size[list(leaking)] = 0.0
    found = []
    for row in np.argsort(-size)[: 4 * most].tolist():
        if size[row] == 0:
            break
        pattern = pattern_of(watched.times, watched.bytes[row].tolist(), watched.sampling)
        if pattern is not Pattern.NOISE:
            found.append(Movement(watched.frames[row], pattern, float(size[row]), float(watched.bytes[row, -1])))
    return found[:most]


def pattern_of(times: Sequence[float], values: Sequence[float], sampling: Sampling) -> Pattern:
    """The pattern of live bytes (unbiased) at these times (seconds, ascending)."""
    highest, lowest = max(values), min(values)
    noise = SIGNIFICANT * math.sqrt(max(sampling.scatter, 1) * highest)
    if highest - lowest <= noise:
        return Pattern.NOISE
    if largest_fall(values) > max(_PART * (highest - lowest), noise):
        return Pattern.SAW_TOOTH
    gain = values[-1] - values[0]
    if gain <= noise:
        return Pattern.NOISE
    early = [value for time, value in zip(times, values, strict=True) if time <= _at(times, _START)]
    if max(early) - values[0] >= (1 - _START) * gain:
        return Pattern.START_UP
    late = [value for time, value in zip(times, values, strict=True) if time >= _at(times, 1 - _START)]
    # The last fifth of the time has less than half of a fifth of the rise, so it has ended.
    return Pattern.STEP if late[-1] - late[0] < _PART * _START * gain else Pattern.RISES


def _at(times: Sequence[float], part: float) -> float:
    return times[0] + part * (times[-1] - times[0])
