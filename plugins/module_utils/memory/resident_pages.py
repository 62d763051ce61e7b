# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Which pages of a process are in memory, and how many of them malloc could give back.

Formats: the kernel's document "Examining Process Page Tables", /proc/PID/pagemap, with a word for each page, whose
highest bit says that it is in memory; mtrim() and systrim() in glibc's malloc/malloc.c, 2.31 to 2.44.

This module is private to the collection.
"""

from __future__ import annotations

import contextlib
import os
from typing import Callable, Iterator

from ansible_collections.offheap.profiler.plugins.module_utils.host import procfs

#: Takes a range of addresses (start, end) and returns the bytes of whole pages in it that are in memory.
Resident = Callable[[int, int], int]

_WORD = 8
# The highest byte of each word, and its highest bit.
_LAST_BYTE, _PRESENT = slice(_WORD - 1, None, _WORD), 0x80
_MOST_WORDS = 1 << 16
# sizeof(struct malloc_chunk): trimming leaves the header of a free chunk, and its links.
_CHUNK_HEADER = 48
# MINSIZE: what remains of the chunk at the top.
_LEAST_TOP = 32


@contextlib.contextmanager
def of(pid: int, proc: str = "/proc") -> Iterator[Resident]:
    """Look at a process's pages, as far as allowed: what cannot be read counts as not in memory."""
    page = os.sysconf("SC_PAGE_SIZE")
    try:
        fd = os.open(os.path.join(procfs.directory(pid, proc), "pagemap"), os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        yield lambda start, end: 0
        return

    def resident(start: int, end: int) -> int:
        first, last = -(-start // page), end // page
        found = 0
        while first < last:
            count = min(last - first, _MOST_WORDS)
            try:
                words = os.pread(fd, count * _WORD, first * _WORD)
            except (OSError, OverflowError):
                break
            found += sum(byte >= _PRESENT for byte in words[_LAST_BYTE])
            first += count
        return found * page

    try:
        yield resident
    finally:
        os.close(fd)


def of_free_chunk(resident: Resident, start: int, length: int) -> int:
    """The bytes that malloc_trim would give back of a free chunk."""
    return resident(start + _CHUNK_HEADER, start + length)


def of_top(resident: Resident, start: int, end: int) -> int:
    """The same of the chunk at the top of the main heap."""
    return resident(start + _LEAST_TOP + 1, end)
