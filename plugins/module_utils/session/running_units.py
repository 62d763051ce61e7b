# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Which services run on a host, how much memory they hold, and which of them are profiled.

This module is private to the collection.
"""

from __future__ import annotations

import os
import time
from typing import Any

from ansible_collections.offheap.profiler.plugins.module_utils.agent import client, commands
from ansible_collections.offheap.profiler.plugins.module_utils.formats import aids, unit_name
from ansible_collections.offheap.profiler.plugins.module_utils.host import procfs, systemd
from ansible_collections.offheap.profiler.plugins.module_utils.malloc import allocator_libraries
from ansible_collections.offheap.profiler.plugins.module_utils.unit import drop_in_files, service

#: seconds that an agent may take to answer; we do not wait for a busy one
_PATIENCE = 5
_PAGE = os.sysconf("SC_PAGE_SIZE")


def look() -> list[dict[str, Any]]:
    """The running services, those with the most memory first. Raises SystemdError."""
    found = [facts for facts in map(_facts, names()) if facts is not None]
    return sorted(found, key=lambda facts: (-facts["rss"], facts["unit"]))


def names() -> list[str]:
    """The running services. Raises SystemdError."""
    text = systemd.systemctl("list-units", "--type=service", "--state=running", "--plain", "--no-legend", "--full")
    found = [line.split()[0] for line in text.splitlines() if line.split()]
    return [name for name in found if unit_name.is_service(name)]


def _facts(unit: str) -> dict[str, Any] | None:
    """Facts about one unit, or None if its last process has just ended."""
    loaded = service.load(unit)
    pids = loaded.pids()
    resident = {pid: pages for pid in pids if (pages := _resident(pid)) is not None}
    if not resident:
        return None
    largest = max(resident, key=lambda pid: resident[pid])
    try:
        used = allocator_libraries.of_process(largest)
        executable = used["exe"] or ""
        runtime = aids.detect(executable, list(procfs.mapped_files(largest)))
    except procfs.ProcessGone:
        return None
    sampling, with_agent = _agents(loaded.name)
    return {
        "unit": loaded.name,
        "pid": largest,
        "processes": len(resident),
        "rss": sum(resident.values()),
        "exe": executable,
        "runtime": runtime,
        "allocator": used["allocator"],
        "profiled": bool(drop_in_files.installed(loaded.name)),
        "sampling": sampling,
        "rss_with_agent": sum(size for pid, size in resident.items() if pid in with_agent),
    }


def _resident(pid: int) -> int | None:
    """Resident memory in bytes, None for a process that has ended."""
    try:
        with open(f"{procfs.directory(pid)}/statm", encoding="ascii") as stream:
            return int(stream.read().split()[1]) * _PAGE
    except (OSError, IndexError):
        return None


def _agents(unit: str) -> tuple[bool | None, set[int]]:
    """Whether an agent of the unit is sampling, None if none answers; and the processes whose agents answer."""
    try:
        answers = {one["pid"]: one["answer"] for one in _ask(unit, "status")}
    except client.AgentError:
        return None, set()
    return any(answer.get("active") is True for answer in answers.values()), set(answers)


def _ask(unit: str, command: str) -> list[dict[str, Any]]:
    parameters = {"command": command, "pid": None, "timeout": _PATIENCE, "perf_map": False}
    processes: list[dict[str, Any]] = commands.control(parameters, unit, True)["processes"]
    return processes


def sample(unit: str) -> dict[str, Any]:
    """The unit's memory now: ``rss`` of all its processes and, where agents answer, what is ``allocated`` in them.

    In bytes; ``time`` in seconds since the epoch, ``start`` another after each start. Raises SystemdError.
    """
    loaded = service.load(unit_name.service(unit))
    resident = [size for pid in loaded.pids() if (size := _resident(pid)) is not None]
    allocated: list[int] = []
    try:
        for one in _ask(loaded.name, "stats"):
            size = client.part(one["answer"], "memory").get("allocated")
            allocated += [size] if isinstance(size, int) else []
    except client.AgentError:
        pass  # without an agent, the kernel's number must do
    return {
        "unit": loaded.name,
        "time": time.time(),
        "active": loaded.text["ActiveState"],
        "rss": sum(resident),
        "processes": len(resident),
        # not NRestarts, which does not count those that somebody asks for
        "start": loaded.text["InvocationID"],
        **({"allocated": sum(allocated)} if allocated else {}),
    }
