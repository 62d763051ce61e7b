# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Series and profiles of an archive's captures, with names, from the samples kept with them.

For most captures of a process only a few columns of numbers are read. A stack number is looked up once for the whole
archive, since the same builds have the same stacks on every host. Code that a runtime has compiled is known only by its
address in one process, which the perf maps of that process name. So stacks through such code are named anew for each
process and each of its maps.
"""

from __future__ import annotations

import gc
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from ..archive.archive import Archive
from ..archive.capture import PERF_MAP, Capture
from ..base import child, libraries
from ..base.progress import Progress
from ..model.frame import Frame, is_allocator_function, is_allocator_module, without_inlined_allocator
from ..model.lives import Lives
from ..model.location import Location
from ..model.samples import Samples, named, without_allocator
from ..model.series import Moment, Series, Stack, evenly_spread, gather, stack_of
from ..symbols.jit_symbols import MOST_MAPS, JitMaps
from ..symbols.symbolizer import Symbolizer
from . import holder_stacks, lives_columns, parquet, sample_cache
from .dask_cluster import Cluster, connected, exposed
from .holder_stacks import NamedHolders
from .parquet import SamplesError

if TYPE_CHECKING:
    import numpy as np

    from ..model.samples import Integers
else:
    np = libraries.optional("numpy")

# A stack through memory outside any file, leaf first.
Call = tuple[Location | Frame, ...]
# Keeps apart the numbers of stacks whose names differ between perf maps (2^64 / golden ratio).
_APART = 0x9E3779B97F4A7C15
# Profiles are columns: there is little garbage, and looking for it takes a sixth of the time of a report.
_SELDOM = 100_000


@contextmanager
def reading(
    archive: Archive,
    warn: Callable[[str], None],
    check_mode: bool = False,
    progress: Progress | None = None,
    cluster: str = "",
) -> Iterator[Reader]:
    """A reader of an archive. The files that it makes stay there, except in check mode or if it cannot write there.

    Calls ``warn`` for what it cannot read and, at the end, for images that gave no names. ``progress`` counts captures.
    ``cluster`` is the address of a cluster (dask_cluster.py) that does most of it. Raises ClusterError.
    """
    child.start(sample_cache.__name__, *libraries.DUMPS)
    if told := exposed(cluster):
        warn(told)
    with (
        connected(cluster) as workers,
        tempfile.TemporaryDirectory(prefix="offheap-") as directory,
        ExitStack() as at_the_end,
    ):
        at_the_end.callback(gc.set_threshold, *gc.get_threshold())
        gc.set_threshold(_SELDOM)
        aside = Path(directory) if check_mode or not os.access(archive.root, os.W_OK) else None
        symbolizer = Symbolizer(archive.image, aside or archive.symcaches)
        reader = Reader(archive, symbolizer, warn, aside, progress or Progress(), workers)
        yield reader
        for warning in dict.fromkeys(reader.symbolizer.warnings):
            warn(warning)


class Reader:
    """Reads the captures of an archive. One object should serve all processes, so that each place is named once.

    The files that it makes stay in the archive, or go to ``aside`` for the moment. With a ``cluster``, whoever has many
    captures to read asks that.
    """

    def __init__(
        self,
        archive: Archive,
        symbolizer: Symbolizer,
        warn: Callable[[str], None],
        aside: Path | None,
        progress: Progress,
        cluster: Cluster | None = None,
    ) -> None:
        self.symbolizer = symbolizer
        self.progress = progress
        self.cluster = cluster
        self._archive = archive
        self._tell = warn
        self._told: set[str] = set()
        self._aside = aside
        self._stacks: dict[int, Stack] = {}

    def warn(self, text: str) -> None:
        """Tell it once."""
        if text not in self._told:
            self._told.add(text)
            self._tell(text)

    def maps(self, captures: Sequence[Capture]) -> JitMaps:
        """The perf maps that name the compiled code of a process; ``captures`` are all captures of it."""
        having = sorted((one for one in captures if one.has(PERF_MAP)), key=lambda one: one.time)
        few = evenly_spread([one.time for one in having], MOST_MAPS)  # one that is far away comes here when it is asked
        times = {path: having[at].time for at in few if (path := having[at].perf_map) is not None}
        return JitMaps(times, self.warn)

    def series(
        self, captures: Sequence[Capture], maps: JitMaps, allocated: bool = False
    ) -> tuple[Series, list[Capture]]:
        """The series of one process, and those of its captures that could be read; ``captures`` are ordered by time.
        It is of what they hold or, again of such captures, of what was ever ``allocated``.

        Raises ArchiveError if the archive cannot be written to.
        """
        moments: list[Moment] = []
        read: list[Capture] = []
        samples: list[Path] = []
        with self._passing() as aside:
            for capture, made in zip(captures, sample_cache.each(self._archive, captures, aside), strict=True):
                try:
                    if isinstance(made, SamplesError):
                        raise made
                    moments.append(parquet.read_moment(made, capture.time, allocated))
                except SamplesError as error:
                    self._leave_out(capture, error)
                    continue
                if not allocated:
                    self.progress.capture()
                read.append(capture)
                samples.append(made)
            moments, read, samples = self._of_one_measure(moments, read, samples)
            bare: dict[int, Call] = {}
            # The newest first: it has most of the stacks that there ever were.
            for at in reversed(range(len(read))):
                try:
                    self._learn(samples[at], read[at], moments[at].stacks, bare)
                except SamplesError as error:
                    self._leave_out(read.pop(at), error)
                    moments.pop(at)
        known = _Bare(self, bare, maps)
        return gather([known.apart(moment) for moment in moments], known.stacks), read

    def _leave_out(self, capture: Capture, error: SamplesError) -> None:
        self.warn(f"a capture of {capture.unit} on {capture.host} was left out: {error}")

    def _of_one_measure(
        self, moments: list[Moment], read: list[Capture], samples: list[Path]
    ) -> tuple[list[Moment], list[Capture], list[Path]]:
        """Those that measure what the newest does, which others cannot be compared with."""
        same = [at for at, moment in enumerate(moments) if moment.measure is moments[-1].measure]
        if len(same) < len(moments):
            one, count = read[-1], len(moments) - len(same)
            self.warn(
                f"{count} captures of {one.unit} on {one.host} were left out: of the same process, they measure"
                f" something else than the newest, {moments[-1].measure.value} memory"
            )
        return [moments[at] for at in same], [read[at] for at in same], [samples[at] for at in same]

    def lives(self, captures: Sequence[Capture], maps: JitMaps) -> Lives | None:
        """The lives of a process by its newest capture that has them; those of the others are the beginning of these.

        None if it has none, or none that can be read. Raises ArchiveError if the archive cannot be written to.
        """
        capture = next(filter(lives_columns.known_of, reversed(captures)), None)
        if capture is None:
            return None
        with self._passing() as aside:
            try:
                path = lives_columns.of(self._archive, capture, aside)
                found = lives_columns.read(path)
                bare: dict[int, Call] = {}
                self._learn(path, capture, found.moment.stacks, bare)
            except SamplesError as error:
                self.warn(f"the lives of a process of {capture.unit} on {capture.host} were left out: {error}")
                return None
        known = _Bare(self, bare, maps)
        return found.lives(known.stacks(known.apart(found.moment).stacks.tolist()))

    def holders(self, captures: Sequence[Capture], maps: JitMaps) -> NamedHolders | None:
        """Who holds what lived, by the newest capture where that was asked. None if it was not, or cannot be read."""
        capture = next((one for one in reversed(captures) if one.holders is not None), None)
        if capture is None:
            return None
        try:
            profile, look = holder_stacks.read(capture)
        except SamplesError as error:
            self.warn(f"who holds what in a process of {capture.unit} on {capture.host} was left out: {error}")
            return None
        frames = self.symbolizer.frames(list(profile.locations), maps.at(capture.time))
        whole = _own_frames(np.asarray(profile.stacks, dtype=np.int64), profile.bounds, frames)
        stacks = [stack_of(whole(row)) for row in range(len(look.stacks))]
        return NamedHolders(look, stacks, holder_stacks.names(look, capture, self.symbolizer))

    def samples(self, capture: Capture, maps: JitMaps) -> Samples:
        """One capture in full. Raises ArchiveError, SamplesError."""
        with self._passing() as aside:
            path = sample_cache.of(self._archive, capture, aside)
            located = parquet.read(path, capture.facts)
        jit = maps.at(capture.time)
        return named(located, lambda locations: self.symbolizer.frames(locations, jit))

    def paths(self, samples: Path, capture: Capture, moment: Moment, numbers: Sequence[int]) -> list[str]:
        """The functions of these stacks of a capture's moment, leaf first, in one line each. Compiled code has no
        names: those differ between processes."""
        bare: dict[int, Call] = {}
        self._learn(samples, capture, moment.stacks, bare)
        known = _Bare(self, bare, JitMaps({}, self.warn))
        known.apart(moment)
        return [" < ".join(stack.members) for stack in known.stacks(list(numbers))]

    @contextmanager
    def _passing(self) -> Iterator[Path | None]:
        """A directory for files that are read once; None if they stay in the archive."""
        if self._aside is None:
            yield None
            return
        with tempfile.TemporaryDirectory(dir=self._aside, prefix="samples-") as directory:
            yield Path(directory)

    @property
    def keeps(self) -> bool:
        """Whether the files that it makes stay in the archive."""
        return self._aside is None

    def known(self, number: int) -> Stack:
        """The stack with this number, all of whose frames are in files."""
        return self._stacks[number]

    def _learn(self, path: Path, capture: Capture, stacks: Integers, bare: dict[int, Call]) -> None:
        """Learn what these numbers of a capture stand for: stacks entirely in files for good, others (``bare``) for
        this process."""
        new = {number for number in stacks.tolist() if number not in self._stacks and number not in bare}
        if not new:
            return
        found = parquet.read_stacks(path, capture.facts)
        locations = list(found.locations)
        all_places = [*locations, *found.names]
        # What its source has named needs no image.
        known = np.array([*(location.in_file for location in locations), *(True for _name in found.names)], dtype=bool)
        stack_of_place = np.repeat(np.arange(len(found.numbers)), np.diff(found.bounds))
        outside = np.bincount(stack_of_place[~known[found.places]], minlength=len(found.numbers)) > 0
        frames = [*self.symbolizer.frames(locations), *((frame,) for frame in found.names)]
        whole = _own_frames(found.places, found.bounds, frames)
        for row, number in enumerate(found.numbers.tolist()):
            if number not in new:
                continue
            if outside[row]:
                places = found.places[found.bounds[row] : found.bounds[row + 1]]
                bare[number] = tuple([all_places[place] for place in places.tolist()])
            else:
                self._stacks[number] = stack_of(whole(row))


class _Bare:
    """The stacks of one process that go through memory outside any file, by number, named by its perf maps."""

    def __init__(self, reader: Reader, calls: dict[int, Call], maps: JitMaps) -> None:
        self._reader = reader
        self._calls = calls
        self._maps = maps
        self._numbers = np.array(sorted(calls), dtype=np.int64)
        self._named_by: dict[int, tuple[int, int]] = {}

    def apart(self, moment: Moment) -> Moment:
        """The moment, with separate numbers for stacks whose names depend on the perf map nearest to it."""
        chosen = np.isin(moment.stacks, self._numbers)
        if not chosen.any():
            return moment
        nearest = self._maps.nearest(moment.time)
        shift = np.array([nearest * _APART % (1 << 64)], dtype=np.uint64).view(np.int64)
        stacks = np.where(chosen, moment.stacks + shift, moment.stacks)
        for own, number in zip(stacks[chosen].tolist(), moment.stacks[chosen].tolist(), strict=True):
            self._named_by[own] = (number, nearest)
        return moment._replace(stacks=stacks)

    def stacks(self, numbers: list[int]) -> list[Stack]:
        """The stacks with these numbers."""
        by_map: dict[int, list[int]] = {}
        for own in numbers:
            if own in self._named_by:
                by_map.setdefault(self._named_by[own][1], []).append(own)
        found: dict[int, Stack] = {}
        for nearest, members in by_map.items():
            calls = [self._calls[self._named_by[own][0]] for own in members]
            place_of = {
                location: place
                for place, location in enumerate(dict.fromkeys(location for call in calls for location in call))
            }
            places = np.array([place_of[location] for call in calls for location in call], dtype=np.int64)
            bounds = np.cumsum([0, *map(len, calls)])
            whole = _own_frames(places, bounds, self._frames(list(place_of), nearest))
            found.update((own, stack_of(whole(row))) for row, own in enumerate(members))
        return [found[own] if own in found else self._reader.known(own) for own in numbers]

    def _frames(self, places: Sequence[Location | Frame], nearest: int) -> list[tuple[Frame, ...]]:
        """The frames of places, some of which have their names already."""
        located = [place for place in places if isinstance(place, Location)]
        resolved = iter(self._reader.symbolizer.frames(located, self._maps.names(nearest)))
        return [next(resolved) if isinstance(place, Location) else (place,) for place in places]


def _own_frames(
    places: Integers, bounds: Integers, frames: Sequence[tuple[Frame, ...]]
) -> Callable[[int], tuple[Frame, ...]]:
    """A function from a stack's position to its frames without the allocator's; ``frames`` are by place."""
    own = [tuple(without_inlined_allocator(of_place)) for of_place in frames]
    functions, modules = (
        np.array([any(map(is_allocator, of_place)) for of_place in own], dtype=bool)
        for is_allocator in (is_allocator_function, is_allocator_module)
    )
    left, limits = without_allocator(places, bounds, functions, modules)

    def whole(row: int) -> tuple[Frame, ...]:
        return tuple([frame for place in left[limits[row] : limits[row + 1]].tolist() for frame in own[place]])

    return whole
