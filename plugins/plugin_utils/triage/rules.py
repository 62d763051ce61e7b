# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""The rules of a triage, from what grows to a verdict: the first one that holds decides. docs/triage.md explains them.

A part *leads* when it grows most of all parts and makes a third of the growth. Memory is *idle* that malloc keeps free;
it counts when it is 32 MiB and a quarter of the resident set.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ..base.byte_size import as_text
from ..base.durations import duration
from .growth import Growth

# From so many heaps of arenas on, their number is what can be turned down.
_MANY_ARENAS = 4


@dataclass(frozen=True)
class Rule:
    """When it ``holds``, the ``verdict`` and the ``next_step`` follow; ``source`` is where the rule is from.

    In ``next_step``, ``{host}``, ``{unit}`` and ``{pid}`` stand for what was looked at.
    """

    verdict: str
    holds: Callable[[Growth], bool]
    source: str
    next_step: str


@dataclass(frozen=True)
class Verdict:
    """The answer with the numbers that led to it, in one sentence, and what to do next, in another."""

    verdict: str
    reason: str
    next_step: str
    source: str


_ENABLE = 'ansible-playbook enable-profiling.yml -l {host} -e \'{{"offheap_units": ["{unit}"]}}\''
_PROFILE = f"find the code path: {_ENABLE}"
_FRAGMENTATION = f"run it under jemalloc without profiling, and compare RSS: {_ENABLE} -e profiled_service_mode=swap"
_ARENAS = f"{_FRAGMENTATION}, or with MALLOC_ARENA_MAX=2: add -e profiled_service_swap_arena_max=2"
_GLIBC = "mallopt(3), M_ARENA_MAX and M_TRIM_THRESHOLD; glibc malloc/malloc.c and arena.c"

RULES = (
    Rule(
        "cannot-tell",
        lambda g: g.problem is not None,
        "two looks at one process are needed",
        "run triage.yml again as root while {unit} runs",
    ),
    Rule(
        "java-heap",
        lambda g: g.leads("java-heap"),
        "jcmd(1), GC.heap_info and GC.heap_dump; the memory map",
        "take a heap dump as the service's user, if it still grows after collections: "
        "jcmd {pid} GC.heap_dump /var/tmp/{pid}.hprof",
    ),
    Rule(
        "metaspace",
        lambda g: g.leads("metaspace"),
        "JEP 387; jcmd(1), VM.metaspace and VM.classloader_stats",
        "see which class loaders multiply: jcmd {pid} VM.classloader_stats",
    ),
    Rule(
        "threads",
        lambda g: g.leads("thread-stacks") and g.threads > 0,
        "pthread_create(3); proc(5), the stack pointers of the threads",
        "see which threads pile up: jcmd {pid} Thread.print, or ps -L -p {pid} -o comm= | sort | uniq -c",
    ),
    Rule(
        "mapped-files",
        lambda g: g.leads("mapped-files"),
        "proc(5), smaps; pages of files are given back when memory is short, those of shared memory are not",
        "see which files these are: pmap -X {pid}; a mapped buffer in Java lives as long as the object that holds it",
    ),
    Rule(
        "direct-buffers",
        lambda g: g.leads("malloc-used") and g.direct is not None and 2 * g.direct >= g.parts["malloc-used"],
        "native memory tracking counts Unsafe.allocateMemory as Other; netty#11835, netty#6125",
        "find who keeps the buffers in a heap dump (java.nio.DirectByteBuffer): jcmd {pid} GC.heap_dump "
        "/var/tmp/{pid}.hprof; -XX:MaxDirectMemorySize limits them",
    ),
    Rule(
        "malloc-arenas",
        lambda g: g.leads("malloc-free-arenas") and g.process is not None and g.process.arenas >= _MANY_ARENAS,
        f"{_GLIBC}; presto#8993, SapMachine#2109",
        _ARENAS,
    ),
    Rule(
        "fragmentation",
        lambda g: g.leads("malloc-free-heap") or g.leads("malloc-free-arenas"),
        _GLIBC,
        _FRAGMENTATION,
    ),
    Rule(
        "cannot-tell",
        lambda g: g.leads("malloc-used") and g.process is not None and not g.process.malloc_known,
        "what of malloc's memory is in use has to be read from its chunks",
        "run triage.yml with become, as root",
    ),
    Rule(
        "native-leak",
        lambda g: g.leads("malloc-used"),
        "malloc's memory in use grows, and no part that belongs to the JVM explains it",
        _PROFILE,
    ),
    Rule(
        "malloc-arenas",
        lambda g: (
            not g.grows and g.idle("malloc-free-arenas") and g.process is not None and g.process.arenas >= _MANY_ARENAS
        ),
        f"{_GLIBC}; presto#8993, SapMachine#2109",
        _ARENAS,
    ),
    Rule(
        "fragmentation",
        lambda g: not g.grows and (g.idle("malloc-free-heap") or g.idle("malloc-free-arenas")),
        _GLIBC,
        _FRAGMENTATION,
    ),
    Rule(
        "not-growing",
        lambda g: not g.grows,
        "growth below 1 MiB, or half a percent of RSS, is noise",
        "if you expect a slower growth, run triage.yml again later: the first look is kept",
    ),
    Rule(
        "cannot-tell",
        lambda g: True,
        "no part leads the growth, or one that no rule knows",
        "watch longer: ansible-playbook triage.yml -e triage_watch=1h",
    ),
)

_NAMES = {
    "java-heap": "Java heap",
    "code-cache": "code cache",
    "metaspace": "metaspace",
    "thread-stacks": "thread stacks",
    "malloc-used": "malloc in use",
    "malloc-free-arenas": "malloc, kept free in arenas",
    "malloc-free-heap": "malloc, kept free in the main heap",
    "mapped-files": "files and shared memory",
    "jit": "compiled code",
    "unknown": "other anonymous memory",
}


def judge(growth: Growth, host: str) -> Verdict:
    """The first rule that holds, with its evidence."""
    rule = next(rule for rule in RULES if rule.holds(growth))
    pid = growth.process.pid if growth.process else 0
    step = rule.next_step.format(host=host, unit=growth.name, pid=pid)
    return Verdict(rule.verdict, growth.problem or _reason(rule.verdict, growth), step, rule.source)


def per_hour(growth: Growth, size: float) -> str:
    """``+36.0 MiB/h``"""
    rate = growth.per_hour(size)
    return f"{'-' if rate < 0 else '+'}{as_text(abs(rate))}/h"


def _reason(verdict: str, growth: Growth) -> str:
    words = [f"in {duration(growth.seconds)} RSS {per_hour(growth, growth.growth)}"]
    most = sorted(growth.parts.items(), key=lambda item: -abs(item[1]))[:3]
    words += [f"{_NAMES[part]} {per_hour(growth, size)}" for part, size in most if abs(size) >= growth.floor / 4]
    process = growth.process
    if verdict == "java-heap" and process is not None and process.collected is not None:
        words.append(f"{as_text(process.collected)} of the heap in use after the last collection")
    if verdict == "threads":
        words.append(f"{growth.threads:+} threads")
    if verdict == "direct-buffers" and growth.direct is not None:
        words.append(f"of it direct buffers {per_hour(growth, growth.direct)}")
    if process is not None and process.parts is not None and verdict in ("malloc-arenas", "fragmentation"):
        free = process.parts["malloc-free-arenas"] + process.parts["malloc-free-heap"]
        words.append(f"{as_text(free)} kept free by malloc in {process.arenas} heaps of arenas and the main heap")
    if verdict == "not-growing":
        words.append(f"less than {as_text(growth.per_hour(growth.floor))}/h would not show yet")
    if verdict == "native-leak" and process is not None and process.jvm and growth.direct is None:
        words.append("direct buffers are not ruled out, since native memory tracking is off (the profile will tell)")
    return "; ".join(words)
