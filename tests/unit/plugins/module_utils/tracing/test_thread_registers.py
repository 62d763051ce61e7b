# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Which waits a thread may be held in, and what brings it back, by the kernel's layouts: also where we cannot run."""

from __future__ import annotations

import struct

import pytest

from ansible_collections.offheap.profiler.plugins.module_utils.tracing.thread_registers import (
    STACK,
    X86,
    Arm,
    Call,
    Machine,
    parse_call,
)

_MINUS_ONE = (1 << 64) - 1


def test_the_kernels_line() -> None:
    text = b"232 0x4 0x7ffd0 0x20 0xffffffff 0x0 0x0 0x7ffc0 0x7f0012\n"
    assert parse_call(text) == Call(232, (4, 0x7FFD0, 0x20, 0xFFFFFFFF, 0, 0), 0x7FFC0, 0x7F0012)
    for none in (b"running\n", b"-1 0x7ffc0 0x7f0012\n", b"", b"x 0x1", b"1 0x1\n", b"0 " + b"zz " * 8):
        assert parse_call(none) is None


def _call(number: int, *arguments: int) -> Call:
    return Call(number, (*arguments, *[0] * (6 - len(arguments))), 0x1000, 0x2000)


def test_the_best_thread_waits_for_ever() -> None:
    x86 = X86()
    ranks = [
        x86.wait(call)
        for call in (
            _call(232, 4, 0, 32, 0xFFFFFFFF),  # epoll_wait without a time
            _call(0, 3),  # read
            _call(202, 0, 0x189, 0, 0),  # a condition
            _call(232, 4, 0, 32, 1000),
            _call(35, 0x7000),  # nanosleep
        )
    ]
    assert all(ranks) and [one.rank for one in ranks if one] == sorted(one.rank for one in ranks if one)


@pytest.mark.parametrize(("machine", "futex"), [(X86(), 202), (Arm(), 98)])
def test_who_waits_for_a_lock_is_never_held(machine: Machine, futex: int) -> None:
    """It may be the allocator's, by a thread that has the loader's."""
    for lock in (0, 0x80, 6, 0x86):
        assert machine.wait(_call(futex, 0x7000, lock)) is None
    assert machine.wait(_call(futex, 0x7000, 0x189)) is not None
    assert machine.wait(_call(1)) is None and machine.wait(_call(9999)) is None


def test_a_number_means_what_it_means_on_that_machine() -> None:
    names = {"epoll_pwait": (281, 22), "ppoll": (271, 73), "accept": (43, 202), "read": (0, 63), "futex": (202, 98)}
    for name, (x86, arm) in names.items():
        for machine, number in ((X86(), x86), (Arm(), arm)):
            found = machine.wait(_call(number, 0, 0x189))
            assert found and found.name == name
    assert Arm().wait(_call(232)) is None, "epoll_wait is another call there"


def test_the_frame_of_a_signal_on_x86_64() -> None:
    machine, stack = X86(), 0x7F0000000000
    registers = list(range(100, 127))
    again = machine.again(registers, Call(232, (4, 5, 6, 7, 8, 9), 119, 116))
    floating = bytearray(2696)
    struct.pack_into("<Q", floating, 464, 0xE7)
    floating[512:520] = struct.pack("<Q", 7)
    ways = (0x1111, 16, 2, 0x2222)
    frame = machine.frame(again, 0x55, bytes(floating), stack, ways)
    assert frame.sp % 16 == 8, "as after a call"
    assert stack < frame.address and frame.address + len(frame.content) < stack + STACK
    chain = struct.unpack_from("<4Q", frame.content)
    assert chain == (0x1111, 0, 0, 0x2222)
    context = frame.content[8 * 4 :]  # struct ucontext_x64
    flags, _link, _sp, stack_flags, _size = struct.unpack_from("<QQQixxxxQ", context)
    assert flags == 7 and stack_flags == 4, "no such flag: the alternate stack stays"
    general = struct.unpack_from("<18Q", context, 40)
    names = "r8 r9 r10 r11 r12 r13 r14 r15 di si bp bx dx ax cx sp ip flags".split()
    found = dict(zip(names, general, strict=True))
    assert found["ip"] == 114 and found["ax"] == 232 and found["di"] == 4 and found["sp"] == 119 and found["r15"] == 100
    (state_at,) = struct.unpack_from("<Q", context, 40 + 184)
    assert state_at % 64 == 0
    assert struct.unpack_from("<Q", context, 296) == (0x55,), "the mask"
    state = frame.content[state_at - frame.address :]
    assert struct.unpack_from("<IIQI", state, 464) == (0x46505853, 2700, 0xE7, 2696)
    assert struct.unpack_from("<I", state, 2696) == (0x46505845,)


def test_tiles_that_nobody_uses_are_left_out() -> None:
    """A thread has no room for them in a frame until it asks for it, and the kernel would take none of the state."""
    floating = bytearray(11008)
    struct.pack_into("<Q", floating, 464, 0x600E7)
    small, large = (X86()._state(bytes(content)) for content in (floating, floating[:512] + b"\0\0\6" + floating[515:]))
    assert struct.unpack_from("<IIQI", small, 464) == (0x46505853, 2700, 0xE7, 2696) and len(small) == 2700
    assert struct.unpack_from("<IIQI", large, 464) == (0x46505853, 11012, 0x600E7, 11008) and len(large) == 11012


def test_the_frame_of_a_signal_on_aarch64() -> None:
    machine, stack = Arm(), 0xFFFF00000000
    registers = list(range(100, 134))
    again = machine.again(registers, Call(22, (4, 101, 102, 103, 104, 105), 131, 132))
    floating = bytes(range(256)) * 2 + struct.pack("<II", 11, 22) + bytes(8)
    frame = machine.frame(again, 0x55, floating, stack, (0x3333,))
    assert frame.sp == frame.address and frame.sp % 16 == 0 and frame.sp + len(frame.content) < stack + STACK
    context = frame.content[128:]  # struct ucontext, behind the siginfo
    assert struct.unpack_from("<Q", context, 40) == (0x55,), "the mask"
    found = struct.unpack_from("<34Q", context, 176 + 8)  # struct sigcontext, behind fault_address
    assert found[0] == 4 and found[8] == 22 and found[31] == 131 and found[32] == 128 and found[33] == 133
    assert struct.unpack_from("<IIII", context, 464) == (0x46508001, 528, 11, 22)
    assert context[480 : 480 + 512] == floating[:512] and context[992:1000] == bytes(8)
    call = machine.function_call(again, frame, (0x3333,), 0x4444, 1, 2)
    assert (call[0], call[1], call[30], call[31], call[32]) == (1, 2, 0x3333, frame.sp, 0x4444)


def test_the_way_back_is_known_by_its_address_and_its_stack() -> None:
    """The loader's own calls use the instruction, too, and under contention they come first."""
    machine = X86()
    text = b"\x90" * 7 + b"\x48\x89\x43\x10\x5b\x41\x5c\xc3" + b"\x90" * 5 + b"\x48\xc7\xc0\x0f\0\0\0\x0f\x05"
    ways = machine.returns(text, 0x1000)
    assert ways == (0x1007, 16, 2, 0x1014)
    frame = machine.frame([0] * 27, 0, bytes(2696), 0x7F0000000000, ways)
    registers = [0] * 27
    registers[machine.pc], registers[machine.sp] = 0x1014 + 9, frame.sp + 32
    assert machine.has_returned(registers, frame, ways)
    registers[machine.sp] -= 8
    assert not machine.has_returned(registers, frame, ways)
    assert machine.returns(text[:20], 0) == () == machine.returns(b"", 0) == Arm().returns(text, 0)
    assert Arm().returns(b"\0" * 8 + b"\x68\x11\x80\xd2\x01\0\0\xd4", 0x100) == (0x108,)


def test_how_a_wait_goes_on() -> None:
    x86, arm = X86(), Arm()
    call = Call(232, (4, 5, 6, 7, 8, 9), 119, 116)
    stopped = [0] * 27
    for place, value in zip(x86.arguments, call.arguments, strict=True):
        stopped[place] = value
    stopped[15], stopped[16], stopped[19] = 232, 116, 119
    for result in (-512, -514, -516):
        stopped[10] = result & _MINUS_ONE
        assert x86.waits_in(stopped, call) and x86.back(stopped, call, True) == stopped, "the kernel knows the rest"
    stopped[10] = -4 & _MINUS_ONE
    assert x86.waits_in(stopped, call)
    assert x86.back(stopped, call, True) == stopped, "a signal explains it"
    anew = x86.back(stopped, call, False)
    assert anew[16] == 114 and anew[10] == 232 and anew[15] == _MINUS_ONE
    stopped[10] = 3
    assert not x86.waits_in(stopped, call), "it has something"
    call = Call(22, (4, 5, 6, 7, 8, 9), 119, 0x2000)
    stopped = [*call.arguments, 0, 0, 22, *[0] * 25]
    stopped[31], stopped[32] = 119, 0x2000
    stopped[0] = -4 & _MINUS_ONE
    assert arm.waits_in(stopped, call)
    assert arm.back(stopped, call, False)[:1] == [4] and arm.back(stopped, call, False)[32] == 0x2000 - 4
    assert arm.back(stopped, call, True)[32] == 0x2000 and arm.back(stopped, call, True)[0] == -4 & _MINUS_ONE
