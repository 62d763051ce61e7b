# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""What tracing costs a process, from the kernel's own account of its CPU time.

A probe runs inside the kernel, in the time of the thread that meets it. What a service does for itself is therefore
measured by its time outside the kernel, and the cost is how much more CPU time it needs for that than before:
``(1 - before) / (1 - now) - 1``, where both are the shares that the kernel has of its time. A service with little to do
uses more CPU then, and one that is at its limit does less; the cost is the same, whatever its load.

The kernel finds the share by looking at each clock tick, so few ticks say little: a share counts as three standard
deviations smaller than it seems.

async-profiler is no probe of the kernel, and what it costs is counted: so many frees, each of which takes it about as
long as a system call takes us. It asks the kernel for the number of its thread (OS::threadId in src/os_linux.cpp), and
writes 20 bytes.

This module is private to the collection.
"""

from __future__ import annotations

import math
import os
import time
from typing import NamedTuple

from ansible_collections.offheap.profiler.plugins.module_utils.host import procfs
from ansible_collections.offheap.profiler.plugins.module_utils.tracing.running_trace import Ended

#: percent that memleak may cost a process, and async-profiler a JVM, if nobody has said otherwise
OF_MEMLEAK, OF_A_JVM, OF_SAMPLES = 5.0, 2.5, 2.5
#: seconds for which a process is watched before it is traced
BEFORE = 5.0
# Fewer ticks than these say nothing of a process's ways; those of its whole life do.
_FEW = 100
_DEVIATIONS = 3.0
# What the share must stay below for the cost to be a number.
_ALL = 0.999
# A JVM may free much in a moment, and little in five seconds.
_SECONDS = 5.0
# So much of one processor is never too much: nearly all that a service does that has little to do may be frees.
_LITTLE = 0.01
_TICK = 1 / os.sysconf("SC_CLK_TCK")
_WAY_OUT = "Allow more if the host has CPU time to spare, or see what makes it grow with perf (source: perf)"


class Budget:
    """What tracing a process may cost: so many percent."""

    def __init__(self, pid: int, most: float) -> None:
        """Watch the process for a while, before it is traced. Raises ProcfsError if it ends."""
        self._pid, self._most = pid, most
        first = procfs.cpu_ticks(pid)
        time.sleep(BEFORE)
        self._began = procfs.cpu_ticks(pid)
        before = _since(first, self._began)
        self._before = _share(before if sum(before) >= _FEW else self._began)

    def check(self) -> None:
        """Raises Ended if tracing costs more by now; ProcfsError if the process has ended."""
        spent = _since(self._began, procfs.cpu_ticks(self._pid))
        cost = cost_of(self._before, spent)
        if cost > self._most / 100:
            raise Ended(
                f"it cost the process at least {100 * cost:.0f} % more CPU time, and {self._most:g} % are allowed"
                f" (max_cost): it allocates too often to be watched so closely. {_WAY_OUT}"
            )


class _Account(NamedTuple):
    """When, what the process had freed by then, and the seconds of CPU time that it had taken."""

    time: float
    frees: int
    seconds: float


class BudgetOfFrees:
    """What recording each free may cost a JVM: so many percent."""

    def __init__(self, pid: int, most: float) -> None:
        """Raises ProcfsError if the process has ended."""
        self._pid, self._most = pid, most
        self._each = seconds_of_a_system_call()
        self._before = self._account(0)

    def check(self, recorded: int) -> None:
        """After so many frees. Raises Ended if the last seconds cost more; ProcfsError if it has ended."""
        now, before = self._account(recorded), self._before
        if now.time - before.time < _SECONDS:
            return
        self._before = now
        seconds, frees = now.time - before.time, now.frees - before.frees
        spent = frees * self._each
        cost = spent / max(now.seconds - before.seconds - spent, _TICK)
        if cost > self._most / 100 and spent > _LITTLE * seconds:
            raise Ended(
                f"it cost the process about {100 * cost:.2g} % more CPU time, and {self._most:g} % are allowed"
                f" (max_cost): it frees {frees / seconds:,.0f} times a second, and each free is recorded. {_WAY_OUT}"
            )

    def _account(self, frees: int) -> _Account:
        return _Account(time.monotonic(), frees, sum(procfs.cpu_ticks(self._pid)) * _TICK)


def seconds_of_a_system_call() -> float:
    """What a short one takes, the least of some tries."""
    calls = range(2000)
    taken = []
    for _try in range(5):
        began = time.perf_counter()
        for _call in calls:
            os.getppid()
        taken.append(time.perf_counter() - began)
    return min(taken) / len(calls)


def cost_of(before: float, spent: tuple[int, int]) -> float:
    """The least that tracing costs, as a share: with this share of the kernel before, and so many ticks outside and
    inside the kernel since."""
    ticks = sum(spent)
    if not ticks:
        return 0.0
    share = _share(spent)
    least = share - _DEVIATIONS * math.sqrt(max(share * (1 - share), 1 / ticks) / ticks)
    return max((1 - before) / (1 - min(least, _ALL)) - 1, 0.0)


def _since(first: tuple[int, int], last: tuple[int, int]) -> tuple[int, int]:
    return last[0] - first[0], last[1] - first[1]


def _share(ticks: tuple[int, int]) -> float:
    """That of the kernel."""
    return min(ticks[1] / max(sum(ticks), 1), _ALL)
