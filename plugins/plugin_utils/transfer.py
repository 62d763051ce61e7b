# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Unpack what a target has sent, which may be anything.

Only the one shape is accepted that our own packing has (staging.py): ordinary files, each of the size that was
announced, under names that the controller itself gave out. No name of the target's ever becomes a path here, and no
byte is written beyond what was announced, however much the file would decompress to.
"""

from __future__ import annotations

import gzip
import hashlib
import os
import tarfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

_RECORD = 512
_BLOCK = 1 << 20
#: tar files are filled up to a multiple of this, behind two empty records
_MAX_PADDING = 10240 + 2 * _RECORD


class TransferError(Exception):
    """What a target sent is not what it should be. The message says what is wrong with it."""


def verify(path: Path, size: int, sha256: str) -> None:
    """Check that the file has come as it was sent. Raises TransferError."""
    found = path.stat().st_size
    if found != size:
        raise TransferError(f"the transfer was broken off: {found} of {size} bytes have arrived; run again")
    if file_sha256(path) != sha256:
        raise TransferError("the transfer was damaged: the checksum is not the one on the target; run again")


def file_sha256(path: Path) -> str:
    """SHA-256 of a file, in hex."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def unpack(source: Path, target: Path, announced: Mapping[str, int]) -> dict[str, Path]:
    """Unpack a tar.gz file into new files in the directory C(target).

    C(announced) has the size in bytes of each member by its name; these and no others must be there, once each. The
    files are named by number. Returns them by member. Raises TransferError.
    """
    found: dict[str, Path] = {}
    with _damaged(), gzip.open(source, "rb") as stream:
        while True:
            member = _next_member(stream, announced, found)
            if member is None:
                break
            found[member] = target / f"member-{len(found)}"
            _write(stream, found[member], announced[member])
        _check_end(stream)
    missing = sorted(set(announced) - set(found))
    if missing:
        raise TransferError(f"{len(missing)} of {len(announced)} announced files are not in the transfer: {missing[0]}")
    return found


@contextmanager
def _damaged() -> Iterator[None]:
    try:
        yield
    except (gzip.BadGzipFile, EOFError, zlib.error, tarfile.TarError) as exc:
        raise TransferError(f"the packed file is damaged: {exc}") from exc


def _next_member(stream: gzip.GzipFile, announced: Mapping[str, int], found: Mapping[str, Path]) -> str | None:
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


def _write(stream: gzip.GzipFile, path: Path, size: int) -> None:
    with path.open("xb") as output:
        left = size
        while left:
            block = _exactly(stream, min(left, _BLOCK))
            output.write(block)
            left -= len(block)
    _exactly(stream, -size % _RECORD)


def _check_end(stream: gzip.GzipFile) -> None:
    rest = stream.read(_MAX_PADDING + 1)
    if len(rest) > _MAX_PADDING or any(rest):
        raise TransferError("the packed file goes on after its end")


def _exactly(stream: gzip.GzipFile, length: int) -> bytes:
    block = stream.read(length)
    if len(block) != length:
        raise EOFError("it ends too early")
    return block


def check_room(directory: Path, needed: int) -> None:
    """Raises TransferError unless C(needed) bytes fit into the directory's file system."""
    status = os.statvfs(directory)
    available = status.f_bavail * status.f_frsize
    if available < needed:
        raise TransferError(
            f"the archive needs up to {needed} bytes for the next transfer and its file system has {available} free;"
            " make room, name an archive on another file system, or lower max_batch"
        )
