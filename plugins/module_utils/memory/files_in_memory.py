# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Which files in memory a unit's processes have written: on a tmpfs, by memfd_create, or System V's shared memory.

The kernel charges them to the control group, and tells of none who wrote it. So a file counts if a process has it open,
if it lies on a tmpfs that we do not see ourselves, or if it was written since the unit's processes were started, by a
user that no other process has. A segment counts if a process has created it. Of each tmpfs at most 20,000 names are
looked at, 200,000 in all. Formats: proc(5), proc_pid_mountinfo(5), sysvipc(7).

This module is private to the collection.
"""

from __future__ import annotations

import contextlib
import os
import stat
from typing import Any, Dict, Iterable, NamedTuple, Sequence, Tuple

from ansible_collections.offheap.profiler.plugins.module_utils.formats import values
from ansible_collections.offheap.profiler.plugins.module_utils.host import procfs

_MOST_NAMES, _MOST_IN_ALL = 20_000, 200_000
_DEEPEST = 50  # of directories: each takes a descriptor, and a call
_MOST_DESCRIPTORS = 10_000
_MOST_TOLD = 10
_LONGEST = 300
# What takes less explains nothing that grows.
_LEAST = 1 << 20
_BLOCK = 512  # st_blocks (inode(7))
_DELETED = " (deleted)"
_MEMFD = "/memfd:"

#: device and inode
Key = Tuple[int, int]
#: mount point -> device
Mounts = Dict[str, int]


class Entry(NamedTuple):
    """A file in memory: the directory that it is in, its owner, the bytes that it takes, and when it was written, in
    seconds since the epoch."""

    path: str
    directory: str
    uid: int
    size: int
    written: float


class FilesInMemory:
    """Those of a host; each file system is read once. What is a service's own may hang who looks at it (forked.py)."""

    def __init__(self, proc: str = "/proc") -> None:
        self._proc = proc
        self._known: dict[int, dict[Key, Entry]] = {}
        self._names = 0
        self._users = {pid: user for pid in procfs.pids(proc) if (user := self._user(pid)) is not None}
        self._shared = set(self._mounts(f"{proc}/self").values())

    def of(self, pids: Sequence[int]) -> list[dict[str, Any]]:
        """The ten that take most memory, of these processes: ``path``, ``size`` in bytes and ``files``, their number,
        for a directory's files together where none of them is half of all."""
        found: dict[Key, Entry] = {}
        for pid in pids:
            with contextlib.suppress(procfs.ProcfsError, OSError):  # it has ended, or is another user's
                found.update(self._of_process(pid, set(pids)))
        told = _by_directory(found.values()) + self._segments(pids)
        told = [one for one in told if one["size"] >= _LEAST]
        return sorted(told, key=lambda one: (-int(one["size"]), str(one["path"])))[:_MOST_TOLD]

    def _user(self, pid: int) -> int | None:
        """That its files are made as."""
        try:
            return int(procfs.status(pid, self._proc)["Uid"].split()[3])
        except (procfs.ProcfsError, KeyError, IndexError, ValueError):
            return None  # it has ended

    def _of_process(self, pid: int, among: set[int]) -> dict[Key, Entry]:
        own = procfs.directory(pid, self._proc)
        mounts = self._mounts(own)
        user = self._users.get(pid)
        is_alone = not any(other == user for one, other in self._users.items() if one not in among)
        started = procfs.start_time(pid, self._proc) - 1  # which is known to a second
        found = self._open(own, set(mounts.values()))
        for point, device in mounts.items():
            if device not in self._known:
                self._known[device] = self._on(own, point, device)
            for key, entry in self._known[device].items():
                if device not in self._shared or (is_alone and entry.uid == user and entry.written >= started):
                    found[key] = entry
        return found

    def _mounts(self, own: str) -> Mounts:
        """Where the process sees a tmpfs."""
        found: Mounts = {}
        try:
            with open(f"{own}/mountinfo", "rb") as file:
                lines = file.read(1 << 20).split(b"\n")
        except OSError:
            return found
        for line in lines:
            words = line.split()
            if b"-" not in words[6:] or words[words.index(b"-", 6) + 1 :][:1] != [b"tmpfs"]:
                continue
            major, _colon, minor = words[2].partition(b":")
            point = os.fsdecode(words[4])
            if major.isdigit() and minor.isdigit() and "\\" not in point:
                found[point] = os.makedev(int(major), int(minor))  # the last one hides those before it
        return found

    def _open(self, own: str, devices: set[int]) -> dict[Key, Entry]:
        """What it has open, with names or without."""
        found = {}
        directory = f"{own}/fd"
        for name in os.listdir(directory)[:_MOST_DESCRIPTORS]:
            path = os.path.join(directory, name)
            try:
                target = os.readlink(path)
                if not target.startswith("/"):
                    continue  # a socket, a pipe
                status = os.stat(path)
            except OSError:
                continue  # closed meanwhile
            if stat.S_ISREG(status.st_mode) and (status.st_dev in devices or target.startswith(_MEMFD)):
                named = target[: -len(_DELETED)] if target.endswith(_DELETED) else target
                found[status.st_dev, status.st_ino] = _entry(named, os.path.dirname(named), status)
        return found

    def _on(self, own: str, point: str, device: int) -> dict[Key, Entry]:
        """The files of a tmpfs, which the process may move, and fill with names, while we look."""
        found: dict[Key, Entry] = {}
        most = min(self._names + _MOST_NAMES, _MOST_IN_ALL)
        try:
            root = os.open(f"{own}/root{point}", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError:
            return found
        try:
            size = os.fstatvfs(root)
            taken = (size.f_blocks - size.f_bfree) * size.f_frsize
            if os.fstat(root).st_dev != device or taken < _LEAST:
                return found
            for below, directories, names, handle in os.fwalk(".", dir_fd=root, follow_symlinks=False):
                self._names += len(names) + len(directories)
                directory = os.path.normpath(os.path.join(point, below))
                for name in names:
                    status = _status(name, handle)
                    if status is not None and stat.S_ISREG(status.st_mode) and status.st_dev == device:
                        entry = _entry(os.path.join(directory, name), directory, status)
                        found[device, status.st_ino] = entry
                if self._names > most:
                    break
                is_deep = below.count("/") >= _DEEPEST
                directories[:] = [name for name in directories if not is_deep and _is_on(name, handle, device)]
        finally:
            os.close(root)
        return found

    def _segments(self, pids: Sequence[int]) -> list[dict[str, Any]]:
        """System V's, of our own namespace. Columns: ipc/shm.c, sysvipc_shm_proc_show."""
        try:
            with open(os.path.join(self._proc, "sysvipc/shm"), encoding="ascii", errors="replace") as file:
                head, *lines = [line.split() for line in file.read(1 << 20).splitlines()]
        except (OSError, ValueError):
            return []
        rows = [dict(zip(head, line)) for line in lines if len(line) == len(head)]
        creators = set(map(str, pids))
        sizes = [
            int(row["rss"]) + int(row["swap"])
            for row in rows
            if row.get("cpid") in creators and row.get("rss", "").isdigit() and row.get("swap", "").isdigit()
        ]
        return [{"path": "segments of System V", "size": sum(sizes), "files": len(sizes)}] if sizes else []


def _status(name: str, handle: int) -> os.stat_result | None:
    try:
        return os.stat(name, dir_fd=handle, follow_symlinks=False)
    except OSError:
        return None  # removed meanwhile


def _is_on(name: str, handle: int, device: int) -> bool:
    status = _status(name, handle)
    return status is not None and status.st_dev == device


def _entry(path: str, directory: str, status: os.stat_result) -> Entry:
    return Entry(path, directory, status.st_uid, status.st_blocks * _BLOCK, status.st_mtime)


def _by_directory(entries: Iterable[Entry]) -> list[dict[str, Any]]:
    """Files that are half of what their directory has, and of the others each directory's together."""
    directories: dict[str, list[Entry]] = {}
    for entry in entries:
        directories.setdefault(entry.directory, []).append(entry)
    told = []
    for directory, files in directories.items():
        half = sum(entry.size for entry in files) / 2
        large = [entry for entry in files if entry.size >= half]
        rest = [entry for entry in files if entry.size < half]
        told += [_told(entry.path, [entry]) for entry in large]
        told += [_told(directory, rest)] if rest else []
    return told


def _told(path: str, files: list[Entry]) -> dict[str, Any]:
    size = sum(entry.size for entry in files)
    return {"path": values.clean(path, _LONGEST), "size": size, "files": len(files)}
