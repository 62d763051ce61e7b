# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""A process traced from outside, by tools of the kernel that the host has: bcc's memleak, or perf.

memleak says at the end of each window what was allocated since it began and is still live. perf says what the process
touched for the first time in each window: it grew by that, whoever asked for it. Each tool runs beside the service and
ends with us, whoever kills us: the kernel then takes its probes away. We write nothing to a disk.

This module is private to the collection.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import shutil
import signal
import subprocess
import time
from typing import IO, Generator, Iterator, Sequence, cast

from ansible_collections.offheap.profiler.plugins.module_utils.formats import dump_name
from ansible_collections.offheap.profiler.plugins.module_utils.host import host_memory, procfs, trusted_path
from ansible_collections.offheap.profiler.plugins.module_utils.malloc import process_allocators
from ansible_collections.offheap.profiler.plugins.module_utils.tracing.budget import OF_MEMLEAK, Budget
from ansible_collections.offheap.profiler.plugins.module_utils.tracing.running_trace import (
    Ended,
    TraceError,
    Wanted,
    Window,
    chosen,
    ticks,
)
from ansible_collections.offheap.profiler.plugins.module_utils.unit import service
from ansible_collections.offheap.profiler.plugins.module_utils.unit.programs import Owner

# The names of the tools, and how to get them.
_NAMES = {"memleak": ("memleak-bpfcc", "memleak"), "perf": ("perf",)}
_PACKAGES = {
    "memleak": "Debian and Ubuntu: bpfcc-tools and linux-headers of the running kernel; Fedora, RHEL: bcc-tools",
    "perf": "Debian: linux-perf; Ubuntu: linux-tools-generic; Fedora, RHEL: perf",
}
# Where bcc finds what it compiles memleak's program against.
_HEADERS = (f"/lib/modules/{os.uname().release}/build", "/sys/kernel/kheaders.tar.xz")
_PATH = "/usr/sbin:/usr/bin:/sbin:/bin:/usr/share/bcc/tools"
#: what memleak needs for itself and for its tables in the kernel
MEMORY = 512 << 20
_HEADING = re.compile(rb"^\[\d{1,2}:\d{1,2}:\d{1,2}\] Top \d{1,9} stacks with outstanding allocations:", re.MULTILINE)
_FIELDS = "comm,pid,tid,time,period,event,ip,sym,symoff,dso"
# For each CPU: 500 faults with their stacks.
_ROOM = "4M"
# Seconds for which they are counted before.
_BEFORE = 5.0
# So many faults a second are recorded: each takes some microseconds of the process's time.
_MOST_FAULTS = 250
# One in so many is enough to see 64 KiB, and leaves room for those that come at once.
_MANY = 16
_RAREST = 1 << 16
_LOST = b" PERF_RECORD_LOST"
# Seconds in which a tool that was asked to end does so. memleak removes its probes one by one.
_TO_END = 30.0
# Seconds that memleak may be late with a report: it compiles its program, and reads its tables, when others let it.
_LATE = 120.0
# How often perf may fail to begin.
_TRIES = 10
_MOST_SAID = 4096
_BLOCK = 1 << 16
_LONGEST_HEADING = 100
_PAUSE = 0.5
_NICE = 19
_PR_SET_PDEATHSIG = 1
_C_LIBRARY = ctypes.CDLL(None, use_errno=True)
# perf script copies the vDSO to a file there, and leaves it if it is killed. It runs in a group that nobody else has,
# so that we know the copies that are ours.
_COPIES = "/tmp"
_COPY = re.compile(r"perf-vdso\.so-\w{6}")
_OF_COPIES = 0x6F666668


class KernelTrace:
    """A Trace by one of the tools. To make one changes nothing."""

    release = 0
    held = 0.0

    def __init__(self, unit: service.Service, wanted: Wanted, source: str) -> None:
        """Raises TraceError if the tool is missing, or the unit has no such process; ProcfsError."""
        self._tool = _found(source)
        if not self._tool:
            raise TraceError(f"{source} is not installed here, and nothing is installed unasked: {_PACKAGES[source]}")
        self.prefix = dump_name.MEMLEAK if source == "memleak" else dump_name.PERF
        self._wanted = wanted
        self.pid = chosen(unit, wanted.pid)
        self._started = procfs.start_ticks(self.pid)
        status = procfs.status(self.pid)
        self.owner = Owner(int(status["Uid"].split()[1]), int(status["Gid"].split()[1]))
        if source == "memleak":
            self._object = _allocator(self.pid)
            _check_room()

    @contextlib.contextmanager
    def windows(self) -> Iterator[Iterator[Window]]:
        """As a Trace's."""
        with contextlib.closing(self._reports() if self.prefix == dump_name.MEMLEAK else self._faults()) as windows:
            yield windows

    def _reports(self) -> Generator[Window, None, None]:
        """memleak's reports. One is whole when the next begins, or when memleak has ended well."""
        seconds, count = self._wanted.seconds, self._wanted.count
        budget = Budget(self.pid, self._wanted.max_cost or OF_MEMLEAK)
        command = memleak_command(self._tool, self.pid, self._object, seconds, count)
        with _memory_file() as said, _running(command, subprocess.PIPE, said) as tool:
            output = cast("IO[bytes]", tool.stdout)
            os.set_blocking(output.fileno(), False)
            reports, taken, due = _Reports(), 0, time.monotonic() + seconds + _LATE
            try:
                while taken < count:
                    ended = tool.poll() is not None
                    block = _read(output)
                    done = ended and not block
                    for report in reports.whole(block, done and not tool.returncode):
                        yield from _window(*report)
                        taken, due = taken + 1, time.monotonic() + seconds + _LATE
                    if time.monotonic() > due:
                        raise Ended(f"a report of memleak is {_LATE:g} seconds late, as on a busy host")
                    if done and taken < count:
                        self._check_runs()
                        raise TraceError(_failure("memleak", tool.returncode, said))
                    if reports.size > self._wanted.largest:
                        raise Ended(f"a report of memleak is larger than {self._wanted.largest >> 20} MiB")
                    if not block:
                        for _tick in ticks(time.monotonic() + _PAUSE):
                            self._check(budget)
            except Ended:
                rest = _last_words(tool)
                for report in reports.whole(rest, tool.returncode == 0):
                    yield from _window(*report)
                raise

    def _faults(self) -> Generator[Window, None, None]:
        """perf's page faults, window by window. One that has lost some is made again, with fewer of them recorded."""
        before = procfs.page_faults(self.pid)
        for _tick in ticks(time.monotonic() + _BEFORE):
            self._check_runs()
        period = fault_period((procfs.page_faults(self.pid) - before) / _BEFORE)
        taken = tries = 0
        while taken < self._wanted.count:
            try:
                yield from self._faults_of_a_window(period)
                taken, tries = taken + 1, 0
            except _NotBegun:
                tries += 1
                if tries == _TRIES:
                    raise
            except _Lost:
                period *= _MANY
                if period > _RAREST:
                    raise Ended("perf loses page faults, however few are recorded") from None

    def _faults_of_a_window(self, period: int) -> Iterator[Window]:
        """Raises _NotBegun, _Lost."""
        record, script = perf_commands(self._tool, self.pid, period)
        with contextlib.ExitStack() as stack:
            stack.callback(_remove_copies)
            said, text = stack.enter_context(_memory_file()), stack.enter_context(_memory_file())
            recording = stack.enter_context(_running(record, subprocess.PIPE, said))
            scripting = stack.enter_context(_running(script, text, said, recording.stdout, _OF_COPIES))
            cast("IO[bytes]", recording.stdout).close()  # else it would not learn that the other has ended
            for _tick in ticks(time.monotonic() + self._wanted.seconds):
                if recording.poll() is not None or scripting.poll() is not None:
                    time.sleep(_PAUSE)  # perf ends a moment before its process has
                    if procfs.runs(self.pid, self._started):
                        error = TraceError if os.fstat(text).st_size else _NotBegun
                        raise error(_failure("perf", recording.poll() or scripting.poll() or 0, said))
                if not procfs.runs(self.pid, self._started):
                    break
                if os.fstat(text).st_size > self._wanted.largest:
                    raise Ended(
                        f"what perf says has reached {self._wanted.largest >> 20} MiB (max_recording): the process"
                        " grows fast, so a shorter window will do"
                    )
            recording.send_signal(signal.SIGINT)
            try:
                good = scripting.wait(_TO_END) == 0 and recording.wait(_TO_END) in (0, -signal.SIGINT)
            except subprocess.TimeoutExpired:
                raise Ended(f"perf has not finished a window within {_TO_END:g} seconds of its end") from None
            if not good:
                self._check_runs()
                raise TraceError(_failure("perf", scripting.returncode or recording.returncode, said))
            size = os.fstat(text).st_size
            if _lost(text, size):
                raise _Lost
            if size:
                yield Window(text, size, time.time_ns())
            self._check_runs()

    def _check(self, budget: Budget) -> None:
        """Raises Ended if the process has ended, or tracing it costs too much."""
        self._check_runs()
        try:
            budget.check()
        except procfs.ProcfsError:
            self._check_runs()
            raise

    def _check_runs(self) -> None:
        if not procfs.runs(self.pid, self._started):
            raise Ended("the process has ended")


class _NotBegun(TraceError):
    """perf gives up, silently, if a thread ends after it has listed the process's threads. The next try is another."""


class _Lost(TraceError):
    """More faults came at once than there was room for."""


class _Reports:
    """What memleak has said that is not yet handed on. A report is whole when the next begins, or memleak has ended."""

    def __init__(self) -> None:
        self._text = bytearray()
        self._begun: list[tuple[int, int]] = []  # where, and when (nanoseconds since the epoch)

    @property
    def size(self) -> int:
        return len(self._text)

    def whole(self, block: bytes, ended: bool) -> Iterator[tuple[bytes, int]]:
        """Add what was said; the reports that are whole by now, and when each began."""
        last = self._begun[-1][0] + 1 if self._begun else 0
        unseen = max(last, len(self._text) - _LONGEST_HEADING)
        self._text += block
        now = time.time_ns()
        self._begun += [(match.start(), now) for match in _HEADING.finditer(self._text, unseen)]
        while len(self._begun) > 1 or (self._begun and ended):
            (start, when), *rest = self._begun
            end = rest[0][0] if rest else len(self._text)
            report = bytes(self._text[start:end])
            del self._text[:end]
            self._begun = [(place - end, time_of) for place, time_of in rest]
            yield report, when


def memleak_command(tool: str, pid: int, file: str, seconds: int, count: int) -> list[str]:
    """What reports so often what came through ``file``'s malloc and stayed."""
    return [tool, "-p", str(pid), "-O", file, "-T", "10000", str(seconds), str(count)]


def fault_period(rate: float) -> int:
    """One in how many of a process's page faults to record, at so many a second."""
    period = _MANY
    while rate / period > _MOST_FAULTS:
        period *= 2
    return period


def perf_commands(tool: str, pid: int, period: int) -> tuple[list[str], list[str]]:
    """What records one in so many of a process's page faults, and what makes a text of that.

    The first page of a block is touched by malloc itself, and distributions build libraries without frame pointers. So
    perf copies the stack and walks it afterwards, by what the files say of their frames. Of BPF programs it is told
    nothing: it asks for these in a thread that takes a whole CPU where threads of the process come and go.
    """
    record = [tool, "record", "-q", "--no-bpf-event", "-e", "page-faults", "-c", str(period)]
    record += ["--call-graph", "dwarf,8192", "-m", _ROOM, "-p", str(pid), "-o", "-"]
    script = [tool, "script", "-i", "-", "--no-inline", "--show-lost-events", "--pid", str(pid), "-F", _FIELDS]
    return record, script


def available() -> str:
    """Which of the tools is there for a process that is no JVM: perf also where memleak lacks the kernel's headers.
    Raises TraceError."""
    found = [source for source in _NAMES if _found(source)]
    if "BCC_KERNEL_SOURCE" not in os.environ and not any(map(os.path.exists, _HEADERS)):
        found.reverse()
    if found:
        return found[0]
    raise TraceError(
        "the unit has no JVM, and neither memleak nor perf is installed here: nothing is installed unasked."
        f" {_PACKAGES['memleak']}; perf is in {_PACKAGES['perf']}"
    )


def _found(source: str) -> str:
    """The tool's path, unless somebody but root could have put it there; empty if there is none."""
    for name in _NAMES[source]:
        path = shutil.which(name, path=_PATH)
        if path and not trusted_path.fault(os.path.realpath(path)):
            return path
    return ""


def _allocator(pid: int) -> str:
    """The file that has the process's malloc, as we see it."""
    file = process_allocators.of_process(pid)[0]["file"]
    if not file:
        raise TraceError(
            f"no file of process {pid} has its malloc; perf can still say what makes it grow (source: perf)"
        )
    own = procfs.directory(pid)
    path = f"{own}/root{file}"
    mapped = procfs.mapped_files(pid).get(file, [])
    if not any(_is_at(path, f"{own}/map_files/{one.range_name}") for one in mapped[:1]):
        raise TraceError(
            f"{file} was replaced since process {pid} started, as by an upgrade, so memleak would watch another file."
            " perf can still say what makes it grow (source: perf)"
        )
    return path


def _is_at(path: str, link: str) -> bool:
    try:
        return os.path.samefile(path, link)
    except OSError:
        return False


def _check_room() -> None:
    """memleak compiles a program and has tables for a million allocations."""
    free = (host_memory.read() or {}).get("available", 0)
    if free < MEMORY:
        raise TraceError(
            f"the host has {free >> 20} MiB of memory available, and memleak may take {MEMORY >> 20} MiB. perf takes"
            " less (source: perf)"
        )


@contextlib.contextmanager
def _memory_file() -> Iterator[int]:
    fd = os.memfd_create("trace")
    try:
        yield fd
    finally:
        os.close(fd)


@contextlib.contextmanager
def _running(
    command: Sequence[str],
    output: int,
    errors: int,
    source: IO[bytes] | int | None = subprocess.DEVNULL,
    group: int | None = None,
) -> Iterator[subprocess.Popen[bytes]]:
    """A tool that runs until it ends or we leave, in the C locale, when nobody else needs the CPU."""
    process = subprocess.Popen(  # pylint: disable=ansible-bad-function,subprocess-popen-preexec-fn
        command,
        stdin=source,
        stdout=output,
        stderr=errors,
        env={**os.environ, "LC_ALL": "C", "PATH": _PATH},
        preexec_fn=lambda: _end_with_us(group),
        start_new_session=True,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


def _end_with_us(group: int | None) -> None:
    """In the new process: die when the thread that started it does."""
    if group is not None:
        with contextlib.suppress(OSError):  # a user namespace may not have it
            os.setgid(group)
    _C_LIBRARY.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    os.nice(_NICE)


def _remove_copies() -> None:
    with os.scandir(_COPIES) as entries:
        for entry in entries:
            if not _COPY.fullmatch(entry.name):
                continue
            with contextlib.suppress(FileNotFoundError):
                if entry.stat(follow_symlinks=False).st_gid == _OF_COPIES:
                    os.unlink(entry.path)


def _read(stream: IO[bytes]) -> bytes:
    """Some of what there is by now."""
    try:
        return os.read(stream.fileno(), _BLOCK)
    except BlockingIOError:
        return b""


def _last_words(tool: subprocess.Popen[bytes]) -> bytes:
    """Have memleak end by itself, and return what it still said."""
    tool.send_signal(signal.SIGINT)
    os.set_blocking(cast("IO[bytes]", tool.stdout).fileno(), True)
    try:
        return tool.communicate(timeout=_TO_END)[0]
    except subprocess.TimeoutExpired:
        return b""


def _window(text: bytes, written: int) -> Iterator[Window]:
    with _memory_file() as fd, open(os.dup(fd), "wb") as file:
        file.write(text)
        file.flush()
        yield Window(fd, len(text), written)


def _lost(text: int, size: int) -> bool:
    return any(_LOST in os.pread(text, _BLOCK + len(_LOST), offset) for offset in range(0, size, _BLOCK))


def _failure(tool: str, status: int, said: int) -> str:
    """Why a tool has ended, in its own words, and what to do about those that are known."""
    words = os.pread(said, _MOST_SAID, max(0, os.fstat(said).st_size - _MOST_SAID)).decode("utf-8", "replace")
    if "kernel headers" in words:
        release = os.uname().release
        return (
            f"{tool} needs the headers of the running kernel. Debian, Ubuntu: install linux-headers-{release}; Fedora,"
            f" RHEL: kernel-devel-{release}. perf needs none (source: perf)"
        )
    way = ""
    if re.search("not permitted|Permission denied|No permission", words):
        way = ". The kernel does not let even root do that here: a container, or lockdown"
    shown = " ".join(words.split())[-400:]
    return f"{tool} has ended with status {status}: {shown or 'it said nothing'}{way}"
