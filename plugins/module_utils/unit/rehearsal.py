# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Before a unit's first restart: what its program loads is loaded under the preload by a process that may die of it.

Some libraries do not bear another malloc: a constructor frees what it did not get from it, and the service would crash
at each start. So a child in a transient unit with the service's user and sandbox opens the libraries that the running
process has mapped, and allocates and frees by each call. It listens on nothing and runs nothing of the service's main.
What dies or hangs there, and does not without the preload, is refused.

This module is private to the collection.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
from typing import Mapping, Sequence

from ansible_collections.offheap.profiler.plugins.module_utils.formats import elf
from ansible_collections.offheap.profiler.plugins.module_utils.host import procfs, systemd, trusted_path
from ansible_collections.offheap.profiler.plugins.module_utils.unit import programs
from ansible_collections.offheap.profiler.plugins.module_utils.unit.refusal import Refusal
from ansible_collections.offheap.profiler.plugins.module_utils.unit.service import Service

_SECONDS = 10.0
_MOST_LIBRARIES = 1000
# Settings of a unit under which its program runs (systemd.exec(5)), as far as they decide what a library may do.
_SETTINGS = re.compile(
    "User|Group|DynamicUser|SupplementaryGroups|NoNewPrivileges|CapabilityBoundingSet|AmbientCapabilities"
    "|SystemCall(Filter|Architectures|ErrorNumber)|Restrict\\w+|Protect\\w+|Private\\w+|MemoryDenyWriteExecute|LockPersonality"
    "|(ReadOnly|ReadWrite|Inaccessible|Exec|NoExec)(Paths|Directories)|TemporaryFileSystem|BindPaths|BindReadOnlyPaths"
    "|Limit(AS|DATA|NOFILE|NPROC|STACK|MEMLOCK)"
)
# Opens each library as the loader would, lazily and for all, and names it first, so that the last name is the one.
# Hardly a program calls pvalloc. A jemalloc without our patch leaves it to the C library, and its free crashes at that.
_SCRIPT = """
import ctypes, sys
libc = ctypes.CDLL(None)
for name in ("dlopen", "malloc", "calloc", "realloc", "memalign", "aligned_alloc", "valloc", "pvalloc"):
    getattr(libc, name).restype = ctypes.c_void_p
for path in sys.argv[1:]:
    print("opened", path, flush=True)
    libc.dlopen(path.encode(), 0x101)
print("allocates", flush=True)
size, free = ctypes.c_size_t, libc.free
def library(function):
    found = (ctypes.c_char_p * 4)()
    libc.dladdr(ctypes.cast(function, ctypes.c_void_p), found)
    return found[0]
has_pvalloc = library(libc.pvalloc) == library(libc.malloc)
free.argtypes = [ctypes.c_void_p]
libc.realloc.argtypes = [ctypes.c_void_p, size]
for bytes_ in (1, 100, 5000, 100000, 5000000):
    free(libc.realloc(libc.malloc(size(bytes_)), size(2 * bytes_)))
    free(libc.calloc(size(3), size(bytes_)))
    free(libc.memalign(size(64), size(bytes_)))
    free(libc.aligned_alloc(size(64), size(64 * bytes_)))
    free(libc.valloc(size(bytes_)))
    if has_pvalloc:
        free(libc.pvalloc(size(bytes_)))
    place = ctypes.c_void_p()
    libc.posix_memalign(ctypes.byref(place), size(64), size(bytes_))
    free(place)
"""
# First what the loader itself opens when the program starts: there a library is used before it can choose.
_SHELL = """
loader=$1 program=$2 name=$3 ours=$4 conf=$5 prefix=$6 executable=$7
shift 7
paths='s/^[[:space:]]*\\(.* => \\)\\{0,1\\}\\(\\/[^ ]*\\) (0x.*/\\2/p'
first=$("$loader" --list "$program" | sed -n "$paths" | grep -vF -e "/ld-" -e "/$name" | tr '\\n' ' ')
echo "starts"
LD_PRELOAD="$ours $first" MALLOC_CONF="$conf" /bin/true
echo "ended $?"
/usr/bin/env LD_PRELOAD="$ours" MALLOC_CONF="$conf" OFFHEAP_PREFIX="$prefix" OFFHEAP_EXECUTABLE="$executable" \\
    OFFHEAP_SOCKET_DIR=- OFFHEAP_START_DELAY=0 "$@"
echo "ended $?"
"""
_SIGNALLED = 128


def check(unit: Service, program: str, environment: Mapping[str, str], own: Sequence[systemd.Assignment]) -> None:
    """``environment`` is what the unit will be started with, ``own`` are its assignments without ours.

    Raises Refusal if what the program loads dies or hangs under the preload. What cannot be rehearsed here is let pass.
    """
    # Where the program needs a library with the name of the preloaded one, the loader takes that one for it.
    name = os.path.basename(environment.get("LD_PRELOAD", "").split(":")[0])
    libraries = [path for path in _libraries(unit, program) if os.path.basename(path) != name]
    if not libraries:
        return
    properties = _properties(unit, own)
    given = [elf.read(program).interpreter or "", program, name]
    ours = [environment.get(name, "") for name in ("LD_PRELOAD", "MALLOC_CONF", "OFFHEAP_PREFIX")]
    ours.append(os.path.realpath(sys.executable) if ours[-1] else "")  # where the agent is to sample
    told = _play(properties, [*given, *ours], libraries, _SECONDS)
    where = _death(told)
    if not where:
        return
    hangs = not told[-1].startswith("ended ")
    # A host that is merely slow would not have been so much faster.
    without = _play(properties, [*given, *[""] * len(ours)], libraries, _SECONDS / 4 if hangs else _SECONDS)
    if _death(without) or (hangs and not without):
        return
    raise Refusal(
        "dies-in-rehearsal",
        f"a process with the libraries of {program}, under the preload, {'hung' if hangs else 'died'} when it {where};"
        f" without the preload it did not. So would {unit.name} at its start. It does not bear that: let it keep its"
        " allocator (profiled_service_allocator: own), look at it without a restart (trace_live), or ask its authors",
    )


def _libraries(unit: Service, program: str) -> list[str]:
    """The libraries that the program's largest process has mapped, but those of root that others may change."""
    processes = programs.of(unit, program) if unit.is_running else []
    if not processes:
        return []
    largest = max(processes, key=lambda process: process.rss)
    mapped = [path for path in procfs.mapped_files(largest.pid) if re.search(r"\.so(\.|$)", os.path.basename(path))]
    if not largest.user.uid:
        mapped = [path for path in mapped if _is_roots(path)]
    return [path for path in mapped if os.path.exists(path)][:_MOST_LIBRARIES]


def _is_roots(path: str) -> bool:
    try:
        return trusted_path.fault(path) is None
    except OSError:
        return False


def _properties(unit: Service, own: Sequence[systemd.Assignment]) -> list[str]:
    """The unit's own settings, as systemd-run takes them, but for those that only systemd can read."""
    found = []
    for assignment in filter(lambda one: _SETTINGS.fullmatch(one.key), own):
        with contextlib.suppress(systemd.SystemdError):
            found.append(f"{assignment.key}={systemd.expand(assignment.value, unit.name)}")
    return found


def _play(properties: Sequence[str], given: Sequence[str], libraries: Sequence[str], seconds: float) -> list[str]:
    """What the process says within so many seconds, line by line; empty where it did not begin.

    ``given`` are the program's loader, the program, the name of a library to leave out, LD_PRELOAD, MALLOC_CONF,
    OFFHEAP_PREFIX and OFFHEAP_EXECUTABLE.
    """
    command = ["/bin/sh", "-c", _SHELL, "sh", *given, sys.executable, "-c", _SCRIPT, *libraries]
    return systemd.run_aside(properties, command, seconds)


def _death(told: Sequence[str]) -> str:
    """What the process did when a signal ended it, or its time was over; empty if it came to its end."""
    last, found = "", None
    for line in told:
        found = re.fullmatch(r"ended (\d+)", line)
        if found is None:
            last = line
        elif int(found[1]) > _SIGNALLED:
            break
    else:
        if not last or found:
            return ""
    return "was started" if last == "starts" else "allocated and freed" if last == "allocates" else last[:300]
