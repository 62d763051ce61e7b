# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""A look at one unit's memory, as native_memory_info takes it.

It comes from a host, so it is checked here: anything without the expected types is refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from ...module_utils.formats import unit_name, values
from ...module_utils.formats.memory_class import MemoryClass
from ..base.byte_size import as_text
from ..base.errors import ControllerError

_HOUR = 3600.0
_LONGEST_PATH = 4096
_MOST_OF_HOST = 50
_MOST_FILES = 10
_PID = re.compile(r"pid [0-9]{1,10}\Z")
_CONTAINER = re.compile(r"container ([A-Za-z0-9_.*?/-]{1,600})\Z")


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
    malloc_trim would give back, ``unwritten`` what was never written of huge pages. ``profiled``: our agent is in it.
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
    profiled: bool = False
    swap: int = 0
    huge: int = 0
    max_heap: int | None = None
    trim: int = 0
    unwritten: int = 0

    @property
    def held(self) -> int:
        return self.rss + self.swap + self.huge


@dataclass(frozen=True)
class Sample:
    """A unit at a time (seconds since the epoch). ``limit`` is what it may hold of memory, in bytes, None if all;
    ``charged`` what its control group counts against it, without cached files, ``beside`` the parts of that which no
    process may show, and ``host`` those of all the host's memory, None and empty if the host did not say. ``in_memory``
    are its largest files in memory, by path. It ``arrived`` by the controller's clock, which all hosts have in common.
    """

    name: str
    time: float
    problem: str | None
    processes: dict[str, Process]
    deaths: tuple[str, ...] = ()
    limit: int | None = None
    charged: int | None = None
    beside: Mapping[Beside, int] = field(default_factory=dict)
    host: Mapping[str, int] = field(default_factory=dict)
    boot: str = ""
    in_memory: Mapping[str, int] = field(default_factory=dict)
    arrived: float = 0.0

    @property
    def order(self) -> tuple[float, float]:
        """Which look is later: by the hour in which it arrived, as a host may come up with a clock that is behind, and
        within that by its own time, since files that were copied arrived together."""
        return self.arrived // _HOUR, self.time


def container(name: str) -> str:
    """What the container is called whose samples have this name. Empty if it is none's."""
    found = _CONTAINER.match(name)
    return found[1] if found else ""


def parse(data: Any, arrived: float = 0.0) -> Sample:
    """A sample as the module returned it, which came at that time.

    Raises SampleError if it is not one.
    """
    name, problem = _value(data, "name", str), data.get("problem")
    if not unit_name.is_service(name) and not _PID.match(name) and not container(name):
        raise SampleError(f"{name[:50]!r} is not the name of a unit or container")
    boot = _value(data, "boot_id", str)
    processes = [_process(item, boot) for item in _value(data, "processes", list)]
    time = _value(data, "time", (int, float))
    if not values.is_time(time):
        raise SampleError("its time is out of range")
    group = data.get("cgroup")
    of_group = group.get("parts") if isinstance(group, dict) else None
    beside = {part: size for part in Beside if (size := _optional(of_group, part.value)) is not None}
    in_memory = dict(_in_memory(data.get("files_in_memory")))
    if not of_group and "files_in_memory" in data:  # without a memory controller, that is what is known
        beside = {Beside.SHARED_MEMORY: sum(in_memory.values())}
    current = _optional(group, "current")
    of_host = told if isinstance(told := data.get("host"), dict) and len(told) <= _MOST_OF_HOST else {}
    return Sample(
        name,
        float(time),
        None if problem is None else str(problem)[:300],
        {process.key: process for process in processes},
        tuple(_deaths(data.get("crashes"))),
        _optional(group, "limit"),
        None if current is None or Beside.FILES not in beside else current - beside[Beside.FILES],
        beside,
        {name: size for name in of_host if (size := _optional(of_host, name)) is not None},
        boot,
        in_memory,
        arrived,
    )


def _in_memory(files: Any) -> Iterator[tuple[str, int]]:
    for file in files[:_MOST_FILES] if isinstance(files, list) else ():
        size = _optional(file, "size")
        if size is not None and values.is_text(path := file.get("path"), _LONGEST_PATH):
            yield path, size


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
        unwritten=max(_optional(data.get("huge_pages"), "unwritten") or 0, 0),
        profiled=data.get("profiled") is True,
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
