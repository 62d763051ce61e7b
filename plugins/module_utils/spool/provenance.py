# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""The facts that a dump itself lacks: its process, and the builds that its addresses belong to.

While the process lives, /proc/<pid>/map_files gives the very files that it has mapped, even if an upgrade has put
others at their paths. After its end only the paths are left, and a path counts only if its file has not changed since
the dump was written.

This module is private to the collection.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
from typing import NamedTuple

from ansible_collections.offheap.profiler.plugins.module_utils.formats import (
    command_line,
    dump_name,
    elf_headers,
    limits,
    maps,
    values,
)
from ansible_collections.offheap.profiler.plugins.module_utils.host import process_key, procfs
from ansible_collections.offheap.profiler.plugins.module_utils.spool.dump import sha256

#: how much of a command line is kept, in bytes of UTF-8
_MAX_CMDLINE = 16384
_MAX_PATH = 4096
_NO_IMAGES = ("/proc/", "/sys/", "/dev/")
# Bytes of all images whose checksums one listing takes: a service may map files with holes as large as it likes.
_MOST_SUMMED = 16 << 30


class FoundImage(NamedTuple):
    """An executable file in a process. Without a build-id, ``reason`` says why; ``source`` is where to read it now."""

    path: str
    build_id: str | None
    size: int | None
    sha256: str | None
    source: str | None
    reason: str | None


class FoundProcess(NamedTuple):
    """The process that wrote a dump, as in a capture's facts. If it has ended, what only it knew is None."""

    pid: int
    key: str
    boot_id: str | None
    start_time: float | None
    exe: str | None
    cmdline: list[str] | None


class _File(NamedTuple):
    """What was found at a path: facts about the file, or why there are none. ``changed`` is ctime in nanoseconds."""

    build_id: str | None
    size: int | None
    sha256: str | None
    changed: int
    device: str
    inode: int
    reason: str | None


def open_regular(path: str) -> int:
    """Open an ordinary file, following links. Raises OSError, also for any other kind of file.

    The kind is checked before the file is opened, since opening a device can have side effects.
    """
    handle = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise OSError("not an ordinary file")
        return os.open(f"/proc/self/fd/{handle}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    finally:
        os.close(handle)


class Examiner:
    """Finds the facts for the dumps of one host; what several dumps share is looked up once."""

    def __init__(self, proc: str = "/proc") -> None:
        self._proc = proc
        self._live: dict[int, list[maps.Mapping]] = {}
        self._written: dict[int, set[tuple[int, int]] | None] = {}
        self._files: dict[str, _File] = {}
        # Processes share their files, each of which has a source in each of them.
        self._sums: dict[tuple[int, ...], str] = {}
        self._left = _MOST_SUMMED
        self._inside: dict[tuple[int, int], int] | None = None

    def is_written(self, pid: int, device: int, inode: int) -> bool | None:
        """Whether the process has the file open for writing; None when that cannot be seen."""
        if pid not in self._written:
            try:
                opened = procfs.open_files(pid, self._proc)
                self._written[pid] = {(entry.dev, entry.inode) for entry in opened if entry.writable}
            except procfs.ProcessGone:
                self._written[pid] = set()
            except procfs.ProcfsError:
                self._written[pid] = None
        written = self._written[pid]
        return None if written is None else (device, inode) in written

    def pid_here(self, pid: int, namespace: int) -> int:
        """The pid here of the process that has ``pid`` in the namespace with that number (0: ours); 0 if none has."""
        if not self.is_elsewhere(namespace):
            return pid
        if self._inside is None:
            self._inside = {}
            for other in procfs.pids(self._proc):
                own = procfs.own_pids(other, self._proc)
                if len(own) > 1:
                    with contextlib.suppress(procfs.ProcfsError):  # it has ended
                        self._inside[procfs.pid_namespace(other, self._proc), own[-1]] = other
        return self._inside.get((namespace, pid), 0)

    def is_elsewhere(self, namespace: int) -> bool:
        """Whether that is another namespace of pids than ours, as a container's is."""
        return namespace != 0 and namespace != procfs.pid_namespace(os.getpid(), self._proc)

    def _mappings(self, pid: int) -> list[maps.Mapping]:
        if pid not in self._live:
            try:
                self._live[pid] = procfs.mappings(pid, self._proc)
            except procfs.ProcfsError:
                self._live[pid] = []
        return self._live[pid]

    def _is_alive(self, pid: int, mappings: list[maps.Mapping]) -> bool:
        """Whether the process that wrote the dump is still running, rather than another with its pid."""
        return process_key.fingerprint(self._mappings(pid)) == process_key.fingerprint(mappings)

    def process(
        self, pid: int, mappings: list[maps.Mapping], written: float, own_pid: int | None = None
    ) -> FoundProcess:
        """The process of a dump. ``written`` is the dump's mtime in seconds since the epoch, ``own_pid`` the pid that
        the process sees itself, if that is another: by that it is known."""
        own_pid = pid if own_pid is None else own_pid
        found = self._process(pid, process_key.key(own_pid, mappings), written, self._is_alive(pid, mappings))
        return found._replace(pid=own_pid)

    def named_process(self, name: dump_name.DumpName, written: float) -> FoundProcess:
        """The process of a dump that says nothing of it but in its name.

        Each trace is a series of its own, since each begins at nothing; so is what a process offers of each source.
        """
        start = name.start or ""
        key = f"{name.pid}-{hashlib.sha256(f'{name.prefix} {start}'.encode('ascii')).hexdigest()[:8]}"
        return self._process(name.pid, key, written, self._ran_at(name.pid, start))

    def _ran_at(self, pid: int, start: str) -> bool:
        """Whether the process with this pid was running at the start in a dump's name."""
        boot, _dash, started = start.partition("-")
        try:
            began = procfs.start_ticks(pid, self._proc) * 1000 // os.sysconf("SC_CLK_TCK")
        except procfs.ProcfsError:
            return False
        return boot == procfs.boot_id(self._proc).replace("-", "")[:8] and began <= int(started or "0")

    def _process(self, pid: int, key: str, written: float, alive: bool) -> FoundProcess:
        boot_id = procfs.boot_id(self._proc) if written >= procfs.boot_time(self._proc) else None
        start_time = exe = cmdline = None
        if alive:
            try:
                exe = procfs.exe(pid, self._proc)
                start_time = procfs.start_time(pid, self._proc)
                exe = None if exe is None else values.clean(exe, _MAX_PATH)
                cmdline = _short(command_line.known_words(procfs.cmdline(pid, self._proc)))
            except procfs.ProcfsError:
                pass  # it has just ended: what was read so far is right
        return FoundProcess(pid, key, boot_id, start_time, exe, cmdline)

    def mappings_now(self, process: FoundProcess) -> list[maps.Mapping]:
        """The mappings of the process of a dump while it runs; none later."""
        return [] if process.start_time is None else self._mappings(process.pid)

    def images(
        self, pid: int, mappings: list[maps.Mapping], written_ns: int, elsewhere: bool = False
    ) -> list[FoundImage]:
        """The executable files of a dump, one per path, in the order of their addresses.

        Those of a container (``elsewhere``) are gone with it: what has the same path here is another file.
        """
        live = {}
        if self._is_alive(pid, mappings):
            # not by path: a renamed file has a new one
            live = {mapping.range_name: (mapping.device, mapping.inode) for mapping in self._mappings(pid)}
        found: dict[str, FoundImage] = {}
        for mapping in mappings:
            if not mapping.executable or not mapping.is_file or mapping.path in found:
                continue
            if mapping.path.startswith(_NO_IMAGES):
                continue
            image = None
            if live.get(mapping.range_name) == (mapping.device, mapping.inode):
                image = self._mapped_image(pid, mapping)
            if image is None and elsewhere and not live:
                image = FoundImage(values.clean(mapping.path, _MAX_PATH), None, None, None, None, "gone")
            found[mapping.path] = image or self._image_at_path(pid if live else None, mapping, written_ns)
        return list(found.values())

    def _mapped_image(self, pid: int, mapping: maps.Mapping) -> FoundImage | None:
        """The file that the living process has mapped; None where the kernel does not let us see it."""
        source = os.path.join(procfs.directory(pid, self._proc), "map_files", mapping.range_name)
        file = self._file(source)
        if file is None:
            return None
        return _found(values.clean(mapping.path, _MAX_PATH), file, source)

    def _image_at_path(self, pid: int | None, mapping: maps.Mapping, written_ns: int) -> FoundImage:
        path = values.clean(mapping.path, _MAX_PATH)
        source = mapping.path if pid is None else f"{procfs.directory(pid, self._proc)}/root{mapping.path}"
        file = None if mapping.deleted else self._file(source)
        if file is None:
            return FoundImage(path, None, None, None, None, "replaced" if mapping.deleted else "gone")
        other_file = file.device == mapping.device and file.inode != mapping.inode
        if other_file or file.changed > written_ns:
            return FoundImage(path, None, None, None, None, "replaced")
        return _found(path, file, values.clean(source, _MAX_PATH))

    def _file(self, source: str) -> _File | None:
        if source not in self._files:
            try:
                fd = open_regular(source)
            except OSError:
                return None
            try:
                self._files[source] = self._examine(fd)
            finally:
                os.close(fd)
        return self._files[source]

    def _examine(self, fd: int) -> _File:
        status = os.fstat(fd)
        device = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}"
        build_id = size = sha256 = reason = None
        try:
            build_id = elf_headers.read(fd).build_id()
            if build_id is None:
                reason = "no build-id"
            else:
                size, sha256 = status.st_size, self._sum(fd, status)
        except elf_headers.ElfError:
            reason = "not an ELF file"
        except OSError as exc:
            build_id, size, reason = None, None, f"its checksum cannot be had: {exc}"
        return _File(build_id, size, sha256, status.st_ctime_ns, device, status.st_ino, reason)

    def _sum(self, fd: int, status: os.stat_result) -> str:
        """The SHA-256 of a file. Raises OSError."""
        file = (status.st_dev, status.st_ino, status.st_size, status.st_ctime_ns)
        if file not in self._sums:
            if status.st_size > min(self._left, limits.LARGEST_IMAGE):
                raise OSError("it is too large")
            self._left -= status.st_size
            self._sums[file] = sha256(fd, status.st_size)
        return self._sums[file]


def _found(path: str, file: _File, source: str) -> FoundImage:
    return FoundImage(path, file.build_id, file.size, file.sha256, source, file.reason)


def _short(arguments: list[str]) -> list[str]:
    kept: list[str] = []
    left = _MAX_CMDLINE
    for argument in arguments:
        if left <= 0:
            break
        kept.append(values.clean(argument, left))
        left -= len(kept[-1].encode("utf-8")) + 1
    return kept
