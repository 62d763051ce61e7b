# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""async-profiler in a running JVM: whether that can be, and a recording of what is allocated and freed.

The library is loaded by HotSpot's own attach, writes a recording, and stays mapped until the JVM ends; its hooks in
malloc and free stay as well and then do nothing (async-profiler, src/mallocTracer.cpp). It opens the recording's file
once. So that file loses its name as soon as it is open, and ceases to be when the last one closes it, whoever dies. It
only ever writes at its end, so the memory of what was read is given back. If we are killed, nobody reads, and it would
fill that memory: then a child process of ours stops the profiler. It also stops by itself after a time that it is told
at the start.

This module is private to the collection.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import re
import secrets
from types import TracebackType
from typing import Iterator, NamedTuple

from ansible_collections.offheap.profiler.plugins.module_utils.formats import elf, jfr_header
from ansible_collections.offheap.profiler.plugins.module_utils.formats.errors import OffheapError
from ansible_collections.offheap.profiler.plugins.module_utils.host import places, procfs
from ansible_collections.offheap.profiler.plugins.module_utils.runtimes import hotspot_attach
from ansible_collections.offheap.profiler.plugins.module_utils.runtimes.hotspot_protocol import HotspotError, Jvm
from ansible_collections.offheap.profiler.plugins.module_utils.tracing import last_act, tracing_library
from ansible_collections.offheap.profiler.plugins.module_utils.tracing.running_trace import Ended, TraceError

OLDEST = 8
# The version that traces were tried with. 4.0 and 4.1 do not write their interval into a recording, nor, as 4.2 does,
# their version into the library (its start of recordings: "async-profiler 4.5").
_OLDEST_PROFILER = (4, 5)
_VERSION = re.compile(rb"async-profiler (\d{1,4})\.(\d{1,4})[^\0]{0,40}\0")
_LARGEST_LIBRARY = 64 << 20
#: what the profiler may take for stacks (its option memlimit), in bytes
MEMORY = 64 << 20
# No system information, properties, libraries, load or heap: they are not needed, and properties hold secrets.
_ONLY_EVENTS = "0x1f"
_NO_LOADING = re.compile(r"bool EnableDynamicAgentLoading\s+=\s*false")
_MOST_SAID = 4096
_PUNCH_HOLE = 1 | 2  # linux/falloc.h: FALLOC_FL_KEEP_SIZE, FALLOC_FL_PUNCH_HOLE
_C_LIBRARY = ctypes.CDLL(None, use_errno=True)


class Traceable(NamedTuple):
    """A JVM that can be traced, its release, and the library that will do it."""

    jvm: Jvm
    release: int
    library: str


def examine(pid: int, library: str) -> Traceable:
    """Find out whether a JVM can be traced, without changing it. Raises TraceError, HotspotError, ProcfsError."""
    jvm = hotspot_attach.look(pid)
    if jvm.own_pid != pid:
        raise TraceError(
            f"process {pid} runs in a container, where it is {jvm.own_pid}: run async-profiler in there, and import the"
            " recording (heap_import)"
        )
    tracing_library.check(library)
    ours = os.stat(library)
    try:
        theirs = os.stat(f"{procfs.directory(pid)}/root{library}")
    except OSError as exc:
        raise TraceError(
            f"process {pid} does not see {library}: {exc.strerror} (RootDirectory=, InaccessiblePaths=?)"
        ) from exc
    if (ours.st_dev, ours.st_ino) != (theirs.st_dev, theirs.st_ino):
        raise TraceError(f"process {pid} has another file at {library}: it has a root directory of its own")
    _check_machine(pid, library)
    _check_version(library)
    release = hotspot_attach.version(jvm)
    if release < OLDEST:
        raise TraceError(f"process {pid} runs JDK {release}; tracing needs JDK {OLDEST} or later")
    if _NO_LOADING.search(hotspot_attach.command(jvm, "VM.flags -all")):
        raise TraceError(
            f"process {pid} runs with -XX:-EnableDynamicAgentLoading, so nothing can be loaded into it. Start it with"
            " -XX:+EnableDynamicAgentLoading, or with the profiling jemalloc (enable_profiling)"
        )
    return Traceable(jvm, release, library)


def _check_machine(pid: int, library: str) -> None:
    """A JVM that is to load what it cannot gives up its stack guards, and says so in the service's log."""
    try:
        ours, theirs = elf.read(library), elf.read(f"{procfs.directory(pid)}/exe")
    except elf.ElfError as exc:
        raise TraceError(f"{library} is no library: {exc}") from exc
    if (ours.bits, ours.machine) != (theirs.bits, theirs.machine):
        raise TraceError(
            f"{library} is for {ours.bits}-bit {ours.machine_name}, process {pid} is {theirs.bits}-bit"
            f" {theirs.machine_name}: take async-profiler's library for that"
        )


def _check_version(library: str) -> None:
    with open(library, "rb") as stream:
        found = _VERSION.search(stream.read(_LARGEST_LIBRARY))
    if found is None or tuple(map(int, found.groups())) < _OLDEST_PROFILER:
        shown = f"is {found[0][:-1].decode('ascii', 'replace')}" if found else "says no version, as before 4.2"
        raise TraceError(f"{library} {shown}; a trace needs async-profiler 4.5 or later")


class Recording:
    """A recording while it is made. Use it as a context manager: leaving it stops the profiler."""

    def __init__(self, found: Traceable, interval: int, seconds: int) -> None:
        """Start. ``interval`` is in bytes; after ``seconds`` the profiler stops by itself. Raises HotspotError."""
        self._found = found
        with contextlib.ExitStack() as stack:
            place = stack.enter_context(_Place(found.jvm))
            file, log = (stack.enter_context(place.file(name)) for name in ("recording", "log"))
            watch = stack.enter_context(contextlib.ExitStack())
            watch.enter_context(last_act.if_killed(lambda: _stop_if_it_records(found, file.fd)))
            options = (
                f"start,nativemem={interval},jfr,jfropts={_ONLY_EVENTS},file={file.path},timeout={seconds},"
                f"memlimit={MEMORY},log={log.path},loglevel=warn"
            )
            try:
                code = hotspot_attach.load(found.jvm, found.library, options, (file.path, log.path))
            except HotspotError:  # no answer in time: it may record all the same, and nobody would read
                with contextlib.suppress(OffheapError):
                    _stop_if_it_records(found, file.fd)
                raise
            if code:
                said = os.pread(log.fd, _MOST_SAID, 0).decode("utf-8", "replace").strip()
                raise TraceError(f"async-profiler did not start in process {found.jvm.pid} (code {code}): {said}")
            self._fd = os.dup(file.fd)
            self._taken, self._stopped = 0, False
            self._watch = watch.pop_all()

    def __enter__(self) -> Recording:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._watch:
            try:
                self.stop()
            finally:
                os.close(self._fd)

    @property
    def size(self) -> int:
        """Bytes that nobody has taken yet. They lie on a file system in memory, where they count as the service's."""
        return os.fstat(self._fd).st_size - self._taken

    @property
    def runs(self) -> bool:
        """Whether the process is still the same one."""
        return procfs.runs(self._found.jvm.pid, self._found.jvm.start_ticks)

    def take(self, most: int) -> Iterator[bytes]:
        """What was recorded since the last time, in chunks of so many bytes at most, which it gives back.

        The JVM has been asked when this returns. Raises TraceError, HotspotError, JfrError; a chunk, Ended.
        """
        if not self._stopped:
            _call(self._found, "dump,jfr")
        until = self._taken + jfr_header.finished(
            lambda count, offset: os.pread(self._fd, count, self._taken + offset), self.size
        )
        if until - self._taken == self.size and not self._stopped:  # else the next chunk has begun
            raise TraceError(f"async-profiler in process {self._found.jvm.pid} was stopped by somebody else")
        return self._chunks(until, most)

    def _chunks(self, until: int, most: int) -> Iterator[bytes]:
        while self._taken < until:
            size = jfr_header.chunk_size(os.pread(self._fd, jfr_header.HEADER.size, self._taken), until - self._taken)
            if size > most:
                raise Ended(f"the recording has grown by {size >> 20} MiB at once: the process frees too often")
            yield os.pread(self._fd, size, self._taken)
            self._give_back(size)

    def stop(self) -> None:
        """Stop the profiler, if the process still runs. Raises HotspotError; then it will stop by itself."""
        if self.runs and not self._stopped:
            _call(self._found, "stop")
        self._stopped = True

    def _give_back(self, size: int) -> None:
        offset, length = ctypes.c_int64(self._taken), ctypes.c_int64(size)
        if _C_LIBRARY.fallocate64(self._fd, _PUNCH_HOLE, offset, length):
            raise TraceError(f"cannot give back the memory of a recording: {os.strerror(ctypes.get_errno())}")
        self._taken += size


def _call(found: Traceable, command: str) -> int:
    # Its messages would go to the service's standard output.
    return hotspot_attach.load(found.jvm, found.library, f"{command},quiet,loglevel=none")


def _stop_if_it_records(found: Traceable, recording: int) -> None:
    ours = os.fstat(recording)
    if (ours.st_dev, ours.st_ino) in [(one.dev, one.inode) for one in procfs.open_files(found.jvm.pid)]:
        _call(found, "stop")


class _File(NamedTuple):
    path: str
    fd: int


class _Place:
    """A directory of root's for files that the JVM's user may write; they go once the profiler has opened them."""

    def __init__(self, jvm: Jvm) -> None:
        for path in (places.SOCKETS, places.TRACING):
            places.make(path)
        sweep()
        self._owner = (jvm.uid, jvm.gid)
        self._path = f"{places.TRACING}/{jvm.pid}-{secrets.token_hex(4)}"

    def __enter__(self) -> _Place:
        os.mkdir(self._path, 0o711)
        self._lock = os.open(self._path, os.O_RDONLY | os.O_DIRECTORY)
        os.fchmod(self._lock, 0o711)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        return self

    def __exit__(self, *_exc: object) -> None:
        try:
            _remove(self._path)
        finally:
            os.close(self._lock)  # until now nobody else has removed it

    @contextlib.contextmanager
    def file(self, name: str) -> Iterator[_File]:
        """A file of the JVM's user, open for reading."""
        path = f"{self._path}/{name}"
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            os.fchown(fd, *self._owner)
            yield _File(path, fd)
        finally:
            os.close(fd)


def sweep() -> None:
    """Remove what others left that were killed while they began. A directory that is in use is locked."""
    for name in os.listdir(places.TRACING):
        path = f"{places.TRACING}/{name}"
        with contextlib.suppress(OSError):
            fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                _remove(path)
            finally:
                os.close(fd)


def _remove(path: str) -> None:
    for name in os.listdir(path):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(f"{path}/{name}")
    os.rmdir(path)
