# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""A running process sampled by the agent, whatever its allocator: opened in it, asked for dumps, and detached.

The agent writes its dumps as one that was preloaded does, with what belongs to them, into a directory that the process
is lent: its sandbox or its root may hide the spool. Each is then moved there. All windows begin when it is attached:
each dump has what was allocated since then and is still live. Its last act is to put back what it has changed, which is
then looked at from outside. If we are killed, a child process of ours tells it to; if that is killed as well, it does
so by itself some time after the last window.

This module is private to the collection.
"""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import stat
import time
from typing import Generator, Iterator

from ansible_collections.offheap.profiler.plugins.module_utils.agent import client
from ansible_collections.offheap.profiler.plugins.module_utils.formats import dump_name, elf, limits
from ansible_collections.offheap.profiler.plugins.module_utils.formats.errors import OffheapError
from ansible_collections.offheap.profiler.plugins.module_utils.host import places, procfs
from ansible_collections.offheap.profiler.plugins.module_utils.tracing import (
    async_profiler,
    got_entries,
    held_thread,
    inject,
    into_spool,
    last_act,
    other_root,
    tracing_library,
    urgency,
)
from ansible_collections.offheap.profiler.plugins.module_utils.tracing.budget import OF_SAMPLES
from ansible_collections.offheap.profiler.plugins.module_utils.tracing.running_trace import (
    Ended,
    TraceError,
    Wanted,
    Window,
    chosen,
    ticks,
)
from ansible_collections.offheap.profiler.plugins.module_utils.unit import preload_obstacles, service, syscall_filter
from ansible_collections.offheap.profiler.plugins.module_utils.unit.programs import Owner

#: the agent's function, int (const char *): settings as lines of NAME=value, 0 when it samples
SYMBOL = "offheap_attach"
# Seconds after the last window, after which the agent detaches by itself if nobody has told it to.
_GRACE = 60
# Seconds in which its control socket is there, and in which it answers.
_TO_LISTEN, _TO_ANSWER = 15.0, 120.0
_PAUSE = 0.05
# What a process is lent of its memory map.
_MAPS, _NEW_MAPS = "maps", "maps.new"
# Dumps that are looked for where an agent has ended itself, which leaves one.
_MOST_LEFT = 100
_WHY = {
    errno.EAGAIN: "it may start no thread, by its limit of processes or its unit's TasksMax=",
    errno.EBUSY: (
        "it has an agent already, of a trace that runs now, or of one that was killed: such an agent detaches by itself"
        f" {_GRACE} seconds after what was to be its last window"
    ),
}
# What else leads calls of malloc to itself: async-profiler, and Datadog's, which was made from it.
_OTHER_HOOKS = ("asyncProfiler", "javaProfiler")
_FILTERS = "2"  # in the field Seccomp of status
_BESIDE = ((dump_name.SIDECAR, limits.LARGEST_SIDECAR), (dump_name.LIVES, limits.LARGEST_LIVES))


class TooDear(Ended):
    """The agent has ended itself, for what it costs."""


class AttachTrace:
    """A Trace by the agent, attached. To make one changes nothing."""

    prefix = dump_name.PREFIX
    release = 0
    held = 0.0
    _has_listened = False
    _lent_text = b""

    def __init__(self, unit: service.Service, wanted: Wanted, library: str = "") -> None:
        """``library`` is the agent's, by default the newest that is installed.

        Raises TraceError, or another OffheapError, if the process cannot be attached to.
        """
        self._library = library or tracing_library.newest(
            f"{places.AGENT}/*/liboffheap.so",
            f"the agent is not in {places.AGENT} here: the role jemalloc, or the playbook offheap.profiler.trace_live,"
            " installs it",
        )
        tracing_library.check(self._library)
        self._wanted, self._unit = wanted, unit.name
        self._max_cost = wanted.max_cost or OF_SAMPLES
        self.pid = chosen(unit, wanted.pid)
        self._started = procfs.start_ticks(self.pid)
        status = procfs.status(self.pid)
        self.owner = Owner(int(status["Uid"].split()[1]), int(status["Gid"].split()[1]))
        self._own_pid = int(status.get("NSpid", str(self.pid)).split()[-1])
        inject.examine(self.pid, self._library, SYMBOL)
        self._check_program(unit.name)
        preload_obstacles.check_confinement(unit.name, self.pid, [self._library])
        if status.get("Seccomp") == _FILTERS:
            syscall_filter.check(unit)
        if any(one.pid == self._own_pid and _answers(one, self.pid) for one in client.find(unit.name)):
            raise TraceError(
                f"process {self.pid} of {unit.name} has the agent already: collect its dumps (collect_profiles), there"
                " is nothing to attach"
            )
        if any(name in path for path in procfs.mapped_files(self.pid) for name in _OTHER_HOOKS):
            raise TraceError(
                f"async-profiler is in process {self.pid} of {unit.name}, which was traced by it, or is: its hooks come"
                " first, also when it has stopped, and the agent would see next to nothing. Let it trace once more"
                " (source: jvm), or restart the service first"
            )
        if has_agent(self.pid):  # another copy of the library cannot tell, lent or of another version
            raise TraceError(f"process {self.pid} of {unit.name} cannot be attached to: {_WHY[errno.EBUSY]}")

    def _check_program(self, unit: str) -> None:
        file, name = f"{procfs.directory(self.pid)}/exe", procfs.exe(self.pid) or ""
        try:
            preload_obstacles.check_linked_in(unit, name, elf.read(file), file)
        except OSError:
            raise procfs.ProcessGone(self.pid) from None

    @contextlib.contextmanager
    def windows(self) -> Iterator[Iterator[Window]]:
        """As a Trace's."""
        for path in (places.SOCKETS, places.TRACING):
            places.make(path)
        async_profiler.sweep()
        with contextlib.closing(self._windows()) as windows:
            yield windows

    def _windows(self) -> Generator[Window, None, None]:
        self._path, self._scheduled = self._library, urgency.scheduled(self.pid)
        self._alone = _forbids_threads(self.pid)
        with other_root.directory(self.pid, *self.owner) as self._lent, last_act.if_killed(self._end):
            yield from self._attached()

    def _end(self) -> None:
        """In the place of us who were killed, maybe while a thread was held."""
        urgency.calm_all(self.pid, self._scheduled)
        if self._alone:
            _limit_threads(self.pid, 0)
        other_root.remove_libraries(self.pid)
        try:
            self._detach()
        finally:
            self._lent.remove()

    def _attached(self) -> Iterator[Window]:
        try:
            self._attach()
        except held_thread.LetGo as exc:  # it goes on
            self._path = exc.path or self._path
            try:
                self._detach()
            except TraceError:
                if self._is_in():
                    raise
            raise
        try:
            yield from self._dumps()
        finally:
            self._detach()

    def _dumps(self) -> Iterator[Window]:
        began = time.monotonic()
        try:
            for number in range(self._wanted.count):
                for _tick in ticks(began + (number + 1) * self._wanted.seconds):
                    self._check_runs()
                    self._lend_maps()
                    if self._has_ended_itself():
                        yield from self._left()
                        raise TooDear(
                            f"sampling took more than {self._max_cost:g} % of the process's CPU time, which are allowed"
                            " (max_cost), so the agent has detached by itself. Take a larger interval"
                        )
                yield self._dump()
        except TooDear:
            raise
        except Ended:
            if self._runs():
                yield self._dump()
            raise

    def _has_ended_itself(self) -> bool:
        """Whether the agent listened before, and does not any more."""
        try:
            os.stat(f"{self._own_pid}.sock", dir_fd=self._lent.fd, follow_symlinks=False)
        except FileNotFoundError:
            return self._has_listened and self._runs()
        self._has_listened = True
        return False

    def _left(self) -> Iterator[Window]:
        """The dump that an agent leaves when it ends itself."""
        for name in sorted(os.listdir(self._lent.fd))[:_MOST_LEFT]:
            if name.endswith(".heap") and dump_name.parse(name):
                status = os.stat(name, dir_fd=self._lent.fd, follow_symlinks=False)
                self._keep_all(name)
                yield Window(-1, status.st_size, status.st_mtime_ns, name)

    def _settings(self) -> bytes:
        lasts = self._wanted.seconds * self._wanted.count + _GRACE
        settings = {
            "OFFHEAP_UNIT": self._unit,
            "OFFHEAP_PREFIX": f"{self._lent.path}/{dump_name.PREFIX}",
            "OFFHEAP_SOCKET_DIR": self._lent.path,
            "OFFHEAP_LG_SAMPLE": str(self._wanted.interval.bit_length() - 1),
            "OFFHEAP_START_DELAY": "0",
            "OFFHEAP_DETACH_SECONDS": str(lasts),
            "OFFHEAP_MAPS": f"{self._lent.path}/{_MAPS}",
            "OFFHEAP_MAX_COST": str(max(1, round(10 * self._max_cost))),  # 0: none
        }
        return "".join(f"{name}={value}\n" for name, value in settings.items()).encode()

    def _lend_maps(self) -> None:
        """A copy of its memory map to a process that sees no /proc: without, no stack can be walked or named."""
        if other_root.has_proc(self.pid):
            return
        try:
            with open(f"{procfs.directory(self.pid)}/maps", "rb") as file:
                text = file.read()
            if text != self._lent_text:
                self._write_maps(text)
        except OSError as exc:
            self._check_runs()
            raise TraceError(f"process {self.pid} cannot be lent its memory map: {exc.strerror}") from exc

    def _write_maps(self, text: bytes) -> None:
        """In one step, and never through a link that somebody has put there."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with contextlib.suppress(FileNotFoundError):
            os.unlink(_NEW_MAPS, dir_fd=self._lent.fd)
        with open(os.open(_NEW_MAPS, flags, 0o600, dir_fd=self._lent.fd), "wb") as file:
            os.fchmod(file.fileno(), 0o444)
            file.write(text)
        os.rename(_NEW_MAPS, _MAPS, src_dir_fd=self._lent.fd, dst_dir_fd=self._lent.fd)
        self._lent_text = text

    def _attach(self) -> None:
        self._lend_maps()
        if self._alone:
            _limit_threads(self.pid, resource.RLIM_INFINITY)
        try:
            found = inject.have_library(self.pid, self._library, SYMBOL, self._settings())
        finally:
            if self._alone:
                _limit_threads(self.pid, 0)
        self._path, self.held = found.path, found.held
        if found.result:
            why = _WHY.get(found.result) or os.strerror(found.result)
            raise TraceError(
                f"the agent does not sample process {self.pid}: {why}. perf can say what makes it grow (source: perf)"
            )

    @contextlib.contextmanager
    def _asked(self) -> Iterator[client.Connection]:
        """A connection to the agent, which listens soon after it was attached."""
        deadline = time.monotonic() + _TO_LISTEN
        agent = client.AgentSocket(self._own_pid, f"/proc/self/fd/{self._lent.fd}/{self._own_pid}.sock")
        while not _answers(agent, self.pid):
            self._check_runs()
            if not _has_library(self.pid):
                raise Ended("the process runs another program now, without the agent")
            if time.monotonic() > deadline:
                raise TraceError(
                    f"the agent in process {self.pid} cannot be reached. It detaches by itself {_GRACE} seconds after"
                    " what was to be the last window"
                )
            time.sleep(_PAUSE)
        with client.Connection(agent, _TO_ANSWER) as connection:
            yield connection

    def _dump(self) -> Window:
        """Into the spool, with what belongs to it: that first."""
        with self._asked() as connection:
            written = connection.dump(self._lent.path)
        name = os.path.basename(written.path)
        self._keep_all(name)
        return Window(-1, written.size, int(written.time * 1e9), name)

    def _keep_all(self, name: str) -> None:
        """A dump, after what belongs to it."""
        for suffix, most in _BESIDE:
            self._keep(name + suffix, most)
        if not self._keep(name, limits.LARGEST_DUMP):
            raise TraceError(f"the agent in process {self.pid} has written no dump {name}")

    def _keep(self, name: str, most: int) -> bool:
        """A file that the agent wrote; whoever else is the process's user may have put something in its place."""
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        try:
            fd = os.open(name, flags, dir_fd=self._lent.fd)
        except OSError:
            return False
        try:
            status = os.fstat(fd)
            if not stat.S_ISREG(status.st_mode) or status.st_uid != self.owner.uid or status.st_size > most:
                raise TraceError(f"what process {self.pid} has written as {name} is no dump, or too large")
            into_spool.keep(self._unit, name, fd, status.st_size, status.st_mtime_ns)
            os.unlink(name, dir_fd=self._lent.fd)
        finally:
            os.close(fd)
        return True

    def _is_in(self) -> bool:
        return got_entries.into(self.pid, self._path) is not None

    def _detach(self) -> None:
        """Raises TraceError if something in the process still leads to the agent."""
        if not self._runs():
            return
        try:
            if not self._has_ended_itself():
                with self._asked() as connection:
                    connection.request("detach")
            left = got_entries.into(self.pid, self._path)
        except OffheapError:
            if self._runs():
                raise
            return
        if left:
            raise TraceError(
                f"{left} entries of process {self.pid} still lead to the agent, which was told to detach: restart the"
                " service when that can be"
            )

    def _runs(self) -> bool:
        return procfs.runs(self.pid, self._started)

    def _check_runs(self) -> None:
        if not self._runs():
            raise Ended("the process has ended")


def _forbids_threads(pid: int) -> bool:
    """Whether a program forbids itself more processes, and so threads, as HAProxy does: for the agent's, that is
    lifted, if we may (CAP_SYS_RESOURCE, which root has on a host but not in every container)."""
    with contextlib.suppress(PermissionError, ProcessLookupError):
        return resource.prlimit(pid, resource.RLIMIT_NPROC) == (0, 0)
    return False


def _limit_threads(pid: int, most: int) -> None:
    with contextlib.suppress(PermissionError, ProcessLookupError):
        resource.prlimit(pid, resource.RLIMIT_NPROC, (most, most))


def has_agent(pid: int) -> bool:
    """Whether an agent's thread runs in it: a service may call its own anything, so its library must be there too."""
    names = set()
    for tid in procfs.threads(pid):
        with contextlib.suppress(OSError), open(f"/proc/{pid}/task/{tid}/comm", "rb") as file:
            names.add(file.read().strip())
    return b"offheap" in names and _has_library(pid)


def has_sampler(pid: int) -> bool:
    """Whether an agent draws the samples itself there: one that was attached, or that came without our jemalloc."""
    environment = procfs.environ(pid)
    return has_agent(pid) and ("OFFHEAP_EXECUTABLE" not in environment or bool(environment.get("OFFHEAP_PREFIX")))


def _has_library(pid: int) -> bool:
    """Whether it has mapped the agent's, in which place ever."""
    return any("offheap" in one.path for one in procfs.mappings(pid))


def _answers(agent: client.AgentSocket, pid: int) -> bool:
    """Whether an agent listens there, and is that process's."""
    with contextlib.suppress(client.AgentError), client.Connection(agent, _TO_LISTEN) as connection:
        return connection.peer == pid
    return False
