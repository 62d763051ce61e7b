# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Every allocator in a process, since one may have several, and how each can be profiled.

A Rust program whose jemalloc has a prefix leaves malloc to the C library. A library may bring an allocator of its own.

This module is private to the collection.
"""

from __future__ import annotations

import os
from typing import Any, Iterator, NamedTuple

from ansible_collections.offheap.profiler.plugins.module_utils.formats import elf
from ansible_collections.offheap.profiler.plugins.module_utils.host import places, procfs
from ansible_collections.offheap.profiler.plugins.module_utils.malloc import allocator_libraries, linked_jemalloc

# Who gets a call of malloc: the program's own comes before any that is preloaded or linked (ld.so(8)).
_PROGRAM, _LIBRARY, _OTHER_LIBRARY, _C_LIBRARY, _BESIDE = range(5)
_OURS = "it is this collection's own, and profiles"
_REPLACE = "profiled_service_mode: profile preloads a jemalloc that can profile in its place"
# Its operator new would go on beside a preloaded malloc.
_KEEP = "profiled_service_allocator: own samples what it gives out"
_BY_HAND = "set {} in the unit by hand, and name DIRECTORY in offheap_offered"
_HEAPPROFILE = _BY_HAND.format("HEAPPROFILE=DIRECTORY/heap")
# Where the program has a jemalloc of its own, the preload is refused: that might be all that it uses.
_PRELOAD = _BY_HAND.format(
    "LD_PRELOAD to a jemalloc that can profile and MALLOC_CONF=prof:true,prof_prefix:DIRECTORY/jeprof"
)
_WITHOUT = "it was built without its profiler: build it with --enable-prof (Rust: tikv-jemallocator's profiling)"
_NEVER = "it has no profiler, and nothing can take its place: build the program with another allocator"
_INSIDE = {"jemalloc": _WITHOUT, "tcmalloc": _HEAPPROFILE, "mimalloc": _NEVER, "other": _NEVER}


class _Found(NamedTuple):
    rank: int
    allocator: str
    file: str | None
    profile: str


def of_process(pid: int) -> list[dict[str, Any]]:
    """Each as ``allocator``, the ``file`` that it is in, and how to ``profile`` it, in words. The first is the one that
    malloc leads to in the program itself.

    Raises ProcfsError when the process is gone or may not be read.
    """
    used = allocator_libraries.of_process(pid)
    mapped = procfs.mapped_files(pid)
    code = [path for path, parts in mapped.items() if any(part.executable for part in parts)]
    named = [path for path in mapped if allocator_libraries.name_of(path)]
    files = dict.fromkeys([*code, *named])
    found = [one for path in files for one in _in_file(path, used["exe"], used["library"])]
    if all(one.rank > _C_LIBRARY for one in found):
        c_library = next(
            (path for path in code if os.path.basename(path).startswith(("libc.so", "libc-", "ld-musl"))), None
        )
        found.append(_Found(_C_LIBRARY, "libc", c_library, _REPLACE))
    has_own = any(one.allocator == "jemalloc" and one.file == used["exe"] for one in found)
    return [
        {
            "allocator": one.allocator,
            "file": one.file,
            "profile": _PRELOAD if has_own and one.profile == _REPLACE else one.profile,
        }
        for one in sorted(found, key=lambda one: one.rank)
    ]


def _in_file(path: str, executable: str | None, used: str | None) -> Iterator[_Found]:
    named = allocator_libraries.name_of(path)
    ours = path.startswith((f"{places.INSTALLED}/", f"{os.path.realpath(places.INSTALLED)}/"))
    if named:
        can = named == "tcmalloc" and "minimal" not in os.path.basename(path)
        way = _OURS if ours else _HEAPPROFILE if can else _REPLACE if named == "jemalloc" else _KEEP
        yield _Found(_LIBRARY if path == used else _OTHER_LIBRARY, named, path, way)
    if named or ours:
        return
    try:
        linked = linked_jemalloc.look(path)
    except OSError:
        return  # replaced since, as by an upgrade
    for variable in linked.variables if linked.speaks else ():
        way = _BY_HAND.format(f"{variable}=prof:true,prof_prefix:DIRECTORY/jeprof")
        if not linked.can_profile:
            way = _WITHOUT
        elif path == executable and len(linked.variables) == 1:
            way = f"profiled_service_mode: own sets {variable}"
        serves = path == executable and variable == "MALLOC_CONF"
        yield _Found(_PROGRAM if serves else _BESIDE, "jemalloc", path, way)
    inside = _inside(path) if path == executable and not linked.speaks else ""
    if inside in _INSIDE:
        yield _Found(_PROGRAM, inside, path, _INSIDE[inside])


def _inside(path: str) -> str:
    try:
        return allocator_libraries.inside(elf.read(path))
    except elf.ElfError:
        return ""
