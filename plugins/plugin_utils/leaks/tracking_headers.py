# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""What native memory tracking adds to a JVM's rate, since the profiler turns it on.

With it, a JVM asks malloc for 16 bytes more for each block (HotSpot's ``MallocHeader``). A block of a power of two, as
those of pools and direct buffers are, so takes jemalloc's next size class, which is a quarter larger (jemalloc(3), size
classes). That is given out, and hardly any of it becomes resident.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..base import libraries
from ..model.series import Series
from .verdict import Verdict

if TYPE_CHECKING:
    import numpy as np
else:
    np = libraries.optional("numpy")

# The size class behind that of a power of two, by that power.
_NEXT = 1.25
_JVM = "libjvm.so"
# Of the frames nearest to the allocation, where the JVM's own malloc is.
_NEAREST = 4


def told(verdict: Verdict, series: Series) -> str | None:
    """What part of a leak's rate may be headers, at most; None if that is less than half of it."""
    watched = series.paths
    rows = [
        row
        for row, key in enumerate(watched.keys)
        if any(key[: len(suspect.key)] == suspect.key for suspect in verdict.suspects)
    ]
    objects, sizes = watched.objects[rows, -1], watched.bytes[rows, -1]
    each = np.divide(sizes, objects, out=np.ones(len(rows)), where=objects > 0)
    power = np.log2(each / _NEXT)
    by_the_jvm = [any(frame.module == _JVM for frame in watched.frames[row][:_NEAREST]) for row in rows]
    headed = np.array(by_the_jvm, dtype=bool) & (np.abs(power - np.rint(power)) < 1e-6)
    if sizes[headed].sum() <= sizes.sum() / 2:
        return None
    return (
        "up to a fifth of the rate is not what the service asks for: with native memory tracking, a block of a power of"
        " two takes the next size (profiled_service_runtime_without: [memory-tracking] turns that off)"
    )
