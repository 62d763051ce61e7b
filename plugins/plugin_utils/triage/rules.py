# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""The rules of a triage, from what grows to a verdict: the first one that holds decides. docs/triage.md explains them.

A part leads if it grows most of all parts and is at least a third of the growth. Idle memory is what malloc keeps free;
it counts if it is at least 32 MiB and a quarter of the resident set.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from ..base.byte_size import as_text
from ..base.durations import duration
from . import next_step, own_heaps
from .growth import Growth
from .look import Beside, Part
from .own_heaps import OwnHeap
from .rise import NONE, Rise

# From this many heaps of arenas on, limiting their number can help.
_MANY_ARENAS = 4
_CENTURY = 100 * 365 * 86400.0


class Diagnosis(Enum):
    """What kind of growth it is. docs/triage.md explains each."""

    CANNOT_TELL = "cannot-tell"
    DOES_NOT_FIT = "does-not-fit"
    JAVA_HEAP = "java-heap"
    METASPACE = "metaspace"
    THREADS = "threads"
    STACKS = "stacks"
    MAPPED_FILES = "mapped-files"
    SHARED_MEMORY = "shared-memory"
    HUGE_PAGES = "huge-pages"
    DIRECT_BUFFERS = "direct-buffers"
    MALLOC_ARENAS = "malloc-arenas"
    FRAGMENTATION = "fragmentation"
    NATIVE_GROWTH = "native-growth"
    OTHER_MEMORY = "other-memory"
    PAGE_CACHE = "page-cache"
    KERNEL_MEMORY = "kernel-memory"
    SOCKETS = "sockets"
    SWAPPED = "swapped"
    HOST = "host"
    NOT_GROWING = "not-growing"


@dataclass(frozen=True)
class Rule:
    """If it ``holds``, the ``diagnosis`` and the ``next_step`` follow; ``source`` says where the rule comes from.

    ``next_step`` has the words of next_step.py in it, in braces.
    """

    diagnosis: Diagnosis
    holds: Callable[[Growth], bool]
    source: str
    next_step: str


def _has_many_arenas(growth: Growth) -> bool:
    return growth.process is not None and growth.process.arenas >= _MANY_ARENAS


def _grows_beside_the_heap(growth: Growth) -> bool:
    """Whether malloc's memory in use grows beside a Java heap that grows more, as that of every JVM does until it has
    its size: by more than noise, and a tenth of the whole."""
    known = growth.process is not None and growth.process.malloc_known
    if not known or not growth.leads(Part.JAVA_HEAP) or not growth.rises(Part.MALLOC_USED):
        return False
    return growth.parts[Part.MALLOC_USED].size * 10 >= growth.growth.size


def _is_hidden(growth: Growth) -> bool:
    """Whether nobody could read what malloc has in use; what is swapped out is left where it is."""
    process = growth.process
    return process is not None and not process.malloc_known and not process.swap


@dataclass(frozen=True)
class Triaged:
    """The diagnosis, a sentence with the numbers that led to it, and another with what to do next."""

    diagnosis: Diagnosis
    reason: str
    next_step: str
    source: str


_PROFILE = "find the code path: {profile}"
_FRAGMENTATION = "{trim}run it under jemalloc without profiling, and compare RSS: {swap}"
_ARENAS = f"{_FRAGMENTATION}, or with MALLOC_ARENA_MAX=2: {{arena_max}}"
_SHARED = (
    "see which files in memory these are: df -t tmpfs, ls -l /dev/shm, ipcs -m; each stays until somebody removes it"
)
_CGROUP = "the kernel's cgroup-v2 document, memory.stat"
_GLIBC = "mallopt(3), M_ARENA_MAX and M_TRIM_THRESHOLD; glibc malloc/malloc.c and arena.c"

RULES = (
    Rule(
        Diagnosis.CANNOT_TELL,
        lambda g: g.problem is not None,
        "two looks at one process are needed",
        "see that {unit} is its name and that it runs, and look again as root: {triage} -e ansible_become=true",
    ),
    Rule(
        Diagnosis.DOES_NOT_FIT,
        lambda g: g.too_much > 0 and (not g.grows or g.leads(Part.JAVA_HEAP)) and not _grows_beside_the_heap(g),
        "java(1), -Xmx; a heap may grow up to it whenever the JVM likes, and the kernel kills what exceeds its limit",
        "give {unit} a larger limit or the JVM a smaller heap (-Xmx), so that both fit{limit}",
    ),
    Rule(
        Diagnosis.JAVA_HEAP,
        lambda g: g.leads(Part.JAVA_HEAP) and not _grows_beside_the_heap(g),
        "jcmd(1), GC.heap_info and GC.heap_dump; the memory map",
        "take a heap dump as the service's user, if it still grows after collections: "
        "jcmd {pid} GC.heap_dump /var/tmp/{pid}.hprof",
    ),
    Rule(
        Diagnosis.METASPACE,
        lambda g: g.leads(Part.METASPACE),
        "JEP 387; jcmd(1), VM.metaspace and VM.classloader_stats",
        "see which class loaders multiply: jcmd {pid} VM.classloader_stats",
    ),
    Rule(
        Diagnosis.THREADS,
        lambda g: g.leads(Part.THREAD_STACKS) and g.threads > 0,
        "pthread_create(3); proc(5), the stack pointers of the threads",
        "see which threads pile up: jcmd {pid} Thread.print, or ps -L -p {pid} -o comm= | sort | uniq -c",
    ),
    Rule(
        Diagnosis.STACKS,
        lambda g: g.leads(Part.THREAD_STACKS),
        "pthreads(7); a stack that was deep once keeps its pages until its thread ends",
        "see which are large: pmap -X {pid}; and in a JVM how deep: jcmd {pid} Thread.print",
    ),
    Rule(
        Diagnosis.SHARED_MEMORY,
        lambda g: g.leads(Part.SHARED_MEMORY),
        "shm_overview(7), memfd_create(2), sysvipc(7); the kernel does not give such pages back",
        _SHARED,
    ),
    Rule(
        Diagnosis.HUGE_PAGES,
        lambda g: g.leads(Part.HUGE_PAGES),
        "the kernel's document hugetlbpage; RSS does not count these pages",
        "see which mappings these are: grep -B 20 -E 'Hugetlb: +[1-9]' /proc/{pid}/smaps",
    ),
    Rule(
        Diagnosis.MAPPED_FILES,
        lambda g: g.leads(Part.MAPPED_FILES),
        "proc(5), smaps; pages of files are given back when memory is short",
        "see which files these are: pmap -X {pid}; a mapped buffer in Java lives as long as the object that holds it",
    ),
    Rule(
        Diagnosis.DIRECT_BUFFERS,
        lambda g: (
            g.leads(Part.MALLOC_USED) and g.direct is not None and 2 * g.direct.size >= g.parts[Part.MALLOC_USED].size
        ),
        "native memory tracking counts Unsafe.allocateMemory as Other; netty#11835, netty#6125",
        "find who keeps the buffers in a heap dump (java.nio.DirectByteBuffer): jcmd {pid} GC.heap_dump "
        "/var/tmp/{pid}.hprof; -XX:MaxDirectMemorySize limits them",
    ),
    Rule(
        Diagnosis.MALLOC_ARENAS,
        lambda g: g.leads(Part.MALLOC_FREE_ARENAS) and g.idle(Part.MALLOC_FREE_ARENAS) and _has_many_arenas(g),
        f"{_GLIBC}; presto#8993, SapMachine#2109",
        _ARENAS,
    ),
    Rule(
        Diagnosis.FRAGMENTATION,
        lambda g: any(g.leads(part) and g.idle(part) for part in (Part.MALLOC_FREE_HEAP, Part.MALLOC_FREE_ARENAS)),
        _GLIBC,
        _FRAGMENTATION,
    ),
    Rule(
        Diagnosis.CANNOT_TELL,
        lambda g: g.leads(Part.MALLOC_USED) and _is_hidden(g),
        "only its chunks say how much of malloc's memory is in use",
        "look again as root: {triage} -e ansible_become=true",
    ),
    Rule(
        Diagnosis.NATIVE_GROWTH,
        lambda g: g.leads(Part.MALLOC_USED) or _grows_beside_the_heap(g),
        "malloc's memory in use grows, and no part that belongs to the JVM explains it; a heap that fills is no leak",
        _PROFILE,
    ),
    Rule(
        Diagnosis.OTHER_MEMORY,
        lambda g: g.leads(Part.UNKNOWN),
        "mmap(2); proc(5), smaps; no profile of malloc shows what a program or its runtime maps by itself",
        "see which mappings grow: pmap -X {pid}, twice; and who maps them: "
        "perf record -e syscalls:sys_enter_mmap -g -p {pid} -- sleep 600",
    ),
    Rule(
        Diagnosis.SHARED_MEMORY,
        lambda g: g.leads_beside(Beside.SHARED_MEMORY),
        f"{_CGROUP}, shmem; the kernel does not give such pages back",
        _SHARED,
    ),
    Rule(
        Diagnosis.SOCKETS,
        lambda g: g.leads_beside(Beside.SOCKETS),
        f"{_CGROUP}, sock; what was sent and nobody has read",
        "see whose queues are long: ss -tumnp | grep -A 1 pid={pid}",
    ),
    Rule(
        Diagnosis.KERNEL_MEMORY,
        lambda g: g.leads_beside(Beside.KERNEL),
        f"{_CGROUP}, kernel and slab; pipes, watches of files, names of files that were looked for, page tables",
        "see what the kernel keeps for it: slabtop -o -s c | head -20, and ls /proc/{pid}/fd | wc -l",
    ),
    Rule(
        Diagnosis.MALLOC_ARENAS,
        lambda g: not g.grows and g.idle(Part.MALLOC_FREE_ARENAS) and _has_many_arenas(g),
        f"{_GLIBC}; presto#8993, SapMachine#2109",
        _ARENAS,
    ),
    Rule(
        Diagnosis.FRAGMENTATION,
        lambda g: not g.grows and (g.idle(Part.MALLOC_FREE_HEAP) or g.idle(Part.MALLOC_FREE_ARENAS)),
        _GLIBC,
        _FRAGMENTATION,
    ),
    Rule(
        Diagnosis.PAGE_CACHE,
        lambda g: g.leads_beside(Beside.FILES),
        f"{_CGROUP}, file; the kernel gives these pages back when the unit reaches its limit or memory is short",
        "no leak: let alerts count RSS, or memory.current less file; see which files: ls -l /proc/{pid}/fd",
    ),
    Rule(
        Diagnosis.SWAPPED,
        lambda g: not g.grows and g.swapped.size > max(g.floor, g.swapped.chance),
        "proc(5), VmSwap; RSS and swap together are what a process holds",
        "nothing grows: what was resident is in swap, so RSS alone says too little; see the host's pressure: vmstat 5",
    ),
    Rule(
        Diagnosis.CANNOT_TELL,
        lambda g: g.is_rough,
        "a step is no steady growth, and neither is what rises and falls; the next looks will tell",
        "watch longer: {triage} -e triage_watch=1h",
    ),
    Rule(
        Diagnosis.NOT_GROWING,
        lambda g: not g.grows,
        "growth below 1 MiB, or half a percent of RSS, is noise",
        "if you expect slower growth, look again later, the first look is kept: {triage} -e triage_watch=0",
    ),
    Rule(
        Diagnosis.CANNOT_TELL,
        lambda g: True,
        "no part leads the growth, or no rule covers the part that does",
        "watch longer: {triage} -e triage_watch=1h",
    ),
)

_NAMES = {
    Part.JAVA_HEAP: "Java heap",
    Part.CODE_CACHE: "code cache",
    Part.METASPACE: "metaspace",
    Part.THREAD_STACKS: "thread stacks",
    Part.MALLOC_USED: "malloc in use",
    Part.MALLOC_FREE_ARENAS: "malloc, kept free in arenas",
    Part.MALLOC_FREE_HEAP: "malloc, kept free in the main heap",
    Part.MAPPED_FILES: "files",
    Part.SHARED_MEMORY: "shared memory",
    Part.HUGE_PAGES: "reserved huge pages",
    Part.JIT: "compiled code",
    Part.UNKNOWN: "other anonymous memory",
}
_NAMES_BESIDE = {
    Beside.FILES: "cached files",
    Beside.SHARED_MEMORY: "shared memory and files in memory",
    Beside.KERNEL: "the kernel's memory for it",
    Beside.SOCKETS: "its connections",
}


def judge(growth: Growth, host: str, inventories: Sequence[str] = ()) -> Triaged:
    """The first rule that holds, with its evidence. ``inventories`` are what the next command needs with -i."""
    rule = next(rule for rule in RULES if rule.holds(growth))
    heap = _own_heap(rule.diagnosis, growth)
    step = (heap.next_step if heap else rule.next_step).format(**next_step.words(growth, host, inventories))
    return Triaged(rule.diagnosis, growth.problem or _reason(rule.diagnosis, growth), step, rule.source)


def _own_heap(diagnosis: Diagnosis, growth: Growth) -> OwnHeap | None:
    """That of the runtime, where memory that malloc does not know grows."""
    program = growth.process.exe if growth.process else ""
    return own_heaps.of(program) if diagnosis is Diagnosis.OTHER_MEMORY else None


def per_hour(growth: Growth, found: Rise) -> str:
    """``+36.0 MiB/h ± 2.1 MiB``"""
    rate = growth.per_hour(found.size)
    return f"{'-' if rate < 0 else '+'}{as_text(abs(rate))}/h ± {as_text(growth.per_hour(found.error))}"


def lasts(room: float, rise: Rise, seconds: float) -> str:
    """How long a room lasts while something rises so fast: ``2 h (110 min to 2 h 12 min)``."""
    soonest = duration(room * seconds / (rise.size + rise.error))
    least = rise.size - rise.error
    is_known = least > 0 and room * seconds < least * _CENTURY
    latest = f"{soonest} to {duration(room * seconds / least)}" if is_known else f"{soonest} or more"
    return f"{duration(room * seconds / rise.size)} ({latest})"


def _reason(diagnosis: Diagnosis, growth: Growth) -> str:
    elsewhere = (growth.swapped.size, growth.parts.get(Part.HUGE_PAGES, NONE).size)
    resident = replace(growth.growth, size=growth.growth.size - math.fsum(elsewhere))
    words = [f"in {duration(growth.seconds)} RSS {per_hour(growth, resident)}"]
    if abs(growth.swapped.size) >= growth.floor / 4:
        words.append(f"swap {per_hour(growth, growth.swapped)}")
    most = sorted(growth.parts.items(), key=lambda item: -abs(item[1].size))[:3]
    words += [f"{_NAMES[part]} {per_hour(growth, one)}" for part, one in most if abs(one.size) >= growth.floor / 4]
    besides = sorted(growth.beside.items(), key=lambda item: -item[1].size)
    words += [f"{_NAMES_BESIDE[part]} {per_hour(growth, one)}" for part, one in besides if growth.leads_beside(part)]
    if growth.processes > 1:
        words.append(f"that is process {growth.pid}; all {growth.processes} RSS {per_hour(growth, growth.unit_growth)}")
    if growth.room is not None and growth.filling.size > 0:
        whose = "its limit leaves" if growth.limit is not None else "the host has available"
        words.append(
            f"the {as_text(growth.room)} that {whose} last {lasts(growth.room, growth.filling, growth.seconds)}"
        )
    process = growth.process
    if diagnosis is Diagnosis.JAVA_HEAP and process is not None and process.collected is not None:
        words.append(f"{as_text(process.collected)} of the heap in use after the last collection")
    if diagnosis is Diagnosis.DOES_NOT_FIT and process is not None and process.max_heap is not None:
        words.append(
            f"a heap of up to {as_text(process.max_heap)} and {as_text(growth.beyond_the_heap)} besides it are"
            f" {as_text(growth.too_much)} more than {'its limit' if growth.limit is not None else 'the host has'}"
        )
        if (fits := (process.max_heap - growth.too_much) >> 20) > 0:
            words.append(f"-Xmx{fits}m would fit")
    if diagnosis is Diagnosis.SHARED_MEMORY and (file := growth.in_memory) is not None:
        words.append(f"{file.path} has grown by {as_text(file.growth)} to {as_text(file.size)}")
    if heap := _own_heap(diagnosis, growth):
        words.append(f"its runtime keeps there {heap.name}")
    if diagnosis in (Diagnosis.THREADS, Diagnosis.STACKS):
        words.append(f"{growth.threads:+} threads")
    if diagnosis is Diagnosis.DIRECT_BUFFERS and growth.direct is not None:
        words.append(f"direct buffers {per_hour(growth, growth.direct)} of that")
    if (
        process is not None
        and process.parts is not None
        and diagnosis in (Diagnosis.MALLOC_ARENAS, Diagnosis.FRAGMENTATION)
    ):
        free = process.parts[Part.MALLOC_FREE_ARENAS] + process.parts[Part.MALLOC_FREE_HEAP]
        words.append(f"{as_text(free)} kept free by malloc in {process.arenas} heaps of arenas and the main heap")
        words.append(f"malloc_trim would give back {as_text(process.trim)} of that")
    if growth.is_rough and diagnosis is Diagnosis.CANNOT_TELL:
        words.append("it has grown in a step, or rises and falls")
    if diagnosis is Diagnosis.NOT_GROWING:
        hidden = max(growth.floor, growth.growth.chance)
        words.append(f"less than {as_text(growth.per_hour(hidden))}/h would not show yet")
    if diagnosis is Diagnosis.NATIVE_GROWTH and process is not None and process.swap and not process.malloc_known:
        words.append("what malloc keeps free of that is not known, since a part is swapped out")
    if diagnosis is Diagnosis.NATIVE_GROWTH and process is not None and process.jvm and growth.direct is None:
        words.append("direct buffers are not ruled out, since native memory tracking is off (the profile will tell)")
    return "; ".join(words)
