# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""The layout of a recording's chunk: the types that it describes itself, and where its events are.

A chunk has a header, then events: size, type and fields, nearly all of them compressed integers of up to nine bytes
with seven bits each (the ninth has eight). The event of type 0 describes all types, those of type 1 hold the constants
that fields refer to by number (OpenJDK: jdk.jfr.internal.consumer, ChunkHeader, MetadataReader, ChunkParser). Only what
a chunk says of its own types is believed of their layout.

This module is private to the collection.
"""

from __future__ import annotations

from array import array
from typing import Any, NamedTuple, Sequence

from ansible_collections.offheap.profiler.plugins.module_utils.formats.jfr_header import HEADER, JfrError

METADATA, CONSTANTS = 0, 1
#: the size of numbers that are not compressed
FIXED = {"boolean": 1, "byte": 1, "float": 4, "double": 8}
VARIABLE = frozenset({"char", "short", "int", "long"})
# The JDK describes some 200 types in 40,000 elements.
_MOST_ELEMENTS, _DEEPEST = 1 << 18, 16
# Of each a pattern is made; the JDK's largest types have 30.
_MOST_FIELDS, _TYPE_DEPTH = 500, 2
_MOST_EVENTS = 1 << 24
_TEXTS = {3: "utf-8", 5: "latin-1"}


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


class Cursor:
    """A place in a chunk, which moves on as values are read."""

    def __init__(self, data: bytes, position: int, end: int) -> None:
        self.data = data
        self.position = position
        self.end = end

    def number(self) -> int:
        value = shift = 0
        while True:
            if self.position >= self.end:
                raise JfrError("a number is cut off")
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
            raise JfrError("a value is cut off")
        self.position += count
        return found

    def count(self) -> int:
        """The number of values that follow, each of at least a byte."""
        count = self.number()
        if count > self.end - self.position:
            raise JfrError(f"{count} values in {self.end - self.position} bytes")
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
        raise JfrError(f"a text of kind {kind}")


def describe(data: bytes, offset: int) -> dict[int, Type]:
    """The types of a chunk by number, as its event at ``offset`` describes them. Raises JfrError."""
    if not HEADER.size <= offset < len(data):
        raise JfrError("its types are described outside of it")
    cursor = payload(data, offset)
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
        raise JfrError("a field has a type that is not described")
    return types


def width(types: dict[int, Type], field: Field) -> int | None:
    """How many bytes a number in this field takes, 0 if it is compressed; None if the field is no number."""
    simple = types[field.type].name
    if field.array:
        return None
    return 0 if field.pooled or simple in VARIABLE else FIXED.get(simple)


def sort_events(data: bytes, types: dict[int, Type]) -> dict[int, array[int]]:
    """Where the events of each type begin in a chunk, the constants among them. Raises JfrError."""
    places: dict[int, array[int]] = {number: array("q") for number in (METADATA, CONSTANTS, *types)}
    position, end, count = HEADER.size, len(data), 0
    while position < end:
        size, at = data[position], position + 1
        if size >= 0x80 or at >= end or data[at] >= 0x80:
            cursor = Cursor(data, position, end)
            size, kind = cursor.number(), cursor.number()
            if cursor.position > position + size:
                raise JfrError(f"an event of {size} bytes")
        else:
            kind = data[at]
            if size < 2:
                raise JfrError(f"an event of {size} bytes")
        if size > end - position:
            raise JfrError("an event is cut off")
        if kind not in places:
            raise JfrError(f"an event of the unknown type {kind}")
        places[kind].append(position)
        position += size
        count += 1
        if count > _MOST_EVENTS:
            raise JfrError(f"more than {_MOST_EVENTS} events in one chunk")
    return places


def payload(data: bytes, position: int) -> Cursor:
    """A cursor behind an event's size and type, which cannot leave the event."""
    cursor = Cursor(data, position, len(data))
    cursor.end = position + cursor.number()
    if cursor.end > len(data):
        raise JfrError("an event is cut off")
    cursor.number()
    return cursor


class _Element(NamedTuple):
    """Where an element of the description begins, and what it needs to be read."""

    cursor: Cursor
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
        raise JfrError("its description of types is too large")

    def text() -> str:
        number = cursor.number()
        found = at.texts[number] if number < len(at.texts) else None
        if not isinstance(found, str):
            raise JfrError(f"its description has no text {number}")
        return found

    name = text()
    attributes = {text(): text() for _item in range(cursor.count())}
    children: dict[str, list[Any]] = {}
    count = cursor.count()
    if at.depth == _TYPE_DEPTH and count > _MOST_FIELDS:
        raise JfrError(f"a type of {count} fields")
    for _item in range(count):
        child, content = _read_element(at._replace(depth=at.depth + 1))
        children.setdefault(child, []).append(content)
    return name, (attributes, children)


def _integer(text: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 18:
        raise JfrError("the number of a type is none")
    return int(text)
