# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""The fields of a protobuf message, found without knowing more of it than how many there are.

Format: "Encoding" in Protocol Buffers' documentation.

This module is private to the collection.
"""

from __future__ import annotations

from typing import Iterator, NamedTuple

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5


class Damaged(Exception):
    """The bytes are no protobuf of this message."""


class Field(NamedTuple):
    """A field from ``begin`` to ``end`` of the data; ``content`` is where its bytes begin, if it has such."""

    key: int
    begin: int
    content: int
    end: int


def fields(data: bytes, begin: int, stop: int, largest_number: int) -> Iterator[Field]:
    """The fields of the message between two positions. Raises Damaged, also for numbers above the largest."""
    position = begin
    while position < stop:
        start = position
        key, position = varint(data, position)
        if not 0 < key >> 3 <= largest_number:
            raise Damaged(f"field {key >> 3} is unknown")
        kind, content = key & 7, position
        if kind == BYTES:
            length, content = varint(data, position)
            position = content + length
        elif kind == VARINT:
            _value, position = varint(data, position)
        elif kind in (FIXED64, FIXED32):
            position += 8 if kind == FIXED64 else 4
        else:
            raise Damaged(f"wire type {kind}")
        if position > stop:
            raise Damaged("it is cut off")
        yield Field(key, start, content, position)


def varint(data: bytes, position: int) -> tuple[int, int]:
    """(value, position after it)"""
    value = shift = 0
    while shift < 64:
        if position >= len(data):
            raise Damaged("it is cut off")
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
    raise Damaged("a number of more than 64 bits")
