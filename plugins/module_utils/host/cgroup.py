# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""What a unit's control group says about its memory: use and its parts, limits, pressure, and OOM kills.

Formats: the kernel's cgroup-v2 document, "Memory Interface Files", and its PSI document; memory.txt for version 1,
which has no high limit and no pressure. A unit without a memory controller gives nothing.

This module is private to the collection.
"""

from __future__ import annotations

import os
import re
from typing import Any

_UNIFIED = ("/sys/fs/cgroup", "/sys/fs/cgroup/unified")
_VERSION_1 = "/sys/fs/cgroup/memory"
# Version 1 writes a multiple of the page size near 2^63 for "no limit".
_NO_LIMIT = 1 << 62
# Where an older kernel does not add up what it has taken for itself.
_OF_THE_KERNEL = ("kernel_stack", "pagetables", "sec_pagetables", "percpu", "vmalloc", "slab")
_PRESSURE = re.compile(r"^(\w+) .*?\bavg60=([0-9]{1,3}(?:\.[0-9]+)?)(?: |$)", re.MULTILINE)


def read(control_group: str) -> dict[str, Any]:
    """Sizes in bytes; ``limit`` and ``high`` are None if there is no limit, the others if they cannot be read.

    ``parts`` are those of ``current``: memory of its processes (``processes``), cached files (``files``), shared memory
    and files in memory (``shared-memory``), what the kernel took for it (``kernel``) and for its connections
    (``sockets``), and what nothing explains (``rest``).
    """
    names = ("current", "peak", "limit", "high", "swap", "parts", "oom_kills", "pressure")
    facts: dict[str, Any] = dict.fromkeys(names, None)
    if not control_group.startswith("/") or ".." in control_group.split("/"):
        return facts
    for root in _UNIFIED:
        directory = root + control_group
        current = _number(directory, "memory.current")
        if current is not None:
            facts.update(
                current=current,
                peak=_number(directory, "memory.peak"),
                limit=_number(directory, "memory.max"),
                high=_number(directory, "memory.high"),
                swap=_number(directory, "memory.swap.current"),
                parts=_parts(directory, current),
                oom_kills=_pairs(directory, "memory.events").get("oom_kill"),
                pressure=_pressure(directory),
            )
            return facts
    directory = _VERSION_1 + control_group
    current = _number(directory, "memory.usage_in_bytes")
    limit = _number(directory, "memory.limit_in_bytes")
    facts.update(
        current=current,
        peak=_number(directory, "memory.max_usage_in_bytes"),
        limit=None if limit is None or limit >= _NO_LIMIT else limit,
        parts=None if current is None else _parts_of_version_1(directory, current),
        oom_kills=_pairs(directory, "memory.oom_control").get("oom_kill"),
    )
    return facts


def left(control_group: str) -> int | None:
    """Bytes below the nearest limit: the unit's own, its high one, or one of a slice above; None: there is none.

    Files that the kernel can drop count as free, as in MemAvailable (proc(5)).
    """
    if not control_group.startswith("/") or ".." in control_group.split("/"):
        return None
    rooms = []
    for root, limits, use, droppable in (
        *((root, ("memory.max", "memory.high"), "memory.current", "inactive_file") for root in _UNIFIED),
        (_VERSION_1, ("memory.limit_in_bytes",), "memory.usage_in_bytes", "total_inactive_file"),
    ):
        group = control_group.rstrip("/")
        while group:
            directory = root + group
            used = _number(directory, use)
            for limit in (_number(directory, name) for name in limits):
                if limit is not None and limit < _NO_LIMIT and used is not None:
                    rooms.append(limit - used + _pairs(directory, "memory.stat").get(droppable, 0))
            group = group.rpartition("/")[0]
    return max(min(rooms), 0) if rooms else None


def _parts(directory: str, current: int) -> dict[str, int] | None:
    told = _pairs(directory, "memory.stat")
    if not {"anon", "file", "shmem"}.issubset(told):
        return None
    kernel = told["kernel"] if "kernel" in told else sum(told.get(name, 0) for name in _OF_THE_KERNEL)
    return _with_rest(current, told["anon"], told["file"], told["shmem"], kernel, told.get("sock", 0))


def _parts_of_version_1(directory: str, current: int) -> dict[str, int] | None:
    told = _pairs(directory, "memory.stat")
    if not {"total_rss", "total_cache"}.issubset(told):
        return None
    kernel, sockets = (_number(directory, f"memory.kmem.{name}usage_in_bytes") or 0 for name in ("", "tcp."))
    return _with_rest(current, told["total_rss"], told["total_cache"], told.get("total_shmem", 0), kernel, sockets)


def _with_rest(current: int, processes: int, files: int, shared: int, kernel: int, sockets: int) -> dict[str, int]:
    """The kernel counts shared memory among the files."""
    parts = {
        "processes": processes,
        "files": files - shared,
        "shared-memory": shared,
        "kernel": kernel,
        "sockets": sockets,
    }
    return {**parts, "rest": current - sum(parts.values())}


def belongs_to(pid: int, unit: str, proc: str = "/proc") -> bool:
    """Whether a process is in a unit's control group or below. systemd puts ``_`` before names that the kernel uses."""
    text = _text(os.path.join(proc, str(pid)), "cgroup")
    groups = [line.split(":", 2)[-1].split("/") for line in text.splitlines()]
    return any(name in (unit, f"_{unit}") for group in groups for name in group)


def _text(directory: str, name: str) -> str:
    try:
        with open(os.path.join(directory, name), encoding="ascii", errors="replace") as file:
            return file.read(1 << 16)
    except OSError:
        return ""  # an older kernel, or another controller


def _number(directory: str, name: str) -> int | None:
    text = _text(directory, name).strip()
    return int(text) if text.isdigit() else None


def _pairs(directory: str, name: str) -> dict[str, int]:
    words = [line.split() for line in _text(directory, name).splitlines()]
    return {pair[0]: int(pair[1]) for pair in words if len(pair) == 2 and pair[1].isdigit()}


def _pressure(directory: str) -> dict[str, float] | None:
    """The percentage of the last minute in which some or all processes waited for memory."""
    found = _PRESSURE.findall(_text(directory, "memory.pressure"))
    return {kind: float(percentage) for kind, percentage in found} or None
