# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Whether a process's filters of system calls (seccomp(2)) would kill it for what opening and running the agent takes.

A filter is a small program of the kernel's packet filter over a call's number and arguments. It is run here for each of
the calls, with arguments that are not known: wherever it looks at one, both ways are gone.

This module is private to the collection.
"""

from __future__ import annotations

import struct
from typing import Iterable, NamedTuple

from ansible_collections.offheap.profiler.plugins.module_utils.tracing.running_trace import TraceError

# linux/audit.h: AUDIT_ARCH_X86_64, AUDIT_ARCH_AARCH64. The calls by name, with their numbers there.
_ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_CALLS = {
    "x86_64": """
        read:0 write:1 close:3 fstat:5 poll:7 lseek:8 mmap:9 mprotect:10 munmap:11 rt_sigaction:13 rt_sigprocmask:14
        rt_sigreturn:15 pread64:17 access:21 madvise:28 getpid:39 socket:41 sendto:44 recvfrom:45 bind:49 listen:50
        getsockopt:55 clone:56 exit:60 fcntl:72 ftruncate:77 rename:82 unlink:87 readlink:89 fchmod:91 statfs:137
        prctl:157 futex:202 getdents64:217
        clock_gettime:228 clock_nanosleep:230 openat:257 newfstatat:262 set_robust_list:273 accept4:288
        prlimit64:302 rseq:334 clone3:435
    """,
    "aarch64": """
        fcntl:25 unlinkat:35 renameat:38 statfs:43 ftruncate:46 faccessat:48 fchmod:52 openat:56 close:57 getdents64:61
        lseek:62 read:63 write:64 pread64:67 ppoll:73 readlinkat:78 newfstatat:79 fstat:80 exit:93 futex:98
        set_robust_list:99 clock_gettime:113 clock_nanosleep:115
        rt_sigaction:134 rt_sigprocmask:135 rt_sigreturn:139 prctl:167 getpid:172
        socket:198 bind:200 listen:201 sendto:206 recvfrom:207 getsockopt:209 munmap:215 clone:220 mmap:222 mprotect:226
        madvise:233 accept4:242 prlimit64:261 rseq:293 clone3:435
    """,
}
_MEMFD_CREATE = {"x86_64": "319", "aarch64": "279"}
_INSTRUCTION = struct.Struct("=HBBI")
# The numbers of actions are their order: the least is taken. Allowed, logged, an error, or ENOSYS for want of a tracer.
_HARMLESS = (0x7FFF0000, 0x7FFC0000, 0x00050000, 0x7FF00000)
_ACTION = 0xFFFF0000
_WORD = 0xFFFFFFFF
_MOST_STEPS = 200000


class FilterError(TraceError):
    """A filter forbids what attaching takes. The message names the calls."""


class _State(NamedTuple):
    """None is what is not known."""

    place: int
    accumulator: int | None
    other: int | None
    memory: tuple[int | None, ...]


def check(pid: int, filters: Iterable[bytes], machine: str, in_memory: bool = False) -> None:
    """Raises FilterError if one of a process's filters may kill it for one of the calls.

    ``in_memory``: for those as well that lend it a library there.
    """
    programs = [list(_INSTRUCTION.iter_unpack(text)) for text in filters]
    calls = dict(word.split(":") for word in _CALLS[machine].split())
    if in_memory:
        calls["memfd_create"] = _MEMFD_CREATE[machine]
    architecture = _ARCHITECTURES[machine]
    fatal = [
        name for name, number in calls.items() if any(_may_kill(one, int(number), architecture) for one in programs)
    ]
    if fatal:
        raise FilterError(
            f"process {pid} filters its system calls, and may be killed for what the agent does ({', '.join(fatal)})."
            " perf can say what makes it grow (source: perf)"
        )


def _may_kill(program: list[tuple[int, int, int, int]], number: int, architecture: int) -> bool:
    waiting, seen, steps = [_State(0, 0, 0, (0,) * 16)], set(), 0
    while waiting:
        state = waiting.pop()
        if state in seen:
            continue
        seen.add(state)
        steps += 1
        if steps > _MOST_STEPS or state.place >= len(program):
            return True
        code, yes, no, value = program[state.place]
        if code & 7 == 6:  # return
            action = value if code & 0x18 == 0 else state.accumulator
            if action is None or action & _ACTION not in _HARMLESS:
                return True
        elif code & 7 == 5:  # jump
            waiting += [state._replace(place=place) for place in _targets(state, code, yes, no, value)]
        else:
            waiting.append(_next(state, code, value, number, architecture))
    return False


def _targets(state: _State, code: int, yes: int, no: int, value: int) -> list[int]:
    here = state.place + 1
    if code & 0xF0 == 0:
        return [here + value]
    left, right = state.accumulator, state.other if code & 8 else value
    if left is None or right is None:
        return [here + yes, here + no]
    kind = code & 0xF0
    met = left == right if kind == 0x10 else left > right if kind == 0x20 else left >= right
    if kind == 0x40:
        met = bool(left & right)
    return [here + (yes if met else no)]


def _next(state: _State, code: int, value: int, number: int, architecture: int) -> _State:
    """After an instruction that only computes. What it makes of something unknown is unknown."""
    kind, state = code & 7, state._replace(place=state.place + 1)
    if kind in (0, 1):  # load
        mode = code & 0xE0
        loaded: int | None = None
        if mode == 0x00:
            loaded = value
        elif mode == 0x20:
            loaded = {0: number, 4: architecture}.get(value)
        elif mode == 0x60:
            loaded = state.memory[value & 15]
        elif mode == 0x80:
            loaded = 64  # the size of what a filter looks at
        return state._replace(accumulator=loaded) if kind == 0 else state._replace(other=loaded)
    if kind in (2, 3):  # store
        memory = list(state.memory)
        memory[value & 15] = state.accumulator if kind == 2 else state.other
        return state._replace(memory=tuple(memory))
    if kind == 7:
        return state._replace(other=state.accumulator) if code & 0xF8 == 0 else state._replace(accumulator=state.other)
    left, right = state.accumulator, state.other if code & 8 else value
    result = None
    if left is not None and right is not None:
        result = _computed(code & 0xF0, left, right)
    return state._replace(accumulator=result)


def _computed(operation: int, left: int, right: int) -> int | None:
    if operation in (0x30, 0x90) and not right:
        return None
    shift = min(right, 32)
    results = {
        0x00: lambda: left + right,
        0x10: lambda: left - right,
        0x20: lambda: left * right,
        0x30: lambda: left // right,
        0x40: lambda: left | right,
        0x50: lambda: left & right,
        0x60: lambda: left << shift,
        0x70: lambda: left >> shift,
        0x80: lambda: -left,
        0x90: lambda: left % right,
        0xA0: lambda: left ^ right,
    }
    return results[operation]() & _WORD if operation in results else None
