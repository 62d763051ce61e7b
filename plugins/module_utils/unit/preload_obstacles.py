# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""What would keep the loader from our library, or the program's memory from our malloc.

Much of it only the running process tells, such as what a security module made of it.

This module is private to the collection.
"""

from __future__ import annotations

import os
import re
from typing import Iterable, Mapping, Sequence

from ansible_collections.offheap.profiler.plugins.module_utils.formats import elf
from ansible_collections.offheap.profiler.plugins.module_utils.host import apparmor, procfs, selinux
from ansible_collections.offheap.profiler.plugins.module_utils.malloc import allocator_libraries, linked_jemalloc
from ansible_collections.offheap.profiler.plugins.module_utils.unit.drop_in import Variable
from ansible_collections.offheap.profiler.plugins.module_utils.unit.refusal import Refusal
from ansible_collections.offheap.profiler.plugins.module_utils.unit.service import Service

_OTHERS = {name: symbols for name, symbols in allocator_libraries.SYMBOLS.items() if name != "jemalloc"}
# What a compiler links in with -fsanitize=: each has a malloc, and must be loaded before any other library.
_SANITIZERS = re.compile(r"lib(clang_rt\.)?(asan|hwasan|lsan|memprof|tsan)\b")
# operator new, where size_t is long, and where it is int
_NEW = ("_Znwm", "_Znwj")
_GO = ".go.buildinfo"


def check(
    service: Service,
    variables: Mapping[str, Variable],
    profiled: Iterable[int],
    libraries: Sequence[str],
    replaces: bool = True,
) -> None:
    """``variables`` are the unit's environment, ``profiled`` the processes of the program to be profiled,
    ``libraries`` what is to be preloaded, of which one ``replaces`` the allocator. Raises Refusal."""
    for pid in dict.fromkeys([*service.leaders(), *profiled]) if service.is_running else []:
        try:
            _check_process(service.name, pid, libraries)
            if replaces:
                _check_allocators(service.name, pid, libraries)
        except procfs.ProcessGone:
            continue
    if replaces and "LD_AUDIT" in variables:
        raise _audited(service.name)
    if replaces and "LD_PRELOAD" in variables:  # also of a unit that has no process now, such as a timer's
        _check_files(service.name, variables["LD_PRELOAD"].value.replace(":", " ").split(), libraries)


def check_confinement(unit: str, pid: int, libraries: Sequence[str]) -> None:
    """What confines the process must let it have these libraries, dump and answer. Raises Refusal."""
    label = procfs.security_label(pid)
    rules = selinux.lines(label, procfs.exe(pid) or "", libraries, unit)
    if rules:
        raise Refusal(
            "confined",
            f"process {pid} of {unit} is confined by SELinux ({label}), which does not allow it what the profiler"
            " needs: it would not be loaded, or could not dump. Put these rules into a file offheap.cil, and load it"
            f" by 'semodule -i offheap.cil': {' '.join(rules)}",
        )
    for library in libraries:
        if library and apparmor.forbids(label, library):
            raise Refusal(
                "confined",
                f"process {pid} of {unit} is confined by AppArmor ({label}), which does not let it load {library}: the"
                " service would run without the profiler. Add these lines to the profile's file in"
                f" /etc/apparmor.d/local, and reload the profile: {' '.join(apparmor.LINES)}",
            )


def _check_process(unit: str, pid: int, libraries: Sequence[str]) -> None:
    check_confinement(unit, pid, libraries)
    if procfs.is_secure(pid):
        label = procfs.security_label(pid)
        domain = f" (it runs as {label})" if label else ""
        raise Refusal(
            "secure-mode",
            f"the kernel has started process {pid} of {unit} in secure mode{domain}, in which the loader ignores"
            " LD_PRELOAD (AT_SECURE, ld.so(8)). Where it is a set-user-id bit or a file capability, set User= and"
            " AmbientCapabilities= in the unit instead; where it is a change of SELinux domain, allow it 'noatsecure'",
        )


def _check_allocators(unit: str, pid: int, libraries: Sequence[str]) -> None:
    if "LD_AUDIT" in procfs.environ(pid):
        raise _audited(unit)
    _check_files(unit, procfs.mapped_files(pid), libraries)


def _check_files(unit: str, paths: Iterable[str], libraries: Sequence[str]) -> None:
    ours = set(map(os.path.realpath, filter(None, libraries)))
    for path in paths:
        file = os.path.basename(path)
        for name in _OTHERS:
            if file.startswith(f"lib{name}"):
                raise _other_malloc(unit, path, name)
        # Another jemalloc leaves the unit's LD_PRELOAD.
        if (
            path.startswith("/")
            and ".so" in file
            and os.path.realpath(path) not in ours
            and not file.startswith("libjemalloc")
            and _is_allocator(path)
        ):
            raise _other_malloc(unit, path, file.partition(".so")[0])


def _is_allocator(path: str) -> bool:
    """Whether a library has both malloc and operator new, as oneTBB's proxy, scudo or Hoard: one of ours in front of
    it would take the first only. A library with one of them, as libstdc++, calls the other."""
    try:
        found = elf.read(path).functions(("malloc", *_NEW))
    except elf.ElfError:
        return False  # deleted, or in another root
    return "malloc" in found and len(found) > 1


def check_program(unit: str, path: str, program: elf.Elf, replaces: bool = True) -> None:
    """What the program has or needs must bear what is preloaded, and leave it the program's calls. Raises Refusal."""
    sanitizer = next(filter(_SANITIZERS.match, map(os.path.basename, program.needed)), "")
    if sanitizer:
        raise Refusal(
            "sanitizer",
            f"{path}, which {unit} runs, was built with a sanitizer ({sanitizer}), which ends the program where another"
            " library is loaded before it. Use a build without it",
        )
    for name, symbols in _OTHERS.items() if replaces else ():
        linked = [library for library in program.needed if os.path.basename(library).startswith(f"lib{name}")]
        if linked or program.defines(symbols):
            raise _other_malloc(unit, path, name)
    check_linked_in(unit, path, program)


def has_jemalloc(path: str, program: elf.Elf) -> bool:
    """Whether the program has a jemalloc linked in. Raises ElfError, OSError."""
    if any(library.startswith("libjemalloc") for library in program.needed):
        return False
    return program.defines(allocator_libraries.SYMBOLS["jemalloc"]) or linked_jemalloc.look(path).is_there


def check_linked_in(unit: str, path: str, program: elf.Elf, file: str = "") -> None:
    """The program's calls of malloc must leave it. ``file`` is where it can be read, if not at its ``path``.

    Raises Refusal, ElfError, OSError.
    """
    if not has_jemalloc(file or path, program) and allocator_libraries.inside(program) == "libc":
        return
    raise Refusal(
        "allocator-linked-in",
        f"{path}, which {unit} runs, has its allocator linked into it: that comes before any that is preloaded, and its"
        " calls lead through no entries that could be led to the agent. If that is a jemalloc with a profiler,"
        " profiled_service_mode: own switches it on. If the service offers profiles by itself, say where in"
        " offheap_offered",
    )


def _audited(unit: str) -> Refusal:
    return Refusal(
        "audited",
        f"{unit} runs with LD_AUDIT, whose libraries have a malloc and thread-local storage beside the program's; with"
        " a preloaded malloc that can crash. Let the service keep its allocator (profiled_service_allocator: own), or"
        " remove LD_AUDIT from the unit while it is profiled",
    )


def _other_malloc(unit: str, path: str, name: str) -> Refusal:
    return Refusal(
        "other-malloc",
        f"{unit} uses {name} ({path}). With ours in front, free and malloc would be jemalloc's while operator new"
        f" stayed {name}'s: its memory would be missing, or the service would crash. Let it keep {name}, if that is a"
        f" library (profiled_service_allocator: own), start it without {name} (remove it"
        " from LD_PRELOAD, or use a build with the system's malloc), or have it profile itself and say where in"
        " offheap_offered",
    )


def advice(program: str) -> str:
    """What to know of a program whose memory is mostly not malloc's; empty for others."""
    try:
        if not elf.read(program).has_section(_GO):
            return ""
    except elf.ElfError:
        return ""
    return (
        f"{program} is a Go program: the heap of Go is not malloc's, so that only what its C code (cgo) allocates will"
        " be seen. If it serves net/http/pprof, name that in offheap_offered, such as"
        " http://127.0.0.1:6060/debug/pprof/heap"
    )
