# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Recordings of a few events, written by hand, whose types have their fields in another order than async-profiler's."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from ansible_collections.offheap.profiler.plugins.module_utils.formats.jfr_header import HEADER, MAGIC

# number: (name, fields: name, type, "p" for a number of a constant, "a" for an array)
_TYPES: dict[int, tuple[str, tuple[tuple[str, int, str], ...]]] = {
    1: ("long", ()),
    2: ("java.lang.String", ()),
    3: ("boolean", ()),
    4: ("float", ()),
    10: ("jdk.types.Symbol", (("string", 2, ""),)),
    11: ("java.lang.Class", (("hidden", 3, ""), ("name", 10, "p"))),
    12: ("jdk.types.Method", (("name", 10, "p"), ("type", 11, "p"))),
    13: ("jdk.types.FrameType", (("description", 2, ""),)),
    14: ("jdk.types.StackFrame", (("type", 13, "p"), ("lineNumber", 1, ""), ("method", 12, "p"))),
    15: ("jdk.types.StackTrace", (("frames", 14, "a"), ("truncated", 3, ""))),
    20: (
        "profiler.Malloc",
        (("size", 1, ""), ("flag", 3, ""), ("address", 1, ""), ("stackTrace", 15, "p"), ("startTime", 1, "")),
    ),
    21: ("profiler.Free", (("address", 1, ""), ("startTime", 1, ""))),
    23: (
        "datadog.NativeMemoryAllocation",
        (("startTime", 1, ""), ("stackTrace", 15, "p"), ("weight", 4, ""), ("size", 1, ""), ("address", 1, "")),
    ),
    22: ("jdk.ActiveSetting", (("value", 2, ""), ("name", 2, ""))),
}  # fmt: skip
#: an allocation is (ticks, address, size, stack), one of Datadog's has its weight behind, a free is (ticks, address)
Event = tuple[int, int, int, int] | tuple[int, int, int, int, float] | tuple[int, int]


def recording(
    *chunks: Sequence[Event],
    interval: int | None = 1000,
    native: Sequence[str] = ("serve", "main"),
    nanoseconds: int = 10**9,
) -> bytes:
    """A recording with a chunk of each of these events; stack 1 has these native functions, 2 one Java method. A
    tick is a nanosecond since it began."""
    return b"".join(
        _chunk(events, interval if not number else None, native, nanoseconds) for number, events in enumerate(chunks)
    )


def _chunk(events: Sequence[Event], interval: int | None, native: Sequence[str], nanoseconds: int) -> bytes:
    parts = [_event(22, _text(str(interval)) + _text("nativemem"))] if interval is not None else []
    for event in events:
        if len(event) == 5:
            ticks, address, size, stack, weight = event
            numbers = _number(ticks) + _number(stack) + struct.pack(">f", weight)
            parts.append(_event(23, numbers + _number(size) + _number(address)))
        elif len(event) == 4:
            ticks, address, size, stack = event
            parts.append(_event(20, _number(size) + b"\0" + _number(address) + _number(stack) + _number(ticks)))
        else:
            parts.append(_event(21, _number(event[1]) + _number(event[0])))
    body = b"".join(parts)
    constants = HEADER.size + len(body)
    body += _constants(native)
    types = HEADER.size + len(body)
    body += _description()
    return HEADER.pack(MAGIC, 2, 0, HEADER.size + len(body), constants, types, 10**18, nanoseconds, 0, 10**9, 1) + body


def _number(value: int) -> bytes:
    found = bytearray()
    for _byte in range(8):
        if value < 0x80:
            return bytes([*found, value])
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*found, value])


def _text(text: str) -> bytes:
    data = text.encode()
    return b"\3" + _number(len(data)) + data


def _event(kind: int, payload: bytes) -> bytes:
    content = _number(kind) + payload
    width = 1
    while len(_number(len(content) + width)) > width:
        width += 1
    return _number(len(content) + width) + content


def _constants(native: Sequence[str]) -> bytes:
    names = [*native, "java/util/zip/Deflater", "init", "Native", "JIT compiled"]
    java = len(native)
    pools = {
        10: {number: _text(name) for number, name in enumerate(names)},
        11: {1: b"\0" + _number(java)},
        12: {
            **{number: _number(number) + b"\0" for number in range(len(native))},
            java: _number(java + 1) + b"\1",
        },
        13: {1: _text("Native"), 2: _text("JIT compiled")},
        15: {
            1: _number(len(native)) + b"".join(b"\1\0" + _number(number) for number in range(len(native))) + b"\0",
            2: b"\1" + b"\2\0" + _number(java) + b"\0",
        },
    }
    found = b"\0\0\0\1" + _number(len(pools))
    for kind, pool in pools.items():
        found += _number(kind) + _number(len(pool))
        found += b"".join(_number(number) + value for number, value in pool.items())
    return _event(1, found)


def _description() -> bytes:
    texts: dict[str, int] = {}

    def text(word: str) -> bytes:
        return _number(texts.setdefault(word, len(texts)))

    def element(name: str, attributes: dict[str, str], children: Sequence[bytes] = ()) -> bytes:
        found = text(name) + _number(len(attributes))
        found += b"".join(text(key) + text(value) for key, value in attributes.items())
        return found + _number(len(children)) + b"".join(children)

    classes = []
    for number, (name, fields) in _TYPES.items():
        inner = []
        for field, kind, how in fields:
            said = {"name": field, "class": str(kind)}
            said |= {"constantPool": "true"} if how == "p" else {"dimension": "1"} if how == "a" else {}
            inner.append(element("field", said))
        classes.append(element("class", {"id": str(number), "name": name}, inner))
    root = element("root", {}, [element("metadata", {}, classes)])
    return _event(0, b"\0\0\0" + _number(len(texts)) + b"".join(map(_text, texts)) + root)
