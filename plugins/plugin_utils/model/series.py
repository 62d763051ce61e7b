# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Live memory of the code paths of one process over time, in columns: what suspects.py looks at."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ..base import libraries
from .profile import Frame, Kind, Profile

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Numbers = NDArray[np.float64]
    Flags = NDArray[np.bool_]
else:
    np = libraries.optional("numpy")

Key = tuple[str, ...]
_RUNTIME = (Kind.JIT, Kind.JAVA, Kind.PYTHON, Kind.JS)


@dataclass(frozen=True)
class Point:
    """A profile and when its dump was written (seconds since the epoch)."""

    time: float
    profile: Profile


@dataclass(frozen=True)
class Series:
    """Code paths by point in time; ``times`` (seconds since the epoch) ascend.

    ``members[i]`` are the functions of path ``i`` without repeats in a row, leaf first, ``keys[i]`` the part of them
    that paths are compared by (stack_key), ``frames[i]`` an example of it in full. ``objects[i, t]`` and
    ``bytes[i, t]`` are live at ``times[t]``. ``interval`` is the largest sample interval in bytes.
    """

    times: list[float]
    interval: int
    members: list[Key]
    keys: list[Key]
    frames: list[tuple[Frame, ...]]
    objects: Numbers
    bytes: Numbers

    def at(self, positions: Sequence[int]) -> Series:
        """Only these points in time."""
        chosen = list(positions)
        times = [self.times[position] for position in chosen]
        return replace(self, times=times, objects=self.objects[:, chosen], bytes=self.bytes[:, chosen])


def of_points(points: Sequence[Point]) -> Series:
    """The series of profiles, oldest first. Of stacks with the same functions the largest of the newest is shown."""
    rows: dict[Key, int] = {}
    keys: list[Key] = []
    example: list[tuple[Profile, tuple[int, ...], float]] = []
    places: list[tuple[int, int]] = []
    values: list[tuple[float, float]] = []
    for position, point in enumerate(points):
        profile = point.profile
        for number, stack in enumerate(profile.stacks):
            frames = [profile.frames[index] for index in stack]
            member = without_repeats([frame.group for frame in frames])
            row = rows.setdefault(member, len(rows))
            size = profile.bytes[number]
            if row == len(keys):
                keys.append(stack_key(frames))
                example.append((profile, stack, size))
            elif example[row][0] is not profile or example[row][2] < size:
                example[row] = (profile, stack, size)
            places.append((row, position))
            values.append((profile.objects[number], size))
    table = np.zeros((2, len(rows), len(points)))
    if places:
        row_of, position_of = np.array(places).T
        for column, numbers in zip(table, np.array(values).T, strict=True):
            np.add.at(column, (row_of, position_of), numbers)
    return Series(
        times=[point.time for point in points],
        interval=max((point.profile.sample_interval for point in points), default=0),
        members=list(rows),
        keys=keys,
        frames=[tuple([profile.frames[index] for index in stack]) for profile, stack, _size in example],
        objects=table[0],
        bytes=table[1],
    )


def rises(times: Sequence[float], values: Numbers, growth: float) -> Flags:
    """Which rows' Theil-Sen slope times the span may be ``growth`` bytes: a quick test that never errs on this side.

    A median of slopes is at least s where half of the pairs of points rise by s, and comparing is all that this takes.
    """
    moments = np.array(times)
    if np.any(np.diff(moments) <= 0):
        return np.ones(len(values), dtype=np.bool_)
    tilted = values - growth / (moments[-1] - moments[0]) * (1 - 1e-9) * (moments - moments[0])
    count = np.zeros(len(values), dtype=np.int64)
    for distance in range(1, len(moments)):
        count += np.count_nonzero(tilted[:, distance:] >= tilted[:, :-distance], axis=1)
    result: Flags = 4 * count >= len(moments) * (len(moments) - 1)
    return result


def stack_key(frames: Iterable[Frame]) -> Key:
    """What stacks (leaf first) are compared by: functions without repeats in a row, up to the first compiled code."""
    names: list[str] = []
    for frame in frames:
        if frame.kind in _RUNTIME:
            names.append("[jit]")
            break
        names.append(frame.group)
    return without_repeats(names)


def without_repeats(names: Sequence[str]) -> Key:
    return tuple([name for position, name in enumerate(names) if position == 0 or names[position - 1] != name])
