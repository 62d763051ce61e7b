# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""One look at a process: its sizes, its memory map in classes, its allocator, its JVM.

``not_readable`` names what could not be read. Sizes are in bytes, times in seconds.

This module is private to the collection.
"""

from __future__ import annotations

import os
import time
from typing import Any

from ansible_collections.offheap.profiler.plugins.module_utils.formats.memory_class import MemoryClass
from ansible_collections.offheap.profiler.plugins.module_utils.host import procfs
from ansible_collections.offheap.profiler.plugins.module_utils.malloc import allocator_libraries
from ansible_collections.offheap.profiler.plugins.module_utils.memory import (
    glibc_chunks,
    huge_pages,
    resident_pages,
    smaps,
)
from ansible_collections.offheap.profiler.plugins.module_utils.runtimes import (
    hotspot_attach,
    hotspot_protocol,
    jvm_facts,
)

_SIZES = {
    "rss": "VmRSS",
    "rss_peak": "VmHWM",
    "rss_anon": "RssAnon",
    "rss_file": "RssFile",
    "rss_shmem": "RssShmem",
    "swap": "VmSwap",
    "hugetlb": "HugetlbPages",
}
_AGENT = "liboffheap.so"  # a file, or memory that was lent to the process
_TUNABLES = ("MALLOC_ARENA_MAX", "MALLOC_CONF", "GLIBC_TUNABLES")
# name -> whether these heaps are the main arena's
_HEAPS = {"heap": True, "arenas": False}


def look(pid: int, jvm_timeout: float, proc: str = "/proc") -> dict[str, Any]:
    """Everything that can be read about a process. Raises ProcessGone."""
    not_readable: list[str] = []
    status = procfs.status(pid, proc)
    facts: dict[str, Any] = {
        "pid": pid,
        "start": procfs.start_ticks(pid, proc),
        "name": status.get("Name", ""),
        "age": max(0.0, time.time() - procfs.start_time(pid, proc)),
        "threads": int(status.get("Threads", "0")),
        "fds": _count_fds(pid, proc, not_readable),
        **_sizes(status),
    }
    facts.update(_allocator(pid, proc, not_readable))
    ranges = []
    facts["jvm"] = None
    try:
        answer = jvm_facts.ask(pid, jvm_timeout, proc)
        facts["jvm"], ranges = answer.facts, answer.ranges
    except hotspot_attach.NotHotspot:
        pass
    except hotspot_protocol.HotspotError as exc:
        facts["jvm"] = {}
        not_readable.append(f"the JVM: {exc}")
    except procfs.ProcessGone:
        raise
    except procfs.ProcfsError:
        pass  # then the memory map cannot be read either, which is reported below
    facts.update(_memory(pid, proc, facts["allocator"] == "libc", ranges, not_readable))
    if facts["jvm"] and facts["jvm"]["nmt"]:
        facts["jvm"]["nmt"]["rss_beyond"] = facts["rss"] - facts["jvm"]["nmt"]["committed"]
    facts["not_readable"] = not_readable
    return facts


def _sizes(status: dict[str, str]) -> dict[str, int | None]:
    return {key: _kib(status.get(field, "")) for key, field in _SIZES.items()}


def _kib(text: str) -> int | None:
    words = text.split()
    return int(words[0]) * 1024 if words and words[0].isdigit() else None


def _count_fds(pid: int, proc: str, not_readable: list[str]) -> int | None:
    try:
        return len(os.listdir(os.path.join(procfs.directory(pid, proc), "fd")))
    except OSError as exc:
        not_readable.append(f"its open files: {exc.strerror}")
        return None


def _allocator(pid: int, proc: str, not_readable: list[str]) -> dict[str, Any]:
    """Which malloc it uses, what tunes it, and the agents of a JVM."""
    facts: dict[str, Any] = {
        "exe": None,
        "allocator": "unknown",
        "library": None,
        "preloaded": False,
        "libc_version": allocator_libraries.host_platform()["libc_version"],
        "tunables": {},
        "agents": [],
        "profiled": False,
    }
    try:
        facts.update(allocator_libraries.of_process(pid))
        facts["profiled"] = any(_AGENT in os.path.basename(path) for path in procfs.mapped_files(pid, proc))
        environment = procfs.environ(pid, proc)
        facts["tunables"] = {
            name: value[:500]
            for name, value in sorted(environment.items())
            if name in _TUNABLES or (name.startswith("MALLOC_") and name.endswith("_"))  # mallopt(3)
        }
        facts["agents"] = jvm_facts.agents(pid, proc)
    except procfs.ProcessGone:
        raise
    except procfs.ProcfsError as exc:
        not_readable.append(f"its allocator and its environment: {exc}")
    return facts


def _memory(
    pid: int, proc: str, glibc: bool, ranges: list[tuple[int, int, MemoryClass]], not_readable: list[str]
) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "pss": None,
        "mappings": None,
        "classes": None,
        "largest": [],
        "malloc": None,
        "arenas": None,
        "huge_pages": None,
    }
    with glibc_chunks.looking_into(pid, proc) as peek, resident_pages.of(pid, proc) as resident:
        pointers = smaps.stack_pointers(pid, proc)
        try:
            found = smaps.read(pid, smaps.Knowledge(ranges, pointers, glibc, peek), proc)
            # Read again: a JVM may have taken its time to answer, and have grown meanwhile.
            facts.update(_sizes(procfs.status(pid, proc)))
        except procfs.ProcessGone:
            raise
        except procfs.ProcfsError as exc:
            not_readable.append(f"its memory map: {exc}")
            return facts
        heaps = {name: [heap for heap in found.heaps if heap.main is main] for name, main in _HEAPS.items()}
        huge = huge_pages.look(pid, found.huge, peek, proc)
        uses = {
            name: glibc_chunks.in_use(of_kind, peek, resident) if glibc else None for name, of_kind in heaps.items()
        }
    facts.update(
        pss=found.proportional,
        rss=found.resident,
        mappings=found.mappings,
        classes=found.classes,
        largest=found.largest,
        arenas=len(heaps["arenas"]),
        huge_pages=huge._asdict() if huge else None,
        malloc={name: _use(use, heaps[name]) for name, use in uses.items()},
    )
    if glibc and any(heaps[name] and use is None for name, use in uses.items()):
        not_readable.append("how much of malloc's memory is in use")
    return facts


def _use(use: glibc_chunks.Use | None, heaps: list[smaps.Heap]) -> dict[str, int] | None:
    """Resident bytes of malloc's heaps in use and kept free, how many of those malloc_trim would give back, and how
    many were read to find out."""
    resident = sum(heap.resident for heap in heaps)
    if not heaps:
        return {"resident": 0, "used": 0, "free": 0, "trim": 0, "seen": 0}
    if use is None:
        return None
    used = min(use.estimate, resident)
    free = resident - used
    return {"resident": resident, "used": used, "free": free, "trim": min(use.trim, free), "seen": use.seen}
