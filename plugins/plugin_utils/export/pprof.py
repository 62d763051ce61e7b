# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Samples as a gzipped ``profile.proto``, which pprof and every tool with its format read.

It has all four numbers, unbiased. Mappings carry build-ids, so that pprof finds images in its own directory layout and
can name what has no name here. If the dump has numbers by thread, each thread's part of a stack is a sample of its own
with the labels ``thread_id`` (jemalloc's number) and ``thread``.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..base import libraries, profile_proto
from ..model.frame import Frame
from ..model.location import Location
from ..model.samples import Samples
from ..model.sampling import Measure, Scheme

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Numbers = NDArray[np.float64]
else:
    np = libraries.optional("numpy")

# What the pairs of numbers are called, objects before bytes as in Samples.values. pprof knows inuse and alloc.
_NAMES = {
    Measure.LIVE: ("inuse", "alloc"),
    Measure.LARGEST: ("largest",),
    Measure.ALLOCATED: ("alloc",),
    Measure.GROWN: ("grown",),
}
_LARGEST = (1 << 63) - 1
_PAGE = 4096


@dataclass(frozen=True)
class About:
    """The profile's own metadata: when the dump was written (epoch seconds), the program's path, comments."""

    time: float = 0.0
    executable: str = ""
    comments: Sequence[str] = field(default_factory=tuple)


def _types(names: Sequence[str]) -> Iterator[tuple[str, str]]:
    for name in names:
        yield f"{name}_objects", "count"
        yield f"{name}_space", "bytes"


#: all names that a number can have in a file, with their units
TYPES = dict(_types(sorted({name for names in _NAMES.values() for name in names})))


def render(samples: Samples, about: About | None = None) -> bytes:
    """The gzipped profile. The same samples give the same bytes."""
    written = message(samples, about or About()).SerializeToString(deterministic=True)
    return gzip.compress(written, compresslevel=6, mtime=0)


def message(samples: Samples, about: About) -> Any:
    """The same as a message (base/profile_proto.py). Mappings, functions and locations have numbers from 1 on, in
    order."""
    return _Writer(samples).write(about)


class _Writer:
    def __init__(self, samples: Samples) -> None:
        self.samples = samples
        self.profile: Any = profile_proto.profile_class()()
        self.strings: dict[str, int] = {"": 0}
        self.functions: dict[tuple[str, str], int] = {}
        self.location_of: list[int] = samples.place_location.tolist()
        self.location_numbers: dict[tuple[int, ...], int] = {}

    def write(self, about: About) -> Any:
        profile = self.profile
        names = _NAMES[self.samples.measure]
        for name, unit in _types(names):
            profile.sample_type.add(type=self.string(name), unit=self.string(unit))
        profile.default_sample_type = self.string(f"{names[0]}_space")
        profile.period_type.type, profile.period_type.unit = self.string("space"), self.string("bytes")
        exact = self.samples.sampling.scheme is Scheme.EXACT
        profile.period = 1 if exact else self.samples.sampling.interval
        profile.time_nanos = max(0, min(round(about.time * 1e6) * 1000, _LARGEST))
        self.mappings(about.executable)
        for values, stack, labels in self.rows():
            sample = profile.sample.add()
            sample.location_id.extend(stack)
            sample.value.extend([max(-_LARGEST, min(round(value), _LARGEST)) for value in values[: 2 * len(names)]])
            for key, text in labels:
                sample.label.add(key=self.string(key), str=self.string(text))
        profile.comment.extend([self.string(text) for text in about.comments])
        profile.string_table.extend(self.strings)
        return profile

    def string(self, text: str) -> int:
        text = text.encode("utf-8", "replace").decode("utf-8")
        return self.strings.setdefault(text, len(self.strings))

    def mappings(self, executable: str) -> None:
        """One mapping for each image, the executable first, as pprof expects."""
        self.mapping_ids: dict[tuple[str, str], int] = {}
        places: dict[tuple[str, str], list[Location]] = {}
        for location in self.samples.locations:
            if location.in_file:
                places.setdefault((location.path, location.build_id), []).append(location)
        named = set()
        for at, frame in zip(self.location_of, self.samples.place_frame.tolist(), strict=True):
            if self.samples.frames[frame].function:
                named.add((self.samples.locations[at].path, self.samples.locations[at].build_id))
        self.bases: dict[tuple[str, str], int] = {}
        for key in sorted(places, key=lambda key: key[0] != executable):
            number = self.mapping_ids[key] = len(self.mapping_ids) + 1
            # The address of the file's first byte, mapped or not; of several processes, one of theirs.
            first = places[key][0]
            base = self.bases[key] = max(first.address - 1 - first.shown, 0) // _PAGE * _PAGE
            start = min(place.shown for place in places[key]) // _PAGE * _PAGE
            end = (max(place.shown for place in places[key]) // _PAGE + 1) * _PAGE
            self.profile.mapping.add(
                id=number,
                memory_start=min(base + start, _LARGEST),
                memory_limit=min(base + end, _LARGEST),
                file_offset=start,
                filename=self.string(key[0]),
                build_id=self.string(key[1]),
                # pprof looks for the image itself if there are no names.
                has_functions=key in named,
                has_filenames=key in named,
                has_line_numbers=key in named,
                has_inline_frames=key in named,
            )

    def location(self, places: tuple[int, ...]) -> int:
        """The number of the location with these places, a call and what is inlined there; one without the calls that a
        selection leaves out is another."""
        number = self.location_numbers.get(places)
        if number is None:
            number = self.location_numbers[places] = len(self.location_numbers) + 1
            its = self.samples.locations[self.location_of[places[0]]]
            key = (its.path, its.build_id)
            found = self.profile.location.add(id=number, mapping_id=self.mapping_ids.get(key, 0))
            found.address = min(self.bases[key] + its.shown if key in self.bases else its.shown, _LARGEST)
            for at in self.samples.place_frame[list(places)].tolist():
                found.line.add(function_id=self.function(self.samples.frames[at]), line=self.samples.frames[at].line)
        return number

    def function(self, frame: Frame) -> int:
        key = (frame.label, frame.file)
        number = self.functions.get(key)
        if number is None:
            number = self.functions[key] = len(self.functions) + 1
            # No system_name: pprof takes an equal one for a name to demangle, and cuts all in <> and () out of it.
            name, file = self.string(frame.label), self.string(frame.file)
            self.profile.function.add(id=number, name=name, filename=file)
        return number

    def rows(self) -> Iterator[tuple[list[float], list[int], list[tuple[str, str]]]]:
        """(the four values, location ids leaf first, labels) of each sample."""
        samples = self.samples
        stacks = [self.stack(stack.tolist()) for stack in samples.each_stack()]
        rest = samples.values.copy()
        columns = (samples.thread_stack.tolist(), samples.thread_uid.tolist(), self.of_threads().T.tolist())
        by_thread = []
        for stack, uid, values in zip(*columns, strict=True):
            rest[:, stack] -= values
            name = samples.thread_names.get(uid, "")
            # As text: pprof takes a numeric label of 0 for a missing one.
            labels = [("thread_id", str(uid)), *([("thread", name)] if name else [])]
            by_thread.append((values, stacks[stack], labels))
        # The rest beyond the threads: everything in a dump without threads, else what ended threads hold. The sums are
        # those of the stacks.
        for stack, values in enumerate(rest.T.tolist()):
            if any(abs(value) >= 1 for value in values):
                yield values, stacks[stack], []
        yield from by_thread

    def of_threads(self) -> Numbers:
        """The numbers by thread. Unbiased one by one they can be more than their stack's: then they share its."""
        samples = self.samples
        sums = np.zeros_like(samples.values)
        for row, values in enumerate(samples.thread_values):
            np.add.at(sums[row], samples.thread_stack, values)
        too_many = (sums > samples.values) & (samples.values >= 0)
        shares = np.divide(samples.values, sums, out=np.ones_like(sums), where=too_many)
        found: Numbers = samples.thread_values * shares[:, samples.thread_stack]
        return found

    def stack(self, places: list[int]) -> list[int]:
        """Location ids; consecutive places of one location are one."""
        found, first = [], 0
        own = [self.location_of[place] for place in places]
        for at in range(1, len(places) + 1):
            if at == len(places) or own[at] != own[first] or places[at] <= places[at - 1]:
                found.append(self.location(tuple(places[first:at])))
                first = at
        return found
