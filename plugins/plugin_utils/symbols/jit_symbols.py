# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Which perf map names the compiled code of which dump.

A map belongs to one process, and says where code lay at one moment. Code moves: a method is compiled again, and the
memory of the old code is reused. So the map nearest in time to a dump is asked first. Code that it does not know
(freed since, for example) is looked up in the other maps of the process, the next nearest first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from ..base.errors import ControllerError
from ..model.frame import Frame
from ..model.series import evenly_spread
from . import perf_map
from .symbolizer import JitNames

#: how many maps of one process are read; they say almost the same
MOST_MAPS = 12


class JitMaps:
    """The maps of one process, read when they are needed. Calls ``warn`` for those that cannot be read."""

    def __init__(self, maps: Mapping[Path, float], warn: Callable[[str], None]) -> None:
        """``maps`` has the time of each (seconds since the epoch)."""
        by_time = sorted((time, path) for path, time in maps.items())
        self._maps = [by_time[position] for position in evenly_spread([time for time, _path in by_time], MOST_MAPS)]
        self._unreadable: set[Path] = set()
        self._warn = warn

    def nearest(self, time: float) -> int:
        """The number of the map nearest to this time, 0 if there is none."""
        distances = [abs(when - time) for when, _path in self._maps]
        return distances.index(min(distances)) if distances else 0

    def names(self, number: int) -> JitNames:
        """A function that names code by address, from the map with this number, then the others, the nearest first."""
        moment = self._maps[number][0] if self._maps else 0.0
        order = [path for _distance, path in sorted((abs(when - moment), path) for when, path in self._maps)]

        def name(places: Sequence[tuple[int, bool]]) -> list[tuple[Frame, ...]]:
            found: dict[tuple[int, bool], tuple[Frame, ...]] = {}
            for path in order:
                left = [place for place in places if not found.get(place)]
                if left:
                    found.update(zip(left, self._named(path, left), strict=True))
            return [found.get(place, ()) for place in places]

        return name

    def at(self, time: float) -> JitNames:
        """A function that names code by address, for a dump written at this time."""
        return self.names(self.nearest(time))

    def _named(self, path: Path, places: Sequence[tuple[int, bool]]) -> list[tuple[Frame, ...]]:
        if path not in self._unreadable:
            try:
                return perf_map.named(path, places)
            except (ControllerError, OSError) as error:
                self._unreadable.add(path)
                self._warn(f"some compiled code has no names: {error}")
        return [()] * len(places)
