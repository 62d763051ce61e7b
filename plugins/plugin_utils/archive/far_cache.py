# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""This user's cache of an archive at an address: where it is, and how large it may stay.

Whatever is in it can be brought or made again. Each program that uses it holds a shared lock on it. One that finds
nobody else there, and has not been preceded within the hour, first removes what was longest unused, so nothing
disappears while somebody reads it. A program may bring more than that meanwhile; the next one removes it.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import time
from pathlib import Path

from ..base.options import user_cache

#: in the cache of an archive, the address that it is the cache of
ADDRESS = "archive.address"
#: bytes that the cache of one address keeps for the next program
LARGEST_CACHE = 20 << 30
_DIRECTORIES = ("captures", "images", "symcaches")
_LOCK = ".in-use"
# Seconds between two looks at how large it is; a look takes a second for 100,000 files.
_BETWEEN = 3600


def place_of(address: str) -> Path:
    """The directory, which may not exist, of an address's cache."""
    return user_cache("archives") / hashlib.sha256(address.encode()).hexdigest()[:32]


def use(address: str) -> int:
    """Have a cache of an address, not too large if possible. Returns a descriptor, to be closed when it is no longer
    used. Raises OSError."""
    place = place_of(address)
    place.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not (place / ADDRESS).exists():
        (place / ADDRESS).write_text(address, encoding="utf-8")
    held = os.open(place / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    with contextlib.suppress(OSError):  # somebody else uses it
        if not 0 <= time.time() - os.fstat(held).st_mtime < _BETWEEN:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.utime(held)
            _remove_unused(place, LARGEST_CACHE)
    with contextlib.suppress(OSError):  # of a file system without locks, where nothing is removed
        fcntl.flock(held, fcntl.LOCK_SH)
    return held


def _remove_unused(place: Path, limit: int) -> None:
    """Remove the files that were not read for longest, until the others take at most ``limit`` bytes."""
    found: list[tuple[float, int, Path]] = []
    for name in _DIRECTORIES:
        for directory, _below, files in os.walk(place / name):
            for path in (Path(directory, file) for file in files):
                about = path.lstat()
                found.append((max(about.st_atime, about.st_mtime), about.st_size, path))
    excess = sum(size for _used, size, _path in found) - limit
    for _used, size, path in sorted(found):
        if excess <= 0:
            return
        path.unlink()
        excess -= size
        with contextlib.suppress(OSError):  # it holds something else
            os.removedirs(path.parent)
