# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Profiles in a directory that a service dumps into, which belongs to whoever has taken over the service.

Every step of the way is a directory and no link, so that nobody is led elsewhere. Only ordinary files of the service's
own users count, with one name, that no process of the unit is writing any more.

This module is private to the collection.
"""

from __future__ import annotations

import contextlib
import os
import stat
import time
from typing import Iterable, Iterator, NamedTuple, Sequence

from ansible_collections.offheap.profiler.plugins.module_utils.formats.pack_request import Identity
from ansible_collections.offheap.profiler.plugins.module_utils.host import procfs
from ansible_collections.offheap.profiler.plugins.module_utils.tracing.endpoint import LARGEST, OfferError

#: how many of the newest files are looked at
MOST = 100
_MOST_ENTRIES = 100_000
# Seconds without a write after which a file counts as finished, also if its writer cannot be seen.
_QUIET = 2.0
_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC


class ProfileFile(NamedTuple):
    """A finished file: its content, and when it was written (nanoseconds since the epoch)."""

    name: str
    data: bytes
    written: int


def find(path: str, pids: Sequence[int], since: float, left: dict[str, str]) -> Iterator[ProfileFile]:
    """The newest files that were written since then (seconds since the epoch), the oldest of them first.

    Adds to ``left`` why others are left. Raises OfferError.
    """
    directory = _opened(path)
    try:
        fresh = sorted(_changed(directory, _names(directory, path), since))
        owners, written = _owners(pids), _written(pids)
        for _time, name in fresh[-MOST:]:
            try:
                file = _read(directory, name, owners, written)
            except OSError as exc:
                left[name] = str(exc.strerror or exc)
            else:
                yield file
    finally:
        os.close(directory)


def _changed(directory: int, names: Iterable[str], since: float) -> Iterator[tuple[int, str]]:
    """Those that were written since then, and when."""
    for name in names:
        with contextlib.suppress(FileNotFoundError):  # the service has renamed or removed it
            status = os.stat(name, dir_fd=directory, follow_symlinks=False)
            if status.st_mtime >= since:
                yield status.st_mtime_ns, name


def _opened(path: str) -> int:
    """A descriptor of the directory, reached without any link."""
    if not path.startswith("/"):
        raise OfferError(f"{path!r} does not begin with /")
    here = os.open("/", _FLAGS | os.O_DIRECTORY)
    way = ""
    for part in filter(None, path.split("/")):
        way += f"/{part}"
        try:
            if part in (".", ".."):
                raise OfferError(f"{path!r} holds {part!r}: name the directory without it")
            below = os.open(part, _FLAGS | os.O_DIRECTORY, dir_fd=here)
        except OSError as exc:
            hint = ": name the directory that a link leads to" if os.path.islink(way) else ""
            raise OfferError(f"cannot open {way}: {exc.strerror}{hint}") from exc
        finally:
            os.close(here)
        here = below
    return here


def _names(directory: int, path: str) -> list[str]:
    found: list[str] = []
    with os.scandir(directory) as entries:
        for entry in entries:
            if len(found) == _MOST_ENTRIES:
                raise OfferError(f"{path} has more than {_MOST_ENTRIES} files: remove old ones")
            if not entry.is_dir(follow_symlinks=False):
                found.append(entry.name)
    return found


def _owners(pids: Sequence[int]) -> set[int]:
    """The users that the unit's processes run as."""
    found: set[int] = set()
    for pid in pids:
        try:
            found.add(int(procfs.status(pid)["Uid"].split()[1]))
        except procfs.ProcfsError:
            continue
    return found


def _written(pids: Sequence[int]) -> set[tuple[int, int]]:
    """Device and inode of the files that the unit's processes are writing."""
    found: set[tuple[int, int]] = set()
    for pid in pids:
        try:
            found |= {(one.dev, one.inode) for one in procfs.open_files(pid) if one.writable}
        except procfs.ProcfsError:
            continue
    return found


def _read(directory: int, name: str, owners: set[int], written: set[tuple[int, int]]) -> ProfileFile:
    """Raises OSError with the reason to leave the file."""
    # O_NONBLOCK: opening a FIFO must not wait for its writer
    fd = os.open(name, _FLAGS | os.O_NONBLOCK | os.O_NOCTTY, dir_fd=directory)
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise OSError("it is not an ordinary file")
        if status.st_nlink != 1:
            raise OSError(f"it has {status.st_nlink} names (hard links)")
        if status.st_uid not in owners:
            raise OSError(f"it belongs to user {status.st_uid}, which is none of the service's")
        if status.st_size > LARGEST:
            raise OSError(f"it is larger than {LARGEST >> 20} MiB")
        if (status.st_dev, status.st_ino) in written or 0 <= time.time() - status.st_mtime < _QUIET:
            raise OSError("it is being written")
        with open(os.dup(fd), "rb") as file:
            data = file.read(status.st_size)
        if Identity.of(os.fstat(fd)) != Identity.of(status) or len(data) != status.st_size:
            raise OSError("it changed while it was read")
        return ProfileFile(name, data, status.st_mtime_ns)
    finally:
        os.close(fd)
