# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Ask a HotSpot JVM a jcmd question over its attach socket (hotspot_protocol.py), without a JDK on the host.

Two things make that delicate. First, SIGQUIT wakes a JVM but kills a process that does not handle it. So we send it
only to a process that has libjvm mapped, is not OpenJ9, catches the signal, has not disabled attaching, and is not
listening already. Second, ``/tmp`` is the service's: it may be private, and anything there may be a trap. So a child
process enters the service's mount namespace and root directory, becomes the service's user, and holds the conversation;
it can reach nothing that the service could not.

This module is private to the collection.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import sys
from typing import IO, Callable, Collection

from ansible_collections.offheap.profiler.plugins.module_utils.formats import limits
from ansible_collections.offheap.profiler.plugins.module_utils.host import forked, procfs
from ansible_collections.offheap.profiler.plugins.module_utils.host.forked import Write
from ansible_collections.offheap.profiler.plugins.module_utils.runtimes import hotspot_protocol
from ansible_collections.offheap.profiler.plugins.module_utils.runtimes.hotspot_protocol import (
    HotspotError,
    Jvm,
    Wake,
)

_CLONE_NEWNS = 0x00020000
_NO_ATTACH = "+DisableAttachMechanism"
_OPTION_VARIABLES = ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS")
_VERSION = re.compile(r"^JDK ([0-9]{1,3})\b", re.MULTILINE)
# Of an agent: with these words since JDK 9.
_RETURNED = re.compile(r"^(?:return code: )?(-?[0-9]{1,10})$", re.MULTILINE)
_MAX_OUTPUT = 4 << 20


class NotHotspot(HotspotError):
    """The process is not a HotSpot JVM that can be asked; nothing was sent to it."""


class NoJvm(NotHotspot):
    """Nor is it any other JVM."""


def look(pid: int, proc: str = "/proc") -> Jvm:
    """Find out whether a process is a HotSpot JVM that can be asked, without touching it.

    Raises NotHotspot with the reason if it is not, and ProcfsError (ProcessGone) from below.
    """
    ticks = procfs.start_ticks(pid, proc)
    libraries = {os.path.basename(path) for path in procfs.mapped_files(pid, proc)}
    if "libjvm.so" not in libraries:
        raise NoJvm(f"process {pid} has no libjvm.so: it is not a JVM")
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
    """What ``jcmd <pid> <text>`` would print. Raises HotspotError."""
    parts: list[bytes] = []

    def work(wake: Wake, write: Write) -> None:
        hotspot_protocol.jcmd(jvm, text, timeout, wake, write)

    _in_its_place(jvm, work, parts.append, _MAX_OUTPUT, timeout, proc)
    return b"".join(parts).decode("utf-8", "replace")


def version(jvm: Jvm, timeout: float = 20.0, proc: str = "/proc") -> int:
    """The JVM's feature release, such as 17. Raises HotspotError."""
    answer = command(jvm, "VM.version", timeout, proc)
    match = _VERSION.search(answer)
    if not match:
        raise HotspotError(f"process {jvm.pid} did not report its version: {answer[:200]!r}")
    return int(match.group(1))


def load(
    jvm: Jvm, library: str, options: str, files: Collection[str] = (), timeout: float = 60.0, proc: str = "/proc"
) -> int:
    """Make the JVM load an agent's library, or call that of one again; returns what the agent returned, 0 for success.

    ``files`` are what the agent is to write. Raises HotspotError.
    """
    parts: list[bytes] = []

    def work(wake: Wake, write: Write) -> None:
        hotspot_protocol.load(jvm, library, options, files, timeout, wake, write)

    _in_its_place(jvm, work, parts.append, _MAX_OUTPUT, timeout, proc)
    answer = b"".join(parts).decode("utf-8", "replace")
    found = _RETURNED.search(answer)
    if not found:
        raise HotspotError(f"JVM {jvm.pid} did not load {library}: {answer.strip()[:500] or 'it does not say why'}")
    return int(found[1])


def perf_map(
    jvm: Jvm, target: IO[bytes], timeout: float = 60.0, proc: str = "/proc", addresses: Collection[int] = ()
) -> int:
    """Make the JVM write a map of its compiled code, and copy that to ``target``; returns the number of bytes.

    Lines: ``0x<start> 0x<size> <name>``, the name with spaces. Needs JDK 17; raises HotspotError for an older one. The
    JVM's own file, ``/tmp/perf-<pid>.map``, is removed unless it existed before. For ``addresses``, those of a dump,
    lines follow for the methods that the JVM omits (hotspot_methods.py), or one that begins with ``#`` and says why
    they are missing.
    """
    release = version(jvm, timeout, proc)
    if release < 17:
        raise HotspotError(f"process {jvm.pid} runs JDK {release}, which cannot write a perf map: that needs JDK 17")
    size = 0

    def save(part: bytes) -> None:
        nonlocal size
        target.write(part)
        size += len(part)

    with contextlib.ExitStack() as stack:
        memory = _open_memory(jvm, proc, stack) if addresses else None

        def work(wake: Wake, write: Write) -> None:
            hotspot_protocol.perf_map(jvm, timeout, wake, write)
            if memory is not None:
                hotspot_protocol.add_methods(*memory, release, addresses, write, timeout / 2)

        _in_its_place(jvm, work, save, limits.LARGEST_PERF_MAP, timeout, proc)
    return size


def _open_memory(jvm: Jvm, proc: str, stack: contextlib.ExitStack) -> tuple[int, int] | None:
    """A descriptor of the JVM's memory, -1 if the kernel denies access, and where libjvm begins."""
    starts = [
        mapping.start
        for mapping in procfs.mappings(jvm.pid, proc)
        if not mapping.offset and os.path.basename(mapping.path) == "libjvm.so"
    ]
    if not starts:
        return None
    try:
        fd = os.open(os.path.join(procfs.directory(jvm.pid, proc), "mem"), os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return -1, starts[0]
    stack.callback(os.close, fd)
    return fd, starts[0]


def _in_its_place(
    jvm: Jvm,
    work: Callable[[Wake, Write], None],
    receive: Write,
    limit: int,
    timeout: float,
    proc: str,
) -> None:
    """Run ``work`` in a child process, in the JVM's namespace and as its user; pass what it writes to ``receive``."""
    with contextlib.ExitStack() as stack:
        wake = _prepare_signal(jvm, stack)
        enter = _prepare_entry(jvm, proc, stack)

        def in_its_place(write: Write) -> None:
            enter()
            work(wake, write)

        try:
            # The work enforces the timeout itself, with a better message.
            forked.run(f"JVM {jvm.pid}", in_its_place, receive, limit, timeout + 5.0)
        except forked.ForkedError as exc:
            raise HotspotError(str(exc)) from exc


def _prepare_signal(jvm: Jvm, stack: contextlib.ExitStack) -> Wake:
    """A function that sends SIGQUIT to this process and, if Python can say so, to no later one with its pid.

    Call this before the last check that it is still the same process.
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
    """Open what is needed to enter, check that it is still the same process, and return a function that enters."""

    def opened(path: str, flags: int) -> int:
        fd = os.open(path, flags | os.O_CLOEXEC)
        stack.callback(os.close, fd)
        return fd

    try:
        import ctypes  # here: a Python that somebody has built may be without it, and only a JVM wants it
    except ImportError as exc:
        raise HotspotError(f"asking JVM {jvm.pid} needs ctypes, which {sys.executable} does not have") from exc
    base = procfs.directory(jvm.pid, proc)
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
        raise HotspotError(f"cannot examine the namespace of process {jvm.pid}: {exc.strerror}") from exc
    if procfs.start_ticks(jvm.pid, proc) != jvm.start_ticks:
        raise procfs.ProcessGone(jvm.pid)
    if not privileged and (os.geteuid() != jvm.uid or not same_place):
        raise HotspotError(f"asking JVM {jvm.pid} needs root: it runs as another user or in its own namespace")

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
