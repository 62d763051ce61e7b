# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""A file's content, unpacked if it is gzip or zstd, within a size limit.

A kilobyte of packed data can expand to gigabytes. Dumps are text and pack ten to twenty times; whatever expands more
than ``MOST_RATIO`` times, or beyond the caller's limit, is refused before it fills the memory.
"""

from __future__ import annotations

import io
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from . import libraries
from .errors import ControllerError

zstandard = libraries.optional("zstandard")

# Small files may hold this much whatever their ratio: repeated lines pack far better than real dumps.
FREE_SIZE = 1 << 20
MOST_RATIO = 200
_PIECE = 1 << 16
_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
# The format allows windows of gigabytes; the command line tool accepts 128 MiB by default.
_WINDOW = 128 << 20


class UnpackError(ControllerError):
    """Packed data is damaged or too large. The message says which file and why."""


def read(path: Path, limit: int) -> bytes:
    """The file's bytes, unpacked. Raises OSError, and UnpackError if it is damaged or larger than ``limit`` bytes."""
    with path.open("rb") as stream:
        # read() allocates what it is asked for: the limit may be a thousand times the file, which may still grow.
        packed = stream.read(min(limit, path.stat().st_size) + 1)
    return unpack(packed, path.name, limit)


def unpack(data: bytes, name: str, limit: int) -> bytes:
    """The content of gzip or zstd data; other data as it is. Raises UnpackError as ``read`` does."""
    if len(data) > limit:
        raise UnpackError(f"{name}: is larger than {limit} bytes")
    if data.startswith(_GZIP):
        pieces = _gunzip(data, name)
    elif data.startswith(_ZSTD):
        pieces = _unzstd(data, name)
    else:
        return data
    bound = min(limit, max(FREE_SIZE, MOST_RATIO * len(data)))
    content = bytearray()
    for piece in pieces:
        content += piece
        if len(content) > bound:
            raise UnpackError(f"{name}: unpacks to more than {bound} bytes")
    return bytes(content)


def _gunzip(data: bytes, name: str) -> Iterator[bytes]:
    rest = data
    while rest.startswith(_GZIP):  # members follow each other, as after "cat a.gz b.gz"
        unpacker = zlib.decompressobj(wbits=31)
        stream = io.BytesIO(rest)
        while not unpacker.eof:
            piece = unpacker.unconsumed_tail or stream.read(_PIECE)
            if not piece:
                raise UnpackError(f"{name}: is cut off: its gzip data has no end")
            try:
                yield unpacker.decompress(piece, _PIECE)
            except zlib.error as error:
                raise UnpackError(f"{name}: its gzip data is damaged: {error}") from error
        rest = unpacker.unused_data + stream.read()
    if rest.strip(b"\0"):
        raise UnpackError(f"{name}: something follows its gzip data")


def _unzstd(data: bytes, name: str) -> Iterator[bytes]:
    unpacker: Any = zstandard.ZstdDecompressor(max_window_size=_WINDOW)
    rest: BinaryIO = io.BytesIO(data)
    size = 0
    try:
        # The header may state the content's size; the reader itself does not notice a truncated frame.
        promised = zstandard.frame_content_size(data)
        with unpacker.stream_reader(rest, read_across_frames=True) as stream:
            while piece := stream.read(_PIECE):
                size += len(piece)
                yield piece
        if size < promised:
            raise UnpackError(f"{name}: is cut off after {size} of {promised} bytes of its zstd data")
    except zstandard.ZstdError as error:
        raise UnpackError(f"{name}: its zstd data is damaged: {error}") from error
