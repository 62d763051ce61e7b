# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""How large the allocations are that make up the live memory, as a histogram.

A dump has sums for each stack, not single allocations. So a stack counts as a whole, by their mean size.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..base import libraries
from ..model.series import Series

if TYPE_CHECKING:
    import numpy as np
else:
    np = libraries.optional("numpy")

# Beyond any address space; only a damaged dump has a larger mean.
_LARGEST = 48


@dataclass(frozen=True)
class SizeClass:
    """Allocations of ``least`` bytes and less than twice as many: bytes in the first and in the newest dump, and their
    number in the newest."""

    least: int
    older: float
    live: float
    count: float


def by_size(series: Series) -> list[SizeClass]:
    """The classes of one process, in ascending order and without gaps; none if its source counts no allocations."""
    objects, size = series.objects.sum(axis=1), series.bytes.sum(axis=1)
    counted = (objects > 0) & (size >= objects)
    if not counted.any():
        return []
    powers = np.minimum(np.log2(size[counted] / objects[counted]), _LARGEST).astype(np.int64)
    first = int(powers.min())
    rows = (series.bytes[counted, 0], series.bytes[counted, -1], series.objects[counted, -1])
    sums = [np.bincount(powers - first, row).tolist() for row in rows]
    return [SizeClass(1 << (first + at), *values) for at, values in enumerate(zip(*sums, strict=True))]
