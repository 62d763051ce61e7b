# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""What a reader finds in a file, whatever its format: nothing is unbiased or named yet."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from collections.abc import Mapping as Dictionary
from dataclasses import dataclass, field

from ...module_utils.formats.maps import Mapping
from .frame import Frame
from .sampling import EXACT, Measure, Sampling, Scheme


@dataclass(frozen=True, slots=True)
class Counts:
    """Objects and bytes as sampled: by the file's measure and, if it counts both, allocated since the start."""

    objects: int
    bytes: int
    accum_objects: int
    accum_bytes: int


@dataclass(frozen=True, slots=True)
class Thread:
    """A thread that the file lists. ``uid`` is the allocator's own number, not the kernel's thread id."""

    uid: int
    counts: Counts
    name: str


class CountColumns:
    """The four counters of many records, one array each (unsigned 64 bit)."""

    __slots__ = ("accum_bytes", "accum_objects", "bytes", "objects")

    def __init__(self) -> None:
        self.objects = array("Q")
        self.bytes = array("Q")
        self.accum_objects = array("Q")
        self.accum_bytes = array("Q")

    def append(self, objects: bytes, size: bytes, accum_objects: bytes, accum_bytes: bytes) -> None:
        """Add one record, given as digits. OverflowError if a number has more than 64 bits."""
        self.objects.append(int(objects))
        self.bytes.append(int(size))
        self.accum_objects.append(int(accum_objects))
        self.accum_bytes.append(int(accum_bytes))

    def __len__(self) -> int:
        return len(self.objects)


@dataclass(frozen=True)
class Told:
    """What the user says of a file that does not say it itself.

    ``unit`` is what its numbers count, "bytes" or "objects", empty if nobody said. ``interval`` is bytes between
    samples, 1 if every allocation was recorded, 0 if nobody knows.
    """

    measure: Measure | None = None
    unit: str = ""
    interval: int = 0

    @property
    def sampling(self) -> Sampling:
        if self.interval == 1:
            return EXACT
        return Sampling(Scheme.SYSTEMATIC, self.interval) if self.interval else Sampling(Scheme.UNKNOWN)


@dataclass(frozen=True)
class Records:
    """Stacks and their numbers, in columns.

    A place in the code is an address in the process or, if the file names its code itself, a frame. Place numbers count
    through ``addresses``, then through ``names``, where each is unique. Stack ``i`` is the slice
    ``stack_ends[i-1]:stack_ends[i]`` of ``stack_places``, place numbers, leaf first.
    ``counts`` has one record per stack; ``thread_stack`` / ``thread_uid`` / ``thread_counts`` have one record per
    thread of a stack. ``unbiased`` says that the source has already scaled its samples to what they stand for.
    ``time`` is when the profile was taken (seconds since the epoch), 0 if the file does not say. ``build_ids``
    (hexadecimal, by mapped path) are those that the file itself names. ``file`` is for messages.
    """

    file: str
    measure: Measure
    sampling: Sampling
    total: Counts
    threads: list[Thread]
    addresses: array[int]
    stack_places: array[int]
    stack_ends: array[int]
    counts: CountColumns
    thread_stack: array[int]
    thread_uid: array[int]
    thread_counts: CountColumns
    mappings: list[Mapping]
    names: Sequence[Frame] = ()
    unbiased: bool = False
    time: float = 0.0
    build_ids: Dictionary[str, str] = field(default_factory=dict)

    def stacks(self) -> Iterator[array[int]]:
        """Each stack as place numbers, leaf first."""
        start = 0
        for end in self.stack_ends:
            yield self.stack_places[start:end]
            start = end
