# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""The headers of a recording's chunks: what is finished of a recording that goes on.

A chunk begins with 68 bytes: magic, version, its size, where its constants and its description of types are, start and
duration in nanoseconds, start in ticks, ticks a second, features (OpenJDK: jdk.jfr.internal.consumer.ChunkHeader).
Until async-profiler finishes a chunk, the two places are 0 (src/flightRecorder.cpp, writeHeader).

This module is private to the collection.
"""

from __future__ import annotations

import struct
from typing import Callable

from ansible_collections.offheap.profiler.plugins.module_utils.formats.errors import OffheapError

MAGIC = b"FLR\0"
#: a trace of a day has a chunk for every five seconds
MOST_CHUNKS = 1 << 15
HEADER = struct.Struct(">4sHHqqqqqqqI")


class JfrError(OffheapError):
    """The bytes are no recording. The message says what is wrong."""


def chunk_size(data: bytes, left: int) -> int:
    """The size of the chunk that begins with ``data``, 0 if it is not finished; ``left`` bytes begin there.

    Raises JfrError.
    """
    if len(data) < HEADER.size:
        raise JfrError("it ends within the header of a chunk")
    magic, major, _minor, size, constants, types = HEADER.unpack_from(data)[:6]
    if magic == MAGIC and not major:
        raise JfrError("it is of JDK 7 or 8, which is too old: record with async-profiler or a newer JDK")
    if magic != MAGIC or major not in (1, 2):
        raise JfrError("a chunk does not begin as one")
    if not constants and not types:
        return 0
    if not HEADER.size < size <= left:
        raise JfrError("a chunk is cut off")
    return int(size)


def finished(read: Callable[[int, int], bytes], size: int) -> int:
    """How many of a recording's bytes are in finished chunks; ``read`` gives (count, offset). Raises JfrError."""
    position = count = 0
    while position < size:
        if size - position < HEADER.size:
            break
        count += 1
        if count > MOST_CHUNKS:
            raise JfrError(f"it has more than {MOST_CHUNKS} chunks")
        part = chunk_size(read(HEADER.size, position), size - position)
        if not part:
            break
        position += part
    return position
