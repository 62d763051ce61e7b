# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Traces of a service's earlier crashes: HotSpot's error files, core dumps, the kernel's OOM kills in the journal.

The service may write where these files are, so they are not trusted: only regular files are read, up to a limit, and
only the lines about memory.

This module is private to the collection.
"""

from __future__ import annotations

import glob
import os
import re
import stat
from typing import Any

from ansible_collections.offheap.profiler.plugins.module_utils.host import procfs, systemd

_MOST_FILES = 5
_MOST_BYTES = 2 << 20
_JOURNAL_LINES = "20000"
_COREDUMPS = "/var/lib/systemd/coredump"
_KIB = 1024

_FAILED = re.compile(
    r"^# Native memory allocation \((\w{1,20})\) failed to (?:allocate|map) (\d{1,19}) bytes", re.MULTILINE
)
_INSUFFICIENT = re.compile(r"^# There is insufficient memory for the Java Runtime", re.MULTILINE)
_SIGNAL = re.compile(r"^#\s+(SIG[A-Z]{2,6}) ", re.MULTILINE)
_PHYSICAL = re.compile(r"^Memory: \S+ page, physical (\d{1,15})k ?\((\d{1,15})k free\)", re.MULTILINE)
_RESIDENT = re.compile(r"^Resident Set Size: (\d{1,15})K", re.MULTILINE)

# mm/oom_kill.c, dump_header() and __oom_kill_process()
_CAUSE = re.compile(r"oom-kill:.*task_memcg=([^,]*),task=.*,pid=(\d+),")
_KILLED = re.compile(
    r"^(\d+)\.\d+ .*Killed process (\d+) \((.*)\).* anon-rss:(\d+)kB, file-rss:(\d+)kB(?:, shmem-rss:(\d+)kB)?"
)


def error_files(pid: int, proc: str = "/proc") -> list[dict[str, Any]]:
    """HotSpot's ``hs_err_pid*.log`` in the directories where a process like this one leaves them, the newest first.

    ``reason`` is ``out-of-memory``, the signal's name, or ``unknown``; sizes are in bytes, None if the file has none.
    """
    return [
        {**_error_file(text), "path": name, "time": modified}
        for name, modified, text in _newest(pid, proc, "hs_err_pid*.log")
    ]


def _error_file(text: str) -> dict[str, Any]:
    failed, signal = _FAILED.search(text), _SIGNAL.search(text)
    physical, resident = _PHYSICAL.search(text), _RESIDENT.search(text)
    reason = "out-of-memory" if failed or _INSUFFICIENT.search(text) else signal.group(1) if signal else "unknown"
    return {
        "reason": reason,
        "failed": int(failed.group(2)) if failed else None,
        "physical": int(physical.group(1)) * _KIB if physical else None,
        "physical_free": int(physical.group(2)) * _KIB if physical else None,
        "resident": int(resident.group(1)) * _KIB if resident else None,
    }


def _newest(pid: int, proc: str, pattern: str) -> list[tuple[str, float, str]]:
    """(path to show, modification time, beginning) of the newest files that match."""
    found: dict[tuple[int, int], tuple[float, str, str]] = {}
    own = procfs.directory(pid, proc)
    for place, shown in ((f"{own}/cwd", _cwd(own)), (f"{own}/root/tmp", "/tmp")):
        for path in glob.glob(os.path.join(place, pattern)):
            try:
                status = os.lstat(path)
            except OSError:
                continue
            if stat.S_ISREG(status.st_mode):
                name = os.path.join(shown, os.path.basename(path))
                found[status.st_dev, status.st_ino] = (status.st_mtime, path, name)
    files = sorted(found.values(), reverse=True)[:_MOST_FILES]
    return [(name, modified, _head(path)) for modified, path, name in files]


def _cwd(own: str) -> str:
    try:
        return os.readlink(f"{own}/cwd")
    except OSError:
        return ""


def _head(path: str) -> str:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(fd, encoding="utf-8", errors="replace") as file:
            return file.read(_MOST_BYTES) if stat.S_ISREG(os.fstat(fd).st_mode) else ""
    except OSError:
        return ""


def core_dumps(pid: int, name: str, proc: str = "/proc") -> list[dict[str, Any]]:
    """Core dumps of programs with this ``name`` (15 characters, as the kernel keeps it): path, size in bytes, time."""
    own = procfs.directory(pid, proc)
    candidates = {f"{own}/cwd/{file}": _cwd(own) for file in ("core", f"core.{name}")}
    for path in glob.glob(f"{own}/cwd/core.[0-9]*"):
        candidates[path] = _cwd(own)
    for path in glob.glob(os.path.join(_COREDUMPS, f"core.{glob.escape(name)}.*")):
        candidates[path] = _COREDUMPS
    found: list[dict[str, Any]] = []
    for path, shown in candidates.items():
        try:
            status = os.lstat(path)
        except OSError:
            continue
        if stat.S_ISREG(status.st_mode):
            dump = {
                "path": os.path.join(shown, os.path.basename(path)),
                "size": status.st_size,
                "time": status.st_mtime,
            }
            found.append(dump)
    return sorted(found, key=lambda dump: dump["time"], reverse=True)[:_MOST_FILES]


def kernel_log() -> str:
    """The kernel's last lines in the journal, each after its time in seconds since the epoch; empty if unreadable."""
    return "\n".join(systemd.journal("--output=short-unix", "--lines", _JOURNAL_LINES, "_TRANSPORT=kernel"))


def oom_kills(text: str, control_group: str, names: set[str]) -> list[dict[str, Any]]:
    """The kernel's OOM kills among a unit's processes, in its log. Sizes in bytes.

    Matched by the control group that the kernel names; kernels before 4.20 name none, so there by the process's name.
    """
    group_of: dict[str, str] = {}
    found = []
    for line in text.splitlines():
        cause = _CAUSE.search(line)
        if cause:
            group_of[cause.group(2)] = cause.group(1)
        killed = _KILLED.match(line)
        if not killed:
            continue
        time, pid, name, *sizes = killed.groups()
        group = group_of.pop(pid, None)
        ours = name in names if group is None else _within(group, control_group)
        if ours:
            anonymous, file, shared = (int(size or 0) * _KIB for size in sizes)
            kill = {"time": int(time), "pid": int(pid), "name": name, "anon": anonymous, "file": file, "shmem": shared}
            found.append(kill)
    return found[-_MOST_FILES:]


def _within(group: str, control_group: str) -> bool:
    return bool(control_group) and control_group + "/" in group + "/"
