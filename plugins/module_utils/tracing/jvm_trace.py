# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""One of a unit's JVMs, traced by async-profiler.

All windows begin with the trace, so each dump has what the one before has, and more: what was allocated since the
beginning and is still live. A leak grows from dump to dump; what only replaces what was there stops growing.

This module is private to the collection.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from typing import Iterator

from ansible_collections.offheap.profiler.plugins.module_utils.formats import dump_name
from ansible_collections.offheap.profiler.plugins.module_utils.host import cgroup, places, procfs
from ansible_collections.offheap.profiler.plugins.module_utils.runtimes import hotspot_attach
from ansible_collections.offheap.profiler.plugins.module_utils.runtimes.hotspot_protocol import Jvm
from ansible_collections.offheap.profiler.plugins.module_utils.tracing import (
    async_profiler,
    attach_trace,
    tracing_library,
)
from ansible_collections.offheap.profiler.plugins.module_utils.tracing.budget import OF_A_JVM, BudgetOfFrees
from ansible_collections.offheap.profiler.plugins.module_utils.tracing.running_trace import (
    Ended,
    TraceError,
    Wanted,
    Window,
    ticks,
)
from ansible_collections.offheap.profiler.plugins.module_utils.tracing.thinned import Thinned
from ansible_collections.offheap.profiler.plugins.module_utils.unit import service
from ansible_collections.offheap.profiler.plugins.module_utils.unit.programs import Owner

#: seconds after the last window, after which the profiler stops by itself if nobody has stopped it
_GRACE = 30
# What is not read yet may be such a part of the largest recording, and so many bytes: while it is read, it goes on.
_OF_IT_AT_MOST, _UNREAD = 4, 8 << 20


class JvmTrace:
    """A Trace of a JVM. To make one changes nothing."""

    prefix = dump_name.TRACED
    held = 0.0

    def __init__(self, unit: service.Service, wanted: Wanted) -> None:
        """Raises TraceError if none of the unit's JVMs, or not the one that is wanted, can be traced."""
        library = wanted.library or tracing_library.newest(
            f"{places.TRACER}/*/libasyncProfiler.so",
            f"async-profiler is not in {places.TRACER} here: the playbook offheap.profiler.trace_live installs it, or"
            " name the path of its library",
        )
        jvm = _chosen(unit, wanted.pid)
        if attach_trace.has_sampler(jvm.pid):
            raise TraceError(
                f"an agent samples process {jvm.pid} of {unit.name}, and would see nothing any more, since the hooks of"
                " async-profiler come first: collect its dumps (collect_profiles), or wait for the end of the trace"
                " that attached it"
            )
        self._found = async_profiler.examine(jvm.pid, library)
        _check_room(unit, wanted.largest)
        self._wanted = wanted
        self.pid, self.release, self.owner = jvm.pid, self._found.release, Owner(jvm.uid, jvm.gid)

    @contextlib.contextmanager
    def windows(self) -> Iterator[Iterator[Window]]:
        """As a Trace's."""
        seconds = self._wanted.seconds * self._wanted.count + _GRACE
        self._budget = BudgetOfFrees(self.pid, self._wanted.max_cost or OF_A_JVM)
        recording = async_profiler.Recording(self._found, self._wanted.interval, seconds)
        with recording, Thinned() as kept:
            yield self._windows(recording, kept)

    def _windows(self, recording: async_profiler.Recording, kept: Thinned) -> Iterator[Window]:
        began, told = time.monotonic(), 0
        try:
            for number in range(self._wanted.count):
                for _tick in ticks(began + (number + 1) * self._wanted.seconds):
                    self._look(recording, kept)
                self._take(recording, kept)
                told = kept.size
                yield Window(kept.fd, kept.size, time.time_ns())
        except Ended:
            recording.stop()
            with contextlib.suppress(Ended):  # what came at once is too much; what was kept before is there
                self._read(recording, kept)
            if kept.size > told:
                yield Window(kept.fd, kept.size, time.time_ns())
            raise

    def _look(self, recording: async_profiler.Recording, kept: Thinned) -> None:
        """Take what there is before it is much. Raises Ended."""
        largest = self._wanted.largest
        unread = min(largest // _OF_IT_AT_MOST, _UNREAD)
        if not recording.runs:
            raise Ended("the process has ended")
        if recording.size > unread:
            raise Ended("the process frees too often: its recording grows faster than it can be read")
        if recording.size > unread // 2:
            self._take(recording, kept)
        if kept.size > largest:
            raise Ended(
                f"the recording has reached {largest >> 20} MiB (max_recording): the process allocates much, so record"
                " less of it (interval)"
            )

    def _take(self, recording: async_profiler.Recording, kept: Thinned) -> None:
        self._read(recording, kept)
        self._budget.check(kept.frees)

    def _read(self, recording: async_profiler.Recording, kept: Thinned) -> None:
        chunks = recording.take(self._wanted.largest)
        with _lowest_priority():  # not before: with it, a busy host would not let us ask, or stop, the profiler in time
            kept.add(chunks)


@contextlib.contextmanager
def _lowest_priority() -> Iterator[None]:
    before = os.getpriority(os.PRIO_PROCESS, 0)
    os.setpriority(os.PRIO_PROCESS, 0, 19)
    try:
        yield
    finally:
        os.setpriority(os.PRIO_PROCESS, 0, before)


def runs_in(unit: service.Service, pid: int | None) -> bool:
    """Whether that one of the unit's processes is a JVM; without a pid, whether any is."""
    jvms, _problems = _look(unit)
    return bool(jvms) if pid is None else pid in jvms


def _look(unit: service.Service) -> tuple[dict[int, Jvm], list[str]]:
    """The unit's JVMs, and why others of its processes are none."""
    jvms, problems = {}, []
    for own in unit.pids():
        try:
            jvms[own] = hotspot_attach.look(own)
        except hotspot_attach.NotHotspot as exc:
            problems.append(str(exc))
        except procfs.ProcessGone:
            continue
    return jvms, problems


def _chosen(unit: service.Service, pid: int | None) -> Jvm:
    """The unit's JVM with this pid, or that with the most memory."""
    jvms, problems = _look(unit)
    if pid is not None and pid not in jvms:
        raise TraceError(f"process {pid} is no JVM of {unit.name}; its JVMs are {', '.join(map(str, jvms)) or 'none'}")
    if not jvms:
        why = problems[0] if problems else "it does not run"
        raise TraceError(f"{unit.name} has no JVM that can be traced: {why}")
    return jvms[pid if pid is not None else max(jvms, key=procfs.resident)]


def _check_room(unit: service.Service, largest: int) -> None:
    """The recording lies in memory, and counts as the service's."""
    needed = largest + async_profiler.MEMORY
    left = cgroup.left(unit.text["ControlGroup"])
    if left is not None and left < needed:
        raise TraceError(
            f"{unit.name} is {left >> 20} MiB below its memory limit, or that of a slice above it, and a trace may take"
            f" {needed >> 20} MiB of it. Raise the limit, or lower max_recording"
        )
    if shutil.disk_usage(os.path.dirname(places.SOCKETS)).free < 2 * largest:
        raise TraceError(
            f"/run has less than {2 * largest >> 20} MiB free, which a trace may need. Lower max_recording"
        )
