# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Which perf map names the compiled code of which dump.

A map belongs to one process, and says where code lay at one moment. Code moves: a method is compiled again, and the
memory of the old code is reused. So the map nearest in time to a dump is asked first. Code that it does not know
(freed since, for example) is looked up in the other maps of the process, the next nearest first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from ..model.frame import Frame
from ..model.series import evenly_spread
from .perf_map import PerfMap, PerfMapError, read
from .symbolizer import JitNames

#: how many maps of one process are read; they say almost the same
_MOST = 12


class JitMaps:
    """The maps of one process, read when they are needed. Calls ``warn`` for those that cannot be read."""

    def __init__(self, maps: Mapping[Path, float], warn: Callable[[str], None]) -> None:
        """``maps`` has the time of each (seconds since the epoch)."""
        by_time = sorted((time, path) for path, time in maps.items())
        self._maps = [by_time[position] for position in evenly_spread([time for time, _path in by_time], _MOST)]
        self._read: dict[Path, PerfMap | None] = {}
        self._warn = warn

    def nearest(self, time: float) -> int:
        """The number of the map nearest to this time, 0 if there is none."""
        distances = [abs(when - time) for when, _path in self._maps]
        return distances.index(min(distances)) if distances else 0

    def names(self, number: int) -> JitNames:
        """A function that names code by address, from the map with this number, then the others, the nearest first."""
        moment = self._maps[number][0] if self._maps else 0.0
        order = [path for _distance, path in sorted((abs(when - moment), path) for when, path in self._maps)]

        def name(address: int, executable: bool = True) -> tuple[Frame, ...]:
            for path in order:
                known = self._map(path)
                frames = known.frames(address, executable) if known is not None else ()
                if frames:
                    return frames
            return ()

        return name

    def at(self, time: float) -> JitNames:
        """A function that names code by address, for a dump written at this time."""
        return self.names(self.nearest(time))

    def _map(self, path: Path) -> PerfMap | None:
        if path not in self._read:
            self._read[path] = None
            try:
                self._read[path] = read(path)
            except PerfMapError as error:
                self._warn(f"some compiled code has no names: {error}")
        return self._read[path]
