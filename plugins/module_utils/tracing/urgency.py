# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""A held thread, and we who hold it, run before what else a busy host has to do: else each of some hundred steps waits
its turn. It lasts for milliseconds. Threads that it starts do not inherit it.

This module is private to the collection.
"""

from __future__ import annotations

import contextlib
import os
from typing import Iterator

from ansible_collections.offheap.profiler.plugins.module_utils.host import procfs

# Of the same priority, so that either runs while the other waits for it.
_HURRIED = os.SCHED_RR | os.SCHED_RESET_ON_FORK
_PRIORITY = os.sched_param(1)
_SOON = -20
_USUAL = (os.SCHED_OTHER, os.SCHED_BATCH, os.SCHED_IDLE)


def hurry_ourselves() -> None:
    """Until we end. Where the host gives no such priority, as much as it does."""
    try:
        os.sched_setscheduler(0, _HURRIED, _PRIORITY)
    except OSError:
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, 0, _SOON)


def hurry(tid: int) -> int | None:
    """Returns what ``calm`` needs: how it is scheduled. None where it stays so."""
    with contextlib.suppress(OSError):
        before = os.sched_getscheduler(tid)
        if before & ~os.SCHED_RESET_ON_FORK in _USUAL:
            os.sched_setscheduler(tid, _HURRIED, _PRIORITY)
            return before
    return None


def calm(tid: int, before: int) -> None:
    """A thread that has ended is calm."""
    with contextlib.suppress(OSError):
        if os.sched_getscheduler(tid) == _HURRIED:
            os.sched_setscheduler(tid, before, os.sched_param(0))


def scheduled(pid: int) -> dict[int, int]:
    """How each of the process's threads is scheduled."""
    found = {}
    with contextlib.suppress(procfs.ProcessGone):
        for tid in procfs.threads(pid):
            with contextlib.suppress(OSError):
                found[tid] = os.sched_getscheduler(tid)
    return found


def calm_all(pid: int, before: dict[int, int]) -> None:
    """None of the process's threads stays hurried: they were ``scheduled`` so before."""
    for tid in scheduled(pid):
        was = before.get(tid, os.SCHED_OTHER)
        if was != _HURRIED:
            calm(tid, was)


@contextlib.contextmanager
def calm_afterwards(pid: int) -> Iterator[None]:
    """As calm_all, whatever becomes of who hurries a thread meanwhile."""
    before = scheduled(pid)
    try:
        yield
    finally:
        calm_all(pid, before)
