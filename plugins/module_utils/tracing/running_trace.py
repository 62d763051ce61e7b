# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""What live traces have in common, whoever traces: what is wanted, what a window leaves, and who ends them early.

This module is private to the collection.
"""

from __future__ import annotations

import contextlib
import select
import signal
import time
from dataclasses import dataclass
from types import FrameType
from typing import ContextManager, Iterator, NamedTuple, Protocol

from ansible_collections.offheap.profiler.plugins.module_utils.formats.errors import OffheapError
from ansible_collections.offheap.profiler.plugins.module_utils.host import procfs
from ansible_collections.offheap.profiler.plugins.module_utils.unit import service
from ansible_collections.offheap.profiler.plugins.module_utils.unit.programs import Owner

_TICK = 0.5
_SIGNALS = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
SOURCES = ("jvm", "attach", "memleak", "perf")


class TraceError(OffheapError):
    """A process cannot be traced, or its trace has ended. The message says why, and what to do."""


class Ended(TraceError):
    """The trace ends before its time. The text says why."""


@dataclass(frozen=True)
class Wanted:
    """What to trace: ``count`` windows of ``seconds``; what is recorded may take ``largest`` bytes.

    ``source`` is who traces, or "auto". ``interval`` (bytes) and ``library`` (a path; if empty, the newest that is
    installed) are for JVMs and for attaching. ``max_cost`` is percent of CPU time that tracing may add.
    """

    unit: str
    library: str
    seconds: int
    count: int
    interval: int
    largest: int
    pid: int | None = None
    source: str = "auto"
    max_cost: float | None = None

    def check(self) -> None:
        """Raises TraceError for what nobody can mean."""
        if self.source not in ("auto", *SOURCES):
            raise TraceError(f"the source has to be auto, {', '.join(SOURCES[:-1])} or {SOURCES[-1]}")
        if self.seconds < 5 or self.count < 1 or self.seconds * self.count > 86400:
            raise TraceError("a window takes 5 seconds or more, there is one or more, and all take a day at most")
        if not 4096 <= self.interval <= 1 << 30:
            raise TraceError("the interval has to be between 4K and 1G")
        if not 1 << 20 <= self.largest <= 128 << 20:
            raise TraceError("the largest recording has to be between 1M and 128M")
        if self.max_cost is not None and not 0 < self.max_cost <= 1000:
            raise TraceError("max_cost is percent, above 0 and up to 1000")


class Window(NamedTuple):
    """What a window leaves: the first ``size`` bytes of an open file, and when (nanoseconds since the epoch).

    With a ``name``, it is that dump, which is in the unit's spool already.
    """

    fd: int
    size: int
    written: int
    name: str = ""


class Trace(Protocol):
    """A process that can be traced, and what does it. ``prefix`` begins the names of its dumps; ``release`` is the
    JDK's, or 0; ``held``, for how long a thread was held (seconds)."""

    prefix: str
    pid: int
    release: int
    held: float
    owner: Owner

    def windows(self) -> ContextManager[Iterator[Window]]:
        """Begin; each window is there when it has ended. Leaving stops the trace. Raises TraceError, Ended."""


def chosen(unit: service.Service, pid: int | None) -> int:
    """The unit's process with this pid, or that with the most memory. Raises TraceError."""
    pids = unit.pids()
    if pid is not None and pid not in pids:
        raise TraceError(f"process {pid} is none of {unit.name}; it has {', '.join(map(str, pids)) or 'none'}")
    if not pids:
        raise TraceError(f"{unit.name} has no process: it is {unit.text['ActiveState']}. Start it first")
    return pid if pid is not None else max(pids, key=procfs.resident)


def ticks(until: float) -> Iterator[None]:
    """Twice a second until then (time.monotonic()). Raises Ended if a signal came that would end us, or whoever asked
    for the trace has gone."""
    while True:
        if _came:
            raise Ended(f"it was interrupted (signal {_came[0]})")
        if _is_alone():
            raise Ended("whoever asked for it has gone")
        left = until - time.monotonic()
        if left <= 0:
            return
        time.sleep(min(_TICK, left))
        yield


def _is_alone() -> bool:
    """Whether nobody reads what we say: the connection has ended."""
    poll = select.poll()
    poll.register(1, 0)
    return any(events & (select.POLLERR | select.POLLHUP) for _fd, events in poll.poll(0))


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Meanwhile, a signal that would end us ends the trace instead, at its next tick: there, nothing is half done."""
    _came.clear()
    before = {one: signal.signal(one, _note) for one in _SIGNALS}
    try:
        yield
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)


_came: list[int] = []


def _note(number: int, _frame: FrameType | None) -> None:
    """An exception from here could come anywhere: between a step and its record, or where Python drops it (fork)."""
    _came.append(number)
