# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Unpacks what a target sent, which may be anything.

Only the shape of our own packing is accepted (spool/pack.py): ordinary files, each of the announced size, under names
that the controller itself chose. No name from the target ever becomes a path here, and no byte beyond what was
announced is written, however much the file would decompress to.
"""

from __future__ import annotations

import gzip
import hashlib
import os
import shutil
import tarfile
import zlib
from collections.abc import Callable, Container, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from ..base import libraries
from ..base.errors import ControllerError

zstandard = libraries.optional("zstandard")

_RECORD = 512
_BLOCK = 1 << 17
_ZSTD = b"\x28\xb5\x2f\xfd"
#: what our own packing needs at most, and every decoder has to take (RFC 8878, 3.1.1.1.2)
_MAX_WINDOW = 8 << 20
#: tar files are filled up to a multiple of this, behind two empty records
_MAX_PADDING = 10240 + 2 * _RECORD


class TransferError(ControllerError):
    """What a target sent is not what it should be. The message says what is wrong."""


def verify(path: Path, size: int, sha256: str) -> None:
    """Check that the file arrived as it was sent. Raises TransferError."""
    found = path.stat().st_size
    if found != size:
        raise TransferError(f"the transfer was cut off: {found} of {size} bytes arrived; run again")
    with path.open("rb") as stream:
        arrived = hashlib.file_digest(stream, "sha256").hexdigest()
    if arrived != sha256:
        raise TransferError("the transfer was damaged: the checksum differs from the one on the target; run again")


class Output(Protocol):
    """Takes the content of a member."""

    def write(self, block: bytes) -> Any:
        """Take all of the block."""


class _Input(Protocol):
    """Gives what the file unpacks to."""

    def read(self, length: int, /) -> bytes:
        """So many bytes, fewer only at the end."""


#: opens what takes a member's content, by the member's name
Opened = Callable[[str], AbstractContextManager[Output]]


def unpack(source: Path, announced: Mapping[str, int], opened: Opened) -> None:
    """Unpack a tar file, packed with zstd or gzip, each member into what ``opened`` gives for it.

    ``announced`` has the size in bytes of each member by name; exactly these must be present, once each. Raises
    TransferError.
    """
    found: set[str] = set()
    with _damaged(), _opened(source) as stream:
        while True:
            member = _next_member(stream, announced, found)
            if member is None:
                break
            found.add(member)
            with opened(member) as output:
                _copy(stream, output, announced[member])
        _check_end(stream)
    missing = sorted(set(announced) - found)
    if missing:
        raise TransferError(f"{len(missing)} of {len(announced)} announced files are not in the transfer: {missing[0]}")


@contextmanager
def _opened(source: Path) -> Iterator[_Input]:
    with source.open("rb") as file:
        magic = file.read(len(_ZSTD))
        file.seek(0)
        if magic != _ZSTD:
            with gzip.open(file) as stream:
                yield stream
            return
        unpacker = zstandard.ZstdDecompressor(max_window_size=_MAX_WINDOW)
        yield unpacker.stream_reader(file, _BLOCK, read_across_frames=True, closefd=False)


@contextmanager
def _damaged() -> Iterator[None]:
    try:
        yield
    except (gzip.BadGzipFile, EOFError, zlib.error, zstandard.ZstdError, tarfile.TarError) as exc:
        raise TransferError(f"the packed file is damaged: {exc}") from exc


def _next_member(stream: _Input, announced: Mapping[str, int], found: Container[str]) -> str | None:
    """The name of the next member, None at the end. tarfile is only given the one header, so it follows nothing."""
    header = _exactly(stream, _RECORD)
    if not any(header):
        return None
    info = tarfile.TarInfo.frombuf(header, "ascii", "surrogateescape")
    shown = info.name[:100]
    if info.type != tarfile.REGTYPE:
        raise TransferError(f"{shown!r} in the packed file is not an ordinary file")
    if info.name not in announced:
        raise TransferError(f"{shown!r} in the packed file was not asked for")
    if info.name in found:
        raise TransferError(f"{shown!r} is in the packed file twice")
    if info.size != announced[info.name]:
        raise TransferError(f"{shown!r} has {info.size} bytes instead of the announced {announced[info.name]}")
    return info.name


def _copy(stream: _Input, output: Output, size: int) -> None:
    left = size
    while left:
        block = _exactly(stream, min(left, _BLOCK))
        output.write(block)
        left -= len(block)
    _exactly(stream, -size % _RECORD)


def _check_end(stream: _Input) -> None:
    rest = stream.read(_MAX_PADDING + 1)
    if len(rest) > _MAX_PADDING or any(rest):
        raise TransferError("the packed file continues after its end")


def _exactly(stream: _Input, length: int) -> bytes:
    block = stream.read(length)
    if len(block) != length:
        raise EOFError("it ends too early")
    return block


@contextmanager
def leaving_holes(path: Path) -> Iterator[Output]:
    """Takes the content of a new file. Zeros, as sparse files consist of, take no room in it. Raises OSError."""
    with path.open("xb") as stream:
        yield _Sparse(stream)
        stream.truncate(stream.tell())


class _Sparse:
    """Skips blocks of zeros."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream

    def write(self, block: bytes) -> None:
        """Take all of the block."""
        if block.count(0) == len(block):
            self._stream.seek(len(block), os.SEEK_CUR)
        else:
            self._stream.write(block)


def room(directory: Path) -> int:
    """The free bytes on the directory's file system. Raises OSError."""
    return shutil.disk_usage(directory).free


def check_room(directory: Path, needed: int) -> None:
    """Raises TransferError unless ``needed`` bytes fit on the directory's file system."""
    available = room(directory)
    if available < needed:
        raise TransferError(
            f"the archive needs up to {needed} bytes for the next transfer and its file system has {available} free;"
            " make room, name an archive on another file system, or lower max_batch"
        )
