# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""All of a host's memory, part by part, from /proc/meminfo, and what that leaves out: what connections hold, by
/proc/net/sockstat, and what was swapped out into memory, by zram's mm_stat. Formats: proc(5); the kernel's documents
"The /proc Filesystem", section "meminfo", and "zram: Compressed RAM-based block devices".

This module is private to the collection.
"""

from __future__ import annotations

import os
import re

# Name here -> the lines that add up to it. These do not overlap, and with ``rest`` they are all of ``total``.
_PARTS = {
    "free": ("MemFree",),
    "processes": ("AnonPages",),
    "files": ("Buffers", "Cached", "-Shmem"),
    "shared-memory": ("Shmem",),
    "slab-reclaimable": ("SReclaimable",),
    "slab": ("SUnreclaim",),
    "page-tables": ("PageTables", "SecPageTables"),
    # The stacks of threads in the kernel are in here as well.
    "vmalloc": ("VmallocUsed",),
    "per-cpu": ("Percpu",),
    "huge-pages": ("Hugetlb",),
    "zswap": ("Zswap",),
}


_PAGES_OF_SOCKETS = re.compile(r"^\w+: .*\bmem ([0-9]{1,12})\b", re.MULTILINE)


def read(proc: str = "/proc", sys: str = "/sys") -> dict[str, int] | None:
    """Sizes in bytes: ``total``, ``available`` (what a program could have without swapping), and parts that add up to
    the total; ``rest`` is what the kernel accounts to nothing, such as the memory of a driver or of a virtual machine's
    balloon. Less than nothing where parts overlap. None where the kernel does not say."""
    lines = [line.split() for line in _text(os.path.join(proc, "meminfo")).splitlines()]
    told = {words[0][:-1]: int(words[1]) << 10 for words in lines if len(words) > 1 and words[1].isdigit()}
    if not {"MemTotal", "MemAvailable", "MemFree"}.issubset(told):
        return None
    facts = {"total": told["MemTotal"], "available": told["MemAvailable"]}
    facts.update((part, sum(_signed(told, name) for name in names)) for part, names in _PARTS.items())
    pages = _PAGES_OF_SOCKETS.findall(_text(os.path.join(proc, "net", "sockstat")))
    facts["sockets"] = sum(map(int, pages)) * os.sysconf("SC_PAGE_SIZE")
    facts["zram"] = _used_by_zram(os.path.join(sys, "block"))
    facts["rest"] = facts["total"] - sum(facts[part] for part in (*_PARTS, "sockets", "zram"))
    return facts


def _used_by_zram(directory: str) -> int:
    """The third number of each device: what the compressed pages take, with all that zram keeps for itself."""
    devices = os.listdir(directory) if os.path.isdir(directory) else []
    told = [_text(os.path.join(directory, name, "mm_stat")).split() for name in devices if name.startswith("zram")]
    return sum(int(words[2]) for words in told if len(words) > 2 and words[2].isdigit())


def _text(path: str) -> str:
    """Empty where there is no such file."""
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            return file.read(1 << 16)
    except OSError:
        return ""


def _signed(told: dict[str, int], name: str) -> int:
    return -told.get(name[1:], 0) if name.startswith("-") else told.get(name, 0)
