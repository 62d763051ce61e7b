# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""How much of the memory that glibc's malloc holds is in use, read from the headers of its chunks.

Memory that a program has freed but malloc keeps is not a leak, yet RSS counts it too. Within a heap every chunk begins
with its size, and with a bit that says whether the chunk before it is in use (glibc, malloc/malloc.c, "malloc_chunk").
So the chunks can be counted from outside while the process runs; if it changes the chain meanwhile, the count ends
there. Nothing is written, nothing is stopped, no content is kept, and swapped memory stays swapped out.

Chunks in the caches of threads and, up to glibc 2.42, in fastbins count as in use, as their headers say.

This module is private to the collection.
"""

from __future__ import annotations

import contextlib
import os
import struct
from typing import Iterator, NamedTuple, Sequence

from ansible_collections.offheap.profiler.plugins.module_utils.host import procfs
from ansible_collections.offheap.profiler.plugins.module_utils.memory import resident_pages
from ansible_collections.offheap.profiler.plugins.module_utils.memory.resident_pages import Resident
from ansible_collections.offheap.profiler.plugins.module_utils.memory.smaps import Heap, Peek

#: the most chunks read in one process; that takes about a second
MOST_CHUNKS = 1_000_000
_WINDOW = 1 << 14
_SIZE = struct.Struct("=Q")
_PREVIOUS_IN_USE, _OTHER_ARENA = 1, 4
_SMALLEST = 16
# The first chunk follows heap_info and, in the first heap of an arena, malloc_state (2200 bytes up to glibc 2.41).
_FURTHEST_FIRST = 4096
_PROOF = 3


class Use(NamedTuple):
    """Bytes of the heaps: held by malloc, read, and among those read in use, and in pages that malloc_trim would give
    back."""

    size: int
    seen: int
    used: int
    trimmable: int = 0

    @property
    def estimate(self) -> int:
        """The total bytes in use, if the rest is like what was seen."""
        return self._of_all(self.used) if self.seen else self.size

    @property
    def trim(self) -> int:
        """The same of what malloc_trim would give back."""
        return self._of_all(self.trimmable)

    def _of_all(self, seen: int) -> int:
        return seen * self.size // self.seen if self.seen else 0


@contextlib.contextmanager
def looking_into(pid: int, proc: str = "/proc") -> Iterator[Peek]:
    """Read a process's memory, as far as allowed."""
    try:
        fd = os.open(os.path.join(procfs.directory(pid, proc), "mem"), os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        yield lambda address, length: b""
        return

    def peek(address: int, length: int) -> bytes:
        try:
            return os.pread(fd, length, address)
        except (OSError, OverflowError):
            return b""

    try:
        yield peek
    finally:
        os.close(fd)


def in_use(heaps: Sequence[Heap], peek: Peek, resident: Resident, most_chunks: int = MOST_CHUNKS) -> Use | None:
    """How much of the heaps is in use; None if none of them could be read."""
    left = most_chunks
    size = seen = used = trimmable = 0
    for number, heap in enumerate(heaps):
        size += heap.size
        if heap.swap:
            continue  # reading would bring it back into memory
        walked, busy, could_go, count = _walk(heap, peek, resident, left // (len(heaps) - number))
        left -= count
        seen += walked
        used += busy
        trimmable += could_go
    return Use(size, seen, used, trimmable) if seen else None


def _walk(heap: Heap, peek: Peek, resident: Resident, most: int) -> tuple[int, int, int, int]:
    """(bytes read, bytes in use among them, bytes that malloc_trim would give back of them, chunks)"""
    window = peek(heap.start, _WINDOW)
    at = _first_chunk(heap, window)
    if at is None:
        return 0, 0, 0, 0
    seen, used, trimmable, count, window_at = at, at, 0, 0, 0
    previous, page = 0, os.sysconf("SC_PAGE_SIZE")
    while at < heap.size and count < most:
        if not window_at <= at <= window_at + len(window) - 16:
            # No further than its page: to read the next one, from which a chunk may have been given back, would map it.
            window, window_at = peek(heap.start + at, page - (heap.start + at) % page), at
            if len(window) < 16:
                break
        (word,) = _SIZE.unpack_from(window, at - window_at + 8)
        length = word & ~7
        if length < _SMALLEST or length & 15 or at + length > heap.size:
            break
        if previous:
            seen += previous
            if word & _PREVIOUS_IN_USE:
                used += previous
            elif previous > page:
                trimmable += resident_pages.of_free_chunk(resident, heap.start + at - previous, previous)
        previous = length
        count += 1
        at += length
    else:
        if at >= heap.size:
            seen += previous  # the chunk at the top, from which malloc cuts new ones
            if heap.main:
                trimmable += resident_pages.of_top(resident, heap.start + at - previous, heap.start + at)
    return seen, used, trimmable, count


def _first_chunk(heap: Heap, window: bytes) -> int | None:
    """Where the chain begins: the first place from which several chunks follow each other."""
    # It holds the first thread's cache or another block, or is free, since that thread has ended: then it does not show
    # its arena.
    first = (_PREVIOUS_IN_USE, _PREVIOUS_IN_USE | (0 if heap.main else _OTHER_ARENA))
    for start in range(0, min(_FURTHEST_FIRST, len(window) - 16, heap.size), 16):
        at, length = start, 0
        for step in range(_PROOF):
            (word,) = _SIZE.unpack_from(window, at + 8)
            length = word & ~7
            if length < _SMALLEST or length & 15 or at + length > heap.size or (not step and word & 7 not in first):
                break
            at += length
            if at == heap.size or at > len(window) - 16:
                return start
        else:
            return start
    return None
