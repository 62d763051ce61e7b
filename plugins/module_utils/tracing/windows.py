# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""A trace of one of a unit's processes, in windows: each ends in a dump in the unit's spool.

This module is private to the collection.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any, Callable

from ansible_collections.offheap.profiler.plugins.module_utils.formats import dump_name, unit_name
from ansible_collections.offheap.profiler.plugins.module_utils.formats.errors import OffheapError
from ansible_collections.offheap.profiler.plugins.module_utils.host import procfs
from ansible_collections.offheap.profiler.plugins.module_utils.tracing import (
    attach_trace,
    into_spool,
    jvm_trace,
    kernel_trace,
)
from ansible_collections.offheap.profiler.plugins.module_utils.tracing.running_trace import (
    Ended,
    Trace,
    TraceError,
    Wanted,
    interruptible,
)
from ansible_collections.offheap.profiler.plugins.module_utils.unit import service


@dataclass
class Traced:
    """What a trace has left: the names of dumps in the unit's spool, and why it ended early, if it did.

    ``source`` is who traced; ``held``, for how long a thread was held for it (seconds).
    """

    unit: str
    pid: int
    release: int
    source: str
    held: float = 0.0
    dumps: list[str] = field(default_factory=list)
    ended: str = ""

    def to_json(self) -> dict[str, Any]:
        """The form that is sent."""
        return vars(self)


def trace(wanted: Wanted, check_mode: bool = False, begun: Callable[[], None] = lambda: None) -> Traced:
    """Trace, and wait for the end; ``begun`` is called when the first window begins. In check mode, only find out
    whether that can be. Raises OffheapError."""
    wanted.check()
    unit = service.load(unit_name.service(wanted.unit))
    source, tracer = _tracer(unit, wanted)
    result = Traced(unit.name, tracer.pid, tracer.release, source)
    if check_mode:
        return result
    new = into_spool.have(unit.name, tracer.owner)
    started = int(time.clock_gettime(time.CLOCK_BOOTTIME) * 1000)
    boot = procfs.boot_id().replace("-", "")
    try:
        with interruptible(), tracer.windows() as windows:
            begun()
            try:
                for number, window in enumerate(windows):
                    result.held = tracer.held
                    name = window.name
                    if not name:
                        name = dump_name.of_trace(tracer.prefix, boot, started, tracer.pid, number)
                        into_spool.keep(unit.name, name, window.fd, window.size, window.written)
                    result.dumps.append(name)
            except Ended as reason:
                result.ended = str(reason)
    finally:
        if new and not result.dumps:
            into_spool.remove_empty(unit.name)
    return result


def _tracer(unit: service.Service, wanted: Wanted) -> tuple[str, Trace]:
    """Who traces, by name, as is wanted. Raises OffheapError."""
    source = wanted.source
    if source == "auto" and jvm_trace.runs_in(unit, wanted.pid):
        source = "jvm"
    if source == "jvm":
        return source, jvm_trace.JvmTrace(unit, wanted)
    if source == "attach":
        return source, attach_trace.AttachTrace(unit, wanted, wanted.library)
    if source == "auto":
        try:
            return "attach", attach_trace.AttachTrace(unit, wanted)
        except OffheapError as refused:
            source = _tool_instead(refused)
    return source, kernel_trace.KernelTrace(unit, wanted, source)


def _tool_instead(refused: OffheapError) -> str:
    """The tool of the kernel that the host has, where the agent cannot be attached. Raises TraceError."""
    try:
        return kernel_trace.available()
    except TraceError as missing:
        raise TraceError(f"{refused}. And {missing}") from refused
