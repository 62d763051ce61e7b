# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Which allocators are installed on this host, and which one a process uses."""

from __future__ import annotations

import glob
import os
import platform
import re
import sys
from typing import Any, Iterable

from ansible_collections.offheap.profiler.plugins.module_utils.formats import elf
from ansible_collections.offheap.profiler.plugins.module_utils.formats.errors import OffheapError
from ansible_collections.offheap.profiler.plugins.module_utils.host import places, procfs
from ansible_collections.offheap.profiler.plugins.module_utils.malloc import proof, whole_build

# Where distributions, administrators and products (Cassandra, Ruby, databases) put their jemalloc.
_PATTERNS = (
    "/lib*/libjemalloc*.so*",
    "/usr/lib*/libjemalloc*.so*",
    "/usr/lib/*/libjemalloc*.so*",
    "/usr/local/lib*/libjemalloc*.so*",
    "/usr/local/lib/*/libjemalloc*.so*",
    "/opt/*/lib*/libjemalloc*.so*",
    places.INSTALLED + "/jemalloc/*/lib/libjemalloc*.so*",
)
_ALLOCATORS = re.compile(r"/lib(jemalloc|tcmalloc|mimalloc)[^/]*\.so[^/]*\Z")
#: what a program defines that has one of them linked in
SYMBOLS = {
    "jemalloc": ("mallctl", "je_mallctl", "_rjem_mallctl", "jemalloc_mallctl"),
    "tcmalloc": ("tc_malloc", "tc_new", "TCMallocInternalMalloc"),
    "mimalloc": ("mi_malloc",),
}


def host_platform() -> dict[str, Any]:
    """What a library must be built for: C library with its version, architecture, page size in bytes."""
    libc, version = _libc()
    return {
        "libc": libc,
        "libc_version": version,
        "architecture": platform.machine(),
        "page_size": os.sysconf("SC_PAGE_SIZE"),
        "cores": os.cpu_count() or 1,
        "python": sys.executable,
        "key": f"{libc}-{platform.machine()}-{os.sysconf('SC_PAGE_SIZE')}",
    }


def _libc() -> tuple[str, list[int]]:
    try:
        name, _blank, version = (os.confstr("CS_GNU_LIBC_VERSION") or "").partition(" ")
    except (ValueError, OSError):
        return "musl", []
    return name or "unknown", [int(part) for part in version.split(".") if part.isdigit()]


def installed(extra: Iterable[str] = ()) -> list[str]:
    """Resolved paths of jemalloc libraries in the usual places, and of those in ``extra``."""
    found = {os.path.realpath(path) for pattern in _PATTERNS for path in glob.glob(pattern)}
    found.update(os.path.realpath(path) for path in extra)
    return sorted(path for path in found if os.path.isfile(path))


def describe(path: str, prove: bool) -> dict[str, Any]:
    """Facts about one library; ``prove`` runs it in a throw-away process.

    One that others than root may replace is not even opened: it could be a pipe.
    """
    facts: dict[str, Any] = {
        "path": path,
        "build_id": None,
        "sha256": None,
        "version": None,
        "patches": [],
        "prof": None,
        "failure": None,
    }
    distrusted = proof.distrust(path)
    if distrusted:
        facts.update(prof=False, failure=distrusted.failure, message=distrusted.message)
        return facts
    try:
        facts["build_id"] = elf.read(path).build_id
        with open(path, "rb") as file:
            facts["sha256"] = whole_build.sha256_of(file)
        facts["patches"] = whole_build.patches(path)
    except (OffheapError, OSError) as error:
        facts.update(prof=False, failure="not-readable", message=f"{path} cannot be read: {error}")
        return facts
    if prove:
        shown = proof.prove(path)
        facts.update(version=shown.version, prof=shown.ok, failure=shown.failure, message=shown.message)
    return facts


def name_of(library: str) -> str:
    """The allocator that a library is, by its file's name; empty for any other."""
    match = _ALLOCATORS.search(library)
    return match.group(1) if match else ""


def of_process(pid: int) -> dict[str, Any]:
    """The allocator that serves a process: the first preloaded or linked one, else one in the program, else libc's.

    Raises ProcfsError when the process is gone or may not be read.
    """
    executable = procfs.exe(pid)
    libraries = [path for path in procfs.mapped_files(pid) if name_of(path)]
    preloaded = procfs.environ(pid).get("LD_PRELOAD", "").replace(":", " ").split()
    first = [path for wanted in map(os.path.realpath, preloaded) for path in libraries if path == wanted]
    for library in first or libraries:
        return {
            "pid": pid,
            "exe": executable,
            "allocator": name_of(library),
            "library": library,
            "preloaded": bool(first),
        }
    try:
        named = inside(elf.read(executable or ""))
    except elf.ElfError:
        named = "unknown"
    return {"pid": pid, "exe": executable, "allocator": named, "library": None, "preloaded": False}


def inside(program: elf.Elf) -> str:
    """The allocator that a program has linked in, by its symbols; "other" if it is none of ours, "libc" if none.

    Raises ElfError.
    """
    named = next((name for name, symbols in SYMBOLS.items() if program.defines(symbols)), "")
    return named or ("other" if program.defines(["malloc"]) else "libc")
