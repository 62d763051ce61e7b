# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""The one model of a profile: unbiased, named stacks in columns, and what each thread holds of them.

Nothing is thrown away: a place keeps its image and its offset there. Filtering, merging and grouping are operations on
whole columns.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ..base import libraries
from .frame import Frame, is_allocator_function, is_allocator_module, without_inlined_allocator
from .location import NOWHERE, Location, Locations, locate
from .raw import CountColumns, Records
from .sampling import EXACT, Measure, Sampling, Scheme, coarsest, common_measure, unbias, unbias_scale

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Integers = NDArray[np.int64]
    Numbers = NDArray[np.float64]
    Flags = NDArray[np.bool_]
else:
    np = libraries.optional("numpy")

# The rows of ``Samples.values``.
OBJECTS, BYTES, ACCUM_OBJECTS, ACCUM_BYTES = range(4)


# The frames of each location, in the given order, the innermost (inlined) frame first.
Resolver = Callable[[Sequence[Location]], Sequence[Sequence[Frame]]]


@dataclass(frozen=True)
class Samples:
    """Stacks and what they allocated, unbiased.

    A place is a frame at a location: ``place_frame`` and ``place_location`` are indices into ``frames`` and
    ``locations`` (a location with inlined calls has several places). Stack ``i`` is
    ``stacks[bounds[i]:bounds[i + 1]]``, place indices, leaf first, without the allocator's frames.
    ``values[row, i]`` are objects and bytes of stack ``i`` by ``measure``, then those allocated since the start (0 if
    the source does not count both); ``variance``, of the same shape, is their variance from ``sampling``. The
    ``thread_`` columns hold the same by stack and thread.
    """

    measure: Measure
    sampling: Sampling
    frames: list[Frame]
    locations: list[Location]
    place_frame: Integers
    place_location: Integers
    stacks: Integers
    bounds: Integers
    values: Numbers
    variance: Numbers
    thread_stack: Integers
    thread_uid: Integers
    thread_values: Numbers
    thread_names: Mapping[int, str]

    def __len__(self) -> int:
        """The number of stacks."""
        return len(self.bounds) - 1

    def total(self, row: int) -> float:
        return float(self.values[row].sum())

    def stack_of(self) -> Integers:
        """For each element of ``stacks``, the stack that it belongs to."""
        return np.repeat(np.arange(len(self), dtype=np.int64), np.diff(self.bounds))

    def each_stack(self) -> Iterator[Integers]:
        for start, end in zip(self.bounds[:-1].tolist(), self.bounds[1:].tolist(), strict=True):
            yield self.stacks[start:end]

    def thread_uids(self) -> list[int]:
        return [int(uid) for uid in np.unique(self.thread_uid)]

    def of_thread(self, uid: int) -> Samples:
        """What one thread holds; ``uid`` is jemalloc's own number for it."""
        chosen = self.thread_uid == uid
        values = np.zeros_like(self.values)
        for row in range(4):
            np.add.at(values[row], self.thread_stack[chosen], self.thread_values[row][chosen])
        result = replace(self, values=values, variance=variances(values, self.sampling))
        return result.keep_stacks(np.any(values != 0, axis=0))

    def keep_stacks(self, wanted: Flags) -> Samples:
        """Only the stacks with a true flag."""
        lengths = np.diff(self.bounds)
        number = np.cumsum(wanted) - 1
        threads = wanted[self.thread_stack] if len(self.thread_stack) else np.zeros(0, dtype=bool)
        return replace(
            self,
            stacks=self.stacks[np.repeat(wanted, lengths)],
            bounds=_bounds(lengths[wanted]),
            values=self.values[:, wanted],
            variance=self.variance[:, wanted],
            thread_stack=number[self.thread_stack[threads]],
            thread_uid=self.thread_uid[threads],
            thread_values=self.thread_values[:, threads],
        )

    def keep_places(self, wanted: Flags) -> Samples:
        """Only the places with a true flag; stacks with no places left are dropped too."""
        kept = wanted[self.stacks]
        lengths = np.bincount(self.stack_of()[kept], minlength=len(self))
        result = replace(self, stacks=self.stacks[kept], bounds=_bounds(lengths))
        return result.keep_stacks(lengths > 0)

    def each_stack_of_frames(self) -> Iterator[tuple[Frame, ...]]:
        """The frames of each stack, leaf first."""
        for stack in self.each_stack():
            yield tuple([self.frames[frame] for frame in self.place_frame[stack].tolist()])


def variances(values: Numbers, sampling: Sampling) -> Numbers:
    """The variance of unbiased numbers from sampling, in the same shape (objects, bytes, twice).

    For L bytes it is the scatter times L; for their n objects, of L / n bytes on average, it is that divided by the
    square of this size. Both are upper bounds, which small objects reach; see Sampling.scatter.
    """
    result = np.zeros_like(values)
    if sampling.scatter:
        for objects, size in ((OBJECTS, BYTES), (ACCUM_OBJECTS, ACCUM_BYTES)):
            some = values[size] != 0
            result[size][some] = sampling.scatter * np.abs(values[size][some])
            # A source that counts no objects has no error of them, not even an infinite one.
            some = (values[size] > 0) & (values[objects] != 0)
            result[objects][some] = sampling.scatter * values[objects][some] ** 2 / values[size][some]
    return result


@dataclass(frozen=True)
class Located:
    """A profile whose places are located but not yet named: what is kept of a capture.

    Stack ``i`` is ``stacks[bounds[i]:bounds[i + 1]]``, leaf first: indices into ``locations`` followed by ``names``,
    the frames that the source names itself. The other fields are those of Samples.
    """

    measure: Measure
    sampling: Sampling
    locations: Locations
    names: Sequence[Frame]
    stacks: Integers
    bounds: Integers
    values: Numbers
    thread_stack: Integers
    thread_uid: Integers
    thread_values: Numbers
    thread_names: Mapping[int, str]


def located(records: Records, build_ids: Mapping[str, str], reused: Sequence[tuple[int, int]] = ()) -> Located:
    """What a reader found, unbiased. ``build_ids`` (hexadecimal) are by mapped path. What is mapped in a ``reused``
    range names nothing: a stack may be of what was mapped there before."""
    mappings = [
        one for one in records.mappings if not any(one.start < end and start < one.end for start, end in reused)
    ]
    as_sampled = EXACT if records.unbiased else records.sampling
    return Located(
        measure=records.measure,
        sampling=records.sampling,
        locations=locate(records.addresses, mappings, build_ids),
        names=records.names,
        stacks=np.asarray(records.stack_places),  # the records' own memory, neither copied nor written to
        bounds=_bounds_of_ends(records.stack_ends),
        values=unbiased(records.counts, as_sampled),
        thread_stack=_integers(records.thread_stack),
        thread_uid=np.array(records.thread_uid, dtype=np.uint64).astype(np.int64),
        thread_values=unbiased(records.thread_counts, as_sampled),
        thread_names={thread.uid: thread.name for thread in records.threads if thread.name},
    )


def named(profile: Located, resolve: Resolver) -> Samples:
    """The samples, without the allocator's own frames."""
    locations = [*profile.locations, *([Location(NOWHERE, "", 0, 0)] * len(profile.names))]
    frames: dict[Frame, int] = {}
    place_frame: list[int] = []
    place_location: list[int] = []
    by_name = [(frame,) for frame in profile.names]
    for number, resolved in enumerate((*resolve(locations[: len(profile.locations)]), *by_name)):
        for frame in without_inlined_allocator(resolved):
            place_frame.append(frames.setdefault(frame, len(frames)))
            place_location.append(number)
    frame_at, location_at = np.array(place_frame, dtype=np.int64), np.array(place_location, dtype=np.int64)
    places = np.bincount(location_at, minlength=len(locations))
    functions, modules = (
        np.bincount(location_at, np.array(list(map(is_allocator, frames)), dtype=bool)[frame_at], len(places)) > 0
        for is_allocator in (is_allocator_function, is_allocator_module)
    )
    stacks, bounds = without_allocator(profile.stacks, profile.bounds, functions, modules)
    stacks, bounds = _expand(stacks, bounds, places)
    return Samples(
        measure=profile.measure,
        sampling=profile.sampling,
        frames=list(frames),
        locations=locations,
        place_frame=frame_at,
        place_location=location_at,
        stacks=stacks,
        bounds=bounds,
        values=profile.values,
        variance=variances(profile.values, profile.sampling),
        thread_stack=profile.thread_stack,
        thread_uid=profile.thread_uid,
        thread_values=profile.thread_values,
        thread_names=profile.thread_names,
    )


def _integers(column: array[int]) -> Integers:
    return np.array(column, dtype=np.int64)


def _bounds(lengths: Integers) -> Integers:
    return np.concatenate((np.zeros(1, dtype=np.int64), np.cumsum(lengths, dtype=np.int64)))


def _bounds_of_ends(ends: array[int]) -> Integers:
    return np.concatenate((np.zeros(1, dtype=np.int64), _integers(ends)))


def without_allocator(
    addresses: Integers, bounds: Integers, functions: Flags, modules: Flags
) -> tuple[Integers, Integers]:
    """Stacks (leaf first) without the allocator: cut after the last of its functions, then after its modules.

    ``functions`` and ``modules`` flag the places that belong to the allocator. Returns (places, bounds).
    """
    if not (functions.any() or modules.any()):
        return addresses, bounds
    lengths = np.diff(bounds)
    starts = bounds[:-1].copy()
    flagged = np.flatnonzero(functions[addresses])
    np.maximum.at(starts, np.searchsorted(bounds, flagged, side="right") - 1, flagged + 1)
    in_module = np.append(modules[addresses], False)
    while True:
        further = (starts < bounds[1:]) & in_module[starts]
        if not further.any():
            break
        starts[further] += 1
    # 32 bits take half the memory of 64; a dump that could be read has fewer than 2^31 addresses.
    kept = np.arange(len(addresses), dtype=np.int32) >= np.repeat(starts.astype(np.int32), lengths)
    return addresses[kept], _bounds(bounds[1:] - starts)


def _expand(addresses: Integers, bounds: Integers, places: Integers) -> tuple[Integers, Integers]:
    """Turn stacks of addresses into stacks of places; ``places`` is how many consecutive places each address has."""
    if (places == 1).all():
        return addresses, bounds  # nothing is inlined: places have the numbers of their addresses
    first = _bounds(places)
    counts = places[addresses]
    ends = _bounds(counts)
    stacks = np.repeat(first[addresses] - ends[:-1], counts) + np.arange(ends[-1])
    return stacks, ends[bounds]


def unbiased(counts: CountColumns, sampling: Sampling) -> Numbers:
    """The four columns of counters, unbiased record by record, to the same doubles as Sampling.unbias."""
    values: Numbers = np.zeros((4, len(counts)))
    interval = sampling.interval if sampling.scheme is Scheme.POISSON else 0
    columns = ((OBJECTS, counts.objects, counts.bytes), (ACCUM_OBJECTS, counts.accum_objects, counts.accum_bytes))
    for row, *pair in columns:
        objects, size = (np.asarray(column, dtype=np.uint64) for column in pair)
        values[row], values[row + 1] = objects, size
        some = np.flatnonzero(objects)
        if interval <= 1 or not len(some):
            continue
        # numpy's exponential differs from math's in the last bit. Calling math's once per size is cheap: sizes are few.
        sizes, position = np.unique(values[row + 1][some] / values[row][some], return_inverse=True)
        scales = np.array([unbias_scale(one, interval) for one in sizes.tolist()])[position]
        values[row, some] *= scales
        values[row + 1, some] *= scales
        # Doubles cannot hold these, so their quotient would not be the nearest double.
        for at in np.flatnonzero((objects | size) >> np.uint64(53)).tolist():
            values[row : row + 2, at] = unbias(int(objects[at]), int(size[at]), interval)
    return values


def combine(parts: Sequence[tuple[Samples, float]]) -> Samples:
    """The sum of samples, each times its factor (-1 subtracts). Equal places are merged, and so are equal stacks.

    Places are equal if function, image (by build-id) and offset are. Addresses do not matter; places without one are
    told apart by their names. Thread columns are dropped: jemalloc numbers threads anew in every process. Raises
    MeasureError if the measures differ.
    """
    frames: dict[Frame, int] = {}
    known: dict[tuple[tuple[str, int], tuple[int, ...]], int] = {}
    all_locations: list[Location] = []
    places: dict[tuple[int, int], int] = {}
    merged: dict[bytes, int] = {}
    stacks: list[Integers] = []
    numbers: list[Integers] = []
    for part, _factor in parts:
        frame_ids = [frames.setdefault(frame, len(frames)) for frame in part.frames]
        pairs = list(zip(part.place_frame.tolist(), part.place_location.tolist(), strict=True))
        frames_at: list[list[int]] = [[] for _location in part.locations]
        for frame, at in pairs:
            frames_at[at].append(frame_ids[frame])
        location_ids = []
        for location, its_frames in zip(part.locations, frames_at, strict=True):
            position = known.setdefault((location.key, tuple(its_frames)), len(all_locations))
            if position == len(all_locations):
                all_locations.append(location)
            location_ids.append(position)
        translated = [places.setdefault((frame_ids[f], location_ids[at]), len(places)) for f, at in pairs]
        renamed = replace(part, stacks=np.array(translated, dtype=np.int64)[part.stacks])
        number = []
        for stack in renamed.each_stack():
            position = merged.setdefault(stack.tobytes(), len(stacks))
            if position == len(stacks):
                stacks.append(stack)
            number.append(position)
        numbers.append(np.array(number, dtype=np.int64))
    values, variance = np.zeros((4, len(stacks))), np.zeros((4, len(stacks)))
    for (part, factor), number_of in zip(parts, numbers, strict=True):
        for row in range(4):
            values[row] += np.bincount(number_of, factor * part.values[row], len(stacks))
            variance[row] += np.bincount(number_of, factor * factor * part.variance[row], len(stacks))
    return Samples(
        measure=common_measure(part.measure for part, _factor in parts),
        sampling=coarsest(part.sampling for part, _factor in parts),
        frames=list(frames),
        locations=all_locations,
        place_frame=np.array([frame for frame, _at in places], dtype=np.int64),
        place_location=np.array([at for _frame, at in places], dtype=np.int64),
        stacks=np.concatenate(stacks) if stacks else np.zeros(0, dtype=np.int64),
        bounds=_bounds(np.array([len(stack) for stack in stacks], dtype=np.int64)),
        values=values,
        variance=variance,
        thread_stack=np.zeros(0, dtype=np.int64),
        thread_uid=np.zeros(0, dtype=np.int64),
        thread_values=np.zeros((4, 0)),
        thread_names={},
    )
