# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""How much of each mapping of a process is in memory: /proc/<pid>/smaps, read as a stream.

No mapping is stored, so 60,000 of them take no more memory than sixty. Format: proc_pid_smaps(5).

This module is private to the collection.
"""

from __future__ import annotations

import os
import re
from typing import IO, Iterator, NamedTuple

from ansible_collections.offheap.profiler.plugins.module_utils.formats import maps
from ansible_collections.offheap.profiler.plugins.module_utils.host import procfs

_BLOCK = 1 << 18
_KIB = 1024
# Lines between those that are read; the kernel has 3 and 14 at most.
_OTHERS = rb"(?:\w+: .*\n){0,40}?"
_ENTRY = re.compile(
    rb"^" + maps.LINE + rb"\n" + _OTHERS + rb"Rss: +(\d+) kB\nPss: +(\d+) kB\n"
    rb"(?:" + _OTHERS + rb"AnonHugePages: +(\d+) kB\n)?" + _OTHERS + rb"Swap: +(\d+) kB\n",
    re.MULTILINE,
)


class Region(NamedTuple):
    """One entry of smaps. Sizes in bytes; ``path`` is "" for anonymous memory, ``huge`` what is in transparent huge
    pages."""

    start: int
    end: int
    permissions: str
    path: str
    rss: int
    pss: int
    swap: int
    huge: int = 0

    @property
    def size(self) -> int:
        return self.end - self.start

    @property
    def anonymous(self) -> bool:
        return not self.path or self.path.startswith("[anon:")

    @property
    def protected(self) -> bool:
        """Reserved address space that nobody may touch."""
        return self.permissions.startswith("---")


def read(pid: int, proc: str = "/proc") -> Iterator[Region]:
    """The mappings of a process, by address. Raises ProcfsError if they may not be read or the process has ended."""
    path = os.path.join(procfs.directory(pid, proc), "smaps")
    try:
        with open(path, "rb") as stream:
            yield from parse(stream)
    except (FileNotFoundError, ProcessLookupError) as exc:
        raise procfs.ProcessGone(pid) from exc
    except OSError as exc:
        raise procfs.ProcfsError(f"cannot read {path}: {exc.strerror or exc}") from exc


def parse(stream: IO[bytes]) -> Iterator[Region]:
    """The entries of smaps. Raises ProcfsError for any other text."""
    rest = b""
    while True:
        block = stream.read(_BLOCK)
        rest += block
        end = 0
        for match in _ENTRY.finditer(rest):
            end = match.end()
            first, last, permissions, _offset, _device, _inode, path, rss, pss, huge, swap = match.groups()
            yield Region(
                int(first, 16),
                int(last, 16),
                permissions.decode("ascii"),
                os.fsdecode(path or b""),
                int(rss) * _KIB,
                int(pss) * _KIB,
                int(swap) * _KIB,
                int(huge or 0) * _KIB,
            )
        rest = rest[end:]
        if not block:
            return
        if len(rest) > 4 * _BLOCK:
            raise procfs.ProcfsError(f"not an entry of smaps: {rest[:200]!r}")
