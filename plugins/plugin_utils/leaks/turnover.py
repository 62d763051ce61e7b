# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""How much of what a suspect allocated while it was watched has been freed.

Where a source counts what was ever allocated beside what is live (the endpoints of Go, Rust and Node), the deaths
between two profiles are what was allocated between them less what live memory has grown by. When each object was born,
it does not tell, so this is no basis for a verdict: of a path that loses one object in a hundred, 99 % is freed.
"""

from __future__ import annotations

from dataclasses import replace

from ..model.series import Series
from .code_paths import Suspect
from .verdict import Verdict


def with_freed(verdict: Verdict, live: Series, allocated: Series) -> Verdict:
    """The verdict, its suspects with the share that was freed. Both series have the same first and last time."""
    return replace(verdict, suspects=[replace(one, freed=_freed(one, live, allocated)) for one in verdict.suspects])


def text(freed: float) -> str:
    return f"{100 * freed:.0f} % of what it allocated meanwhile was freed"


def _freed(suspect: Suspect, live: Series, allocated: Series) -> float | None:
    """0 to 1; None where the source does not count what was allocated."""
    born = _gain(suspect, allocated)
    return min(max(1.0 - _gain(suspect, live) / born, 0.0), 1.0) if born > 0 else None


def _gain(suspect: Suspect, series: Series) -> float:
    rows = [row for row, stack in enumerate(series.stacks) if suspect.covers(stack.frames)]
    return float((series.bytes[rows, -1] - series.bytes[rows, 0]).sum())
