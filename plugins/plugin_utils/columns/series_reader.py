# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""The series of a process from the samples that are kept with its captures.

Of most captures only three columns of numbers are read. What a stack's number stands for is looked up once for the
whole archive: the same builds have the same stacks on every host. Compiled code has no names here (that needs the perf
maps of each process), and paths are compared only as far as it anyway.
"""

from __future__ import annotations

import tempfile
from array import array
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from ..archive.archive import Archive, Capture
from ..base import libraries
from ..model.profile import Frame, is_allocator_function, is_allocator_module
from ..model.series import Key, Series, stack_key, without_repeats
from ..readers import heap_v2
from ..symbols.symbolizer import Symbolizer
from . import parquet, sample_cache
from .parquet import JIT, UNMAPPED, Place, SamplesError

if TYPE_CHECKING:
    import numpy as np

    from .parquet import Integers, Numbers
else:
    np = libraries.optional("numpy")

_ROOM = 1 << 63
_Rows = tuple["Integers", "Numbers", "Numbers"]


class Reader:
    """Reads series. One object serves all processes of an archive; what cannot be read is told to ``warn``.

    Samples that had to be made stay in the archive, unless it is not ``kept``.
    """

    def __init__(self, archive: Archive, symbolizer: Symbolizer, warn: Callable[[str], None], kept: bool) -> None:
        self._archive = archive
        self._symbolizer = symbolizer
        self._warn = warn
        self._kept = kept
        self._frames: dict[Place, tuple[Frame, ...]] = {}
        self._stacks: dict[int, tuple[Frame, ...]] = {}
        self._names: dict[int, tuple[Key, Key]] = {}

    def read(self, captures: Sequence[Capture]) -> Series:
        """The series of one process's captures, which are in the order of their times. Raises ArchiveError."""
        with nullcontext() if self._kept else tempfile.TemporaryDirectory(prefix="offheap-") as passing:
            return self._read(captures, Path(passing) if passing else None)

    def _read(self, captures: Sequence[Capture], passing: Path | None) -> Series:
        found: list[tuple[float, Path, _Rows]] = []
        for capture in captures:
            try:
                samples = sample_cache.of(self._archive, capture, passing)
                found.append((capture.time, samples, parquet.read_values(samples)))
            except SamplesError as error:
                self._warn(f"a capture of {capture.unit} on {capture.host} was left out: {error}")
        lengths = [len(rows[0]) for _time, _samples, rows in found]
        every = np.concatenate([rows[0] for _time, _samples, rows in found]) if found else np.zeros(0, dtype=np.int64)
        stacks, row = np.unique(every, return_inverse=True)
        # The newest first: most of what was ever there is still there.
        interval = max((self._learn(samples, rows[0]) for _time, samples, rows in reversed(found)), default=0)
        count = len(found)
        members: dict[Key, int] = {}
        keys: list[Key] = []
        frames: list[tuple[Frame, ...]] = []
        member_of = np.zeros(len(stacks), dtype=np.int64)
        for number, stack in enumerate(stacks.tolist()):
            member, key = self._names.get(stack, ((), ()))
            member_of[number] = members.setdefault(member, len(members))
            if len(keys) < len(members):
                keys.append(key)
                frames.append(self._stacks.get(stack, ()))
        columns = np.zeros((2, len(members), count))
        moment = np.repeat(np.arange(count), lengths)
        for column, at in zip(columns, (1, 2), strict=True):
            if found:
                np.add.at(
                    column, (member_of[row], moment), np.concatenate([rows[at] for _time, _samples, rows in found])
                )
        times = [time for time, _samples, _rows in found]
        return Series(times, interval, list(members), keys, frames, columns[0], columns[1])

    def _learn(self, samples: Path, stacks: Integers) -> int:
        """Make sure that all these stacks of the samples have names. Returns their sample interval in bytes."""
        try:
            interval = parquet.read_interval(samples)
            if any(stack not in self._names for stack in stacks.tolist()):
                self._add(*parquet.read_stacks(samples))
        except SamplesError as error:
            self._warn(str(error))
            return 0
        return interval

    def _add(self, stacks: Integers, places: list[Place], frames: Integers, bounds: Integers) -> None:
        self._resolve([place for place in places if place not in self._frames])
        named = [self._frames[place] for place in places]
        functions = {at for at, found in enumerate(named) if any(map(is_allocator_function, found))}
        modules = {at for at, found in enumerate(named) if any(map(is_allocator_module, found))} - functions
        positions, limits = frames.tolist(), bounds.tolist()
        for number, stack in enumerate(stacks.tolist()):
            if stack in self._names:
                continue
            path = positions[limits[number] : limits[number + 1]]
            start = 1 + max((at for at, place in enumerate(path) if place in functions), default=-1)
            while start < len(path) and path[start] in modules:
                start += 1
            whole = tuple([frame for place in path[start:] for frame in named[place]])
            self._stacks[stack] = whole
            self._names[stack] = (without_repeats([frame.group for frame in whole]), stack_key(whole))

    def _resolve(self, places: list[Place]) -> None:
        """Name places: those of each image as if a dump had it mapped from address 0 on."""
        of_image: dict[tuple[str, str], list[Place]] = {}
        for place in places:
            of_image.setdefault((place.module, place.build_id), []).append(place)
        for (module, build_id), members in of_image.items():
            path = "" if module == JIT else module
            mappings = [heap_v2.Mapping(0, _ROOM, "r-xp", 0, path, deleted=False)] if module != UNMAPPED else []
            # Addresses in dumps are those of returns, one byte after the call.
            dump = _dump([place.offset + 1 for place in members], mappings)
            frames = self._symbolizer.resolver({path: build_id} if build_id else {})(dump)
            self._frames.update(zip(members, map(tuple, frames), strict=True))


def _dump(addresses: list[int], mappings: list[heap_v2.Mapping]) -> heap_v2.Dump:
    """A dump of these addresses alone."""
    nothing = heap_v2.Counts(0, 0, 0, 0)
    none, empty = heap_v2.CountColumns(), array("Q")
    return heap_v2.Dump(
        "", 0, nothing, [], array("Q", addresses), array("I"), empty, none, array("I"), empty, none, mappings
    )
