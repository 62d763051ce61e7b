# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Hold one thread of a process, and have it call functions. All others run on.

The thread waits in a system call, so it holds no lock of the allocator or the loader; whoever holds one runs on and
lets go of it. A thread that is busy is let run to the entry of its next wait. It calls on a stack of its own, with its
signals blocked: those that come meanwhile wait in the kernel, with all that they carry. Then it goes on waiting, for
as long as was left, as if nothing had been (x86_64; elsewhere, and for epoll_wait, the whole wait begins anew).

What it calls returns into the frame of a signal (thread_registers.py). If a call is not back by the deadline, or our
process is killed, the thread is let go, and the call goes on by itself; at its end, the kernel brings the thread back
to its wait; so it does between two calls. Only its stack stays mapped then. The two system calls that map the stack and
unmap it have no such way back: if we are killed within their microseconds, the thread's wait ends early with a wrong
result, or its signals stay blocked.

This module is private to the collection.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from types import TracebackType
from typing import Callable, Iterator, NamedTuple

from ansible_collections.offheap.profiler.plugins.module_utils.formats.maps import Mapping
from ansible_collections.offheap.profiler.plugins.module_utils.host import procfs
from ansible_collections.offheap.profiler.plugins.module_utils.tracing.thread_registers import (
    STACK,
    TEXTS,
    Call,
    Frame,
    Machine,
    Wait,
    parse_call,
)
from ansible_collections.offheap.profiler.plugins.module_utils.tracing.tracee import (
    HoldError,
    Kind,
    ThreadGone,
    TooLate,
    Tracee,
)

#: the longest text that a call may get
LONGEST_TEXT = TEXTS // 2 - 8
# Seconds in which a thread that waits stops, and for which a busy one is let run at a time.
_TO_STOP, _BUSY = 1.0, 0.1
# Seconds that a call may wait for the loader's lock. To open a library takes less.
_FOR_LOADER = 0.02
# Seconds until all threads are looked at again.
_PAUSE = 0.01
# What the thread itself does wrong is seen; blocked, it would be death.
_FAULTS = (signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE, signal.SIGTRAP, signal.SIGSYS)
_BLOCKED = ((1 << 64) - 1) & ~sum(1 << (number - 1) for number in _FAULTS)
_PROTECTION, _PRIVATE_ANONYMOUS, _NO_FILE = 3, 0x22, (1 << 64) - 1
_LARGEST_ERROR = 4095
_SPARED = (b"offheap", b"jemalloc_bg_thd")
# The size of a lock, and how many the loader has.
_MUTEX, _LOCKS = 40, 3


class LetGo(HoldError):
    """A call was not back in time. It goes on by itself, and the thread finds its own way back.

    ``path`` is what it was to open, if that is known.
    """

    path = ""


class Faulted(HoldError):
    """A call has failed with a signal. The thread is back in its wait; what the call had locked may be locked still."""


class LoaderBusy(HoldError):
    """The loader's lock was not to be had. The thread is back in its wait, and nothing was done."""


class _Waiting(NamedTuple):
    tid: int
    call: Call
    wait: Wait


class Held:
    """A held thread. Use it as a context manager: leaving it lets the thread go on. ``ways``: Machine.returns."""

    def __init__(
        self, pid: int, machine: Machine, tracee: Tracee, call: Call, name: str, began: float, ways: tuple[int, ...]
    ) -> None:
        """The thread has stopped. Raises HoldError; then it must be detached."""
        self.name = name
        self.began, self.seconds = began, 0.0
        self._pid, self._machine, self._thread, self._call, self._ways = pid, machine, tracee, call, ways
        self._saved = tracee.registers()
        self._again = machine.again(self._saved, call)
        # What it goes on with wherever it stands between two calls, should we be killed.
        self._alone = self._again
        self._floating, self._mask = tracee.floating(), tracee.mask()
        self._memory = os.open(f"{procfs.directory(pid)}/mem", os.O_RDWR | os.O_CLOEXEC)
        self._stack, self._calls = 0, False
        self._texts = 0
        self._own_tid = _own_tid(pid, tracee.tid)
        self._frame = Frame(0, b"", 0)

    def __enter__(self) -> Held:
        try:
            self._check_trap()
            self._thread.set_mask(_BLOCKED | self._mask)
            address = self._system_call(self._machine.mmap, 0, STACK, _PROTECTION, _PRIVATE_ANONYMOUS, _NO_FILE, 0)
            if address > (1 << 64) - 1 - _LARGEST_ERROR:
                raise HoldError(f"process {self._pid} has no memory for a stack: {os.strerror((1 << 64) - address)}")
            self._stack = address
            self._frame = self._machine.frame(self._again, self._mask, self._floating, address, self._ways)
            self._write(self._frame.content, self._frame.address)
            self._alone = self._machine.way_back(self._again, self._frame, self._ways)
            self._thread.set_registers(self._alone)
        except BaseException:
            self._leave()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._leave()

    def call(self, address: int, *given: int | bytes, deadline: float, gives_way: bool = False) -> int:
        """What the function returns. Texts lie on the thread's stack, to the end of its hold, and end with a NUL.

        With ``gives_way``, for dlopen, it does not wait behind others for the loader's lock, but raises LoaderBusy.
        Raises LetGo, Faulted and ThreadGone: then the hold is over.
        """
        numbers = [self._text(one) if isinstance(one, bytes) else one for one in given]
        self._write(self._frame.content, self._frame.address)
        registers = self._machine.function_call(self._again, self._frame, self._ways, address, *numbers)
        self._thread.set_registers(registers)
        self._calls = True
        back = self._given_way(deadline) if gives_way else None
        back = back or self._returned(deadline) or self._interrupted()
        if not back:
            raise LetGo(
                f"thread {self._thread.tid} of process {self._pid} has not finished within"
                f" {deadline - self.began:.1f} seconds; it was let go, and finishes by itself"
            )
        result = self._machine.result_of(back, self._frame, self._read)
        self._thread.skip_call(self._machine.way_back(back, self._frame, self._ways))
        self._calls = False
        self._thread.resume()
        self._next(time.monotonic() + _TO_STOP)
        return result

    def system_call(self, number: int, *given: int | bytes) -> int:
        """What the kernel returns, an error as a negative number. Texts as those of a call."""
        result = self._system_call(number, *[self._text(one) if isinstance(one, bytes) else one for one in given])
        return result - (1 << 64) if result >> 63 else result

    def filters(self) -> list[bytes]:
        """The thread's filters of system calls."""
        return self._thread.filters()

    def read(self, address: int, size: int) -> bytes:
        """Some of the process's memory: less, if less is there."""
        return self._read(address, size)

    def _text(self, text: bytes) -> int:
        if len(text) > LONGEST_TEXT or b"\0" in text:
            raise HoldError(f"a text of {len(text)} bytes is too long, or has a NUL")
        if self._texts + len(text) + 1 > TEXTS:
            self._texts = 0
        address = self._stack + STACK - TEXTS + self._texts
        self._write(text + b"\0", address)
        self._texts += len(text) + 1
        return address

    def _returned(self, deadline: float) -> list[int] | None:
        """The registers when the call is back; None if that is too late."""
        try:
            while True:
                self._thread.resume()
                self._next(deadline)
                registers = self._thread.registers()
                if self._machine.has_returned(registers, self._frame, self._ways):
                    return registers
        except TooLate:
            return None

    def _interrupted(self) -> list[int] | None:
        """Stop a call that is not back. Returns the registers if it is back after all."""
        self._thread.interrupt()
        stop = self._thread.wait(time.monotonic() + 60)  # in a call that nothing interrupts, such as one to a dead disk
        if stop.kind is Kind.SYSCALL:
            registers = self._thread.registers()
            if self._machine.has_returned(registers, self._frame, self._ways):
                return registers
        return None

    def _given_way(self, deadline: float) -> list[int] | None:
        """The registers when the call is back, None if it has yet to be, and does not wait for the loader."""
        while time.monotonic() < deadline:
            registers = self._returned(min(time.monotonic() + _FOR_LOADER, deadline)) or self._interrupted()
            if registers:
                return registers
            if self._waits_for_loader(self._machine.call_of(self._thread.registers())):
                self._calls = False
                raise LoaderBusy(
                    f"process {self._pid} is opening or closing another library. Nothing was opened, and its thread"
                    " goes on. Try again"
                )
        return None

    def _waits_for_loader(self, call: Call) -> bool:
        """Whether it waits for the loader's lock, and has none of its own yet: then its call has done nothing.

        Whoever has that lock may wait for what this thread does otherwise.
        """
        wanted = self._machine.wait_for_lock(call)
        if wanted is None or not any(one.start <= wanted < one.end for one in _loader_data(self._pid)):
            return False
        # The loader's locks lie side by side: pthread_mutex_t, with the owner behind lock and count.
        near = self._read(wanted - _LOCKS * _MUTEX, 2 * _LOCKS * _MUTEX)
        owners = [int.from_bytes(near[place + 8 : place + 12], "little") for place in range(0, len(near), _MUTEX)]
        return len(near) == 2 * _LOCKS * _MUTEX and self._own_tid not in owners

    def _check_trap(self) -> None:
        """The instruction that began the wait is run again."""
        trap = self._machine.trap
        if self._read(self._again[self._machine.pc], len(trap)) != trap:
            raise HoldError(f"thread {self._thread.tid} waits by no instruction that is known")

    def _system_call(self, number: int, *given: int) -> int:
        self._thread.set_registers(self._machine.system_call(self._again, number, *given))
        deadline = time.monotonic() + 60  # of the kernel's own: other threads may keep it waiting
        for _stop in ("entry", "end"):
            self._thread.resume()
            self._next(deadline)
        result = self._thread.registers()[self._machine.result]
        self._thread.set_registers(self._alone)
        return result

    def _next(self, deadline: float) -> None:
        """The next stop at a system call."""
        while True:
            stop = self._thread.wait(deadline)
            if stop.kind is Kind.SYSCALL:
                return
            if stop.kind is Kind.SIGNAL and stop.signal in _FAULTS:
                self._calls = False
                raise Faulted(
                    f"process {self._pid}: a call failed with signal {stop.signal}. Its thread goes on, but a lock of"
                    " the loader may be held for ever: restart the service when that can be"
                )
            # Of the others, only SIGSTOP comes through: the process stops, and this thread when it is let go.
            self._thread.resume(number=stop.signal if stop.kind is Kind.SIGNAL else 0)

    def _read(self, address: int, size: int) -> bytes:
        try:
            return os.pread(self._memory, size, address)
        except (OSError, OverflowError):
            return b""

    def _write(self, content: bytes, address: int) -> None:
        try:
            if os.pwrite(self._memory, content, address) == len(content):
                return
        except OSError as exc:
            raise HoldError(f"the memory of process {self._pid} cannot be written: {exc.strerror}") from exc
        raise HoldError(f"the memory of process {self._pid} cannot be written")

    def _leave(self) -> None:
        try:
            if not self._calls:
                self._restore()
            self._thread.detach()
        except ThreadGone:
            pass
        finally:
            self.seconds = time.monotonic() - self.began
            os.close(self._memory)

    def _restore(self) -> None:
        """Bring the thread back to where it was."""
        if self._stack:
            self._alone = self._again
            self._system_call(self._machine.munmap, self._stack, STACK)
        _stop(self._thread)
        self._thread.set_floating(self._floating)
        self._thread.set_mask(self._mask)
        interrupted = _has_signal(self._pid, self._thread.tid, self._mask)
        self._thread.set_registers(self._machine.back(self._saved, self._call, interrupted))


def held(pid: int, machine: Machine, ways: tuple[int, ...], patience: float) -> Held:
    """One of the process's threads. Raises HoldError if none can be held within ``patience`` seconds."""
    deadline = time.monotonic() + patience
    while True:
        for one in _waiting(pid, machine):
            found = _take(pid, machine, one.tid, ways, one.call)
            if found:
                return found
        for tid in procfs.threads(pid):
            found = None if _is_spared(pid, tid) else _take(pid, machine, tid, ways)
            if found:
                return found
            if time.monotonic() > deadline:
                raise HoldError(
                    f"no thread of process {pid} waits where it may be held: all are busy or wait for a lock or a disk."
                    " Try again"
                )
        time.sleep(_PAUSE)


def _waiting(pid: int, machine: Machine) -> list[_Waiting]:
    """The threads that may be held, the best first."""
    found = []
    for tid in procfs.threads(pid):
        call = _call(pid, tid)
        wait = machine.wait(call) if call else None
        if call and wait and not _is_spared(pid, tid):
            found.append(_Waiting(tid, call, wait))
    return sorted(found, key=lambda one: one.wait.rank)


def _is_spared(pid: int, tid: int) -> bool:
    """Whether it is a thread of an agent or of an allocator: what it is to call may wait for it. Or one that nothing
    interrupts, as where it waits for a disk: it would stop when that is over, whoever waits for it by then. Or a main
    thread that has ended."""
    try:
        with open(f"/proc/{pid}/task/{tid}/stat", "rb") as file:
            name, _bracket, rest = file.read(1000).partition(b"(")[2].rpartition(b")")
            return name in _SPARED or rest.split()[0] in (b"D", b"Z")
    except (OSError, IndexError):
        return True


def _own_tid(pid: int, tid: int) -> int:
    """As the thread itself sees it, in its namespace."""
    return [tid, *procfs.own_pids(tid, f"/proc/{pid}/task")][-1]


def _loader_data(pid: int) -> list[Mapping]:
    """What the loader may write of its own."""
    mapped = procfs.mapped_files(pid)
    names = [path for path in mapped if os.path.basename(path).startswith(("ld-linux", "ld-2."))]
    return [one for path in names for one in mapped[path] if "w" in one.permissions]


def _call(pid: int, tid: int) -> Call | None:
    try:
        with open(f"/proc/{pid}/task/{tid}/syscall", "rb") as file:
            return parse_call(file.read(400))
    except (FileNotFoundError, ProcessLookupError):
        return None
    except OSError as exc:
        raise HoldError(f"what the threads of process {pid} do may not be read: {exc.strerror}") from exc


def _take(pid: int, machine: Machine, tid: int, ways: tuple[int, ...], before: Call | None = None) -> Held | None:
    """Hold a thread in its wait, which was ``before``; one that was busy is let run to the entry of a wait."""
    try:
        thread = Tracee(tid, machine)
    except ThreadGone:
        return None
    found, began = None, time.monotonic()
    with _detached(thread, lambda: found is None):
        if before:
            thread.hurry()
        _stop(thread)
        waiting = _interrupted_wait(pid, machine, thread, before)
        if not waiting and not before:
            waiting, began = _run_to_wait(thread, machine)
        if waiting:
            found = Held(pid, machine, thread, waiting.call, waiting.wait.name, began, ways)
    return found


def _interrupted_wait(pid: int, machine: Machine, thread: Tracee, before: Call | None) -> _Waiting | None:
    """The wait that a stop has interrupted, which would end early now: another than ``before``, if it was busy then."""
    registers = thread.registers()
    for call in (before, _call(pid, thread.tid)):
        wait = machine.wait(call) if call else None
        if call and wait and machine.waits_in(registers, call):
            return _Waiting(thread.tid, call, wait)
    return None


def _run_to_wait(thread: Tracee, machine: Machine) -> tuple[_Waiting | None, float]:
    """At the entry of which wait it was stopped, and when; the wait is not begun."""
    deadline, number = time.monotonic() + _BUSY, 0
    while True:
        thread.resume(number=number)
        try:
            stop = thread.wait(deadline)
        except TooLate:
            _stop(thread)
            return None, deadline
        number = stop.signal if stop.kind is Kind.SIGNAL else 0
        if stop.kind is not Kind.SYSCALL:
            continue
        began, registers = time.monotonic(), thread.registers()
        call = machine.call_of(registers)
        wait = machine.wait(call) if machine.is_entry(registers) else None
        if wait:
            thread.skip_call(registers)
            thread.hurry()
            _stop(thread)  # not all registers can be seen at a system call (aarch64)
            return _Waiting(thread.tid, call, wait), began


@contextlib.contextmanager
def _detached(thread: Tracee, unused: Callable[[], bool]) -> Iterator[None]:
    """Let the thread go at the end if nobody has a use for it. One that does not stop ends the attempt: it is let go
    when we end."""
    try:
        yield
    except ThreadGone:
        pass
    finally:
        if unused():
            with contextlib.suppress(ThreadGone):
                thread.detach()


def _stop(thread: Tracee) -> None:
    """Where the kernel looks for signals, and restarts calls. It gets the signals that come before."""
    deadline, number = time.monotonic() + _TO_STOP, 0
    while True:
        thread.interrupt()  # again, as any other stop takes the wish away
        if thread.stopped:
            thread.resume(at_calls=False, number=number)
        stop = thread.wait(deadline)
        if stop.kind is Kind.ASKED:
            return
        number = stop.signal if stop.kind is Kind.SIGNAL else 0


def _has_signal(pid: int, tid: int, mask: int) -> bool:
    """Whether a signal waits for the thread that it neither blocks nor ignores."""
    try:
        with open(f"/proc/{pid}/task/{tid}/status", "rb") as file:
            words = dict(line.split(None, 1) for line in file if line[:3] in (b"Sig", b"Shd"))
        pending = int(words[b"SigPnd:"], 16) | int(words[b"ShdPnd:"], 16)
        return bool(pending & ~mask & ~int(words[b"SigIgn:"], 16))
    except (OSError, KeyError, ValueError):
        return False
