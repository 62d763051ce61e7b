# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""The fields of a protobuf, cut into pieces before the library reads them: that bounds the memory that a few bytes can
ask for, since fields at the top of a message may be cut anywhere into several messages.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator

from ...module_utils.formats.protobuf_fields import Damaged, fields, varint

# A field of a profile has kilobytes: a stack of 4,096 frames has 40 KiB at most.
_PIECE = _LARGEST_FIELD = 1 << 20


def pieces(data: bytes, largest_number: int, begin: int = 0, stop: int | None = None) -> Iterator[bytes]:
    """A message in pieces of about _PIECE bytes, cut between fields. Raises Damaged."""
    end = len(data) if stop is None else stop
    start = begin
    for field in fields(data, begin, end, largest_number):
        _refuse_if_large(field.end - field.content)
        if field.end - start >= _PIECE:
            yield data[start : field.end]
            start = field.end
    if start < end:
        yield data[start:end]


def pieces_apart(data: bytes, key: int, largest_number: int) -> Iterator[tuple[array[int], array[int], bytes]]:
    """A message in pieces of about _PIECE bytes, of each the fields with one key (of bytes, below 128) apart: where
    their contents begin, where they end, and all other fields. Made for millions of such fields. Raises Damaged."""
    start = position = 0
    begins, ends = array("q"), array("q")
    others: list[bytes] = []
    while position < len(data):
        full = min(start + _PIECE, len(data))
        while position < full and data[position] == key:
            content, length = position + 2, data[position + 1] if position + 1 < len(data) else 0x80
            if length >= 0x80:
                length, content = varint(data, position + 1)
                _refuse_if_large(length)
            position = content + length
            begins.append(content)
            ends.append(position)
        if position > len(data):
            raise Damaged("it is cut off")
        begin = position
        for field in fields(data, position, len(data), largest_number):
            if field.begin >= full or data[field.begin] == key:
                break
            _refuse_if_large(field.end - field.content)
            position = field.end
        others.append(data[begin:position])
        if position >= full:
            yield begins, ends, b"".join(others)
            start, begins, ends, others = position, array("q"), array("q"), []
    yield begins, ends, b"".join(others)


def _refuse_if_large(length: int) -> None:
    if length > _LARGEST_FIELD:
        raise Damaged(f"a field of {length} bytes")
