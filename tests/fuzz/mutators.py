# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""What the fuzzer changes of a protobuf: bytes put in or taken out anywhere leave lengths that are wrong, and of that
little is read."""

from __future__ import annotations

import random

import atheris

from ansible_collections.offheap.profiler.plugins.module_utils.formats.protobuf_fields import (
    BYTES,
    FIXED32,
    FIXED64,
    VARINT,
    Damaged,
    varint,
)

_NUMBERS = (0, 1, 2, 3, 7, 255, 4096, 1 << 31, (1 << 63) - 1, 1 << 63, (1 << 64) - 1)
_SIZES = {FIXED64: 8, FIXED32: 4}
# How often an input is changed as any other is.
_AS_ANY = 0.2
_Fields = list[tuple[int, int | bytes]]


def of_protobuf(data: bytes, most: int, seed: int) -> bytes:
    """One field of it, at any depth, is another, is gone or is there twice, and all lengths fit."""
    chance = random.Random(seed)
    if chance.random() > _AS_ANY:
        try:
            return _written(_changed(_fields(data), chance))[:most]
        except Damaged:
            pass
    return bytes(atheris.Mutate(data, most))


def _changed(fields: _Fields, chance: random.Random) -> _Fields:
    if not fields:
        raise Damaged
    at = chance.randrange(len(fields))
    key, value = fields[at]
    way = chance.randrange(12)
    if way == 0:
        return fields[:at] + fields[at + 1 :]
    if way == 1:
        return [*fields, fields[at]]
    if key & 7 in _SIZES:
        value = chance.randbytes(_SIZES[key & 7])
    elif isinstance(value, int):
        value = chance.choice((*_NUMBERS, chance.randrange(16), value + 1, value ^ 1 << chance.randrange(64)))
    else:
        try:
            value = _written(_changed(_fields(value), chance))
        except Damaged:
            value = bytes(atheris.Mutate(value, len(value) + 8))
    return [*fields[:at], (key, value), *fields[at + 1 :]]


def _fields(data: bytes) -> _Fields:
    """By their keys, in their order. Raises Damaged."""
    fields: _Fields = []
    position = 0
    while position < len(data):
        key, position = varint(data, position)
        if key & 7 == VARINT:
            number, position = varint(data, position)
            fields.append((key, number))
            continue
        if key & 7 == BYTES:
            length, position = varint(data, position)
        elif key & 7 in _SIZES:
            length = _SIZES[key & 7]
        else:
            raise Damaged
        if position + length > len(data):
            raise Damaged
        fields.append((key, data[position : position + length]))
        position += length
    return fields


def _written(fields: _Fields) -> bytes:
    found = bytearray()
    for key, value in fields:
        found += _varint(key)
        if isinstance(value, int):
            found += _varint(value)
        else:
            found += (_varint(len(value)) if key & 7 == BYTES else b"") + value
    return bytes(found)


def _varint(number: int) -> bytes:
    number %= 1 << 64
    found = bytearray()
    while number > 127:
        found.append(number & 127 | 128)
        number >>= 7
    return bytes([*found, number])
