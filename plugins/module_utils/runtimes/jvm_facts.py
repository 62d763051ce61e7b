# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""What a HotSpot JVM says about its memory: its spaces with their addresses, native memory tracking, flags, agents.

The questions are jcmd commands whose impact its documentation calls low. None of them runs a collection, walks the
Java heap or switches anything on. We ask nothing more after one that is not answered in time.

This module is private to the collection.
"""

from __future__ import annotations

import re
from typing import Any, Mapping, NamedTuple

from ansible_collections.offheap.profiler.plugins.module_utils.formats.memory_class import MemoryClass
from ansible_collections.offheap.profiler.plugins.module_utils.host import procfs
from ansible_collections.offheap.profiler.plugins.module_utils.runtimes import hotspot_attach, hsperfdata, jvm_heap

_KIB = 1024
_CODE_RANGE = re.compile(r"bounds \[(0x[0-9a-f]{1,16}), 0x[0-9a-f]{1,16}, (0x[0-9a-f]{1,16})\]")
_CODE_USED = re.compile(r"size=(\d{1,12})Kb used=(\d{1,12})Kb")
_METASPACE_NODE = re.compile(
    r"node #\d+: base (0x[0-9a-f]{1,16}): reserved=(\d{1,12})(?:\.\d+)? KB, committed=(\d{1,12})"
)
_COLLECTED = re.compile(r"sun\.gc\.generation\.\d+\.space\.\d+\.used\Z")
_NMT_TOTAL = re.compile(r"^Total: reserved=(\d{1,15})KB, committed=(\d{1,15})KB", re.MULTILINE)
_NMT = re.compile(r"^-\s+(\w[\w ]{0,60}?) \(reserved=(\d{1,15})KB, committed=(\d{1,15})KB", re.MULTILINE)
_FREE = re.compile(r'<total type="(fast|rest|mmap)" count="\d{1,19}" size="(\d{1,19})"/>')
_HELD = re.compile(r'<system type="current" size="(\d{1,19})"/>')
_FLAG = re.compile(r"-XX:(?:([+-])(\w+)|(\w+)=(\S+))")
_FLAGS_THAT_MATTER = frozenset(
    """
    AlwaysPreTouch MaxDirectMemorySize MaxHeapSize InitialHeapSize MaxMetaspaceSize NativeMemoryTracking
    ReservedCodeCacheSize ThreadStackSize TrimNativeHeapInterval UseG1GC UseParallelGC UseSerialGC UseShenandoahGC
    UseTransparentHugePages UseZGC ZGenerational
""".split()
)
_AGENT = re.compile(r"-(javaagent|agentlib|agentpath):([^=\s]+)|-(Xrunjdwp|Xdebug)\b")
_OPTION_VARIABLES = ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS")


class JvmFacts(NamedTuple):
    """Facts for people and rules, with sizes in bytes, and the sorted address ranges of the JVM's spaces."""

    facts: dict[str, Any]
    ranges: list[tuple[int, int, MemoryClass]]


def ask(pid: int, timeout: float, proc: str = "/proc") -> JvmFacts:
    """Ask a JVM. Raises NotHotspot if it cannot be asked, HotspotError if it does not answer in time."""
    jvm = hotspot_attach.look(pid, proc)

    def answer(text: str) -> str:
        return hotspot_attach.command(jvm, text, timeout, proc)

    known = set(answer("help").split())

    def answer_if_known(text: str) -> str:
        return answer(text) if text.split()[0] in known else ""

    facts: dict[str, Any] = {
        "version": hotspot_attach.version(jvm, timeout, proc),
        "flags": flags(answer_if_known("VM.flags")),
        **counters(hsperfdata.read(pid, proc)),
    }
    spaces = answer_if_known("VM.metaspace vslist")
    heap, places = jvm_heap.read_heap(f"{answer_if_known('GC.heap_info')}\n{spaces}")
    code = answer_if_known("Compiler.codecache")
    facts.update(heap, code_cache=code_cache_use(code))
    facts["nmt"] = native_memory(answer_if_known("VM.native_memory summary scale=KB"))
    facts["native_heap"] = malloc_info(answer_if_known("System.native_heap_info"))
    # ZGC names no range: its heap is a memory file that the memory map shows as such.
    ranges = [(start, end, MemoryClass.JAVA_HEAP) for start, end in places] + code_ranges(code)
    return JvmFacts(facts, sorted(ranges + metaspace_ranges(spaces)))


def agents(pid: int, proc: str = "/proc") -> list[str]:
    """The agents that the command line and the variables name, without their options, which may hold secrets."""
    environment = procfs.environ(pid, proc)
    words = procfs.cmdline(pid, proc)
    if words and not words[0].endswith("java"):
        return []
    words += [word for name in _OPTION_VARIABLES for word in environment.get(name, "").split()]
    matches = filter(None, map(_AGENT.match, words))
    return sorted({f"{kind}:{name}" if kind else debug for kind, name, debug in (m.groups() for m in matches)})


def flags(text: str) -> dict[str, str]:
    """Those of ``VM.flags`` that concern memory."""
    found = {}
    for sign, switch, name, value in _FLAG.findall(text):
        if (switch or name) in _FLAGS_THAT_MATTER:
            found[switch or name] = {"+": "true", "-": "false"}.get(sign, value)
    return found


def code_ranges(text: str) -> list[tuple[int, int, MemoryClass]]:
    """Address ranges in ``Compiler.codecache``."""
    return [(int(start, 16), int(end, 16), MemoryClass.CODE_CACHE) for start, end in _CODE_RANGE.findall(text)]


def code_cache_use(text: str) -> dict[str, int]:
    """Reserved and used bytes of the code cache."""
    parts = [(int(size) * _KIB, int(used) * _KIB) for size, used in _CODE_USED.findall(text)]
    return {"reserved": sum(size for size, _used in parts), "used": sum(used for _size, used in parts)}


def metaspace_ranges(text: str) -> list[tuple[int, int, MemoryClass]]:
    """Address ranges in ``VM.metaspace vslist``."""
    return [
        (int(base, 16), int(base, 16) + int(reserved) * _KIB, MemoryClass.METASPACE)
        for base, reserved, _committed in _METASPACE_NODE.findall(text)
    ]


def counters(values: Mapping[str, int]) -> dict[str, int | None]:
    """Threads, classes, and the heap in bytes after the last collection, which is when the JVM counts it."""
    collections = sum(
        value
        for name, value in values.items()
        if name.startswith("sun.gc.collector.") and name.endswith(".invocations")
    )
    used = sum(value for name, value in values.items() if _COLLECTED.match(name))
    loaded = values.get("java.cls.loadedClasses", 0) + values.get("java.cls.sharedLoadedClasses", 0)
    unloaded = values.get("java.cls.unloadedClasses", 0) + values.get("java.cls.sharedUnloadedClasses", 0)
    return {
        "threads": values.get("java.threads.live"),
        "classes": loaded - unloaded if values else None,
        "collections": collections if values else None,
        "heap_after_collection": used if collections else None,
    }


def native_memory(text: str) -> dict[str, Any] | None:
    """Committed bytes by category and in total; None if native memory tracking is off."""
    total = _NMT_TOTAL.search(text)
    if not total:
        return None
    categories = {name: int(committed) * _KIB for name, _reserved, committed in _NMT.findall(text)}
    return {"committed": int(total.group(2)) * _KIB, "categories": categories}


def malloc_info(text: str) -> dict[str, int] | None:
    """From glibc's malloc_info(3): bytes held in its heaps, how many of those are free, and bytes mapped separately."""
    # The totals over all arenas come last.
    free = {kind: int(size) for kind, size in _FREE.findall(text)}
    held = _HELD.findall(text)
    if not held:
        return None
    return {"held": int(held[-1]), "free": free.get("fast", 0) + free.get("rest", 0), "mmapped": free.get("mmap", 0)}
