# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""What of ours stays on a host when no unit is profiled any more: what was installed, and the dumps.

This module is private to the collection.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import stat
from typing import Iterator, NamedTuple

from ansible_collections.offheap.profiler.plugins.module_utils.formats import dump_name
from ansible_collections.offheap.profiler.plugins.module_utils.host import places

# A spool's owner can put anything there. Nobody needs to know beyond this, and what is ours lies no deeper.
_MOST_FILES, _DEEPEST = 100_000, 4


class Stays(NamedTuple):
    """A place with its files: how many, how many of them are dumps, and the room that they take, in bytes."""

    path: str
    files: int
    dumps: int
    size: int


def what_stays() -> list[Stays]:
    """The places of ours that hold something; those that can't be read hold nothing that is known."""
    found = [_count(path) for path in (places.INSTALLED, places.SPOOLS, places.PRIVATE_SPOOLS)]
    return [stays for stays in found if stays.files]


def _count(path: str) -> Stays:
    files = dumps = size = 0
    with contextlib.suppress(OSError):
        for name, status in itertools.islice(_files(path), _MOST_FILES):
            files += 1
            dumps += dump_name.parse(name) is not None
            size += status.st_blocks * 512
    return Stays(path, files, dumps, size)


def _files(path: str) -> Iterator[tuple[str, os.stat_result]]:
    """The regular files below a directory; no link is followed."""
    for directory, directories, names, opened in os.fwalk(path, follow_symlinks=False):
        if directory.count("/") - path.count("/") >= _DEEPEST:
            directories.clear()
        for name in names:
            try:
                status = os.stat(name, dir_fd=opened, follow_symlinks=False)
            except OSError:  # it has just gone
                continue
            if stat.S_ISREG(status.st_mode):
                yield name, status
