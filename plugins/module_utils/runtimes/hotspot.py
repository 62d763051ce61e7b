# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Ask a HotSpot JVM a jcmd question over its attach socket, without a JDK on the host.

The protocol (HotSpot's attachListener_posix.cpp): the client makes C(/tmp/.attach_pid<pid>) and sends SIGQUIT; the JVM
looks for that file and opens C(/tmp/.java_pid<pid>); a request is a version, a command and three arguments, each
ended by a NUL; the answer is a line with a number, 0 for success, and then the command's output until the JVM closes.

Two things make that delicate. SIGQUIT ends whatever does not handle it, so it is sent only to a process that has
libjvm mapped, is not OpenJ9, catches the signal, has not switched attaching off, and does not listen already. And
C(/tmp) is the service's: it may be private to it, and what lies there may be a trap. So the conversation is held by
a child process that has entered the service's mount namespace and root directory and has become the service's user;
it can reach nothing that the service could not.

This module is private to the collection.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import select
import signal
import socket
import stat
import struct
import time
from typing import IO, Any, Callable, Collection, Iterator, NamedTuple, NoReturn

from ansible_collections.offheap.profiler.plugins.module_utils.formats import limits
from ansible_collections.offheap.profiler.plugins.module_utils.formats.errors import OffheapError
from ansible_collections.offheap.profiler.plugins.module_utils.host import procfs
from ansible_collections.offheap.profiler.plugins.module_utils.runtimes import hotspot_methods, hotspot_structs

_CLONE_NEWNS = 0x00020000
_NO_ATTACH = "+DisableAttachMechanism"
_OPTION_VARIABLES = ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS")
_VERSION = re.compile(r"^JDK ([0-9]{1,3})\b", re.MULTILINE)
_CHUNK = 1 << 16
_MAX_OUTPUT = 4 << 20

_Wake = Callable[[], None]
_Write = Callable[[bytes], None]


class HotspotError(OffheapError):
    """The JVM could not be asked, or says no. The message says why."""


class NotHotspot(HotspotError):
    """The process is not a HotSpot JVM that can be asked; nothing was sent to it."""


class Jvm(NamedTuple):
    """A running HotSpot. C(own_pid) is its number in its own pid namespace; ids are the effective ones; C(catches) is
    whether it handles SIGQUIT. One that is still starting does not, nor does one with -Xrs, which listens from the
    start instead."""

    pid: int
    own_pid: int
    start_ticks: int
    uid: int
    gid: int
    groups: tuple[int, ...]
    catches: bool


def look(pid: int, proc: str = "/proc") -> Jvm:
    """Find out whether a process is a HotSpot JVM that can be asked, without touching it.

    Raises NotHotspot when it is not, with the reason, and ProcfsError (ProcessGone) from below.
    """
    ticks = procfs.start_ticks(pid, proc)
    libraries = {os.path.basename(path) for path in procfs.mapped_files(pid, proc)}
    if "libjvm.so" not in libraries:
        raise NotHotspot(f"process {pid} has no libjvm.so: it is not a JVM")
    if any(name.startswith("libj9") for name in libraries):
        raise NotHotspot(f"process {pid} is an OpenJ9 JVM")
    status = procfs.status(pid, proc)
    try:
        caught = int(status["SigCgt"], 16)
        uid, gid = int(status["Uid"].split()[1]), int(status["Gid"].split()[1])
        groups = tuple(int(word) for word in status["Groups"].split())
        own_pid = int(status.get("NSpid", str(pid)).split()[-1])
    except (KeyError, IndexError, ValueError) as exc:
        raise NotHotspot(f"the status of process {pid} cannot be read") from exc
    environment = procfs.environ(pid, proc)
    options = procfs.cmdline(pid, proc) + [environment.get(name, "") for name in _OPTION_VARIABLES]
    if any(_NO_ATTACH in option for option in options):
        raise NotHotspot(f"process {pid} runs with -XX:{_NO_ATTACH}")
    return Jvm(pid, own_pid, ticks, uid, gid, groups, bool(caught >> (signal.SIGQUIT - 1) & 1))


def command(jvm: Jvm, text: str, timeout: float = 20.0, proc: str = "/proc") -> str:
    """What C(jcmd <pid> <text>) would print. Raises HotspotError."""
    parts: list[bytes] = []

    def work(wake: _Wake, write: _Write) -> None:
        _jcmd(jvm, text, timeout, wake, write)

    _in_its_place(jvm, work, parts.append, _MAX_OUTPUT, timeout, proc)
    return b"".join(parts).decode("utf-8", "replace")


def version(jvm: Jvm, timeout: float = 20.0, proc: str = "/proc") -> int:
    """The JVM's feature release (17). Raises HotspotError."""
    answer = command(jvm, "VM.version", timeout, proc)
    match = _VERSION.search(answer)
    if not match:
        raise HotspotError(f"process {jvm.pid} does not say its version: {answer[:200]!r}")
    return int(match.group(1))


def perf_map(
    jvm: Jvm, target: IO[bytes], timeout: float = 60.0, proc: str = "/proc", addresses: Collection[int] = ()
) -> int:
    """Have the JVM write down where its compiled code is now, and copy that to C(target); returns the bytes.

    Lines: C(0x<start> 0x<size> <name>), the name with spaces. JDK 17 and up; HotspotError from an older one.
    The JVM's own file, C(/tmp/perf-<pid>.map), is removed unless there was one before.
    For C(addresses), those of a dump, lines with the methods follow that the JVM does not tell (java_methods.py), or
    one that begins with C(#) and says why they cannot be had.
    """
    release = version(jvm, timeout, proc)
    if release < 17:
        raise HotspotError(f"process {jvm.pid} is JDK {release}: Compiler.perfmap came with JDK 17")
    size = 0

    def save(part: bytes) -> None:
        nonlocal size
        target.write(part)
        size += len(part)

    with contextlib.ExitStack() as stack:
        memory = _open_memory(jvm, proc, stack) if addresses else None

        def work(wake: _Wake, write: _Write) -> None:
            _perf_map(jvm, timeout, wake, write)
            if memory is not None:
                _add_methods(*memory, release, addresses, write, timeout / 2)

        _in_its_place(jvm, work, save, limits.LARGEST_PERF_MAP, timeout, proc)
    return size


# ---- on this side


def _open_memory(jvm: Jvm, proc: str, stack: contextlib.ExitStack) -> tuple[int, int] | None:
    """A descriptor of the JVM's memory, -1 where the kernel does not let it be read, and where libjvm begins."""
    starts = [
        mapping.start
        for mapping in procfs.mappings(jvm.pid, proc)
        if not mapping.offset and os.path.basename(mapping.path) == "libjvm.so"
    ]
    if not starts:
        return None
    try:
        fd = os.open(os.path.join(proc, str(jvm.pid), "mem"), os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return -1, starts[0]
    stack.callback(os.close, fd)
    return fd, starts[0]


def _in_its_place(
    jvm: Jvm,
    work: Callable[[_Wake, _Write], None],
    receive: _Write,
    limit: int,
    timeout: float,
    proc: str,
) -> None:
    """Run C(work) in a child process where the JVM lives and as its user; pass what it writes to C(receive).

    The first byte through the pipe says whether the rest is output (C(+)) or the reason why there is none (C(-)).
    """
    deadline = time.monotonic() + timeout + 5.0  # the child keeps the timeout itself, and says more
    with contextlib.ExitStack() as stack:
        wake = _prepare_signal(jvm, stack)
        enter = _prepare_entry(jvm, proc, stack)
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(reading)
            _child(writing, enter, lambda write: work(wake, write))
        os.close(writing)
        whole = False
        try:
            _relay(jvm, reading, receive, limit, deadline)
            whole = True
        finally:
            os.close(reading)
            if not whole:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(child, signal.SIGKILL)
            _pid, status = os.waitpid(child, 0)  # it has closed its end of the pipe, so it is about to end
        if status != 0:
            raise HotspotError(f"JVM {jvm.pid}: its answer broke off")


def _relay(jvm: Jvm, pipe: int, receive: _Write, limit: int, deadline: float) -> None:
    kind, failure, size = b"", b"", 0
    while True:
        left = deadline - time.monotonic()
        if left <= 0 or not select.select([pipe], [], [], left)[0]:
            raise HotspotError(f"JVM {jvm.pid} did not answer in time")
        part = os.read(pipe, _CHUNK)
        if not part:
            break
        if not kind:
            kind, part = part[:1], part[1:]
        size += len(part)
        if size > limit:
            raise HotspotError(f"JVM {jvm.pid} answers with more than {limit} bytes")
        if kind == b"+":
            receive(part)
        else:
            failure += part
    if kind != b"+":
        raise HotspotError(f"JVM {jvm.pid}: {failure.decode('utf-8', 'replace') or 'the attempt ended early'}")


def _prepare_signal(jvm: Jvm, stack: contextlib.ExitStack) -> _Wake:
    """What sends SIGQUIT to this process and, where Python can say so, to no later one of the same number.

    Comes before the last check that it is the same process still.
    """
    if not hasattr(os, "pidfd_open"):
        return lambda: os.kill(jvm.pid, signal.SIGQUIT)
    try:
        handle = os.pidfd_open(jvm.pid)
    except ProcessLookupError as exc:
        raise procfs.ProcessGone(jvm.pid) from exc
    except OSError:  # a kernel before 5.3
        return lambda: os.kill(jvm.pid, signal.SIGQUIT)
    stack.callback(os.close, handle)
    return lambda: signal.pidfd_send_signal(handle, signal.SIGQUIT)


def _prepare_entry(jvm: Jvm, proc: str, stack: contextlib.ExitStack) -> Callable[[], None]:
    """Open what is needed to enter, check that it is still the same process, and return what enters."""

    def opened(path: str, flags: int) -> int:
        fd = os.open(path, flags | os.O_CLOEXEC)
        stack.callback(os.close, fd)
        return fd

    base = os.path.join(proc, str(jvm.pid))
    libc = ctypes.CDLL(None, use_errno=True)
    privileged = os.geteuid() == 0
    try:
        namespace = opened(base + "/ns/mnt", os.O_RDONLY)
        root = opened(base + "/root", os.O_PATH | os.O_DIRECTORY)
        own, ours = os.fstat(namespace), os.stat("/proc/self/ns/mnt")
        same_place = (own.st_dev, own.st_ino) == (ours.st_dev, ours.st_ino) and os.path.samestat(
            os.fstat(root), os.stat("/")
        )
    except FileNotFoundError as exc:
        raise procfs.ProcessGone(jvm.pid) from exc
    except OSError as exc:
        raise HotspotError(f"cannot look into the place of process {jvm.pid}: {exc.strerror}") from exc
    if procfs.start_ticks(jvm.pid, proc) != jvm.start_ticks:
        raise procfs.ProcessGone(jvm.pid)
    if not privileged and (os.geteuid() != jvm.uid or not same_place):
        raise HotspotError(f"asking JVM {jvm.pid} needs root: it runs as another user or in a place of its own")

    def enter() -> None:
        if not privileged:
            return
        if not same_place:
            if libc.setns(namespace, _CLONE_NEWNS) != 0:
                raise OSError(ctypes.get_errno(), "cannot enter its mount namespace")
            os.fchdir(root)
            os.chroot(".")
        os.chdir("/")
        os.setgroups(jvm.groups)
        os.setresgid(jvm.gid, jvm.gid, jvm.gid)
        os.setresuid(jvm.uid, jvm.uid, jvm.uid)

    return enter


# ---- in the child


def _child(pipe: int, enter: Callable[[], None], work: Callable[[_Write], None]) -> NoReturn:
    started = False

    def write(part: bytes) -> None:
        nonlocal started
        if not started:
            part, started = b"+" + part, True
        while part:
            part = part[os.write(pipe, part) :]

    try:
        enter()
        work(write)
        write(b"")
        status = 0
    except BaseException as exc:  # this is a forked copy: nothing may get past here
        status = 1
        if not started:
            with contextlib.suppress(BaseException):
                os.write(pipe, b"-" + str(exc).encode("utf-8", "replace")[:2000])
    os._exit(status)


def _jcmd(jvm: Jvm, text: str, timeout: float, wake: _Wake, write: _Write) -> None:
    deadline = time.monotonic() + timeout
    with _attached(jvm, wake, deadline) as connection:
        connection.sendall(b"1\0jcmd\0" + text.encode("utf-8") + b"\0\0\0")
        code, _newline, rest = b"", b"", b""
        while not _newline:
            part = _receive(connection, deadline)
            code, _newline, rest = (code + part).partition(b"\n")
            if len(code) > 20 or (not part and not _newline):
                raise HotspotError(f"not an answer: {code[:100]!r}")
        if code.strip() != b"0":
            while len(rest) < 1000:
                part = _receive(connection, deadline)
                if not part:
                    break
                rest += part
            raise HotspotError(f"{text}: error {code.decode('ascii', 'replace')}: {rest.decode('utf-8', 'replace')}")
        while True:  # the number may come alone, before the JVM has written more
            if rest:
                write(rest)
            rest = _receive(connection, deadline)
            if not rest:
                break


def _perf_map(jvm: Jvm, timeout: float, wake: _Wake, write: _Write) -> None:
    path = f"/tmp/perf-{jvm.own_pid}.map"
    existed = os.path.lexists(path)
    answer: list[bytes] = []
    try:
        _jcmd(jvm, "Compiler.perfmap", timeout, wake, answer.append)
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode) or status.st_uid != jvm.uid:
            raise HotspotError(f"{path} is not a file of the JVM's user")
        while True:
            part = os.read(fd, _CHUNK)
            if not part:
                break
            write(part)
    except FileNotFoundError as exc:
        raise HotspotError(f"it wrote no {path}: {b''.join(answer)[:500]!r}") from exc
    finally:
        if not existed:
            with contextlib.suppress(OSError):
                os.unlink(path)


def _add_methods(
    memory: int, base: int, release: int, addresses: Collection[int], write: _Write, seconds: float
) -> None:
    try:
        if memory < 0:
            raise hotspot_structs.VmError("its memory cannot be read")
        for line in hotspot_methods.lines(memory, base, release, addresses, seconds):
            write(line)
    except hotspot_structs.VmError as exc:
        write(f"# not all interpreted and inlined methods have names: {exc}\n".encode("utf-8", "replace"))


def _receive(connection: socket.socket, deadline: float) -> bytes:
    left = deadline - time.monotonic()
    if left <= 0:
        raise HotspotError("no answer in time")
    connection.settimeout(left)
    try:
        return connection.recv(_CHUNK)
    except socket.timeout as exc:
        raise HotspotError("no answer in time") from exc


def _connect(jvm: Jvm, deadline: float) -> socket.socket | None:
    """A connection to the JVM's attach socket; None when it has not opened one."""
    path = f"/tmp/.java_pid{jvm.own_pid}"
    try:
        status = os.lstat(path)
    except FileNotFoundError:
        return None
    if not stat.S_ISSOCK(status.st_mode) or status.st_uid != jvm.uid:
        raise HotspotError(f"{path} is not a socket of the JVM's user")
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.settimeout(max(0.1, deadline - time.monotonic()))
        connection.connect(path)
        peer: tuple[Any, ...] = struct.unpack(
            "3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        )
        if peer[0] != jvm.pid:
            raise HotspotError(f"{path} is not the JVM's: process {peer[0]} listens there")
    except (ConnectionRefusedError, FileNotFoundError):
        connection.close()
        return None
    except BaseException:
        connection.close()
        raise
    return connection


@contextlib.contextmanager
def _attached(jvm: Jvm, wake: _Wake, deadline: float) -> Iterator[socket.socket]:
    connection = _connect(jvm, deadline)
    if connection is None and not jvm.catches:
        raise HotspotError("it has no attach socket and does not catch SIGQUIT: it may still be starting")
    if connection is None:
        trigger = f"/tmp/.attach_pid{jvm.own_pid}"
        try:
            os.close(os.open(trigger, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
            created = True
        except FileExistsError:  # another client is at it
            created = False
            if os.lstat(trigger).st_uid != jvm.uid:
                raise HotspotError(f"{trigger} belongs to another user") from None
        try:
            wake()
            while connection is None:
                if time.monotonic() >= deadline:
                    raise HotspotError("it does not open its attach socket")
                time.sleep(0.05)
                connection = _connect(jvm, deadline)
        finally:
            if created:
                with contextlib.suppress(OSError):
                    os.unlink(trigger)
    try:
        yield connection
    finally:
        connection.close()
