# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""HotSpot's attach protocol, spoken in the JVM's namespace and as its user (hotspot_attach.py).

The protocol (HotSpot's attachListener_posix.cpp): the client makes ``/tmp/.attach_pid<pid>`` and sends SIGQUIT; the JVM
looks for that file and opens ``/tmp/.java_pid<pid>``; a request is a version, a command and three arguments, each
ended by a NUL; the answer is a line with a number, 0 for success, and then the command's output until the JVM closes.

This module is private to the collection.
"""

from __future__ import annotations

import contextlib
import os
import socket
import stat
import time
from typing import Callable, Collection, Iterator, NamedTuple, Sequence

from ansible_collections.offheap.profiler.plugins.module_utils.formats.errors import OffheapError
from ansible_collections.offheap.profiler.plugins.module_utils.host import sockets
from ansible_collections.offheap.profiler.plugins.module_utils.host.forked import Write
from ansible_collections.offheap.profiler.plugins.module_utils.runtimes import hotspot_methods, hotspot_structs

_CHUNK = 1 << 16

#: makes the JVM look for a client
Wake = Callable[[], None]


class HotspotError(OffheapError):
    """The JVM could not be asked, or refused. The message says why."""


class Jvm(NamedTuple):
    """A running HotSpot. ``own_pid`` is its pid in its own namespace; ids are the effective ones.

    ``catches`` says whether it handles SIGQUIT. A JVM that is still starting does not, nor does one with -Xrs, which
    listens from the start instead.
    """

    pid: int
    own_pid: int
    start_ticks: int
    uid: int
    gid: int
    groups: tuple[int, ...]
    catches: bool


def jcmd(jvm: Jvm, text: str, timeout: float, wake: Wake, write: Write) -> None:
    """Write what ``jcmd <pid> <text>`` would print. Raises HotspotError and OSError, as all here do."""
    _ask(jvm, ("jcmd", text, "", ""), timeout, wake, write)


def load(
    jvm: Jvm, library: str, options: str, files: Collection[str], timeout: float, wake: Wake, write: Write
) -> None:
    """Make the JVM load an agent's library, and write what it says to that.

    First it is made sure that the JVM can: that it sees the library, that it may map code from there, and that it may
    write to these ``files``.
    """
    if os.statvfs(library).f_flag & os.ST_NOEXEC:
        raise HotspotError(
            f"{library} is on a file system that it must not map code from (noexec, or NoExecPaths= of the unit)"
        )
    for path in (library, *files):
        try:
            os.close(os.open(path, (os.O_RDONLY if path == library else os.O_RDWR) | os.O_NOFOLLOW | os.O_CLOEXEC))
        except OSError as exc:
            raise HotspotError(
                f"it cannot use {path}: {exc.strerror}. The unit's sandbox hides it or makes it read-only"
                " (ProtectSystem=strict, ReadOnlyPaths=, InaccessiblePaths=); ReadWritePaths=-/run/offheap in a drop-in"
                " allows it from the next restart on"
            ) from exc
    _ask(jvm, ("load", library, "true", options), timeout, wake, write)


def _ask(jvm: Jvm, words: Sequence[str], timeout: float, wake: Wake, write: Write) -> None:
    """Send a command with three arguments, and write what follows the number 0."""
    text = " ".join(filter(None, words[:2]))
    deadline = time.monotonic() + timeout
    with _attached(jvm, wake, deadline) as connection:
        connection.sendall(b"1\0" + b"".join([word.encode("utf-8") + b"\0" for word in words]))
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
        while True:  # the number may arrive alone, before the JVM has written more
            if rest:
                write(rest)
            rest = _receive(connection, deadline)
            if not rest:
                break


def perf_map(jvm: Jvm, timeout: float, wake: Wake, write: Write) -> None:
    """Make the JVM write its perf map, pass that on, and remove its file unless there was one before.

    The JVM follows links, so one that somebody has put there would have it overwrite another file of its user.
    """
    path = f"/tmp/perf-{jvm.own_pid}.map"
    existed = os.path.lexists(path)
    if existed:
        _check_own(path, os.lstat(path), jvm)
    answer: list[bytes] = []
    try:
        jcmd(jvm, "Compiler.perfmap", timeout, wake, answer.append)
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        _check_own(path, os.fstat(fd), jvm)
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


def _check_own(path: str, status: os.stat_result, jvm: Jvm) -> None:
    if not stat.S_ISREG(status.st_mode) or status.st_uid != jvm.uid:
        raise HotspotError(f"{path} is not a file of the JVM's user")


def add_methods(memory: int, base: int, release: int, addresses: Collection[int], write: Write, seconds: float) -> None:
    """Write lines for the methods that the JVM's map omits; ``memory`` is -1 if it cannot be read."""
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
    """A connection to the JVM's attach socket; None if it has not opened one."""
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
        pid, _uid = sockets.listener(connection)
        if pid != jvm.pid:
            raise HotspotError(f"{path} is not the JVM's: process {pid} listens there")
    except (ConnectionRefusedError, FileNotFoundError):
        connection.close()
        return None
    except BaseException:
        connection.close()
        raise
    return connection


@contextlib.contextmanager
def _attached(jvm: Jvm, wake: Wake, deadline: float) -> Iterator[socket.socket]:
    connection = _connect(jvm, deadline)
    if connection is None and not jvm.catches:
        raise HotspotError("it has no attach socket and does not catch SIGQUIT: it may still be starting")
    if connection is None:
        trigger = f"/tmp/.attach_pid{jvm.own_pid}"
        try:
            os.close(os.open(trigger, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
            created = True
        except FileExistsError:  # another client is attaching
            created = False
            if os.lstat(trigger).st_uid != jvm.uid:
                raise HotspotError(f"{trigger} belongs to another user") from None
        try:
            wake()
            while connection is None:
                if time.monotonic() >= deadline:
                    raise HotspotError("it did not open its attach socket in time")
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
