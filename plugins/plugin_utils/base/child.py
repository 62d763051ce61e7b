# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""The one child process, with limits, in which everything that hosts sent is parsed.

``call`` runs a function of this library there and returns the bytes that it answers, which its caller has to check.
What takes too much time or memory, says too much or crashes the process is an error of that one call; the next call
gets a new process. A process that has nothing to do stays until this one ends.

The child writes no file and starts no program (RLIMIT_FSIZE and, from Linux 5.13 on, Landlock). It has no network where
the kernel lets this user have a network namespace; elsewhere Linux 6.7 and later still refuse it TCP. It may read
whatever this user may. It starts anew instead of being forked, since a fork of a process with threads may hang.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import fcntl
import gc
import os
import pickle
import resource
import select
import signal
import struct
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from typing import IO, BinaryIO, NamedTuple, cast

from . import libraries, own_process
from .byte_size import as_text
from .errors import ControllerError
from .printable import printable

_HEAD = struct.Struct(">cQ")
_ANSWER, _REFUSAL = b"A", b"R"
_LONGEST_REFUSAL = 4096
#: status of a child that has run out of memory
_NO_MEMORY = 77
_ENVIRONMENT = {
    # Idle libraries would otherwise take memory and address space for each processor.
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    # What one call frees, the next one needs. To give it back to the kernel, which has to zero it again, takes longer
    # than all else that a call adds (mallopt(3)).
    "MALLOC_TRIM_THRESHOLD_": str(64 << 20),
    "MALLOC_MMAP_THRESHOLD_": str(32 << 20),
}
_FILES = 256
# How many times as long as it may work a call may take.
_PATIENCE = 10
# Most answers are smaller, so that neither end waits for the other.
_PIPE = 1 << 20


class ChildError(ControllerError):
    """Something that a host sent cannot be parsed, or not within the limits. The message says why."""


class Allowance(NamedTuple):
    """What one call may take: seconds of processor time, bytes of memory, bytes of the answer."""

    seconds: int
    memory: int
    answer: int

    @classmethod
    def of(cls, size: int) -> Allowance:
        """For input of ``size`` bytes, unpacked. The largest honest one takes a fifth of this, or less."""
        return cls(min(20 + (size >> 20), 300), min((512 << 20) + 24 * size, 8 << 30), (64 << 20) + 8 * size)


class _Ended(Exception):
    """The child has ended within a call. The text says why."""


def call(function: Callable[..., bytes], *arguments: object, size: int) -> bytes | bytearray:
    """What ``function`` (of a module) answers to these arguments in the child, for input of ``size`` bytes.

    Raises ChildError, also for each OSError and ControllerError there, with the same text.
    """
    request = pickle.dumps((function, arguments, allowance := Allowance.of(size)))
    with _lock:
        was_new = not _running
        try:
            return _asked(request, allowance)
        except _Ended as ended:
            if was_new:
                raise ChildError(f"parsing it {ended}") from None
        # Memory that earlier calls have filled, or something that they broke, is not this call's fault.
        try:
            return _asked(request, allowance)
        except _Ended as ended:
            raise ChildError(f"parsing it {ended}") from None


def start(*modules: str) -> None:
    """Start the child, if there is none, and let it import what it will need while this process does other things."""
    with _lock:
        _child(modules)


_lock = threading.Lock()
_running: list[subprocess.Popen[bytes]] = []


def _child(modules: Sequence[str] = ()) -> subprocess.Popen[bytes]:
    if not _running:
        if (system := os.uname().sysname) != "Linux":
            raise ChildError(
                f"this controller runs {system}, and only Linux can confine what reads the files of others: use a"
                " container, a virtual machine or WSL 2"
            )
        process = own_process.started(serve, *modules, **_ENVIRONMENT)
        _running.append(process)
        requests, answers = _pipes(process)
        os.set_blocking(requests, False)
        with contextlib.suppress(OSError):  # a user with many pipes gets no large ones
            fcntl.fcntl(answers, fcntl.F_SETPIPE_SZ, _PIPE)
    return _running[0]


def _streams(process: subprocess.Popen[bytes]) -> tuple[IO[bytes], IO[bytes]]:
    """``_child`` has made both."""
    return cast(IO[bytes], process.stdin), cast(IO[bytes], process.stdout)


def _pipes(process: subprocess.Popen[bytes]) -> tuple[int, int]:
    """What takes requests, and what gives answers."""
    requests, answers = _streams(process)
    return requests.fileno(), answers.fileno()


def _asked(request: bytes, allowance: Allowance) -> bytearray:
    """Raises ChildError for a refusal or for too long a time, and _Ended if the child ended for another reason."""
    process = _child()
    requests, answers = _pipes(process)
    until = time.monotonic() + _PATIENCE * allowance.seconds  # for one that waits instead of working
    try:
        _send(requests, struct.pack(">Q", len(request)) + request, until)
        kind, length = _HEAD.unpack(_receive(answers, _HEAD.size, until))
        if length > (allowance.answer if kind == _ANSWER else _LONGEST_REFUSAL):
            raise _Ended(f"gives more than {as_text(allowance.answer)}")
        answer = _receive(answers, length, until)
    except (OSError, EOFError) as error:
        waited = isinstance(error, TimeoutError)
        if waited:
            process.kill()
        status = end()
        if waited or status == -signal.SIGXCPU:
            raise ChildError(f"parsing it takes more than {allowance.seconds} s") from None
        raise _Ended(_reason(status, allowance)) from None
    except BaseException:  # whatever it would still answer is for nobody
        end()
        raise
    if kind == _ANSWER:
        return answer
    raise ChildError(printable(answer.decode("utf-8", "replace")))


def _send(pipe: int, data: bytes, until: float) -> None:
    """Raises OSError, TimeoutError if the time (time.monotonic()) is over before all is taken."""
    left = memoryview(data)
    while left:
        _wait(pipe, select.POLLOUT, until)
        left = left[os.write(pipe, left) :]


def _receive(pipe: int, count: int, until: float) -> bytearray:
    """As many bytes. Raises OSError, TimeoutError, EOFError."""
    received = bytearray(count)
    left = memoryview(received)
    while left:
        _wait(pipe, select.POLLIN, until)
        length = os.readv(pipe, [left])
        if not length:
            raise EOFError
        left = left[length:]
    return received


def _wait(pipe: int, for_what: int, until: float) -> None:
    poll = select.poll()
    poll.register(pipe, for_what)
    if not poll.poll(max(until - time.monotonic(), 0) * 1000):
        raise TimeoutError


def _reason(status: int, allowance: Allowance) -> str:
    if status == _NO_MEMORY:
        return f"takes more than {as_text(allowance.memory)} of memory"
    return f"ended the process for it ({signal.Signals(-status).name if status < 0 else f'status {status}'})"


def end() -> int:
    """End the child, if there is one. Returns its status, that of its own end if it came first."""
    if not _running:
        return 0
    process = _running.pop()
    for stream in _streams(process):
        with contextlib.suppress(OSError):
            stream.close()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(1)
    process.kill()
    return process.wait()


def _forget() -> None:
    """A fork has none: the one that it inherited answers its parent."""
    global _lock
    _lock = threading.Lock()
    for process in _running:
        for stream in _streams(process):
            os.close(stream.fileno())
            stream.detach()  # type: ignore[attr-defined]
        process.returncode = 0
    _running.clear()


def _leave() -> None:
    """As ``end``, at once: an idle child has nothing to lose."""
    for process in _running:
        process.kill()
    end()


os.register_at_fork(after_in_child=_forget)
atexit.register(_leave)


def serve(modules: Sequence[str]) -> None:
    """The child's side: answers calls until its parent ends or closes the pipe, and imports these while none comes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    source, target = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints is no answer
    _confine()
    gc.set_threshold(100_000)  # parsing leaves little garbage, and looking for it takes a tenth of the time
    ahead = list(modules)
    try:
        while head := _asked_while_loading(source, ahead):
            _answer(target, source.read(int.from_bytes(head, "big")))
    except MemoryError:
        os._exit(_NO_MEMORY)


def _asked_while_loading(source: BinaryIO, ahead: list[str]) -> bytes:
    """The start of the next request. Until it comes, imports the modules ``ahead``, each of which leaves that list."""
    while ahead and not select.select([source], [], [], 0)[0]:
        libraries.load(ahead.pop(0))
    return source.read(8)


def _answer(target: BinaryIO, request: bytes) -> None:
    try:
        function, arguments, allowance = pickle.loads(request)
        _limit(allowance)
        kind, answer = _ANSWER, function(*arguments)
    except MemoryError:
        raise
    except Exception as error:  # a parser's bug on somebody's input is that input's problem
        known = isinstance(error, (ControllerError, OSError))
        text = str(error) if known else f"{type(error).__name__}: {error}"
        kind, answer = _REFUSAL, text.encode("utf-8", "replace")[:_LONGEST_REFUSAL]
    target.write(_HEAD.pack(kind, len(answer)))
    target.write(answer)
    target.flush()


def _limit(allowance: Allowance) -> None:
    used = resource.getrusage(resource.RUSAGE_SELF)
    seconds = int(used.ru_utime + used.ru_stime) + 1 + allowance.seconds
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, resource.RLIM_INFINITY))
    resource.setrlimit(resource.RLIMIT_DATA, (allowance.memory, resource.RLIM_INFINITY))


# linux/sched.h, linux/prctl.h, linux/landlock.h; Landlock's calls have these numbers on every architecture
_CLONE_NEWNET, _CLONE_NEWUSER = 0x40000000, 0x10000000
_PR_SET_NO_NEW_PRIVS = 38
_LANDLOCK_CREATE_RULESET, _LANDLOCK_RESTRICT_SELF, _LANDLOCK_VERSION = 444, 446, 1
#: from which version of Landlock on it knows what: executing, writing, removing and making files; moving; truncating
_LANDLOCK_FILES = ((1, 0x1FF3), (2, 1 << 13), (3, 1 << 14))
_LANDLOCK_TCP = 0b11


def _confine() -> None:
    for limit, value in ((resource.RLIMIT_CORE, 0), (resource.RLIMIT_FSIZE, 0), (resource.RLIMIT_NOFILE, _FILES)):
        resource.setrlimit(limit, (value, value))
    libc = ctypes.CDLL(None)
    # Without a user namespace of its own it still may read what root may.
    if libc.unshare(_CLONE_NEWNET) != 0:
        libc.unshare(_CLONE_NEWUSER | _CLONE_NEWNET)
    version = libc.syscall(_LANDLOCK_CREATE_RULESET, None, 0, _LANDLOCK_VERSION)
    if version > 0 and libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0:
        files = sum(rights for since, rights in _LANDLOCK_FILES if version >= since)
        handled = struct.pack("=QQ", files, _LANDLOCK_TCP if version >= 4 else 0)
        ruleset = libc.syscall(_LANDLOCK_CREATE_RULESET, handled, len(handled), 0)
        if ruleset >= 0:
            libc.syscall(_LANDLOCK_RESTRICT_SELF, ruleset, 0)
            os.close(ruleset)
