# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Raw records from stacks that come one by one, as all formats but jemalloc's have them.

A place is an address or a frame that the source named itself; both are stored once. What a file may hold is bounded,
because a few bytes of some formats can stand for many frames.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from ...module_utils.formats.maps import Mapping
from ..base import libraries
from ..base.printable import printable
from ..model.frame import Frame
from ..model.raw import CountColumns, Counts, Records
from ..model.sampling import Measure, Sampling
from .format_error import UnusableError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Integers = NDArray[np.int64]
else:
    np = libraries.optional("numpy")

LARGEST = (1 << 64) - 1
#: frames of one stack; no profiler walks further
MOST_FRAMES = 4096
# Places of all stacks together: twice what the largest dump of jemalloc can have.
_MOST_PLACES = 1 << 25
_LONGEST_NAME = 4096
_OUT_OF_RANGE = "has a number that is negative or does not fit 64 bits"


class StackBuilder:
    """Collects stacks; ``file`` is for messages."""

    def __init__(self, file: str) -> None:
        self._file = file
        self._addresses: dict[int, int] = {}
        self._names: dict[Frame, int] = {}
        # Positions in the addresses, or the complement of positions in the names.
        self._places = array("i")
        self._ends = array("Q")
        self._counts = CountColumns()

    def address(self, value: int) -> int:
        """The place of a return address."""
        return self._addresses.setdefault(value, len(self._addresses))

    def named(self, frame: Frame) -> int:
        """The place of a frame that the source has named."""
        clean = frame._replace(function=_clean(frame.function), module=_clean(frame.module), file=_clean(frame.file))
        return ~self._names.setdefault(clean, len(self._names))

    def add(self, places: Iterable[int], counts: Sequence[int]) -> None:
        """One stack, leaf first, with objects and bytes and, if the source has them, both again as accumulated.

        Raises UnusableError for what no process can have.
        """
        self._places.extend(places)
        self._end(counts)

    def add_packed(self, places: bytes, counts: Sequence[int]) -> None:
        """The same, of places that ``packed`` made: much faster for long stacks."""
        self._places.frombytes(places)
        self._end(counts)

    def _end(self, counts: Sequence[int]) -> None:
        end = len(self._places)
        if end - (self._ends[-1] if self._ends else 0) > MOST_FRAMES:
            raise UnusableError(self._file, f"has a stack of more than {MOST_FRAMES} frames")
        if end > _MOST_PLACES:
            raise UnusableError(self._file, f"its stacks have more than {_MOST_PLACES} frames together")
        self._ends.append(end)
        columns = self._counts
        try:
            for column, value in zip(
                (columns.objects, columns.bytes, columns.accum_objects, columns.accum_bytes),
                (*counts, 0, 0)[:4],
                strict=True,
            ):
                column.append(value)
        except OverflowError as error:
            raise UnusableError(self._file, _OUT_OF_RANGE) from error

    def add_all(self, places: Integers, lengths: Integers, counts: Integers) -> None:
        """Stacks one after the other: ``lengths`` of them, and a row of ``counts`` each. Raises as ``add`` does."""
        if len(lengths) and lengths.max() > MOST_FRAMES:
            raise UnusableError(self._file, f"has a stack of more than {MOST_FRAMES} frames")
        if len(self._places) + len(places) > _MOST_PLACES:
            raise UnusableError(self._file, f"its stacks have more than {_MOST_PLACES} frames together")
        if (counts < 0).any():
            raise UnusableError(self._file, _OUT_OF_RANGE)
        ends = np.cumsum(lengths, dtype=np.uint64) + np.uint64(len(self._places))
        self._places.frombytes(_as_bytes(places, np.int32))
        self._ends.frombytes(_as_bytes(ends, np.uint64))
        zeros = np.zeros(len(lengths), dtype=np.int64)
        columns = (self._counts.objects, self._counts.bytes, self._counts.accum_objects, self._counts.accum_bytes)
        for column, values in zip(columns, (*counts.T, zeros, zeros)[:4], strict=True):
            column.frombytes(_as_bytes(values, np.uint64))

    def count(self, number: int, objects: int, size: int) -> None:
        """Add to the numbers of a stack. Raises as ``add`` does."""
        try:
            self._counts.objects[number] += objects
            self._counts.bytes[number] += size
        except OverflowError as error:
            raise UnusableError(self._file, _OUT_OF_RANGE) from error

    def __len__(self) -> int:
        return len(self._ends)

    def records(self, measure: Measure, sampling: Sampling, mappings: Iterable[Mapping] = (), **more: Any) -> Records:
        """What was collected, once. ``more`` are further fields of Records."""
        if self._places:
            numbers = np.frombuffer(self._places, dtype=np.int32)  # the same memory
            np.subtract(len(self._addresses) - 1, numbers, out=numbers, where=numbers < 0)
        columns = self._counts
        sums = [sum(column) for column in (columns.objects, columns.bytes, columns.accum_objects, columns.accum_bytes)]
        return Records(
            file=self._file,
            measure=measure,
            sampling=sampling,
            total=Counts(*sums),
            threads=[],
            addresses=array("Q", self._addresses),
            stack_places=self._places,
            stack_ends=self._ends,
            counts=columns,
            thread_stack=array("I"),
            thread_uid=array("Q"),
            thread_counts=CountColumns(),
            mappings=list(mappings),
            names=list(self._names),
            **more,
        )


def packed(place: int) -> bytes:
    """A place as it lies in memory."""
    return array("i", (place,)).tobytes()


def _as_bytes(numbers: NDArray[np.integer[Any]], kind: type[np.integer[Any]]) -> memoryview:
    return np.ascontiguousarray(numbers, kind).data.cast("B")


def _clean(text: str) -> str:
    """A name from outside, as text for a terminal, and no longer than any real one."""
    text = printable(text)
    return text if len(text) <= _LONGEST_NAME else text[: _LONGEST_NAME - 1] + "…"
