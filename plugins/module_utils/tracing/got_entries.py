# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""What in a process's objects still leads into one of its libraries: read from outside, whatever that library says.

Calls between objects go through tables of addresses (GOT), and so do pointers to functions in data. Both lie in the
segments of an object that can be written before it is relocated.

This module is private to the collection.
"""

from __future__ import annotations

import os
from typing import Iterator

from ansible_collections.offheap.profiler.plugins.module_utils.formats import elf_headers
from ansible_collections.offheap.profiler.plugins.module_utils.formats.maps import Mapping
from ansible_collections.offheap.profiler.plugins.module_utils.host import procfs

_WORD = 8
_LARGEST, _MOST = 256 << 20, 8 << 30
_BLOCK = 1 << 20
_TRIES = 5
_LOW = 2  # bytes of an address that are looked at one by one


def into(pid: int, library: str, proc: str = "/proc") -> int | None:
    """How many words of other objects lead into the code of the mapped library (the end of its path).

    None if it is not mapped. Raises ProcfsError, ElfError.
    """
    mapped = procfs.mapped_files(pid, proc)
    ours = [one for one in procfs.mappings(pid, proc) if one.path.endswith(library)]  # one in memory is no file
    code = [(one.start, one.end) for one in ours if one.executable]
    if not code:
        return None
    path = os.path.join(procfs.directory(pid, proc), "mem")
    try:
        memory = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as exc:
        raise procfs.ProcfsError(f"cannot read {path}: {exc.strerror}") from exc
    try:
        others = [mappings for path, mappings in mapped.items() if not path.endswith(library)]
        parts = [part for mappings in others for part in _written(pid, mappings, proc)]
        if sum(size for _start, size in parts) > _MOST:
            raise procfs.ProcfsError(f"process {pid} has more data of libraries than {_MOST >> 30} GiB")
        return sum(_count(memory, start, size, first, last) for start, size in parts for first, last in code)
    finally:
        os.close(memory)


def _written(pid: int, mappings: list[Mapping], proc: str) -> Iterator[tuple[int, int]]:
    """Where what was written of an object lies, and its size."""
    if not any(one.executable for one in mappings):
        return
    first = mappings[0]
    headers = _headers(pid, first, proc)
    if headers is None:
        return
    loaded = [one for one in headers.programs if one.type == elf_headers.PT_LOAD]
    begin = next((one.address - one.offset for one in loaded if one.offset <= first.offset + _BLOCK), 0)
    base = first.start - first.offset - begin
    written = [(base + one.address, one.size) for one in loaded if one.flags & elf_headers.PF_W]
    # By the mappings, once each: what the headers say of the sizes may be anything.
    for own in mappings:
        parts = [(max(own.start, start), min(own.end, start + size)) for start, size in written]
        found = [(start, end) for start, end in parts if start < end]
        if found:
            start = min(start for start, _end in found)
            yield start, min(max(end for _start, end in found) - start, _LARGEST)


def _headers(pid: int, first: Mapping, proc: str) -> elf_headers.Headers | None:
    """Those of a file that is mapped; None if it was closed meanwhile. It may also come back at the same place."""
    for left in reversed(range(_TRIES)):
        try:
            return elf_headers.read(os.path.join(procfs.directory(pid, proc), "map_files", first.range_name))
        except elf_headers.ElfError:
            if first not in procfs.mappings(pid, proc):
                break
            if not left:
                raise
    return None


def _count(memory: int, start: int, size: int, first: int, last: int) -> int:
    """Words in a piece of memory that are addresses from ``first`` on, before ``last``."""
    end, found = start + size, 0
    start = -(-start // _WORD) * _WORD
    while start < end:
        try:
            block = os.pread(memory, min(_BLOCK, end - start), start)
        except OSError:
            block = b""
        if not block:
            start += _BLOCK  # a part that nobody may read
            continue
        for high in range(first >> 8 * _LOW, (last - 1 >> 8 * _LOW) + 1):
            wanted = high.to_bytes(_WORD - _LOW, "little")
            place = block.find(wanted, _LOW)
            while place >= 0:
                word = place - _LOW
                if word % _WORD == 0 and first <= int.from_bytes(block[word : word + _WORD], "little") < last:
                    found += 1
                place = block.find(wanted, place + 1)
        start += len(block)
    return found
