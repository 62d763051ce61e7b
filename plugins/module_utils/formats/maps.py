# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""The only parser of /proc/<pid>/maps, both for the kernel's own text and for the copy in a dump.

Format: proc_pid_maps(5).

This module is private to the collection.
"""

from __future__ import annotations

import functools
import os
import re
from dataclasses import dataclass, field

from ansible_collections.offheap.profiler.plugins.module_utils.formats.errors import OffheapError

#: A line, as a pattern for bytes: start, end, permissions, offset, device, inode, path or None.
LINE = (
    rb"([0-9a-f]{1,16})-([0-9a-f]{1,16}) ([-r][-w][-x][-sp]) ([0-9a-f]{1,16}) "
    rb"([0-9a-f]{1,8}:[0-9a-f]{1,8}) ([0-9]{1,20})(?: +([^\n]*))?"
)
_LINE = re.compile(LINE + rb"\Z")
_DELETED = b" (deleted)"
# Names that look like paths but are not: memory that processes share, and what drivers and the kernel map.
_SHARED = ("/memfd:", "/dev/shm/", "/dev/zero", "/SYSV", "[anon_shmem:")
_FILE_LESS = (*_SHARED, "//anon", "/anon_hugepage", "/[aio]", "[anon", "[heap", "[stack")


class MapsError(OffheapError):
    """A text is not in the kernel's format of maps. The message quotes the line."""


@dataclass(frozen=True)
class Mapping:
    """One mapping. ``end`` is exclusive; ``path`` is "" for anonymous memory and never ends with " (deleted)".

    ``device`` ("major:minor" in hex) and ``inode`` distinguish files at the same path; comparisons ignore them.
    """

    start: int
    end: int
    permissions: str
    offset: int
    path: str
    deleted: bool
    device: str = field(default="", compare=False)
    inode: int = field(default=0, compare=False)

    @property
    def executable(self) -> bool:
        return "x" in self.permissions

    @property
    def file_less(self) -> bool:
        """Whether it is memory without a file: anonymous, shared, a heap or a stack. Code in it was compiled there."""
        return is_file_less(self.path)

    @property
    def is_file(self) -> bool:
        """Whether it maps a file that has a path."""
        return self.inode != 0 and self.path.startswith("/") and not self.file_less

    @property
    def range_name(self) -> str:
        """Its name in /proc/<pid>/map_files."""
        return f"{self.start:x}-{self.end:x}"


def is_file_less(path: str) -> bool:
    """Whether a mapping of this name is memory without a file. The kernel's own [vdso] and [vsyscall] are not."""
    return not path or path.startswith(_FILE_LESS)


def is_shared(path: str) -> bool:
    """Whether a mapping of this name is memory without a file that several processes can share."""
    return path.startswith(_SHARED)


def parse_line(line: bytes) -> Mapping:
    """Parse one line, without its newline. Raises MapsError.

    In a path the kernel writes a newline as ``\\012`` and leaves everything else as it is, spaces included.
    """
    match = _LINE.match(line)
    if not match:
        raise MapsError(f"not a line of maps: {line[:200]!r}")
    first, last, permissions, offset, device, inode, path = match.groups()
    start, end = int(first, 16), int(last, 16)
    if start >= end:
        raise MapsError(f"a mapping ends before it begins: {line[:200]!r}")
    name, deleted = _path(path or b"")
    return Mapping(
        start,
        end,
        _word(permissions),
        int(offset, 16),
        name,
        deleted,
        _word(device),
        int(inode),
    )


# The same few words and paths recur in every listing, and a host may have thousands of listings.
@functools.lru_cache(maxsize=256)
def _word(text: bytes) -> str:
    return text.decode("ascii")


@functools.lru_cache(maxsize=4096)
def _path(path: bytes) -> tuple[str, bool]:
    """The path as os.fsdecode gives it, and whether the file was deleted."""
    deleted = path.endswith(_DELETED)
    if deleted:
        path = path[: -len(_DELETED)]
    return os.fsdecode(path.replace(b"\\012", b"\n")), deleted


def parse(text: bytes) -> list[Mapping]:
    """Parse all lines of a text, in order of address. Raises MapsError."""
    return [parse_line(line) for line in text.split(b"\n") if line]
