# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""All of a host's memory, part by part, from /proc/meminfo. Format: proc(5); what each line counts: the kernel's
document "The /proc Filesystem", section "meminfo".

This module is private to the collection.
"""

from __future__ import annotations

import os

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


def read(proc: str = "/proc") -> dict[str, int] | None:
    """Sizes in bytes: ``total``, ``available`` (what a program could have without swapping), and parts that add up to
    the total; ``rest`` is what the kernel accounts to nothing, such as the memory of a driver or of a virtual machine's
    balloon. Less than nothing where parts overlap. None where the kernel does not say."""
    try:
        with open(os.path.join(proc, "meminfo"), encoding="ascii", errors="replace") as file:
            lines = [line.split() for line in file.read(1 << 16).splitlines()]
    except OSError:
        return None
    told = {words[0][:-1]: int(words[1]) << 10 for words in lines if len(words) > 1 and words[1].isdigit()}
    if not {"MemTotal", "MemAvailable", "MemFree"}.issubset(told):
        return None
    facts = {"total": told["MemTotal"], "available": told["MemAvailable"]}
    facts.update((part, sum(_signed(told, name) for name in names)) for part, names in _PARTS.items())
    facts["rest"] = facts["total"] - sum(facts[part] for part in _PARTS)
    return facts


def _signed(told: dict[str, int], name: str) -> int:
    return -told.get(name[1:], 0) if name.startswith("-") else told.get(name, 0)
