# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Whether a unit's resource limits (setrlimit(2), systemd.exec(5)) leave jemalloc and the agent what they need.

This module is private to the collection.
"""

from __future__ import annotations

from ansible_collections.offheap.profiler.plugins.module_utils.host import procfs
from ansible_collections.offheap.profiler.plugins.module_utils.unit.refusal import Refusal
from ansible_collections.offheap.profiler.plugins.module_utils.unit.service import Service

# The agent's own descriptors and, while it dumps, jemalloc's.
_FILES = 16
# A dump of a larger service has a few MiB.
_FILE_SIZE = 8 << 20
# What jemalloc reserves, in pieces that grow, and the agent's table: 31 MiB. And the limits that count it, what of
# status counts towards them, and the setting of a unit.
_MEMORY, _MEMORY_OF_AGENT = 128 << 20, 40 << 20
_OF_MEMORY = (("Max data size", "VmData", "LimitDATA"), ("Max address space", "VmSize", "LimitAS"))
# What they map in the smallest service. One that has locked all of its memory (mlockall(2)) has no more than this
# unlocked, since its C library alone is larger. And what lets it lock without a limit.
_AT_ONCE, _AT_ONCE_OF_AGENT = 6 << 20, 28 << 20
_UNLOCKED = 1 << 20
_CAP_IPC_LOCK = 1 << 14


def check(service: Service, uid: int | None) -> None:
    """``uid`` is the service's user, None if only systemd knows it. Raises Refusal, which names the limit."""
    _check_least(service, "LimitNOFILE", _FILES, "the agent needs descriptors of its own")
    _check_least(service, "LimitFSIZE", _FILE_SIZE, "a dump would be cut off")
    if uid != 0:  # root's processes are not limited
        needed = (1 if uid is None else _threads(service, uid)) + 1
        _check_least(service, "LimitNPROC", needed, "the agent needs a thread of its own")


def check_memory(service: Service, replaces: bool = True) -> None:
    """For a service without the preload. A malloc that gets no memory ends most programs. Raises Refusal.

    ``replaces``: jemalloc comes with the agent, in place of the service's allocator.
    """
    for pid in service.leaders() if service.is_running else []:
        try:
            _check_memory(service.name, pid, replaces)
            # One that root starts may have locked it before it gave up the right, and lock nothing later: nobody knows.
            if service.text["DynamicUser"] == "yes" or service.text["User"] not in ("", "root", "0"):
                _check_locked(service.name, pid, replaces)
        except procfs.ProcessGone:
            continue


def _check_memory(unit: str, pid: int, replaces: bool) -> None:
    """By what the process has, since it may have set it itself."""
    needed, who = (_MEMORY, "jemalloc and the agent reserve") if replaces else (_MEMORY_OF_AGENT, "the agent reserves")
    limits, status = procfs.limits(pid), procfs.status(pid)
    for name, counted, setting in _OF_MEMORY:
        words = status.get(counted, "").split()
        if name not in limits or not words or not words[0].isdigit():
            continue
        left = limits[name] - (int(words[0]) << 10)
        if left < needed:
            raise Refusal(
                "limits",
                f"process {pid} of {unit} has {max(left, 0) >> 20} MiB left below its limit of {limits[name] >> 20} MiB"
                f" ({name.lower()}), and {who} up to {needed >> 20} MiB: it would get no"
                f" memory, and end. Raise the limit, in the unit ({setting}=) or where the program itself sets it (such"
                " as rlimit-data in avahi-daemon.conf)",
            )


def _check_locked(unit: str, pid: int, replaces: bool) -> None:
    """Only where it is sure to fail: what else they map later may be less than its allocator did."""
    needed, who = (_AT_ONCE, "jemalloc and the agent map") if replaces else (_AT_ONCE_OF_AGENT, "the agent maps")
    limit, status = procfs.limits(pid).get("Max locked memory"), procfs.status(pid)
    if limit is None or "VmLck" not in status or int(status["CapEff"], 16) & _CAP_IPC_LOCK:
        return
    size, locked = (int(status[name].split()[0]) << 10 for name in ("VmSize", "VmLck"))
    if size - locked < _UNLOCKED and limit - locked < needed:
        raise Refusal(
            "limits",
            f"process {pid} of {unit} locks all of its memory (mlockall), with {max(limit - locked, 0) >> 20} MiB left"
            f" below its limit of {limit >> 20} MiB (max locked memory), and {who} at least {needed >> 20} MiB: it"
            " could lock nothing, or would get no memory. Raise the limit, in the unit (LimitMEMLOCK=) or where the"
            " program itself sets it",
        )


def _check_least(service: Service, limit: str, needed: int, why: str) -> None:
    given = service.text[f"{limit}Soft"]
    if given.isdigit() and int(given) < needed:
        raise Refusal(
            "limits",
            f"{service.name} has {limit}={given}, but needs {needed} to be profiled: {why}. Raise {limit} in the unit",
        )


def _threads(service: Service, uid: int) -> int:
    """Threads of a user on this host, with at least one of the service."""
    count = 0
    for pid in procfs.pids():
        try:
            status = procfs.status(pid)
        except procfs.ProcfsError:
            continue  # it has ended
        if status.get("Uid", "").split()[:1] == [str(uid)]:
            count += int(status.get("Threads", "1"))
    return count if service.is_running else count + 1
