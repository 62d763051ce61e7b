# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""A file's content, unpacked where it is gzip or zstd, with a bound on what it may grow to.

A packed file of a kilobyte can stand for gigabytes. Dumps are text and pack ten to twenty times; what unpacks further
than ``MOST_RATIO`` times, or beyond the caller's limit, is refused before it is in memory.
"""

from __future__ import annotations

import io
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from ..readers.heap_v2 import HeapFormatError
from . import libraries

zstandard = libraries.optional("zstandard")

# Small files may hold this much whatever their ratio: repeated lines pack far better than real dumps.
FREE_SIZE = 1 << 20
MOST_RATIO = 200
_PIECE = 1 << 16
_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
# The format allows windows of gigabytes; 128 MiB is what the command line tool accepts without being asked.
_WINDOW = 128 << 20


def read(path: Path, limit: int) -> bytes:
    """The file's bytes, unpacked. HeapFormatError if it is damaged or larger than ``limit`` bytes, OSError as usual."""
    with path.open("rb") as stream:
        # What is asked for is allocated, and the file may be a thousandth of the limit, or grow meanwhile.
        packed = stream.read(min(limit, path.stat().st_size) + 1)
    return unpack(packed, path.name, limit)


def unpack(data: bytes, name: str, limit: int) -> bytes:
    """The content of gzip or zstd data; other data as it is. HeapFormatError as in ``read``."""
    if len(data) > limit:
        raise HeapFormatError(name, 1, f"at most {limit} bytes")
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
            raise HeapFormatError(name, content.count(b"\n") + 1, f"at most {bound} bytes of unpacked data")
    return bytes(content)


def _gunzip(data: bytes, name: str) -> Iterator[bytes]:
    rest = data
    while rest.startswith(_GZIP):  # members follow each other, as after "cat a.gz b.gz"
        unpacker = zlib.decompressobj(wbits=31)
        stream = io.BytesIO(rest)
        while not unpacker.eof:
            piece = unpacker.unconsumed_tail or stream.read(_PIECE)
            if not piece:
                raise HeapFormatError(name, 1, "the end of the gzip data (the file is cut off)")
            try:
                yield unpacker.decompress(piece, _PIECE)
            except zlib.error as error:
                raise HeapFormatError(name, 1, f"gzip data that unpacks ({error})") from error
        rest = unpacker.unused_data + stream.read()
    if rest.strip(b"\0"):
        raise HeapFormatError(name, 1, "nothing after the gzip data")


def _unzstd(data: bytes, name: str) -> Iterator[bytes]:
    unpacker: Any = zstandard.ZstdDecompressor(max_window_size=_WINDOW)
    rest: BinaryIO = io.BytesIO(data)
    size = 0
    try:
        # The size of the content, where the header says it: the reader does not tell a frame that is cut off.
        promised = zstandard.frame_content_size(data)
        with unpacker.stream_reader(rest, read_across_frames=True) as stream:
            while piece := stream.read(_PIECE):
                size += len(piece)
                yield piece
        if size < promised:
            raise HeapFormatError(name, 1, f"zstd data of {promised} bytes (the file is cut off after {size} of them)")
    except zstandard.ZstdError as error:
        raise HeapFormatError(name, 1, f"zstd data that unpacks ({error})") from error
