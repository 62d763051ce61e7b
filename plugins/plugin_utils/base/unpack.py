# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""A file's content, unpacked if it is gzip, zstd, LZ4, xz or bzip2, within a size limit.

A kilobyte of packed data can expand to gigabytes. Dumps are text and pack ten to twenty times; whatever expands more
than ``MOST_RATIO`` times, or beyond the caller's limit, is refused before it fills the memory.
"""

from __future__ import annotations

import bz2
import io
import lzma
import re
import zlib
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from . import libraries
from .errors import ControllerError

zstandard = libraries.optional("zstandard")
pyarrow = libraries.optional("pyarrow")

# Small files may hold this much whatever their ratio: repeated lines pack far better than real dumps.
FREE_SIZE = 1 << 20
MOST_RATIO = 200
_LEAST_PIECE, _PIECE = 1 << 6, 1 << 16
_GZIP, _ZSTD, _LZ4 = b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"\x04\x22\x4d\x18"
_XZ, _BZIP2 = b"\xfd7zX", b"BZh"
_PADDING = re.compile(rb"\0+")
# The formats allow windows of gigabytes; the command line tool of zstd accepts 128 MiB by default.
_WINDOW = 128 << 20


class UnpackError(ControllerError):
    """Packed data is damaged or too large. The message says which file and why."""


def read(path: Path, limit: int, free: int = FREE_SIZE) -> bytes:
    """The file's bytes, unpacked. Raises OSError, and UnpackError if it is damaged or larger than ``limit`` bytes.

    Up to ``free`` bytes are unpacked from however little.
    """
    with path.open("rb") as stream:
        # read() allocates what it is asked for: the limit may be a thousand times the file, which may still grow.
        packed = stream.read(min(limit, path.stat().st_size) + 1)
    return unpack(packed, path.name, limit, free)


def unpack(data: bytes, name: str, limit: int, free: int = FREE_SIZE) -> bytes:
    """The content of packed data; other data as it is. Raises UnpackError as ``read`` does."""
    if len(data) > limit:
        raise UnpackError(f"{name}: is larger than {limit} bytes")
    unpacker = next((unpacker for magic, unpacker in _UNPACKERS.items() if data.startswith(magic)), None)
    if unpacker is None:
        return data
    pieces = unpacker(data, name)
    bound = min(limit, max(free, MOST_RATIO * len(data)))
    content = bytearray()
    for piece in pieces:
        content += piece
        if len(content) > bound:
            raise UnpackError(f"{name}: unpacks to more than {bound} bytes")
    return bytes(content)


def _gunzip(data: bytes, name: str) -> Iterator[bytes]:
    return _streams(data, name, "gzip", _GZIP, _Gunzip)


def _unzstd(data: bytes, name: str) -> Iterator[bytes]:
    unpacker: Any = zstandard.ZstdDecompressor(max_window_size=_WINDOW)
    rest: BinaryIO = io.BytesIO(data)
    size = 0
    try:
        # This reader does not notice what is cut off, unless a frame says its size, as ours and those of files do.
        # pyarrow's does, and takes a quarter of a second to load.
        promised = zstandard.frame_content_size(data)
        if promised >= 0:
            with unpacker.stream_reader(rest, read_across_frames=True) as stream:
                while piece := stream.read(_PIECE):
                    size += len(piece)
                    yield piece
        if size < promised:
            raise UnpackError(f"{name}: is cut off after {size} of {promised} bytes of its zstd data")
    except zstandard.ZstdError as error:
        raise UnpackError(f"{name}: its zstd data is damaged: {error}") from error
    if promised < 0:
        yield from _by_arrow(data, name, "zstd")
    elif size > promised:  # further frames follow
        deque(_by_arrow(data, name, "zstd"), maxlen=0)


def _unlz4(data: bytes, name: str) -> Iterator[bytes]:
    return _by_arrow(data, name, "LZ4")


def _by_arrow(data: bytes, name: str, kind: str) -> Iterator[bytes]:
    piece = bytearray(_PIECE)
    try:
        with pyarrow.CompressedInputStream(pyarrow.BufferReader(data), kind.lower()) as stream:
            while size := stream.readinto(piece):  # read() of pyarrow 26 never frees its buffer once it has failed
                yield bytes(piece[:size])
    except OSError as error:
        raise UnpackError(f"{name}: its {kind} data is damaged or cut off: {error}") from error


def _unxz(data: bytes, name: str) -> Iterator[bytes]:
    return _streams(data, name, "xz", _XZ, lambda: lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_WINDOW))


def _unbzip2(data: bytes, name: str) -> Iterator[bytes]:
    return _streams(data, name, "bzip2", _BZIP2, bz2.BZ2Decompressor)


class _Gunzip:
    """zlib's unpacker, as those of bz2 and lzma are."""

    def __init__(self) -> None:
        self._own = zlib.decompressobj(wbits=31)

    @property
    def eof(self) -> bool:
        return self._own.eof

    @property
    def needs_input(self) -> bool:
        return not self._own.unconsumed_tail

    @property
    def unused_data(self) -> bytes:
        return self._own.unused_data

    def decompress(self, data: bytes, most: int) -> bytes:
        return self._own.decompress(self._own.unconsumed_tail + data, most)


def _streams(
    data: bytes,
    name: str,
    kind: str,
    magic: bytes,
    unpacker_of: Callable[[], bz2.BZ2Decompressor | lzma.LZMADecompressor | _Gunzip],
) -> Iterator[bytes]:
    at = 0
    try:
        while at < len(data):  # streams follow each other, as after "cat a.xz b.xz"
            if not data.startswith(magic, at):
                raise UnpackError(f"{name}: something follows its {kind} data")
            # Pieces grow: what a stream gets beyond its end is fed again, so one of a few bytes must not get many.
            unpacker, size = unpacker_of(), _LEAST_PIECE
            while not unpacker.eof:
                piece = data[at : at + size] if unpacker.needs_input else b""
                if unpacker.needs_input and not piece:
                    raise UnpackError(f"{name}: is cut off: its {kind} data has no end")
                at, size = at + len(piece), min(2 * size, _PIECE)
                yield unpacker.decompress(piece, _PIECE)
            at -= len(unpacker.unused_data)
            padding = _PADDING.match(data, at)
            at = padding.end() if padding else at
    except (OSError, lzma.LZMAError, zlib.error) as error:
        raise UnpackError(f"{name}: its {kind} data is damaged: {error}") from error


_UNPACKERS: dict[bytes, Callable[[bytes, str], Iterator[bytes]]] = {
    _GZIP: _gunzip,
    _ZSTD: _unzstd,
    _LZ4: _unlz4,
    _XZ: _unxz,
    _BZIP2: _unbzip2,
}
