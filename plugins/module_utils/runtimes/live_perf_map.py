# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Get a map of a running process's compiled code, so that its addresses can be named later.

HotSpot writes one on request. CPython, Node and .NET write theirs while they run, if told to, as
``/tmp/perf-<pid>.map``, with the /tmp and the pid that the process itself sees. That directory is the service's, so
anything there is hostile until checked.

This module is private to the collection.
"""

from __future__ import annotations

import os
import stat
from typing import IO, Collection

from ansible_collections.offheap.profiler.plugins.module_utils.formats import limits, perf_map_line
from ansible_collections.offheap.profiler.plugins.module_utils.formats.errors import OffheapError
from ansible_collections.offheap.profiler.plugins.module_utils.host import process_key, procfs
from ansible_collections.offheap.profiler.plugins.module_utils.runtimes import hotspot_attach, hotspot_protocol

#: a JVM that takes longer to answer has other troubles
_SECONDS = 15.0
_CHUNK = 1 << 20


class NoMap(OffheapError):
    """There is no map. The message says why."""


def write(pid: int, key: str, target: IO[bytes], proc: str = "/proc", addresses: Collection[int] = ()) -> int:
    """Copy the map of a process to ``target``; returns its size. ``key`` is the process's, as in capture.json.

    ``addresses`` are those of its dumps, for methods that only HotSpot's memory names. Raises NoMap.
    """
    try:
        mappings = procfs.mappings(pid, proc)
        if process_key.key(pid, mappings) != key:
            raise NoMap(perf_map_line.ENDED)
        if any(os.path.basename(mapping.path) == "libjvm.so" for mapping in mappings):
            return hotspot_attach.perf_map(hotspot_attach.look(pid, proc), target, _SECONDS, proc, addresses)
        return _copy_written(pid, target, proc)
    except procfs.ProcessGone as exc:
        raise NoMap(perf_map_line.ENDED) from exc
    except FileNotFoundError as exc:
        raise NoMap(perf_map_line.NONE) from exc
    except (hotspot_protocol.HotspotError, procfs.ProcfsError, OSError) as exc:
        raise NoMap(str(exc)) from exc


def _copy_written(pid: int, target: IO[bytes], proc: str) -> int:
    uid, own_pid = _identity(pid, proc)
    name = f"perf-{own_pid}.map"
    # Step by step and without links: an absolute one would lead out of the process's root into ours.
    root = os.open(os.path.join(procfs.directory(pid, proc), "root"), os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        directory = os.open("tmp", os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=root)
    finally:
        os.close(root)
    try:
        handle = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
    finally:
        os.close(directory)
    try:
        # Checked before it is opened, since opening a device or a FIFO can have side effects.
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode) or status.st_nlink != 1:
            raise NoMap(f"/tmp/{name} is not an ordinary file")
        if status.st_uid != uid:
            raise NoMap(f"/tmp/{name} belongs to user {status.st_uid}, the process to user {uid}")
        if status.st_size > limits.LARGEST_PERF_MAP:
            raise NoMap(f"/tmp/{name} is larger than {limits.LARGEST_PERF_MAP} bytes")
        source = os.open(f"/proc/self/fd/{handle}", os.O_RDONLY | os.O_CLOEXEC)
    finally:
        os.close(handle)
    with os.fdopen(source, "rb", buffering=0) as stream:
        left = size = status.st_size
        while left:
            part = stream.read(min(left, _CHUNK))
            if not part:
                break
            target.write(part)
            left -= len(part)
    return size - left


def _identity(pid: int, proc: str) -> tuple[int, int]:
    """The effective user, and the pid that the process itself sees."""
    try:
        uid = int(procfs.status(pid, proc)["Uid"].split()[1])
    except (KeyError, IndexError, ValueError):
        raise NoMap("its user cannot be read") from None
    return uid, [pid, *procfs.own_pids(pid, proc)][-1]
