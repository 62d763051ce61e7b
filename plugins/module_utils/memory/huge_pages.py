# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""How much of a process's transparent huge pages it has never written: the kernel gives 2 MiB where a program touches
one byte, and all of it is resident.

What was never written is zeros. So some of the huge pages, drawn at random, are looked at, page by page; what a program
has written zeros to counts as never written. Only what is in memory is read, so nothing is brought there. Formats: the
kernel's document "Examining Process Page Tables", /proc/PID/pagemap and /proc/kpageflags (KPF_THP).

This module is private to the collection.
"""

from __future__ import annotations

import math
import os
import random
import struct
from typing import Callable, NamedTuple, Sequence

from ansible_collections.offheap.profiler.plugins.module_utils.host import procfs
from ansible_collections.offheap.profiler.plugins.module_utils.host.regions import Region

#: Takes an address and a length and returns the process's bytes there; empty if they cannot be read.
Peek = Callable[[int, int], bytes]

_HUGE = 2 << 20  # of x86_64, and of aarch64 with pages of 4 KiB
_PAGE = 4096
_ZEROS = bytes(_PAGE)
_WORD = struct.Struct("=Q")
_PRESENT, _FRAME = 1 << 63, (1 << 55) - 1
_THP = 1 << 22
_LOOKED_AT, _TRIES = 32, 200
# Less does not matter.
_LEAST = 32 << 20


class Unwritten(NamedTuple):
    """Bytes in huge pages, and how many of them were never written, with half of the 95 % interval."""

    held: int
    unwritten: int
    error: int


def look(pid: int, regions: Sequence[Region], peek: Peek, proc: str = "/proc") -> Unwritten | None:
    """What is known of the anonymous huge pages in these regions; None where it may not be read, or where pages have
    another size."""
    held = sum(region.huge for region in regions)
    if held < _LEAST:
        return Unwritten(held, 0, 0)
    if os.sysconf("SC_PAGE_SIZE") != _PAGE:
        return None
    shares = _shares(pid, [region for region in regions if region.huge], peek, proc)
    if len(shares) < 2:
        return None
    mean = math.fsum(shares) / len(shares)
    variance = math.fsum((share - mean) ** 2 for share in shares) / (len(shares) - 1)
    return Unwritten(held, round(held * mean), round(held * 1.96 * math.sqrt(variance / len(shares))))


def _shares(pid: int, regions: Sequence[Region], peek: Peek, proc: str) -> list[float]:
    """The share that was never written of some huge pages."""
    starts = [-(-region.start // _HUGE) * _HUGE for region in regions]
    counts = [max((region.end - start) // _HUGE, 0) for region, start in zip(regions, starts)]
    shares: list[float] = []
    seen: set[int] = set()
    if not any(counts):
        return shares
    try:
        frames = os.open(os.path.join(procfs.directory(pid, proc), "pagemap"), os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return shares
    try:
        flags = os.open(os.path.join(proc, "kpageflags"), os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        os.close(frames)
        return shares
    try:
        for start, count in random.choices(list(zip(starts, counts)), counts, k=_TRIES):
            address = start + random.randrange(count) * _HUGE
            if address not in seen and len(shares) < _LOOKED_AT and _is_huge(address, frames, flags):
                block = peek(address, _HUGE)
                if len(block) == _HUGE:
                    pages = range(0, _HUGE, _PAGE)
                    shares.append(sum(block[at : at + _PAGE] == _ZEROS for at in pages) / len(pages))
            seen.add(address)
    finally:
        os.close(flags)
        os.close(frames)
    return shares


def _is_huge(address: int, frames: int, flags: int) -> bool:
    """Whether a huge page begins there, which then is in memory as a whole."""
    word = _word(frames, address // _PAGE)
    return bool(word & _PRESENT and word & _FRAME and _word(flags, word & _FRAME) & _THP)


def _word(file: int, number: int) -> int:
    try:
        content = os.pread(file, _WORD.size, number * _WORD.size)
    except (OSError, OverflowError):
        return 0
    return int(_WORD.unpack(content)[0]) if len(content) == _WORD.size else 0
