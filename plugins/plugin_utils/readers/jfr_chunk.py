# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""The container of Java Flight Recorder: chunks, the types that each describes itself, constant pools and events.

A chunk has a header of 68 bytes, then events: size, type and fields, nearly all of them compressed integers of up to
nine bytes with seven bits each (the ninth has eight). The event of type 0 describes all types, those of type 1 hold the
constants that fields refer to by number (OpenJDK: jdk.jfr.internal.consumer, ChunkHeader, MetadataReader, ChunkParser).
Only what a chunk says of its own types is believed of their layout.

Integers of events are read a column at a time, since a recording has millions of events with few fields.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from ...module_utils.formats.jfr_header import HEADER, MOST_CHUNKS, HeaderError, chunk_size
from ..base import libraries

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Integers = NDArray[np.int64]
    Column = NDArray[np.uint64]
else:
    np = libraries.optional("numpy")

_METADATA, _CONSTANTS = 0, 1
# The JDK describes some 200 types in 40,000 elements.
_MOST_ELEMENTS, _DEEPEST = 1 << 18, 16
_MOST_EVENTS = 1 << 24
_FIXED = {"boolean": 1, "byte": 1, "float": 4, "double": 8}
_VARIABLE = frozenset({"char", "short", "int", "long"})
_STRING = "java.lang.String"
_TEXTS = {3: "utf-8", 5: "latin-1"}


class Damaged(Exception):
    """The bytes are no recording."""


class Field(NamedTuple):
    """A field of a type; ``pooled`` values are numbers of constants of that type."""

    name: str
    type: int
    pooled: bool
    array: bool


class Type(NamedTuple):
    """What a chunk says of a type: an event, a structure, or a simple one."""

    name: str
    fields: tuple[Field, ...]


class _Cursor:
    """A place in a chunk, which moves on as values are read."""

    def __init__(self, data: bytes, position: int, end: int) -> None:
        self.data = data
        self.position = position
        self.end = end

    def number(self) -> int:
        value = shift = 0
        while True:
            if self.position >= self.end:
                raise Damaged("a number is cut off")
            byte = self.data[self.position]
            self.position += 1
            if shift == 56:
                return value | byte << 56
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7

    def skip(self, count: int) -> bytes:
        found = self.data[self.position : self.position + count]
        if count > self.end - self.position:
            raise Damaged("a value is cut off")
        self.position += count
        return found

    def count(self) -> int:
        """The number of values that follow, each of at least a byte."""
        count = self.number()
        if count > self.end - self.position:
            raise Damaged(f"{count} values in {self.end - self.position} bytes")
        return count

    def text(self) -> str | int | None:
        """A text, or the number of one among the constants."""
        kind = self.skip(1)[0]
        if kind in (0, 1):
            return "" if kind else None
        if kind == 2:
            return self.number()
        if kind in _TEXTS:
            return self.skip(self.count()).decode(_TEXTS[kind], "replace")
        if kind == 4:
            return "".join([chr(self.number() & 0xFFFF) for _unit in range(self.count())])
        raise Damaged(f"a text of kind {kind}")


class Chunk:
    """One chunk: its types by number, its constants by type and number, its events by type."""

    def __init__(self, data: bytes) -> None:
        """Raises Damaged."""
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
            raise Damaged("its clock stands still")
        self.types = self._described(metadata)
        self._readers: dict[int, Callable[[_Cursor], Any]] = {}
        self._places = self._sorted()
        self.constants: dict[int, dict[int, Any]] = {}
        for place in self._places[_CONSTANTS]:
            self._learn_constants(place)

    def number_of(self, name: str) -> int | None:
        """The number of the type with this name."""
        return next((number for number, found in self.types.items() if found.name == name), None)

    def each(self, name: str) -> Iterator[dict[str, Any]]:
        """The events of a type, one by one. Raises Damaged."""
        number = self.number_of(name)
        for place in self._places.get(number, ()) if number is not None else ():
            cursor = self._payload(place)
            fields = self.types[number or 0].fields
            yield dict(zip([field.name for field in fields], self._reader(number or 0)(cursor), strict=True))

    def columns(self, name: str, wanted: Sequence[str]) -> list[Column]:
        """Fields of all events of a type, which must have nothing but numbers up to these. Raises Damaged."""
        number = self.number_of(name)
        if number is None or not self._places.get(number):
            return [np.zeros(0, dtype=np.uint64) for _field in wanted]
        data = np.frombuffer(self._data, dtype=np.uint8)
        begins = np.frombuffer(self._places[number], dtype=np.int64)
        sizes, places = _numbers(data, begins)
        ends = begins + sizes.astype(np.int64)
        _kinds, places = _numbers(data, places)
        found: dict[str, Column] = {}
        for field in self.types[number].fields:
            simple = self.types[field.type].name
            if field.array or not (field.pooled or simple in _VARIABLE or simple in _FIXED):
                break
            if field.pooled or simple in _VARIABLE:
                found[field.name], places = _numbers(data, places)
            else:
                places = places + _FIXED[simple]
            if (places > ends).any():
                raise Damaged(f"a field {field.name} that is longer than its event")
        if missing := [field for field in wanted if field not in found]:
            raise Damaged(f"{name} has no number {missing[0]}")
        return [found[field] for field in wanted]

    def value(self, type_number: int, number: int) -> Any:
        """A constant; None if there is none."""
        return self.constants.get(type_number, {}).get(number)

    def field(self, type_number: int, name: str) -> tuple[int, Field]:
        """A field of a type and its position. Raises Damaged."""
        for position, field in enumerate(self.types[type_number].fields):
            if field.name == name:
                return position, field
        raise Damaged(f"{self.types[type_number].name} has no {name}")

    def _sorted(self) -> dict[int, array[int]]:
        """Where the events of each type begin."""
        places: dict[int, array[int]] = {number: array("q") for number in (_METADATA, _CONSTANTS, *self.types)}
        data, position, end, count = self._data, HEADER.size, len(self._data), 0
        while position < end:
            size, at = data[position], position + 1
            if size >= 0x80 or at >= end or data[at] >= 0x80:
                cursor = _Cursor(data, position, end)
                size, kind = cursor.number(), cursor.number()
                if cursor.position > position + size:
                    raise Damaged(f"an event of {size} bytes")
            else:
                kind = data[at]
                if size < 2:
                    raise Damaged(f"an event of {size} bytes")
            if size > end - position:
                raise Damaged("an event is cut off")
            if kind not in places:
                raise Damaged(f"an event of the unknown type {kind}")
            places[kind].append(position)
            position += size
            count += 1
            if count > _MOST_EVENTS:
                raise Damaged(f"more than {_MOST_EVENTS} events in one chunk")
        return places

    def _payload(self, position: int) -> _Cursor:
        """A cursor behind an event's size and type, which cannot leave the event."""
        cursor = _Cursor(self._data, position, len(self._data))
        cursor.end = position + cursor.number()
        if cursor.end > len(self._data):
            raise Damaged("an event is cut off")
        cursor.number()
        return cursor

    def _described(self, offset: int) -> dict[int, Type]:
        if not HEADER.size <= offset < len(self._data):
            raise Damaged("its types are described outside of it")
        cursor = self._payload(offset)
        for _start_duration_id in range(3):
            cursor.number()
        texts = [cursor.text() for _item in range(cursor.count())]
        left = [_MOST_ELEMENTS]
        types: dict[int, Type] = {}
        for attributes, children in _elements(_Element(cursor, texts, left, 0)):
            number = _integer(attributes.get("id", ""))
            fields = []
            for said, _annotations in children.get("field", ()):
                of_type = _integer(said.get("class", ""))
                fields.append(
                    Field(
                        said.get("name", ""),
                        of_type,
                        said.get("constantPool") == "true",
                        said.get("dimension", "0") != "0",
                    )
                )
            types[number] = Type(attributes.get("name", ""), tuple(fields))
        if any(field.type not in types for found in types.values() for field in found.fields):
            raise Damaged("a field has a type that is not described")
        return types

    def _reader(self, number: int) -> Callable[[_Cursor], Any]:
        """What reads a value of a type, made when it is first needed."""
        if number not in self._readers:
            if number not in self.types:
                raise Damaged(f"a value of the unknown type {number}")
            self._readers[number] = _contains_itself
            self._readers[number] = self._made_reader(self.types[number])
        return self._readers[number]

    def _made_reader(self, found: Type) -> Callable[[_Cursor], Any]:
        if found.name in _VARIABLE:
            return _Cursor.number
        if found.name in _FIXED:
            size = _FIXED[found.name]
            return lambda cursor: cursor.skip(size)
        if found.name == _STRING:
            return _Cursor.text
        if not found.fields:
            raise Damaged(f"{found.name} has no fields")
        readers = tuple([self._field_reader(field) for field in found.fields])
        return lambda cursor: tuple([read(cursor) for read in readers])

    def _field_reader(self, field: Field) -> Callable[[_Cursor], Any]:
        read = _Cursor.number if field.pooled else self._reader(field.type)
        if field.array:
            return lambda cursor: [read(cursor) for _item in range(cursor.count())]
        return read

    def _learn_constants(self, place: int) -> None:
        cursor = self._payload(place)
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
    """The finished chunks of a recording; one that is still written can be the last only. Raises Damaged."""
    position = count = 0
    while position < len(data):
        count += 1
        if count > MOST_CHUNKS:
            raise Damaged(f"more than {MOST_CHUNKS} chunks")
        try:
            size = chunk_size(data[position : position + HEADER.size], len(data) - position)
        except HeaderError as error:
            raise Damaged(str(error)) from None
        if not size:
            return
        yield data[position : position + size]
        position += size


class _Element(NamedTuple):
    """Where an element of the description begins, and what it needs to be read."""

    cursor: _Cursor
    texts: Sequence[Any]
    left: list[int]
    depth: int


def _elements(root: _Element) -> list[tuple[dict[str, str], dict[str, list[Any]]]]:
    """The classes that are described."""
    _attributes, children = _read_element(root)[1]
    return [one for metadata in children.get("metadata", ()) for one in metadata[1].get("class", ())]


def _read_element(at: _Element) -> tuple[str, tuple[dict[str, str], dict[str, list[Any]]]]:
    """An element's name, its attributes, and the elements in it by name."""
    cursor = at.cursor
    at.left[0] -= 1
    if at.depth > _DEEPEST or at.left[0] < 0:
        raise Damaged("its description of types is too large")

    def text() -> str:
        number = cursor.number()
        found = at.texts[number] if number < len(at.texts) else None
        if not isinstance(found, str):
            raise Damaged(f"its description has no text {number}")
        return found

    name = text()
    attributes = {text(): text() for _item in range(cursor.count())}
    children: dict[str, list[Any]] = {}
    for _item in range(cursor.count()):
        child, content = _read_element(at._replace(depth=at.depth + 1))
        children.setdefault(child, []).append(content)
    return name, (attributes, children)


def _integer(text: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 18:
        raise Damaged("the number of a type is none")
    return int(text)


def _contains_itself(_cursor: _Cursor) -> Any:
    raise Damaged("a type contains itself")


def _numbers(data: NDArray[np.uint8], places: Integers) -> tuple[Column, Integers]:
    """The compressed integers at these places, and the places after them. Raises Damaged."""
    values = np.zeros(len(places), dtype=np.uint64)
    after = places.copy()
    rows = np.arange(len(places))
    for position in range(9):
        at = after[rows]
        if len(at) and at.max() >= len(data):
            raise Damaged("a number is cut off")
        byte = data[at].astype(np.uint64)
        values[rows] |= (byte if position == 8 else byte & np.uint64(0x7F)) << np.uint64(7 * position)
        after[rows] += 1
        rows = rows[byte >= 0x80]
        if not len(rows):
            break
    return values, after
