# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Where a process's memory is: every mapping of smaps has one class, every class its reserved and resident bytes.

smaps is read as a stream and no mapping is stored, so 60,000 of them take no more memory than sixty. A mapping's class
follows from what the kernel says about it, the stack pointers of the threads, the ranges that a JVM names, and the
first words of malloc's own headers. Formats: proc(5); glibc's malloc/arena.c (heap_info) and malloc/malloc.c
(malloc_chunk, mmap_set_chunk), 2.31 to 2.44, for 64-bit processes.

This module is private to the collection.
"""

from __future__ import annotations

import bisect
import heapq
import os
import re
import struct
import sys
import time
from typing import Any, Callable, Iterator, NamedTuple, Sequence

from ansible_collections.offheap.profiler.plugins.module_utils.formats import maps
from ansible_collections.offheap.profiler.plugins.module_utils.formats.memory_class import MemoryClass
from ansible_collections.offheap.profiler.plugins.module_utils.host import procfs, regions
from ansible_collections.offheap.profiler.plugins.module_utils.host.regions import Region

#: HEAP_MAX_SIZE of glibc on 64-bit machines; every heap of an arena begins at a multiple of it
ARENA_HEAP = 64 << 20
_LARGEST = 10
# A guard below a thread's stack is a page, or the few that HotSpot protects; other reservations are larger.
_MOST_GUARD = 1 << 20
_MMAPPED_CHUNK, _CHUNK_HEADER = 2, 16
# The stack pointer of a thread in a system call, before the place of its code.
_POINTER = re.compile(rb" 0x([0-9a-f]{1,16}) 0x[0-9a-f]{1,16}\s*\Z")

# Seconds to wait before threads are asked, and those that ran again.
_PAUSES = (0.0, 0.002, 0.005, 0.01, 0.02)

#: Takes an address and a length and returns the process's bytes there; empty if they cannot be read.
Peek = Callable[[int, int], bytes]


class Heap(NamedTuple):
    """One stretch of memory that glibc's malloc divides into chunks. Sizes in bytes, ``size`` without what is only
    reserved."""

    start: int
    size: int
    resident: int
    swap: int
    main: bool


class Knowledge(NamedTuple):
    """What distinguishes anonymous mappings: ranges (start, end, class) that the JVM names, sorted; the stack
    pointers of the threads, sorted; whether malloc is glibc's; how to look into the process."""

    ranges: Sequence[tuple[int, int, MemoryClass]]
    stack_pointers: Sequence[int]
    glibc: bool
    peek: Peek


class MemoryMap(NamedTuple):
    """The sums. ``classes`` gives each class's reserved, resident and swapped bytes and its number of mappings;
    ``largest`` are the ten mappings with most resident memory; ``heaps`` those of glibc's malloc, ``huge`` those that
    have transparent huge pages."""

    classes: dict[str, dict[str, int]]
    largest: list[dict[str, Any]]
    heaps: list[Heap]
    huge: list[Region]
    resident: int
    proportional: int
    swap: int
    mappings: int


def read(pid: int, knowledge: Knowledge, proc: str = "/proc") -> MemoryMap:
    """The memory map of a process. Raises ProcfsError if it may not be read or the process has ended."""
    return summarize(regions.read(pid, proc), knowledge)


def summarize(entries: Iterator[Region], knowledge: Knowledge) -> MemoryMap:
    """Classify all mappings and add them up."""
    sums = {name: [0, 0, 0, 0] for name in MemoryClass}
    heaps: list[Heap] = []
    huge: list[Region] = []
    largest: list[tuple[int, int, Region, MemoryClass]] = []
    proportional = 0
    reading = _Classifier(knowledge)
    for region, name in reading.classified(entries):
        proportional += region.pss
        counts = sums[name]
        counts[0] += region.size
        counts[1] += region.rss
        counts[2] += region.swap
        counts[3] += 1
        if name in (MemoryClass.MALLOC_HEAP, MemoryClass.GLIBC_ARENAS) and not region.protected:
            heaps.append(Heap(region.start, region.size, region.rss, region.swap, name == MemoryClass.MALLOC_HEAP))
        if region.huge:
            huge.append(region)
        if len(largest) < _LARGEST or region.rss > largest[0][0]:
            add = heapq.heappush if len(largest) < _LARGEST else heapq.heapreplace
            add(largest, (region.rss, -region.start, region, name))
    return MemoryMap(
        {
            name.value: {"reserved": reserved, "resident": resident, "swap": swap, "mappings": count}
            for name, (reserved, resident, swap, count) in sums.items()
        },
        [_described(region, name) for _rss, _start, region, name in sorted(largest, reverse=True)],
        heaps,
        huge,
        sum(counts[1] for counts in sums.values()),
        proportional,
        sum(counts[2] for counts in sums.values()),
        sum(counts[3] for counts in sums.values()),
    )


def _described(region: Region, name: MemoryClass) -> dict[str, Any]:
    return {
        "address": f"{region.start:x}-{region.end:x}",
        "perms": region.permissions,
        "path": region.path[:200],
        "class": name.value,
        "reserved": region.size,
        "resident": region.rss,
    }


class _Classifier:
    """Classifies the mappings in order of address, with regard to the neighbours on both sides."""

    def __init__(self, knowledge: Knowledge) -> None:
        self._known = knowledge
        self._starts = [start for start, _end, _name in knowledge.ranges]
        self._stack_sizes: set[int] = set()
        self._arena_end = 0  # where the address space that the last arena heap reserves ends

    def classified(self, entries: Iterator[Region]) -> Iterator[tuple[Region, MemoryClass]]:
        before: Region | None = None
        region = next(entries, None)
        while region:
            after = next(entries, None)
            yield region, self._class_of(region, before, after)
            before, region = region, after

    def _class_of(self, region: Region, before: Region | None, after: Region | None) -> MemoryClass:
        named = self._named_range(region.start) or _by_path(region)
        if named:
            return named
        if not region.anonymous:
            return MemoryClass.UNKNOWN
        if region.protected:
            return MemoryClass.GLIBC_ARENAS if region.end <= self._arena_end else MemoryClass.UNKNOWN
        if self._is_stack(region, before):
            return MemoryClass.THREAD_STACKS
        if "x" in region.permissions:
            return MemoryClass.JIT
        if self._is_arena(region, after):
            self._arena_end = -(-region.end // ARENA_HEAP) * ARENA_HEAP
            return MemoryClass.GLIBC_ARENAS
        if "w" not in region.permissions:
            return MemoryClass.UNKNOWN
        if not self._known.glibc:
            return MemoryClass.OTHER_MALLOC
        return MemoryClass.MALLOC_MMAPPED if self._is_mmapped_chunk(region) else MemoryClass.UNKNOWN

    def _named_range(self, address: int) -> MemoryClass | None:
        at = bisect.bisect_right(self._starts, address) - 1
        if at >= 0 and address < self._known.ranges[at][1]:
            return self._known.ranges[at][2]
        return None

    def _is_stack(self, region: Region, before: Region | None) -> bool:
        pointers = self._known.stack_pointers
        at = bisect.bisect_left(pointers, region.start)
        if at < len(pointers) and pointers[at] < region.end:
            self._stack_sizes.add(region.size)
            return True
        guarded = before is not None and before.end == region.start and before.protected and before.size <= _MOST_GUARD
        # glibc keeps the stacks of ended threads; they are as large as the others.
        return guarded and region.start % ARENA_HEAP != 0 and (not pointers or region.size in self._stack_sizes)

    def _is_arena(self, region: Region, after: Region | None) -> bool:
        """Whether it is anonymous memory from a multiple of 64 MiB on, with the rest up to the next one reserved."""
        if not self._known.glibc or region.start % ARENA_HEAP or region.start < 1 << 32:
            return False
        boundary = -(-region.end // ARENA_HEAP) * ARENA_HEAP
        reserved = region.end == boundary or (
            after is not None and after.start == region.end and after.protected and after.end >= boundary
        )
        header = self._known.peek(region.start, 32)
        if not reserved or len(header) < 32:
            return reserved
        arena, _previous, size, usable = struct.unpack("=4Q", header)
        return bool(arena) and 0 < size <= usable <= ARENA_HEAP

    def _is_mmapped_chunk(self, region: Region) -> bool:
        """Whether it begins with the header that malloc writes before a block of its own mapping."""
        header = self._known.peek(region.start, 16)
        if len(header) < 16:
            return False
        padding, size = (int.from_bytes(word, sys.byteorder) for word in (header[:8], header[8:]))
        if size & 7 != _MMAPPED_CHUNK:
            return False
        length, page = (size & ~7) + padding, os.sysconf("SC_PAGE_SIZE")
        # glibc 2.43 and 2.44 leave out the header, and the lowest bit of the padding says whether it has huge pages.
        lengths = (length, length - (padding & 1) + _CHUNK_HEADER)
        return any(0 < one <= region.size and one % page == 0 for one in lengths)


def _by_path(region: Region) -> MemoryClass | None:
    path = region.path
    if path == "[heap]":
        return MemoryClass.MALLOC_HEAP
    if path.startswith("[stack"):
        return MemoryClass.THREAD_STACKS
    if path.startswith("/memfd:java_heap"):
        return MemoryClass.JAVA_HEAP  # ZGC
    if maps.is_shared(path):
        return MemoryClass.SHARED_MEMORY
    return MemoryClass.MAPPED_FILES if path.startswith("/") and not path.startswith("//") else None


def stack_pointers(pid: int, proc: str = "/proc") -> list[int]:
    """The stack pointers of the threads, sorted. A thread that runs, or waits for a processor, shows none and is asked
    again for a moment; without the right to trace the process, no thread shows any."""
    directory = os.path.join(proc, str(pid), "task")
    found: list[int] = []
    try:
        names = os.listdir(directory)
    except OSError as exc:
        raise procfs.ProcessGone(pid) from exc
    for pause in _PAUSES:
        time.sleep(pause)
        running = []
        for name in names:
            try:
                told = _system_call(os.path.join(directory, name))
            except OSError:
                return []
            pointer = _POINTER.search(told)
            if pointer:
                found.append(int(pointer[1], 16))
            elif told.startswith(b"running"):
                running.append(name)
        names = running
        if not names:
            break
    return sorted(found)


def _system_call(thread: str) -> bytes:
    """Which one a thread is in (proc(5), syscall). Empty if it has ended."""
    try:
        fd = os.open(os.path.join(thread, "syscall"), os.O_RDONLY)
    except (FileNotFoundError, ProcessLookupError):
        return b""
    try:
        return os.read(fd, 256)
    except ProcessLookupError:
        return b""
    finally:
        os.close(fd)
