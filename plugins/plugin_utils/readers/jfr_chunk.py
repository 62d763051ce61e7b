# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""What is in a chunk of Java Flight Recorder: constants and events, laid out as formats/jfr_layout.py says.

Integers of events are read a column at a time, since a recording has millions of events with few fields.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from ...module_utils.formats.jfr_header import HEADER, MOST_CHUNKS, JfrError, chunk_size
from ...module_utils.formats.jfr_layout import (
    CONSTANTS,
    FIXED,
    VARIABLE,
    Cursor,
    Field,
    Type,
    describe,
    payload,
    sort_events,
    width,
)
from ..base import libraries

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Integers = NDArray[np.int64]
    Column = NDArray[np.uint64]
else:
    np = libraries.optional("numpy")

_STRING = "java.lang.String"


class Chunk:
    """One chunk: its types by number, its constants by type and number, its events by type."""

    def __init__(self, data: bytes) -> None:
        """Raises JfrError."""
        self._data = data
        (
            _magic,
            _major,
            _minor,
            _size,
            _pools,
            metadata,
            self.start,
            self.duration,
            self.ticks,
            self.frequency,
            _features,
        ) = HEADER.unpack_from(data)
        if self.frequency <= 0:
            raise JfrError("its clock stands still")
        self.types = describe(data, metadata)
        self._readers: dict[int, Callable[[Cursor], Any]] = {}
        self._places = sort_events(data, self.types)
        self.constants: dict[int, dict[int, Any]] = {}
        for place in self._places[CONSTANTS]:
            self._learn_constants(place)

    def number_of(self, name: str) -> int | None:
        """The number of the type with this name."""
        return next((number for number, found in self.types.items() if found.name == name), None)

    def has(self, name: str) -> bool:
        """Whether there are events of the type with this name."""
        number = self.number_of(name)
        return number is not None and bool(self._places.get(number))

    def each(self, name: str) -> Iterator[dict[str, Any]]:
        """The events of a type, one by one. Raises JfrError."""
        number = self.number_of(name)
        for place in self._places.get(number, ()) if number is not None else ():
            cursor = payload(self._data, place)
            fields = self.types[number or 0].fields
            yield dict(zip([field.name for field in fields], self._reader(number or 0)(cursor), strict=True))

    def columns(self, name: str, wanted: Sequence[str]) -> list[Any]:
        """Fields of all events of a type, which must have nothing but numbers up to these: as integers without a sign,
        those of a ``float`` as such. Raises JfrError."""
        number = self.number_of(name)
        if number is None or not self._places.get(number):
            return [np.zeros(0, dtype=np.uint64) for _field in wanted]
        data = np.frombuffer(self._data, dtype=np.uint8)
        begins = np.frombuffer(self._places[number], dtype=np.int64)
        sizes, places = _numbers(data, begins)
        ends = begins + sizes.astype(np.int64)
        _kinds, places = _numbers(data, places)
        found: dict[str, NDArray[Any]] = {}
        for field in self.types[number].fields:
            size = width(self.types, field)
            if size is None:
                break
            if size:
                if self.types[field.type].name == "float":
                    found[field.name] = _floats(data, places)
                places = places + size
            else:
                found[field.name], places = _numbers(data, places)
            if (places > ends).any():
                raise JfrError(f"a field {field.name} that is longer than its event")
        if missing := [field for field in wanted if field not in found]:
            raise JfrError(f"{name} has no number {missing[0]}")
        return [found[field] for field in wanted]

    def value(self, type_number: int, number: int) -> Any:
        """A constant; None if there is none."""
        return self.constants.get(type_number, {}).get(number)

    def field(self, type_number: int, name: str) -> tuple[int, Field]:
        """A field of a type and its position. Raises JfrError."""
        found = self.types.get(type_number)
        for position, field in enumerate(found.fields if found else ()):
            if field.name == name:
                return position, field
        raise JfrError(f"{found.name if found else f'the unknown type {type_number}'} has no {name}")

    def _reader(self, number: int) -> Callable[[Cursor], Any]:
        """What reads a value of a type, made when it is first needed."""
        if number not in self._readers:
            if number not in self.types:
                raise JfrError(f"a value of the unknown type {number}")
            self._readers[number] = _contains_itself
            self._readers[number] = self._made_reader(self.types[number])
        return self._readers[number]

    def _made_reader(self, found: Type) -> Callable[[Cursor], Any]:
        if found.name in VARIABLE:
            return Cursor.number
        if found.name in FIXED:
            size = FIXED[found.name]
            return lambda cursor: cursor.skip(size)
        if found.name == _STRING:
            return Cursor.text
        if not found.fields:
            raise JfrError(f"{found.name} has no fields")
        readers = tuple([self._field_reader(field) for field in found.fields])
        return lambda cursor: tuple([read(cursor) for read in readers])

    def _field_reader(self, field: Field) -> Callable[[Cursor], Any]:
        read = Cursor.number if field.pooled else self._reader(field.type)
        if field.array:
            return lambda cursor: [read(cursor) for _item in range(cursor.count())]
        return read

    def _learn_constants(self, place: int) -> None:
        cursor = payload(self._data, place)
        for _start_duration_delta in range(3):
            cursor.number()
        cursor.skip(1)
        for _item in range(cursor.count()):
            number = cursor.number()
            read = self._reader(number)
            pool = self.constants.setdefault(number, {})
            for _constant in range(cursor.count()):
                key = cursor.number()
                pool[key] = read(cursor)


def split(data: bytes) -> Iterator[bytes]:
    """The finished chunks of a recording; one that is still written can be the last only. Raises JfrError."""
    position = count = 0
    while position < len(data):
        count += 1
        if count > MOST_CHUNKS:
            raise JfrError(f"more than {MOST_CHUNKS} chunks")
        size = chunk_size(data[position : position + HEADER.size], len(data) - position)
        if not size:
            return
        yield data[position : position + size]
        position += size


def _contains_itself(_cursor: Cursor) -> Any:
    raise JfrError("a type contains itself")


def _floats(data: NDArray[np.uint8], places: Integers) -> NDArray[np.float64]:
    """The numbers of four bytes, big endian, at these places. Raises JfrError."""
    if len(places) and places.max() + 4 > len(data):
        raise JfrError("a number is cut off")
    found: NDArray[np.float64] = data[places[:, None] + np.arange(4)].reshape(-1).view(">f4").astype(np.float64)
    return found


def _numbers(data: NDArray[np.uint8], places: Integers) -> tuple[Column, Integers]:
    """The compressed integers at these places, and the places after them. Raises JfrError."""
    values = np.zeros(len(places), dtype=np.uint64)
    after = places.copy()
    rows = np.arange(len(places))
    for position in range(9):
        at = after[rows]
        if len(at) and at.max() >= len(data):
            raise JfrError("a number is cut off")
        byte = data[at].astype(np.uint64)
        values[rows] |= (byte if position == 8 else byte & np.uint64(0x7F)) << np.uint64(7 * position)
        after[rows] += 1
        rows = rows[byte >= 0x80]
        if not len(rows):
            break
    return values, after
