# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""From samples of one unit's memory, as native_memory_info takes them, to what grows and how fast.

Samples come from a host, so they are checked here: anything without the expected types is refused.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

from ...module_utils.formats import unit_name, values
from ...module_utils.formats.memory_class import MemoryClass
from ..base.byte_size import as_text
from ..base.errors import ControllerError

# A younger process still loads classes, compiles and fills its caches.
_WARM = 600.0
_LONGEST_PATH = 4096
_MOST_OF_HOST = 50
_PID = re.compile(r"pid [0-9]{1,10}\Z")
_MIB = 1 << 20
# Between looks, in seconds. What grows within less is noise, and the rate would be out of all proportion.
_SHORTEST = 1.0


class Part(Enum):
    """The parts that what a process holds is divided into for a verdict: what is resident, and what is swapped out.
    Reserved huge pages are in neither."""

    JAVA_HEAP = "java-heap"
    CODE_CACHE = "code-cache"
    METASPACE = "metaspace"
    THREAD_STACKS = "thread-stacks"
    MALLOC_USED = "malloc-used"
    MALLOC_FREE_ARENAS = "malloc-free-arenas"
    MALLOC_FREE_HEAP = "malloc-free-heap"
    MAPPED_FILES = "mapped-files"
    SHARED_MEMORY = "shared-memory"
    HUGE_PAGES = "huge-pages"
    JIT = "jit"
    UNKNOWN = "unknown"


class Beside(Enum):
    """The parts of a control group's memory that no process may show. The values are the keys of ``cgroup.parts``."""

    FILES = "files"
    SHARED_MEMORY = "shared-memory"
    KERNEL = "kernel"
    SOCKETS = "sockets"


_SAME = (
    Part.JAVA_HEAP,
    Part.CODE_CACHE,
    Part.METASPACE,
    Part.THREAD_STACKS,
    Part.MAPPED_FILES,
    Part.SHARED_MEMORY,
    Part.JIT,
    Part.UNKNOWN,
)
_HELD_BY_MALLOC = (
    MemoryClass.MALLOC_HEAP,
    MemoryClass.GLIBC_ARENAS,
    MemoryClass.MALLOC_MMAPPED,
    MemoryClass.OTHER_MALLOC,
)


class SampleError(ControllerError):
    """This is not a sample of native_memory_info."""


@dataclass(frozen=True)
class Process:
    """One process in one sample, sizes in bytes.

    ``parts`` is None if its memory map was not readable; ``direct`` is what native memory tracking counts as direct
    buffers, None if that is off; ``collected`` is what the Java heap held after its last collection, ``max_heap`` what
    it may hold. ``swap`` is swapped out, and ``huge`` in huge pages that are no part of the RSS. ``trim`` is what
    malloc_trim would give back.
    """

    key: str
    pid: int
    rss: int
    age: float
    threads: int
    arenas: int
    parts: dict[Part, int] | None
    malloc_known: bool
    jvm: bool
    direct: int | None
    collected: int | None
    agents: tuple[str, ...]
    not_readable: tuple[str, ...]
    exe: str = ""
    swap: int = 0
    huge: int = 0
    max_heap: int | None = None
    trim: int = 0

    @property
    def held(self) -> int:
        return self.rss + self.swap + self.huge


@dataclass(frozen=True)
class Sample:
    """A unit at a time (seconds since the epoch). ``limit`` is what it may hold of memory, in bytes, None if all;
    ``beside`` the parts of its control group's memory that no process may show, and ``host`` those of all the host's
    memory, empty if the host did not say."""

    name: str
    time: float
    problem: str | None
    processes: dict[str, Process]
    deaths: tuple[str, ...] = ()
    limit: int | None = None
    beside: Mapping[Beside, int] = field(default_factory=dict)
    host: Mapping[str, int] = field(default_factory=dict)
    boot: str = ""


@dataclass(frozen=True)
class Growth:
    """What two looks at one process show. Sizes in bytes; ``parts`` and ``growth`` are differences over ``seconds``.

    ``processes`` of the unit were looked at twice, of which this one grows most; ``unit_growth`` is that of all, in the
    time of this one, ``unit_held`` what all hold, and ``limit`` what the unit may hold (None without a limit).
    ``beside`` is by how much the parts of its control group grew meanwhile, and ``host`` what the host's memory was at
    the last look. ``problem`` says why there is nothing to judge.
    """

    name: str
    problem: str | None = None
    process: Process | None = None
    seconds: float = 0.0
    growth: int = 0
    parts: Mapping[Part, int] = field(default_factory=dict)
    threads: int = 0
    arenas: int = 0
    direct: int | None = None
    deaths: tuple[str, ...] = ()
    processes: int = 0
    unit_growth: float = 0.0
    unit_held: int = 0
    limit: int | None = None
    swapped: int = 0
    beside: Mapping[Beside, int] = field(default_factory=dict)
    host: Mapping[str, int] = field(default_factory=dict)

    @property
    def room(self) -> int | None:
        """What the unit's limit leaves it, or what the host has for whoever wants it; None where that is not known, or
        where swap takes what does not fit."""
        if self.process is not None and self.process.swap:
            return None
        return self.host.get("available") if self.limit is None else max(self.limit - self.unit_held, 0)

    @property
    def beyond_the_heap(self) -> int:
        """What the unit holds besides the Java heap of this process."""
        heap = self.process.parts[Part.JAVA_HEAP] if self.process and self.process.parts else 0
        return self.unit_held - heap

    @property
    def too_much(self) -> int:
        """By how much a Java heap that fills would exceed the limit, or the host's memory, with all else as it is now;
        0 if it fits."""
        limit = self.host.get("total") if self.limit is None else self.limit
        if self.process is None or not self.process.parts or self.process.max_heap is None or limit is None:
            return 0
        return max(self.beyond_the_heap + self.process.max_heap - limit, 0)

    @property
    def pid(self) -> int:
        return self.process.pid if self.process else 0

    @property
    def floor(self) -> float:
        """Growth up to this is the noise of a working process: 1 MiB, or half a percent of what it holds if that is
        more."""
        return max(_MIB, 0.005 * self.process.held) if self.process else 0.0

    @property
    def grows(self) -> bool:
        return self.growth > self.floor

    def per_hour(self, size: float) -> float:
        return size * 3600 / self.seconds if self.seconds else 0.0

    def leads(self, part: Part) -> bool:
        """Whether this part grows most of all, and is at least a third of the growth."""
        most = max(self.parts.values(), default=0)
        return self.grows and self.parts.get(part, 0) == most and most * 3 >= self.growth

    def leads_beside(self, part: Beside) -> bool:
        """Whether no process grows and this part of the control group does, most of all. A log that is written, or a
        burst of requests, is noise."""
        most = max(self.beside.values(), default=0)
        return not self.grows and self.beside.get(part, 0) == most > max(4 * _MIB, 0.02 * self.unit_held)

    def idle(self, part: Part) -> bool:
        """Whether this part, which malloc keeps free, is at least 32 MiB and a quarter of the resident set."""
        if self.process is None or not self.process.parts:
            return False
        free = self.process.parts[part]
        return free >= 32 * _MIB and free * 4 >= self.process.rss


def parse(data: Any) -> Sample:
    """A sample as the module returned it.

    Raises SampleError if it is not one.
    """
    name, problem = _value(data, "name", str), data.get("problem")
    if not unit_name.is_service(name) and not _PID.match(name):
        raise SampleError(f"{name[:50]!r} is not the name of a unit")
    boot = _value(data, "boot_id", str)
    processes = [_process(item, boot) for item in _value(data, "processes", list)]
    time = _value(data, "time", (int, float))
    if not values.is_time(time):
        raise SampleError("its time is out of range")
    group = data.get("cgroup")
    of_group = group.get("parts") if isinstance(group, dict) else None
    of_host = told if isinstance(told := data.get("host"), dict) and len(told) <= _MOST_OF_HOST else {}
    return Sample(
        name,
        float(time),
        None if problem is None else str(problem)[:300],
        {process.key: process for process in processes},
        tuple(_deaths(data.get("crashes"))),
        _optional(group, "limit"),
        {part: size for part in Beside if (size := _optional(of_group, part.value)) is not None},
        {name: size for name in of_host if (size := _optional(of_host, name)) is not None},
        boot,
    )


def _deaths(crashes: Any) -> Iterator[str]:
    """How it died before, each death in a few words."""
    for file in _entries(crashes, "error_files"):
        failed = _optional(file, "failed")
        what = "" if failed is None else f" for {as_text(failed)}"
        yield f"{str(file.get('reason'))[:20]}{what} in {str(file.get('path'))[:200]}"
    for dump in _entries(crashes, "core_dumps"):
        yield f"core dump {str(dump.get('path'))[:200]}"
    for kill in _entries(crashes, "oom_kills"):
        anon = _optional(kill, "anon")
        size = "" if anon is None else f" at {as_text(anon)}"
        yield f"OOM kill of {str(kill.get('name'))[:20]}{size}"


def _entries(crashes: Any, kind: str) -> list[dict[str, Any]]:
    found = crashes.get(kind) if isinstance(crashes, dict) else None
    return [entry for entry in found if isinstance(entry, dict)] if isinstance(found, list) else []


def _texts(value: Any) -> tuple[str, ...]:
    return tuple(str(item)[:300] for item in value) if isinstance(value, list) else ()


def _value(data: Any, key: str, kind: Any) -> Any:
    value = data.get(key) if isinstance(data, dict) else None
    if not isinstance(value, kind) or isinstance(value, bool):
        raise SampleError(f"it has no {key}")
    return value


def _size(data: Any, key: str) -> int:
    value = _value(data, key, int)
    if not values.is_whole(value):
        raise SampleError(f"its {key} is out of range")
    return int(value)


def _process(data: Any, boot: str) -> Process:
    pid, start = _size(data, "pid"), _size(data, "start")
    age = _value(data, "age", (int, float))
    if not abs(age) <= values.LATEST:
        raise SampleError("its age is out of range")
    jvm = data.get("jvm") or {}
    nmt = jvm.get("nmt") if isinstance(jvm, dict) else None
    malloc = data.get("malloc")
    known = isinstance(malloc, dict) and None not in (malloc.get("heap"), malloc.get("arenas"))
    return Process(
        key=f"{boot} {pid} {start}",
        pid=pid,
        rss=_size(data, "rss"),
        age=float(age),
        threads=_size(data, "threads"),
        arenas=_optional(data, "arenas") or 0,
        parts=_parts(data, malloc if known else None) if data.get("classes") else None,
        malloc_known=known,
        jvm=data.get("jvm") is not None,
        direct=_size(_value(nmt, "categories", dict), "Other") if _has_other(nmt) else 0 if nmt else None,
        collected=_optional(jvm, "heap_after_collection"),
        agents=_texts(data.get("agents")),
        not_readable=_texts(data.get("not_readable")),
        swap=max(_optional(data, "swap") or 0, 0),
        huge=max(_optional(data, "hugetlb") or 0, 0),
        max_heap=_flag(jvm, "MaxHeapSize"),
        trim=sum(max(_optional(malloc[kind], "trim") or 0, 0) for kind in ("heap", "arenas")) if known else 0,
        exe=exe if values.is_text(exe := data.get("exe"), _LONGEST_PATH) else "",
    )


def _optional(data: Any, key: str) -> int | None:
    value = data.get(key) if isinstance(data, dict) else None
    return value if values.is_whole(value) else None


def _flag(jvm: Any, name: str) -> int | None:
    """The size that a flag of the JVM says."""
    flags = jvm.get("flags") if isinstance(jvm, dict) else None
    text = flags.get(name) if isinstance(flags, dict) else None
    return int(text) if isinstance(text, str) and re.match(r"[0-9]{1,15}\Z", text) else None


def _has_other(nmt: Any) -> bool:
    return isinstance(nmt, dict) and isinstance(nmt.get("categories"), dict) and "Other" in nmt["categories"]


def _parts(process: dict[str, Any], malloc: dict[str, Any] | None) -> dict[Part, int]:
    def held(kind: MemoryClass) -> int:
        of_class = _value(process["classes"], kind.value, dict)
        return _size(of_class, "resident") + (_optional(of_class, "swap") or 0)

    parts = {part: held(MemoryClass(part.value)) for part in _SAME}
    parts[Part.HUGE_PAGES] = _optional(process, "hugetlb") or 0
    free = {"heap": 0, "arenas": 0}
    if malloc is not None:
        free = {kind: _size(malloc[kind], "free") for kind in free}
    parts[Part.MALLOC_FREE_HEAP], parts[Part.MALLOC_FREE_ARENAS] = free["heap"], free["arenas"]
    parts[Part.MALLOC_USED] = sum(map(held, _HELD_BY_MALLOC)) - free["heap"] - free["arenas"]
    return parts


def growth(samples: Iterable[Sample]) -> Growth:
    """What grows in the unit, by its process that grows most: from the first look at it, once warm, to the last.

    A process that was started between two looks counts as another one. Samples are of one unit on one host.
    """
    ordered = sorted(samples, key=lambda sample: sample.time)
    last = ordered[-1]
    if last.problem:
        return Growth(last.name, last.problem)
    found = [_of_process(last, process, ordered) for process in last.processes.values()]
    judged = [growth for growth in found if not growth.problem] or found
    if not judged:
        return Growth(last.name, f"{last.name} has no process")
    chosen = max(judged, key=lambda growth: (growth.grows, growth.growth if growth.grows else 0, _rss(growth)))
    known = [growth for growth in found if growth.seconds]
    rate = math.fsum(growth.growth / growth.seconds for growth in known)
    return replace(
        chosen,
        deaths=last.deaths,
        processes=len(known),
        unit_growth=rate * chosen.seconds,
        unit_held=sum(process.held for process in last.processes.values()),
        limit=last.limit,
        host=last.host,
    )


def _differences(then: Mapping[Part, int], now: Mapping[Part, int], malloc_known: bool) -> dict[Part, int]:
    """By how much each part grew. Where one look could not tell what malloc keeps free, as of a heap that is swapped
    out, all of malloc's memory counts as in use in both."""
    grown = {part: now[part] - then[part] for part in Part}
    if not malloc_known:
        for part in (Part.MALLOC_FREE_HEAP, Part.MALLOC_FREE_ARENAS):
            grown[Part.MALLOC_USED] += grown.pop(part)
            grown[part] = 0
    return grown


def _rss(growth: Growth) -> int:
    return growth.process.rss if growth.process else 0


def _of_process(last: Sample, now: Process, ordered: Sequence[Sample]) -> Growth:
    looks = [(sample, sample.processes[now.key]) for sample in ordered if now.key in sample.processes]
    warm = [look for look in looks if look[1].age >= _WARM]
    first, then = (warm if len(warm) > 1 else looks)[0]
    time = first.time
    if len(looks) < 2 or last.time - time < _SHORTEST:
        restarted = len(ordered) > 1
        why = "it was started between the looks" if restarted else "there is only one look at it"
        return Growth(last.name, f"{why}: look again later", now)
    if now.parts is None or then.parts is None:
        why = next((item for item in now.not_readable if item.startswith("its memory map")), "its memory map")
        return Growth(last.name, f"not readable: {why}", now)
    return Growth(
        last.name,
        None,
        now,
        last.time - time,
        now.held - then.held,
        _differences(then.parts, now.parts, then.malloc_known and now.malloc_known),
        now.threads - then.threads,
        now.arenas - then.arenas,
        None if now.direct is None or then.direct is None else now.direct - then.direct,
        swapped=now.swap - then.swap,
        beside={part: size - first.beside[part] for part, size in last.beside.items() if part in first.beside},
    )
