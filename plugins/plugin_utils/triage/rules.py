# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""The rules of a triage, from what grows to a verdict: the first one that holds decides. docs/triage.md explains them.

A part leads if it grows most of all parts and is at least a third of the growth. Idle memory is what malloc keeps free;
it counts if it is at least 32 MiB and a quarter of the resident set.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum

from ..base.byte_size import as_text
from ..base.durations import duration
from .growth import Growth, Part

# From this many heaps of arenas on, limiting their number can help.
_MANY_ARENAS = 4


class Diagnosis(Enum):
    """What kind of growth it is. docs/triage.md explains each."""

    CANNOT_TELL = "cannot-tell"
    JAVA_HEAP = "java-heap"
    METASPACE = "metaspace"
    THREADS = "threads"
    MAPPED_FILES = "mapped-files"
    DIRECT_BUFFERS = "direct-buffers"
    MALLOC_ARENAS = "malloc-arenas"
    FRAGMENTATION = "fragmentation"
    NATIVE_GROWTH = "native-growth"
    OTHER_MEMORY = "other-memory"
    NOT_GROWING = "not-growing"


@dataclass(frozen=True)
class Rule:
    """If it ``holds``, the ``diagnosis`` and the ``next_step`` follow; ``source`` says where the rule comes from.

    In ``next_step``, ``{host}``, ``{unit}`` and ``{pid}`` stand for what was looked at, ``{inventory}`` for options of
    ansible-playbook, and ``{named}`` for the unit as offheap_units takes it: with the program that grows, if it has
    several processes.
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
    used = growth.parts.get(Part.MALLOC_USED, 0)
    known = growth.process is not None and growth.process.malloc_known
    return known and growth.leads(Part.JAVA_HEAP) and used > growth.floor and used * 10 >= growth.growth


@dataclass(frozen=True)
class Triaged:
    """The diagnosis, a sentence with the numbers that led to it, and another with what to do next."""

    diagnosis: Diagnosis
    reason: str
    next_step: str
    source: str


_ENABLE = (
    "ansible-playbook {inventory}offheap.profiler.enable_profiling -l {host} -e '{{\"offheap_units\": [{named}]}}'"
)
# What a shell, and JSON, take as it is: a host chooses these paths.
_PLAIN_PATH = re.compile(r"/[A-Za-z0-9_.+/-]+\Z")
_PROFILE = f"find the code path: {_ENABLE}"
_FRAGMENTATION = f"run it under jemalloc without profiling, and compare RSS: {_ENABLE} -e profiled_service_mode=swap"
_ARENAS = f"{_FRAGMENTATION}, or with MALLOC_ARENA_MAX=2: add -e profiled_service_swap_arena_max=2"
_GLIBC = "mallopt(3), M_ARENA_MAX and M_TRIM_THRESHOLD; glibc malloc/malloc.c and arena.c"

RULES = (
    Rule(
        Diagnosis.CANNOT_TELL,
        lambda g: g.problem is not None,
        "two looks at one process are needed",
        "run triage again as root while {unit} runs",
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
        Diagnosis.MAPPED_FILES,
        lambda g: g.leads(Part.MAPPED_FILES),
        "proc(5), smaps; pages of files are given back when memory is short, those of shared memory are not",
        "see which files these are: pmap -X {pid}; a mapped buffer in Java lives as long as the object that holds it",
    ),
    Rule(
        Diagnosis.DIRECT_BUFFERS,
        lambda g: g.leads(Part.MALLOC_USED) and g.direct is not None and 2 * g.direct >= g.parts[Part.MALLOC_USED],
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
        lambda g: g.leads(Part.MALLOC_USED) and g.process is not None and not g.process.malloc_known,
        "only its chunks say how much of malloc's memory is in use",
        "run triage with become, as root",
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
        Diagnosis.NOT_GROWING,
        lambda g: not g.grows,
        "growth below 1 MiB, or half a percent of RSS, is noise",
        "if you expect slower growth, run triage again later: the first look is kept",
    ),
    Rule(
        Diagnosis.CANNOT_TELL,
        lambda g: True,
        "no part leads the growth, or no rule covers the part that does",
        "watch longer: ansible-playbook triage.yml -e triage_watch=1h",
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
    Part.MAPPED_FILES: "files and shared memory",
    Part.JIT: "compiled code",
    Part.UNKNOWN: "other anonymous memory",
}


def judge(growth: Growth, host: str, inventories: Sequence[str] = ()) -> Triaged:
    """The first rule that holds, with its evidence. ``inventories`` are what the next command needs with -i."""
    rule = next(rule for rule in RULES if rule.holds(growth))
    pid = growth.process.pid if growth.process else 0
    inventory = "".join(f"-i {shlex.quote(one)} " for one in inventories)
    step = rule.next_step.format(host=host, unit=growth.name, pid=pid, named=_named(growth), inventory=inventory)
    return Triaged(rule.diagnosis, growth.problem or _reason(rule.diagnosis, growth), step, rule.source)


def _named(growth: Growth) -> str:
    program = growth.process.exe if growth.process and growth.processes > 1 else ""
    if not _PLAIN_PATH.match(program):
        return f'"{growth.name}"'
    return f'{{"name": "{growth.name}", "agent_settings": {{"executable": "{program}"}}}}'


def per_hour(growth: Growth, size: float) -> str:
    """``+36.0 MiB/h``"""
    rate = growth.per_hour(size)
    return f"{'-' if rate < 0 else '+'}{as_text(abs(rate))}/h"


def _reason(diagnosis: Diagnosis, growth: Growth) -> str:
    words = [f"in {duration(growth.seconds)} RSS {per_hour(growth, growth.growth)}"]
    most = sorted(growth.parts.items(), key=lambda item: -abs(item[1]))[:3]
    words += [f"{_NAMES[part]} {per_hour(growth, size)}" for part, size in most if abs(size) >= growth.floor / 4]
    if growth.processes > 1:
        words.append(f"that is process {growth.pid}; all {growth.processes} RSS {per_hour(growth, growth.unit_growth)}")
    if growth.grows and growth.room is not None and growth.unit_growth > 0:
        lasts = duration(growth.room * growth.seconds / growth.unit_growth)
        words.append(f"the {as_text(growth.room)} that its limit leaves last {lasts}")
    process = growth.process
    if diagnosis is Diagnosis.JAVA_HEAP and process is not None and process.collected is not None:
        words.append(f"{as_text(process.collected)} of the heap in use after the last collection")
    if diagnosis is Diagnosis.THREADS:
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
    if diagnosis is Diagnosis.NOT_GROWING:
        words.append(f"less than {as_text(growth.per_hour(growth.floor))}/h would not show yet")
    if diagnosis is Diagnosis.NATIVE_GROWTH and process is not None and process.jvm and growth.direct is None:
        words.append("direct buffers are not ruled out, since native memory tracking is off (the profile will tell)")
    return "; ".join(words)
