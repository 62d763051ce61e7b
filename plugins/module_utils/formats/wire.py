# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Messages over a pair of byte streams: a byte for the kind, a length, and then JSON or a block of data.

Both ends of the console's sessions speak this format. A length is checked before anything is read. A host that works on
an answer sends an empty part every few seconds, so that its silence means that it is gone.

This module is private to the collection.
"""

from __future__ import annotations

import json
import struct
from typing import Any, Callable, NamedTuple

from ansible_collections.offheap.profiler.plugins.module_utils.formats import values
from ansible_collections.offheap.profiler.plugins.module_utils.formats.errors import OffheapError

#: the tar file of captures, where it goes through a directory instead of a stream
PACKED = "offheap-captures.tar"
_HEAD = struct.Struct(">cI")
_JSON, _DATA, _ALIVE = b"J", b"D", b"A"
#: seconds between two signs of life
BEAT = 5.0
#: the largest block of data, in bytes
BLOCK = 1 << 18

# What a message may be made of, by the characters that begin or part its values: each may take a hundred times their
# size in memory. 5,000 captures with 800 images each, or 60,000 mappings, are fewer.
_MOST = ((b"[{", 1 << 18), (b'"', 1 << 22), (b",", 1 << 22))

#: returns that many bytes, fewer only at the end of the stream
Read = Callable[[int], bytes]
Write = Callable[[bytes], Any]


class WireError(OffheapError):
    """The other end sent something that is not a message. The error's text says what."""


class StreamEnded(WireError):
    """The stream ends within a message."""


class Part(NamedTuple):
    """What was received: a JSON object in ``message``, a block in ``data``, or neither, as a sign of life."""

    message: dict[str, Any] | None
    data: bytes


def write_message(write: Write, message: dict[str, Any]) -> None:
    """Send a JSON object."""
    text = json.dumps(message, separators=(",", ":")).encode("ascii")
    write(_HEAD.pack(_JSON, len(text)) + text)


def write_data(write: Write, block: bytes) -> None:
    """Send bytes, in as many blocks as they need."""
    for start in range(0, len(block), BLOCK):
        part = block[start : start + BLOCK]
        write(_HEAD.pack(_DATA, len(part)) + part)


def write_alive(write: Write) -> None:
    """Send a sign of life."""
    write(_HEAD.pack(_ALIVE, 0))


def read(read_bytes: Read, limit: int) -> Part | None:
    """The next part, a message of at most ``limit`` bytes; None at the end of the stream. Raises WireError."""
    head = read_bytes(_HEAD.size)
    if not head:
        return None
    if len(head) < _HEAD.size:
        raise StreamEnded("the stream ends within a message")
    kind, length = _HEAD.unpack(head)
    if kind == _ALIVE and not length:
        return Part(None, b"")
    if kind not in (_JSON, _DATA):
        raise WireError(f"{head[:40]!r} is not the head of a message")
    if length > (limit if kind == _JSON else BLOCK):
        raise WireError(f"a message of {length} bytes is larger than any expected one")
    if not length:
        raise WireError("an empty message")
    body = read_bytes(length)
    if len(body) < length:
        raise StreamEnded("the stream ends within a message")
    if kind == _DATA:
        return Part(None, body)
    for characters, most in _MOST:
        if sum(body.count(character) for character in characters) > most:
            raise WireError(f"a message of {length} bytes holds more values than any expected one")
    try:
        message = values.parsed(body.decode("ascii"))
    except (ValueError, RecursionError) as exc:
        raise WireError(f"a message is not JSON: {exc}") from exc
    if not isinstance(message, dict):
        raise WireError("a message is not a JSON object")
    return Part(message, b"")
