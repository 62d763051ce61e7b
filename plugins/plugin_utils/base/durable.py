# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Files and directories that a power failure cannot take back, and the lock that tells whose they are."""

from __future__ import annotations

import errno
import fcntl
import gzip
import os
import shutil
from pathlib import Path


def lock(directory: Path) -> int:
    """A descriptor that holds the lock on a directory. Raises BlockingIOError where another process has it."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(fd)
        raise
    return fd


def make_directory(path: Path) -> None:
    """With its parents, so that a power failure cannot take the way to what has been confirmed."""
    if not path.is_dir():
        make_directory(path.parent)
        path.mkdir(exist_ok=True)
        sync(path.parent)


def rename_directory(source: Path, target: Path) -> bool:
    """False when another writer was first. Whoever confirms it brings the target's parent to the disk before."""
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
