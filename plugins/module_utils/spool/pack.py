# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""One compressed tar file of dumps and images, written for the login user to fetch.

It is streamed to disk, so memory stays at a few MiB whatever is packed. Ansible made the directory for the task, and it
belongs to the login user, so we use it through its descriptor and follow no link in it.

This module is private to the collection.
"""

from __future__ import annotations

import contextlib
import functools
import gzip
import hashlib
import os
import shutil
import stat
import tarfile
import time
from typing import IO, Any, Callable, NamedTuple, cast

from ansible_collections.offheap.profiler.plugins.module_utils.formats.errors import OffheapError
from ansible_collections.offheap.profiler.plugins.module_utils.formats.wire import PACKED

#: of gzip: heap dumps shrink to an eighth already, and the next levels cost the service CPU for a few per cent more
_LEVEL = 1
_RESERVE = 1 << 20
#: bytes at a time; tarfile's default of ten thousand would take ten times as many messages to stream
_BLOCK = 1 << 17
#: seconds after which a packed file is no longer being transferred
_STALE = 7200


class StagingError(OffheapError):
    """The file could not be written. The message says why, and what to change."""


class Item(NamedTuple):
    """Something to pack: its name in the tar file, and what opens it (raises an OSError or a ``Skip``)."""

    member: str
    open: Callable[[], int]


class Skip(OffheapError):
    """The item cannot be packed, the others can. The message says why."""


#: receives the packed bytes as they come
Target = Callable[[bytes], Any]


class _Output:
    """Counts and hashes what goes to the target."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self.size = 0
        self.sha256 = hashlib.sha256()

    def write(self, block: bytes) -> int:
        self._target(block)
        self.size += len(block)
        self.sha256.update(block)
        return len(block)

    def flush(self) -> None:
        """Nothing is buffered."""


class _Input:
    """A file at its first length: if it shrinks meanwhile, it is padded with zeros, and ``short`` is set."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self.size = self._left = os.fstat(fd).st_size
        self.short = False

    def read(self, length: int) -> bytes:
        length = min(length, self._left)
        block = b"" if self.short else os.pread(self._fd, length, self.size - self._left)
        if len(block) < length:
            self.short = True
            block += bytes(length - len(block))
        self._left -= length
        return block


def free(directory: str) -> int:
    """The free bytes on the directory's file system. Raises StagingError."""
    try:
        return shutil.disk_usage(directory).free
    except OSError as exc:
        raise StagingError(f"cannot examine the temporary directory {directory}: {exc.strerror}") from exc


def check_free(directory: str, needed: int) -> None:
    """Raise StagingError unless ``needed`` bytes fit, with a reserve for what others write meanwhile."""
    available = free(directory)
    if available < needed + _RESERVE:
        raise StagingError(
            f"packing needs up to {needed + _RESERVE} bytes in {directory}, where {available} are free; make room, set"
            " ansible_remote_tmp to a directory on another file system, or lower max_batch"
        )


def pack(directory: str, items: list[Item], needed: int) -> dict[str, Any]:
    """Write the tar file into the directory and give it to the directory's owner.

    ``needed`` is the size of all items, in bytes. Returns size and sha256 of the file, the names of its members with
    their sizes, and why each item left out could not be packed. Raises StagingError.
    """
    check_free(directory, needed)
    path = os.path.join(directory, PACKED)
    handle = _open_directory(directory)
    try:
        remove(directory)
        fd = os.open(PACKED, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=handle)
        try:
            owner = os.fstat(handle)
            if owner.st_uid != os.geteuid():
                os.fchown(fd, owner.st_uid, owner.st_gid)
            packed = stream(functools.partial(_write_all, fd), items)
        except BaseException:
            os.unlink(PACKED, dir_fd=handle)
            raise
        finally:
            os.close(fd)
    except OSError as exc:
        raise StagingError(
            f"cannot write {path}: {exc.strerror or exc}; the task's user must be able to write to the temporary"
            " directory (use become with root), and its file system must have enough room (ansible_remote_tmp)"
        ) from exc
    finally:
        os.close(handle)
    return packed


def stream(target: Target, items: list[Item]) -> dict[str, Any]:
    """Give the tar file to the target, block by block. Returns what ``pack`` returns."""
    output = _Output(target)
    members, skipped = _write(output, items)
    return {
        "size": output.size,
        "sha256": output.sha256.hexdigest(),
        "members": members,
        "skipped": skipped,
    }


def _write_all(fd: int, block: bytes) -> None:
    view = memoryview(block)
    while view:
        view = view[os.write(fd, view) :]


def _open_directory(directory: str) -> int:
    try:
        handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as exc:
        raise StagingError(f"cannot open the temporary directory {directory}: {exc.strerror}") from exc
    if os.fstat(handle).st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        os.close(handle)
        raise StagingError(f"users other than its owner can write to the temporary directory {directory}")
    return handle


def _write(output: _Output, items: list[Item]) -> tuple[dict[str, int], dict[str, str]]:
    members: dict[str, int] = {}
    skipped: dict[str, str] = {}
    blocks: dict[str, Any] = {"bufsize": _BLOCK, "copybufsize": _BLOCK}
    form = tarfile.GNU_FORMAT
    with _compressed(output) as packer, tarfile.open(fileobj=packer, mode="w|", format=form, **blocks) as archive:
        for item in items:
            try:
                fd = item.open()
            except (OSError, Skip) as exc:
                skipped[item.member] = str(exc)
                continue
            try:
                source = _Input(fd)
                info = tarfile.TarInfo(item.member)
                info.size = source.size
                info.mode = 0o600
                archive.addfile(info, cast(IO[bytes], source))
            finally:
                os.close(fd)
            members[item.member] = source.size
            if source.short:
                skipped[item.member] = "it became shorter while it was packed"
    return members, skipped


def _compressed(output: _Output) -> Any:
    """What packs all that is written to it: with zstd, or with gzip where the host has no libzstd, or its Python no
    ctypes."""
    with contextlib.suppress(ImportError):
        from ansible_collections.offheap.profiler.plugins.module_utils.spool import zstd

        found = zstd.library()
        if found is not None:
            return zstd.Writer(found, output.write)
    return gzip.GzipFile(fileobj=cast(IO[bytes], output), mode="wb", compresslevel=_LEVEL, mtime=0)


def clear_stale(directory: str) -> None:
    """Delete packed files that broken runs of the same login user left beside ``directory`` hours ago.

    The directories themselves are Ansible's and stay.
    """
    directory = directory.rstrip("/")
    handle = _open_directory(directory)
    try:
        owner = os.fstat(handle).st_uid
    finally:
        os.close(handle)
    parent = os.path.dirname(directory)
    for name in os.listdir(parent):
        if not name.startswith("ansible-tmp-") or name == os.path.basename(directory):
            continue
        try:
            other = _open_directory(os.path.join(parent, name))
        except StagingError:
            continue
        try:
            packed = os.stat(PACKED, dir_fd=other, follow_symlinks=False)
            if os.fstat(other).st_uid == packed.st_uid == owner and abs(time.time() - packed.st_mtime) > _STALE:
                os.unlink(PACKED, dir_fd=other)
        except FileNotFoundError:
            continue
        finally:
            os.close(other)


def remove(directory: str) -> None:
    """Delete the tar file of an earlier call, if there is one."""
    try:
        os.unlink(os.path.join(directory, PACKED))
    except FileNotFoundError:
        pass
    except OSError as exc:
        raise StagingError(f"cannot delete {directory}/{PACKED}: {exc.strerror}") from exc
