# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Growth that has not been given back: all that levels can say of a leak that began late, paused or comes in bursts.

Whatever its shape, what has leaked by now is held until the end. So where memory ends higher than it began, beyond what
sampling explains, and has never fallen by a good part of that, levels cannot rule out a leak: it may be a cache that is
filling or full, and may as well be lost. Only a way down shows that it is memory that comes and goes.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..base import libraries
from ..base.byte_size import as_text
from ..base.durations import duration
from ..model.frame import Frame
from ..model.series import Key, Paths
from ..model.stack_summary import render as short_path
from .trend import LEAST_EVENTS, SIGNIFICANT, WARM_UP

if TYPE_CHECKING:
    import numpy as np
else:
    np = libraries.optional("numpy")

# How near to the allocation stacks have to be alike to be looked at together; 0: all of them.
_DEPTHS = (None, 8, 4, 2, 1, 0)
# Bytes that are next to nothing, however exactly they were counted.
LEAST_GROWN = 1 << 20
# The part of the points that makes up the end, so that a single peak is none.
_END = 1 / 20
# The part of a rise that must have been given back, at any time, for its path to be one that comes and goes.
GIVEN_BACK = 0.5
# The part of a rise before which it has not begun, and after which it is over; the part of the time that is "lately".
_EDGE, _LATELY = 0.1, 1 / 8


@dataclass(frozen=True)
class Grown:
    """A path (leaf first, empty: live memory as a whole) that ends ``size`` bytes higher than it began, by growth that
    took ``lasted`` seconds and ``stood`` for so many since, or ``goes_on``. ``known_after`` is how long the process has
    to be watched for another look at it: until what stands counts as its start."""

    path: tuple[Frame, ...]
    size: float
    lasted: float
    stood: float
    goes_on: bool
    known_after: float

    @property
    def text(self) -> str:
        """``one code path has grown by 60.0 MiB and stood for 2 h since``"""
        grew = f"grew by {as_text(self.size)}"
        whose = "one code path" if self.path else "live memory, spread over many paths,"
        if self.goes_on:
            return f"{whose} {grew} in the last {duration(self.lasted + self.stood)}"
        return f"{whose} {grew} and has stood for {duration(self.stood)} since"

    @property
    def where(self) -> str:
        return f": {short_path(self.path)}" if self.path else ""


def largest(watched: Paths, begun: float, leaking: Collection[int] = ()) -> Grown | None:
    """The path that has grown most and not given back, without the rows that are known to leak. ``watched`` leaves the
    program's start out, which was when it had ``begun``."""
    rows = [row for row in range(len(watched.keys)) if row not in leaking]
    if not rows:
        return None
    for depth in _DEPTHS:
        groups: dict[Key, int] = {}
        group_of = np.array([groups.setdefault(watched.keys[row][:depth], len(groups)) for row in rows])
        values = np.zeros((len(groups), len(watched.times)))
        np.add.at(values, group_of, watched.bytes[rows])
        first, last = values[:, 0], values[:, -_end(watched) :].min(axis=1)
        rise = last - first
        chance = SIGNIFICANT * np.sqrt(watched.sampling.scatter * (first + last))
        fall = (np.maximum.accumulate(values, axis=1) - values).max(axis=1)
        least = np.maximum(chance, max(LEAST_EVENTS * watched.sampling.scatter, LEAST_GROWN))
        stays = (rise > least) & (fall < GIVEN_BACK * rise)
        if stays.any():
            most = int(np.argmax(np.where(stays, rise, 0.0)))
            gain = watched.bytes[rows, -1] - watched.bytes[rows, 0]
            best = rows[int(np.argmax(np.where(group_of == most, gain, -np.inf)))]
            return _told(watched, begun, values[most].tolist(), watched.frames[best] if depth != 0 else ())
    return None


def _end(watched: Paths) -> int:
    return max(int(_END * len(watched.times)), 1)


def _told(watched: Paths, begun: float, values: list[float], path: tuple[Frame, ...]) -> Grown:
    times, first, last = watched.times, values[0], min(values[-_end(watched) :])
    low, high = first + _EDGE * (last - first), last - _EDGE * (last - first)
    began = max(time for time, value in zip(times, values, strict=True) if value <= low)
    ended = min(time for time, value in zip(times, values, strict=True) if value >= high and time >= began)
    stood, span = times[-1] - ended, times[-1] - times[0]
    goes_on = stood < _LATELY * span
    known_after = 2 * (times[-1] - begun) if goes_on else (ended - begun) / WARM_UP
    return Grown(path, last - first, ended - began, stood, goes_on, known_after)
