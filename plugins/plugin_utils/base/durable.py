# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Writes that survive a power failure, and the lock that shows who owns a directory."""

from __future__ import annotations

import errno
import fcntl
import gzip
import os
import shutil
from pathlib import Path


def lock(directory: Path) -> int:
    """Lock a directory and return the descriptor that holds the lock. Raises BlockingIOError if it is taken."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(fd)
        raise
    return fd


def make_directory(path: Path) -> None:
    """Create and sync a directory and its parents, so that a power failure cannot lose the path to confirmed data."""
    if not path.is_dir():
        make_directory(path.parent)
        path.mkdir(exist_ok=True)
        sync(path.parent)


def rename_directory(source: Path, target: Path) -> bool:
    """False if another writer was first. Sync the target's parent before confirming the rename to anyone."""
    try:
        os.rename(source, target)
    except OSError as exc:
        if exc.errno in (errno.EEXIST, errno.ENOTEMPTY):
            return False
        raise
    return True


def write(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    sync(path)


def compress(source: Path, target: Path) -> None:
    with source.open("rb") as stream, target.open("xb") as raw, gzip.GzipFile("", "wb", 6, raw, mtime=0) as packed:
        shutil.copyfileobj(stream, packed, 1 << 20)
    sync(target)


def sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
