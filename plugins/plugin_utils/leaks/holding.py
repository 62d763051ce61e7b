# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""By whom the samples of a suspect are held, as shares with their intervals, and as a sentence."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..model.sampling import CONFIDENCE


@dataclass(frozen=True)
class Held:
    """A part of a suspect's samples: ``share`` (0 to 1) with the ends of its 95 % interval, ``by`` whom or what they
    are held (``kind`` is one of formats.holders.ROOTS, or "lost", "unseen", "otherwise"). ``way`` is how most of them
    are: the root, and the blocks between, if anybody is known to hold them."""

    kind: str
    by: str
    samples: int
    share: float
    low: float
    high: float
    way: tuple[str, ...] = ()


@dataclass(frozen=True)
class Holding:
    """Who holds a suspect's ``samples``, the largest part first; ``what`` is their C++ type, empty if they have none
    that is known; ``next_step`` is what to do, a sentence. ``time`` is when it was looked (seconds since the epoch)."""

    samples: int
    parts: tuple[Held, ...]
    what: str
    next_step: str
    time: float

    @property
    def text(self) -> str:
        """One line: ``98 % (95 to 99 %) kept by global session_cache of app, through 128-byte blocks``."""
        of = f" ({self.samples} samples of {self.what})" if self.what else f" ({self.samples} samples)"
        return "; ".join(f"{_percent(part)} {part.by}" for part in self.parts) + of


def interval(hits: int, count: int) -> tuple[float, float]:
    """The 95 % interval of a share (Wilson's)."""
    z = CONFIDENCE
    share, weight = hits / count, 1 + z * z / count
    middle = (share + z * z / (2 * count)) / weight
    half = z * math.sqrt(share * (1 - share) / count + z * z / (4 * count * count)) / weight
    return max(middle - half, 0.0), min(middle + half, 1.0)


def _percent(part: Held) -> str:
    low, high = math.floor(100 * part.low), math.ceil(100 * part.high)
    return f"{100 * part.share:.0f} % ({low} to {high} %)"
