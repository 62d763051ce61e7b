# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""What a HotSpot JVM holds outside malloc: its Java heap, and the counts of native memory tracking by category.

The JVM answers over its attach socket (``GC.heap_info``, ``VM.native_memory``) within milliseconds. It says where the
Java heap is, but only the kernel knows how much of it is resident.

This module is private to the collection.
"""

from __future__ import annotations

import re
import time
from typing import Any

from ansible_collections.offheap.profiler.plugins.module_utils.formats.jvm_memory import (
    MOST_CATEGORIES,
    JvmMemory,
    JvmMemoryError,
)
from ansible_collections.offheap.profiler.plugins.module_utils.host import process_key, procfs, regions
from ansible_collections.offheap.profiler.plugins.module_utils.runtimes import hotspot_attach, hotspot_protocol

_SECONDS = 5.0
_MAX_RANGES = 16

# " garbage-first heap   total 262144K, used 136410K [0x00000000f0000000, 0x0000000100000000)", and the like for each
# generation; the spaces within one have no total. Since JDK 22, G1 writes "total reserved 4194304K, committed 262144K".
_GENERATION = re.compile(
    r"^ *[A-Za-z][A-Za-z -]* total (?:reserved [0-9]{1,15}K, committed )?([0-9]{1,15})K, used ([0-9]{1,15})K(.*)$",
    re.MULTILINE,
)
_ZGC = re.compile(r"^ *ZHeap +used ([0-9]{1,12})M, capacity ([0-9]{1,12})M", re.MULTILINE)
_SHENANDOAH = re.compile(r"([0-9]{1,12})([KMG]) committed, ([0-9]{1,12})([KMG]) used")
_SHENANDOAH_RANGE = re.compile(r"^Reserved region:\n(.*)$", re.MULTILINE)
_RANGE = re.compile(r"\[0x([0-9a-f]{1,16}), (?:0x[0-9a-f]{1,16}, )?0x([0-9a-f]{1,16})\)")
_METASPACE = re.compile(
    r"^ *Metaspace +used [0-9]{1,15}K, (?:capacity [0-9]{1,15}K, )?committed ([0-9]{1,15})K", re.MULTILINE
)
_CATEGORY = re.compile(r"^- +([A-Z][A-Za-z ]{1,39}) \(reserved=", re.MULTILINE)
# What a category has mapped itself; what it got from malloc is among the samples.
_MAPPED = re.compile(r"\((?:mmap|stack): reserved=[0-9]{1,15}KB, committed=([0-9]{1,15})KB")
_SCALE = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def ask(pid: int, key: str, proc: str = "/proc") -> JvmMemory:
    """The numbers of a running JVM. ``key`` is the process's, as in capture.json. Raises JvmMemoryError."""
    try:
        if not process_key.is_alive(pid, key, proc):
            raise JvmMemoryError("its process has ended")
        jvm = hotspot_attach.look(pid, proc)
        heap = hotspot_attach.command(jvm, "GC.heap_info", _SECONDS, proc)
        if not _METASPACE.search(heap):  # which newer releases, such as JDK 25, tell apart
            heap += "\n" + hotspot_attach.command(jvm, "VM.metaspace basic", _SECONDS, proc)
        tracked = hotspot_attach.command(jvm, "VM.native_memory summary scale=KB", _SECONDS, proc)
        facts, ranges = read_heap(heap)
        facts["heap_resident"] = _resident(pid, ranges, proc) if ranges else None
    except (hotspot_protocol.HotspotError, procfs.ProcfsError, OSError) as exc:
        raise JvmMemoryError(str(exc)) from exc
    return JvmMemory.from_json({**facts, "time": time.time(), "nmt": read_tracking(tracked)})


def read_heap(text: str) -> tuple[dict[str, Any], list[tuple[int, int]]]:
    """The answers to GC.heap_info and VM.metaspace: used and committed bytes, and where the heap is (start, end).

    Serial, Parallel, G1 and Shenandoah say where; ZGC does not.
    """
    used: int | None = None
    committed: int | None = None
    places = ""
    for match in _GENERATION.finditer(text):
        committed = (committed or 0) + int(match.group(1)) * 1024
        used = (used or 0) + int(match.group(2)) * 1024
        places += match.group(3) + "\n"
    zgc, shenandoah = _ZGC.search(text), _SHENANDOAH.search(text)
    if used is None and zgc:
        used, committed = int(zgc.group(1)) << 20, int(zgc.group(2)) << 20
    elif used is None and shenandoah:
        committed = int(shenandoah.group(1)) * _SCALE[shenandoah.group(2)]
        used = int(shenandoah.group(3)) * _SCALE[shenandoah.group(4)]
        region = _SHENANDOAH_RANGE.search(text)
        places = region.group(1) if region else ""
    metaspace = _METASPACE.search(text)
    facts = {
        "heap_used": used,
        "heap_committed": committed,
        "metaspace": int(metaspace.group(1)) * 1024 if metaspace else None,
    }
    ranges = [(int(match.group(1), 16), int(match.group(2), 16)) for match in _RANGE.finditer(places)]
    return facts, ranges[:_MAX_RANGES]


def read_tracking(text: str) -> dict[str, int] | None:
    """The answer to VM.native_memory: mapped and committed bytes by category; None if tracking is off."""
    found: dict[str, int] = {}
    headings = list(_CATEGORY.finditer(text))[:MOST_CATEGORIES]
    for position, heading in enumerate(headings):
        end = headings[position + 1].start() if position + 1 < len(headings) else len(text)
        mapped = sum(int(match.group(1)) * 1024 for match in _MAPPED.finditer(text, heading.end(), end))
        if mapped:
            found[heading.group(1)] = mapped
    return found if headings else None


def _resident(pid: int, ranges: list[tuple[int, int]], proc: str) -> int:
    """The resident bytes of these ranges. A mapping that reaches beyond a range counts in full."""
    return sum(
        region.rss
        for region in regions.read(pid, proc)
        if any(region.start < last and first < region.end for first, last in ranges)
    )
