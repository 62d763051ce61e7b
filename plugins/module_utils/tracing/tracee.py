# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""One thread under ptrace(2): stop it, wait for its stops with a deadline, read and write its registers.

This module is private to the collection.
"""

from __future__ import annotations

import ctypes
import errno
import os
import signal
import struct
import time
from enum import Enum
from typing import NamedTuple

from ansible_collections.offheap.profiler.plugins.module_utils.tracing import urgency
from ansible_collections.offheap.profiler.plugins.module_utils.tracing.running_trace import TraceError
from ansible_collections.offheap.profiler.plugins.module_utils.tracing.thread_registers import Machine

_SYSCALL, _CONT, _DETACH = 24, 7, 17
_GETREGSET, _SETREGSET, _SEIZE, _INTERRUPT = 0x4204, 0x4205, 0x4206, 0x4207
_GETSIGMASK, _SETSIGMASK = 0x420A, 0x420B
_SECCOMP_GET_FILTER, _LARGEST_INSTRUCTION, _MOST_FILTERS = 0x420C, 8, 1000
_TRACESYSGOOD = 1
_PRSTATUS, _SYSTEM_CALL = 1, 0x404
_EVENT_STOP = 128
_ALL_CHILDREN = 0x40000000  # __WALL: threads, too
_STOPPED = {signal.SIGCHLD}
_SYSCALL_STOP = signal.SIGTRAP | 0x80
# Seconds until it is looked again, should no signal say that a thread has stopped.
_PAUSE = 0.01
_WHY = {
    errno.EPERM: "the kernel does not permit it: a container without CAP_SYS_PTRACE, a security module, or Yama",
    errno.ESRCH: "the thread has ended",
}
_C_LIBRARY = ctypes.CDLL(None, use_errno=True)
_C_LIBRARY.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
_C_LIBRARY.ptrace.restype = ctypes.c_long


class HoldError(TraceError):
    """A thread cannot be held. The message says why."""


class ThreadGone(HoldError):
    """The thread has ended, or runs another program."""


class TooLate(HoldError):
    """It has not stopped by the deadline."""


class Kind(Enum):
    """Why a thread has stopped: it was asked to, at a system call, or a signal came for it."""

    ASKED = "asked"
    SYSCALL = "syscall"
    SIGNAL = "signal"


class Stop(NamedTuple):
    kind: Kind
    signal: int


class _Part(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("size", ctypes.c_size_t)]


class Tracee:
    """A thread that is traced from now on. ``detach`` lets it go; so does the end of our process."""

    def __init__(self, tid: int, machine: Machine) -> None:
        """Raises HoldError."""
        self.tid = tid
        self._machine = machine
        #: whether it stands at the last stop that ``wait`` has returned
        self.stopped = False
        self._usual: int | None = None
        self._ptrace(_SEIZE, 0, _TRACESYSGOOD)

    def interrupt(self) -> None:
        """Have it stop soon, in a wait as well."""
        self._ptrace(_INTERRUPT)

    def resume(self, at_calls: bool = True, number: int = 0) -> None:
        """Go on, to the next system call's entry or end if ``at_calls``. ``number``: a signal that it gets."""
        self._ptrace(_SYSCALL if at_calls else _CONT, 0, number)
        self.stopped = False

    def hurry(self) -> None:
        """Let it run before others, until it is detached."""
        self._usual = urgency.hurry(self.tid)

    def detach(self) -> None:
        """It must have stopped."""
        if self._usual is not None:
            urgency.calm(self.tid, self._usual)
        self._ptrace(_DETACH)

    def wait(self, deadline: float) -> Stop:
        """Its next stop. Raises TooLate, ThreadGone.

        Nothing is polled: on a busy processor, that would keep the thread itself from running.
        """
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, _STOPPED)
        try:
            while True:
                try:
                    found, status = os.waitpid(self.tid, os.WNOHANG | _ALL_CHILDREN)
                except ChildProcessError:
                    raise ThreadGone(f"thread {self.tid} has ended, or runs another program") from None
                if found:
                    return self._stop(status)
                left = deadline - time.monotonic()
                if left < 0:
                    raise TooLate(f"thread {self.tid} did not stop in time, as on a busy host. Try again")
                signal.sigtimedwait(_STOPPED, min(left, _PAUSE))
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)

    def _stop(self, status: int) -> Stop:
        if not os.WIFSTOPPED(status):
            raise ThreadGone(f"thread {self.tid} has ended")
        self.stopped = True
        number = os.WSTOPSIG(status)
        if status >> 16 == _EVENT_STOP:
            return Stop(Kind.ASKED, number)
        return Stop(Kind.SYSCALL if number == _SYSCALL_STOP else Kind.SIGNAL, number)

    def registers(self) -> list[int]:
        content = self._get(_PRSTATUS, 8 * self._machine.words)
        if len(content) != 8 * self._machine.words:
            raise HoldError(f"thread {self.tid} runs 32-bit code")
        return list(struct.unpack(f"={self._machine.words}Q", content))

    def set_registers(self, registers: list[int]) -> None:
        self._set(_PRSTATUS, struct.pack(f"={self._machine.words}Q", *registers))

    def floating(self) -> bytes:
        """The state of the floating point."""
        return self._get(self._machine.floating, self._machine.largest_floating)

    def set_floating(self, content: bytes) -> None:
        self._set(self._machine.floating, content)

    def mask(self) -> int:
        """The signals that it has blocked."""
        value = ctypes.c_uint64()
        self._ptrace(_GETSIGMASK, 8, ctypes.addressof(value))
        return value.value

    def set_mask(self, mask: int) -> None:
        value = ctypes.c_uint64(mask)
        self._ptrace(_SETSIGMASK, 8, ctypes.addressof(value))

    def skip_call(self, registers: list[int]) -> None:
        """At the entry of a system call: have another in its place, which does nothing, and go on with these registers.

        None at all would be -1, which filters of system calls see as well, and kill for.
        """
        self.set_registers(self._machine.with_call(registers, self._machine.getpid))
        if self._machine.number != self._machine.result:
            self._set(_SYSTEM_CALL, struct.pack("=i", self._machine.getpid))

    def filters(self) -> list[bytes]:
        """Its filters of system calls, each as instructions of the packet filter. Raises HoldError."""
        found: list[bytes] = []
        while len(found) < _MOST_FILTERS:
            count = _C_LIBRARY.ptrace(_SECCOMP_GET_FILTER, self.tid, len(found), None)
            if count < 0 and ctypes.get_errno() == errno.ENOENT:
                return found
            if count < 0:
                break
            buffer = ctypes.create_string_buffer(_LARGEST_INSTRUCTION * count)
            self._ptrace(_SECCOMP_GET_FILTER, len(found), ctypes.addressof(buffer))
            found.append(buffer.raw)
        raise HoldError(
            f"thread {self.tid} filters its system calls, and the kernel does not say which: it may be killed for what"
            " the agent does. perf can say what makes it grow (source: perf)"
        )

    def _get(self, kind: int, size: int) -> bytes:
        buffer = ctypes.create_string_buffer(size)
        part = _Part(ctypes.addressof(buffer), size)
        self._ptrace(_GETREGSET, kind, ctypes.addressof(part))
        return buffer.raw[: part.size]

    def _set(self, kind: int, content: bytes) -> None:
        buffer = ctypes.create_string_buffer(content, len(content))
        part = _Part(ctypes.addressof(buffer), len(content))
        self._ptrace(_SETREGSET, kind, ctypes.addressof(part))

    def _ptrace(self, request: int, address: int = 0, data: int = 0) -> None:
        if _C_LIBRARY.ptrace(request, self.tid, address, data) != -1:
            return
        number = ctypes.get_errno()
        error = ThreadGone if number == errno.ESRCH else HoldError
        raise error(f"thread {self.tid} cannot be held: {_WHY.get(number, os.strerror(number))}")
