# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Why a profile's total is not the process's resident memory: RSS, part by part.

    RSS = live (sampled) + not sampled                       what the program got from malloc: stats.allocated
        + fragmentation (active - allocated)
        + metadata                                           but what of it lies in active pages
        + kept (resident - active - metadata)                freed, but not yet returned to the kernel
        + Java heap + metaspace, code, thread stacks, ...    what a JVM maps itself
        + mapped files + shared memory
        + unexplained

jemalloc's numbers are mallctl's stats.* (jemalloc(3)), RSS and its kinds those of proc(5). ``unexplained`` is the rest,
so the parts add up to RSS, and none is less than nothing. Where they come to more, because a part counts bytes that are
not in memory (swapped out, or committed and never touched) or was counted a moment earlier, a note says by how much.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, NamedTuple

from ...module_utils.formats.capture_facts import CaptureFacts
from ...module_utils.formats.jvm_memory import JvmMemory
from ..archive.capture import Capture
from ..base.byte_size import as_text
from ..base.durations import moment
from ..leaks.own_numbers import told_size
from ..leaks.survey import Process
from ..model.sampling import Sampling

# Seconds after which what a JVM has said is no longer of the same moment.
_LONG_AGO = 60.0
# Categories of native memory tracking that are shown separately; the others are added up.
_TRACKED = {
    "Class": "Metaspace",
    "Metaspace": "Metaspace",
    "Code": "Compiled code",
    "Thread": "Thread stacks",
}
# Counted elsewhere: the resident part of the heap, and the archive of shared classes among the mapped files.
_ELSEWHERE = ("Java Heap", "Shared class space")


class Origin(Enum):
    """Who holds a part."""

    PROGRAM = "program"
    ALLOCATOR = "allocator"
    RUNTIME = "runtime"
    FILES = "files"
    UNEXPLAINED = "unexplained"


@dataclass(frozen=True)
class Part:
    """A part of the resident memory. ``error`` is half of the 95 % interval, in bytes; ``meaning`` is for people."""

    name: str
    bytes: float
    origin: Origin
    meaning: str
    error: float = 0.0


@dataclass(frozen=True)
class Reconciliation:
    """The parts of ``rss`` (bytes), which add up to it, or to ``beyond`` bytes more. ``notes`` are sentences on what is
    missing, or counted too much."""

    rss: float
    parts: list[Part]
    notes: list[str]
    beyond: float

    @property
    def unexplained(self) -> float:
        return self.parts[-1].bytes

    @property
    def shares(self) -> dict[str, float]:
        """What part of RSS (0 to 1) each part is, by its name."""
        return {part.name: part.bytes / self.rss for part in self.parts} if self.rss else {}


class Unsampled(NamedTuple):
    """What of the allocated bytes the samples did not stand for, and the ``live`` ones that they stood for."""

    bytes: float
    live: float


def first_unsampled(process: Process) -> Unsampled | None:
    """That of the first capture of a process that has jemalloc's statistics."""
    for capture, live in zip(process.captures, process.series.bytes.sum(axis=0).tolist(), strict=True):
        allocated = told_size(capture.facts.memory.get("allocated"))
        if allocated is not None:
            return Unsampled(allocated - live, live)
    return None


def with_jvm(captures: Sequence[Capture], position: int) -> CaptureFacts:
    """The facts of one of a process's captures (oldest first).

    A JVM is asked only when dumps are collected, so one without an answer gets the newest before it.
    """
    facts = captures[position].facts
    earlier = (capture.facts.jvm for capture in reversed(captures[:position]) if capture.facts.jvm)
    return facts if facts.jvm else replace(facts, jvm=next(earlier, None))


def reconcile(
    facts: CaptureFacts, live: float, sampling: Sampling, first: Unsampled | None = None
) -> Reconciliation | None:
    """The parts of a capture's resident memory; None if its dump came without memory statistics.

    ``live`` is the profile's total, ``first`` what the first capture of the process did not sample.
    """
    memory = facts.memory
    rss = told_size(memory.get("rss"))
    if rss is None:
        return None
    notes: list[str] = []
    jvm = JvmMemory.told(facts.jvm) if facts.jvm else None
    parts = [
        *_malloc(memory, live, sampling, first, notes),
        *_runtime(jvm, notes),
        *_files(memory, notes),
    ]
    rest = rss - math.fsum(part.bytes for part in parts)
    meaning = "mapped by the program itself" if jvm else "mapped by the program or its runtime, outside malloc"
    parts.append(Part("Unexplained", max(rest, 0.0), Origin.UNEXPLAINED, meaning, sampling.error(live)))
    if rest < 0:
        notes.append(
            f"the parts come to {as_text(-rest)} more than RSS: some is not in memory (committed or allocated, but"
            " never touched; swapped out), or was counted a moment earlier"
        )
    swap = told_size(memory.get("swap"))
    if jvm is not None and jvm.time and facts.dump.time - jvm.time > _LONG_AGO:
        notes.append(f"what the JVM says of itself is of {moment(jvm.time)}, when it was asked last")
    if swap:
        notes.append(f"{as_text(swap)} of the process are swapped out; no part accounts for that")
    return Reconciliation(rss, parts, notes, max(-rest, 0.0))


def text_rows(found: Reconciliation) -> list[tuple[str, str]]:
    """The reconciliation for a terminal: (name, value) with shares of RSS."""
    width = max(len(as_text(part.bytes)) for part in found.parts)
    rows = []
    for part in found.parts:
        share = f"{100 * part.bytes / found.rss:5.1f}%" if found.rss else "    -"
        rows.append((part.name, f"{as_text(part.bytes):>{width}} {share}  {part.meaning}"))
    return [("RSS", f"{as_text(found.rss):>{width}} 100.0%"), *rows]


def _malloc(
    memory: Mapping[str, Any], live: float, sampling: Sampling, first: Unsampled | None, notes: list[str]
) -> list[Part]:
    error = sampling.error(live)
    stacks = "what this report's stacks hold"
    allocated, active, metadata, resident = (
        told_size(memory.get(name)) for name in ("allocated", "active", "metadata", "resident")
    )
    if allocated is None or active is None:
        notes.append("jemalloc's own statistics did not come with the dump, so its overhead is part of unexplained")
        return [Part("Live, sampled", live, Origin.PROGRAM, stacks, error)]
    if live > allocated:
        within = "within" if live - allocated <= error else "beyond"
        notes.append(
            f"the samples stand for {as_text(live - allocated)} more than jemalloc counted, {within} their error: its"
            " count is shown"
        )
    meaning = _unsampled_meaning(Unsampled(allocated - live, live), first, sampling)
    parts = [
        Part("Live, sampled", min(live, allocated), Origin.PROGRAM, stacks, error),
        Part("Not sampled", max(allocated - live, 0.0), Origin.PROGRAM, meaning, error),
        Part("Fragmentation", max(active - allocated, 0.0), Origin.ALLOCATOR, "unused room in pages in use"),
    ]
    # Some of jemalloc's records lie in pages in use, and are counted there.
    outside = math.inf if resident is None else max(resident - active, 0.0)
    records = min(metadata or 0.0, outside)
    if metadata is not None:
        parts.append(Part("Allocator metadata", records, Origin.ALLOCATOR, "jemalloc's own records"))
    if resident is not None:
        meaning = "freed, not yet returned to the kernel"
        parts.append(Part("Kept by allocator", outside - records, Origin.ALLOCATOR, meaning))
    return parts


def _unsampled_meaning(now: Unsampled, first: Unsampled | None, sampling: Sampling) -> str:
    error = sampling.error(now.live)
    if abs(now.bytes) <= error:
        return "nothing beyond the sampling error"
    grown = now.bytes - first.bytes if first is not None else 0.0
    if first is not None and grown > math.hypot(error, sampling.error(first.live)):
        return f"not explained by the samples: {as_text(grown)} more than in the first dump"
    return "allocated before sampling began" if now.bytes > 0 else "the samples stand for more than is allocated"


def _runtime(jvm: JvmMemory | None, notes: list[str]) -> list[Part]:
    if jvm is None:
        return []
    parts: list[Part] = []
    if jvm.heap_resident is not None:
        used = jvm.heap_used
        meaning = "objects of the program" if used is None else f"{as_text(used)} of it in use"
        parts.append(Part("Java heap", jvm.heap_resident, Origin.RUNTIME, meaning))
    else:
        notes.append("the JVM does not say where its heap is (ZGC): look for it under shared memory or unexplained")
    if jvm.nmt is None:
        notes.append(
            "native memory tracking is off, so thread stacks, compiled code and the garbage collector's tables are part"
            " of unexplained (turn it on with -XX:NativeMemoryTracking=summary)"
        )
        if jvm.metaspace is not None:
            parts.append(
                Part("Metaspace", jvm.metaspace, Origin.RUNTIME, "classes; committed, not necessarily resident")
            )
        return parts
    sums: dict[str, float] = {}
    for category, size in jvm.nmt.items():
        if category not in _ELSEWHERE:
            name = _TRACKED.get(category, "JVM, other")
            sums[name] = sums.get(name, 0.0) + size
    meanings = {
        "Metaspace": "classes; committed, not necessarily resident",
        "Compiled code": "the code cache; committed, not necessarily resident",
        "Thread stacks": "committed, not necessarily resident",
        "JVM, other": "the garbage collector's tables and the like; committed, not necessarily resident",
    }
    parts += [Part(name, sums[name], Origin.RUNTIME, meaning) for name, meaning in meanings.items() if name in sums]
    return parts


def _files(memory: Mapping[str, Any], notes: list[str]) -> list[Part]:
    files, shared = told_size(memory.get("rss_file")), told_size(memory.get("rss_shmem"))
    if files is None:
        notes.append("the kernel did not say how much of RSS is mapped files")
        return []
    parts = [Part("Mapped files", files, Origin.FILES, "executables, libraries, files mapped into memory")]
    if shared:
        parts.append(Part("Shared memory", shared, Origin.FILES, "tmpfs, memfd, System V"))
    return parts


__all__ = ["Origin", "Part", "Reconciliation", "Unsampled", "first_unsampled", "reconcile", "text_rows", "with_jvm"]
