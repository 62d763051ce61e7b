# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""The registers of a held thread: what its wait looks like, how it begins anew, and how it calls a function.

A called function returns into the frame of a signal (sigreturn(2)): the kernel then brings back all registers, the
signal mask and the state of the floating point, and the thread begins its wait anew. So a thread that nobody holds any
more finds its own way back. Layouts: the kernel's arch/*/include/uapi/asm/{ptrace,sigcontext,ucontext}.h.

This module is private to the collection.
"""

from __future__ import annotations

import re
import struct
from abc import ABC, abstractmethod
from typing import Callable, NamedTuple

#: the size of the stack that a held thread gets, and how much of its end is for texts
STACK, TEXTS = 256 << 10, 16 << 10
#: words that a call leaves at the very end of the stack: its result
_RESULT = 64
_NO_CALL = (1 << 64) - 1
_EINTR, _ENOSYS = 4, 38
_RESTART = range(-516, -511)  # include/linux/errno.h: ERESTARTSYS, …NOINTR, …NOHAND, ENOIOCTLCMD, …_RESTARTBLOCK
# A flag of sigaltstack(2) that does not exist: it leaves the thread's alternate stack as it is.
_SAME_ALTERNATE_STACK = struct.pack("=QiIQ", 0, 4, 0, 0)

# When a thread waits in one of these calls, it holds no lock of the allocator or the loader; and what a stop ends with
# EINTR, though no signal has come (signal(7)), is among them, so that it is begun anew. By number on x86_64 and
# on aarch64 (None: it has none); the argument that limits the wait, and which value of it says that nothing does.
_NEVER, _NULL, _MINUS_ONE = None, 0, 0xFFFFFFFF
_CALLS: tuple[tuple[str, int | None, int | None, int | None, int | None], ...] = (
    ("epoll_wait", 232, None, 3, _MINUS_ONE),
    ("epoll_pwait", 281, 22, 3, _MINUS_ONE),
    ("epoll_pwait2", 441, 441, 3, _NULL),
    ("poll", 7, None, 2, _MINUS_ONE),
    ("ppoll", 271, 73, 2, _NULL),
    ("select", 23, None, 4, _NULL),
    ("pselect6", 270, 72, 4, _NULL),
    ("accept", 43, 202, _NEVER, None),
    ("accept4", 288, 242, _NEVER, None),
    ("pause", 34, None, _NEVER, None),
    ("rt_sigsuspend", 130, 133, _NEVER, None),
    ("rt_sigtimedwait", 128, 137, 2, _NULL),
    ("wait4", 61, 260, _NEVER, None),
    ("waitid", 247, 95, _NEVER, None),
    ("recvmsg", 47, 212, _NEVER, None),
    ("recvfrom", 45, 207, _NEVER, None),
    ("recvmmsg", 299, 243, 4, _NULL),
    ("sendto", 44, 206, _NEVER, None),
    ("sendmsg", 46, 211, _NEVER, None),
    ("sendmmsg", 307, 269, _NEVER, None),
    ("connect", 42, 203, _NEVER, None),
    ("read", 0, 63, _NEVER, None),
    ("semop", 65, 193, _NEVER, None),
    ("semtimedop", 220, 192, 3, _NULL),
    ("msgsnd", 69, 189, _NEVER, None),
    ("msgrcv", 70, 188, _NEVER, None),
    ("io_getevents", 208, 4, 4, _NULL),
    ("io_pgetevents", 333, 292, 4, _NULL),
    ("io_uring_enter", 426, 426, _NEVER, None),
    ("clock_nanosleep", 230, 115, 3, None),
    ("nanosleep", 35, 101, 1, None),
    ("futex", 202, 98, 3, _NULL),
    ("restart_syscall", 219, 128, 0, None),  # one of those with a time, which was interrupted before
)
# These end when a handler has run, whatever SA_RESTART says (signal(7)).
_ENDED_BY_HANDLERS = frozenset(
    "epoll_wait epoll_pwait epoll_pwait2 poll ppoll select pselect6 pause rt_sigsuspend rt_sigtimedwait"
    " clock_nanosleep nanosleep semop semtimedop msgsnd msgrcv io_getevents io_pgetevents".split()
)
_FUTEX_COMMAND, _FUTEX_WAIT, _FUTEX_WAIT_BITSET = 0x7F, 0, 9


class Call(NamedTuple):
    """The system call that a thread is in: /proc/<pid>/task/<tid>/syscall."""

    number: int
    arguments: tuple[int, ...]
    sp: int
    pc: int


def parse_call(text: bytes) -> Call | None:
    """None for a thread that runs, or is in no system call."""
    words = text.split()
    try:
        number, *rest = int(words[0]), *(int(word, 16) for word in words[1:])
    except (IndexError, ValueError):
        return None
    return Call(number, tuple(rest[:6]), rest[6], rest[7]) if len(rest) == 8 and number >= 0 else None


class Wait(NamedTuple):
    """A wait by name. ``rank`` is low for a thread that is good to be held: its time has no end that we would move."""

    name: str
    rank: int

    @property
    def ended_by_handlers(self) -> bool:
        return self.name in _ENDED_BY_HANDLERS


class Frame(NamedTuple):
    """What lies on a thread's stack while it calls: ``content`` at ``address``, and the stack pointer of the call."""

    address: int
    content: bytes
    sp: int


class Machine(ABC):
    """A processor's registers, as PTRACE_GETREGSET gives them: a list of words."""

    #: words of NT_PRSTATUS, and where in them are these
    words: int
    pc: int
    sp: int
    number: int
    result: int
    arguments: tuple[int, ...]
    #: what PTRACE_GETREGSET calls the state of the floating point
    floating: int
    largest_floating: int
    #: the instruction that begins a system call
    trap: bytes
    #: system calls
    mmap: int
    munmap: int
    getpid: int
    memfd_create: int
    close: int
    # which of the numbers of _CALLS are its own, and the code of the way back
    _column: int
    _RESTORE: bytes

    def __init__(self) -> None:
        self._waits = {
            row[self._column]: (rank, row) for rank, row in enumerate(_CALLS) if row[self._column] is not None
        }

    def wait(self, call: Call) -> Wait | None:
        """None if a thread in this call may not be held."""
        rank, row = self._waits.get(call.number, (0, None))
        if row is None:
            return None
        name, _x86, _arm, limit, endless = row
        if name == "futex" and call.arguments[1] & _FUTEX_COMMAND != _FUTEX_WAIT_BITSET:
            return None  # a mutex, maybe the allocator's: the thread may hold the loader's. Conditions wait so.
        ends = limit is not None and (endless is None or call.arguments[limit] & (endless or _NO_CALL) != endless)
        return Wait(name, rank + len(_CALLS) * ends)

    def wait_for_lock(self, call: Call) -> int | None:
        """The address of the lock that a thread in this call waits for; None if it waits for none."""
        _rank, row = self._waits.get(call.number, (0, None))
        if row is None or row[0] != "futex" or call.arguments[1] & _FUTEX_COMMAND != _FUTEX_WAIT:
            return None
        return call.arguments[0]

    def call_of(self, registers: list[int]) -> Call:
        """At the stop at a system call's entry."""
        given = tuple(registers[place] for place in self.arguments)
        return Call(self._called(registers), given, registers[self.sp], registers[self.pc])

    def again(self, registers: list[int], call: Call) -> list[int]:
        """What begins that call anew."""
        found = self.with_call(registers, _NO_CALL)
        found[self.pc] = call.pc - len(self.trap)
        found[self.number] = call.number
        found[self.arguments[0]] = call.arguments[0]
        return found

    def system_call(self, again: list[int], number: int, *given: int) -> list[int]:
        """What makes another system call in its place."""
        found = list(again)
        found[self.number] = number
        for place, value in zip(self.arguments, (*given, *[0] * 6)):
            found[place] = value
        return found

    @abstractmethod
    def _called(self, registers: list[int]) -> int:
        """The number of the system call that they stand in."""

    @abstractmethod
    def with_call(self, registers: list[int], number: int) -> list[int]:
        """They stand in that system call; in none (_NO_CALL), so none is restarted."""

    @abstractmethod
    def is_entry(self, registers: list[int]) -> bool:
        """Of the two stops of a system call."""

    @abstractmethod
    def waits_in(self, registers: list[int], call: Call) -> bool:
        """Whether a thread that was interrupted was in that call, and the call had done nothing."""

    @abstractmethod
    def back(self, registers: list[int], call: Call, interrupted: bool) -> list[int]:
        """What a thread goes on with that has stopped with these registers in a wait. ``interrupted``: a signal waits
        for it, whose handler ends such a wait."""

    @abstractmethod
    def returns(self, text: bytes, address: int) -> tuple[int, ...]:
        """The addresses in this code that make the way back. Empty if there are none."""

    @abstractmethod
    def frame(self, again: list[int], mask: int, floating: bytes, stack: int, ways: tuple[int, ...]) -> Frame:
        """The frame that brings ``again`` back, in a stack that begins at ``stack``."""

    @abstractmethod
    def function_call(
        self, again: list[int], frame: Frame, ways: tuple[int, ...], address: int, *given: int
    ) -> list[int]:
        """What calls the function at an address, which returns into ``frame``."""

    @abstractmethod
    def way_back(self, registers: list[int], frame: Frame, ways: tuple[int, ...]) -> list[int]:
        """What goes the way back through ``frame``, whatever these registers are otherwise."""

    def has_returned(self, registers: list[int], frame: Frame, ways: tuple[int, ...]) -> bool:
        """At the entry of a system call: whether it is the way back. Others use that instruction, too, and a nested
        call its address: only there is the stack pointer what it was."""
        back = self.way_back(registers, frame, ways)
        return registers[self.pc] == back[self.pc] + len(self._RESTORE) and registers[self.sp] == back[self.sp]

    @abstractmethod
    def result_of(self, registers: list[int], frame: Frame, read: Callable[[int, int], bytes]) -> int:
        """What a function has returned; ``read`` gives so many bytes of memory at an address."""


def _signed(word: int) -> int:
    return word - (1 << 64) if word >> 63 else word


class X86(Machine):
    """x86_64."""

    _NAMES = (
        "r15 r14 r13 r12 rbp rbx r11 r10 r9 r8 rax rcx rdx rsi rdi orig_rax rip cs eflags rsp ss fs_base gs_base ds es"
        " fs gs"
    ).split()
    words = 27
    _column = 1
    _ORIG, _RBX, _RBP = 15, 5, 4
    pc, sp, number, result = 16, 19, 10, 10
    arguments = (14, 13, 12, 7, 9, 8)
    _FUNCTION = (14, 13, 12)
    floating, largest_floating = 0x202, 16 << 10
    trap = b"\x0f\x05"
    mmap, munmap, getpid, memfd_create, close = 9, 11, 39, 319, 3
    # mov %rax,disp(%rbx or %rbp), some pops, ret: leaves a result in memory, as the next step overwrites it
    _STORE = re.compile(rb"\x48\x89(?:\x03|[\x43\x45]([\x00-\x7f]))((?:\x5b|\x5d|\x41[\x5c-\x5f]){0,6})\xc3", re.DOTALL)
    _RESTORE = b"\x48\xc7\xc0\x0f\x00\x00\x00\x0f\x05"  # mov $15,%rax; syscall: rt_sigreturn
    _XSTATE, _SS, _STRICT_SS = 1, 2, 4
    _MAGIC1, _MAGIC2 = 0x46505853, 0x46505845
    # The state without the tiles of AMX, which a thread has no room for until it asks for them.
    _TILES, _WITHOUT_TILES = 3 << 17, 2696
    _OF_CONTEXT = "r8 r9 r10 r11 r12 r13 r14 r15 rdi rsi rbp rbx rdx rax rcx rsp rip eflags".split()

    def _called(self, registers: list[int]) -> int:
        return registers[self._ORIG]

    def with_call(self, registers: list[int], number: int) -> list[int]:
        found = list(registers)
        found[self._ORIG] = number
        return found

    def is_entry(self, registers: list[int]) -> bool:
        return _signed(registers[self.result]) == -_ENOSYS

    def waits_in(self, registers: list[int], call: Call) -> bool:
        result = _signed(registers[self.result])
        return self.call_of(registers) == call and (result in _RESTART or result == -_EINTR)

    def back(self, registers: list[int], call: Call, interrupted: bool) -> list[int]:
        # As it was: the kernel goes on with it, with the time that is left. But some calls only know that they were
        # interrupted, which no signal would explain.
        if _signed(registers[self.result]) in _RESTART or (interrupted and _signed(registers[self.result]) == -_EINTR):
            return registers
        return self.again(registers, call)

    def returns(self, text: bytes, address: int) -> tuple[int, ...]:
        restore = text.find(self._RESTORE)
        store = self._STORE.search(text)
        if restore < 0 or store is None:
            return ()
        offset = store[1][0] if store[1] else 0
        pops = len(store[2].replace(b"\x41", b""))
        return address + store.start(), offset, pops, address + restore

    def frame(self, again: list[int], mask: int, floating: bytes, stack: int, ways: tuple[int, ...]) -> Frame:
        _store, _offset, pops, restore = ways
        state = self._state(floating)
        state_at = (stack + STACK - TEXTS - _RESULT - len(state)) & ~63
        values = [again[self._NAMES.index(name)] for name in self._OF_CONTEXT]
        segments = again[self._NAMES.index("cs")] | again[self._NAMES.index("ss")] << 48
        context = struct.pack("=QQ", self._XSTATE | self._SS | self._STRICT_SS, 0) + _SAME_ALTERNATE_STACK
        context += struct.pack("=18Q6Q64xQ", *values, segments, 0, 0, 0, 0, state_at, mask)
        chain = struct.pack(f"={pops + 2}Q", ways[0], *[0] * pops, restore)
        room = state_at - len(context) - len(chain) - 16
        sp = (room & ~15) + 8  # as after a call
        content = (chain + context).ljust(state_at - sp, b"\0") + state
        return Frame(sp, content, sp)

    def _state(self, floating: bytes) -> bytes:
        """The state as a signal's frame has it (struct _fpx_sw_bytes)."""
        features, used = (struct.unpack_from("=Q", floating, place)[0] for place in (464, 512))
        if len(floating) > self._WITHOUT_TILES and not used & self._TILES:
            floating, features = floating[: self._WITHOUT_TILES], features & ~self._TILES
        size = len(floating)
        told = struct.pack("=IIQI28x", self._MAGIC1, size + 4, features, size)
        return floating[:464] + told + floating[512:] + struct.pack("=I", self._MAGIC2)

    def function_call(
        self, again: list[int], frame: Frame, ways: tuple[int, ...], address: int, *given: int
    ) -> list[int]:
        found = list(again)
        for place, value in zip(self._FUNCTION, given):
            found[place] = value
        found[self.pc], found[self.sp], found[self.number] = address, frame.sp, 0
        found[self._RBX] = found[self._RBP] = self._result_at(frame) - ways[1]
        return found

    def _result_at(self, frame: Frame) -> int:
        """Where the result lies when a function has returned: behind the frame."""
        return (frame.address + len(frame.content) + 7) & ~7

    def result_of(self, registers: list[int], frame: Frame, read: Callable[[int, int], bytes]) -> int:
        return int.from_bytes(read(self._result_at(frame), 8), "little")

    def way_back(self, registers: list[int], frame: Frame, ways: tuple[int, ...]) -> list[int]:
        found = list(registers)
        found[self.pc], found[self.sp] = ways[3], frame.sp + 8 * (ways[2] + 2)
        return found


class Arm(Machine):
    """aarch64. What a wait's first argument was is not among the registers once it has ended, hence ``Call``."""

    words = 34
    _column = 2
    pc, sp, number, result = 32, 31, 8, 0
    arguments = (0, 1, 2, 3, 4, 5)
    _LINK, _PSTATE, _STOP = 30, 33, 7
    floating, largest_floating = 2, 1024
    trap = b"\x01\x00\x00\xd4"
    mmap, munmap, getpid, memfd_create, close = 222, 215, 172, 279, 57
    _RESTORE = b"\x68\x11\x80\xd2\x01\x00\x00\xd4"  # mov x8, #139; svc #0: rt_sigreturn, in the kernel's own page
    _FPSIMD, _FPSIMD_SIZE = 0x46508001, 528

    def _called(self, registers: list[int]) -> int:
        return registers[self.number]

    def with_call(self, registers: list[int], number: int) -> list[int]:
        return list(registers)

    def is_entry(self, registers: list[int]) -> bool:
        return registers[self._STOP] == 0  # so the kernel marks it for a tracer

    def waits_in(self, registers: list[int], call: Call) -> bool:
        same = registers[self.sp] == call.sp and tuple(registers[1:6]) == call.arguments[1:]
        if registers[self.pc] == call.pc - len(self.trap):  # it is about to be restarted
            return same and registers[0] == call.arguments[0]
        return same and registers[self.pc] == call.pc and _signed(registers[0]) == -_EINTR

    def back(self, registers: list[int], call: Call, interrupted: bool) -> list[int]:
        found = self.again(registers, call)
        wait = self.wait(call)
        if interrupted and wait and wait.ended_by_handlers:
            found[self.pc], found[0] = call.pc, (1 << 64) - _EINTR
        return found

    def returns(self, text: bytes, address: int) -> tuple[int, ...]:
        restore = text.find(self._RESTORE)
        return (address + restore,) if restore >= 0 else ()

    def frame(self, again: list[int], mask: int, floating: bytes, stack: int, ways: tuple[int, ...]) -> Frame:
        vectors, status = floating[:512], floating[512:520]
        context = bytes(128) + struct.pack("=QQ", 0, 0) + _SAME_ALTERNATE_STACK + struct.pack("=Q120x", mask)
        context = context.ljust(128 + 176, b"\0") + struct.pack("=Q34Q", 0, *again)
        context = context.ljust(128 + 464, b"\0")
        context += struct.pack("=II", self._FPSIMD, self._FPSIMD_SIZE) + status + vectors + bytes(16)
        context = context.ljust(128 + 464 + 4096, b"\0")
        sp = (stack + STACK - TEXTS - _RESULT - len(context)) & ~15
        return Frame(sp, context, sp)

    def function_call(
        self, again: list[int], frame: Frame, ways: tuple[int, ...], address: int, *given: int
    ) -> list[int]:
        found = list(again)
        found[: len(given)] = given
        found[self.pc], found[self.sp], found[self._LINK] = address, frame.sp, ways[0]
        return found

    def way_back(self, registers: list[int], frame: Frame, ways: tuple[int, ...]) -> list[int]:
        found = list(registers)
        found[self.pc], found[self.sp] = ways[0], frame.sp
        return found

    def result_of(self, registers: list[int], frame: Frame, read: Callable[[int, int], bytes]) -> int:
        return registers[self.result]


MACHINES: dict[str, type[Machine]] = {"x86_64": X86, "aarch64": Arm}
