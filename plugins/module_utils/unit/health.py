# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Restart a unit and watch it: neither takes longer than it is given, whatever the unit does.

This module is private to the collection.
"""

from __future__ import annotations

import time
from typing import Callable

from ansible_collections.offheap.profiler.plugins.module_utils.formats.errors import OffheapError
from ansible_collections.offheap.profiler.plugins.module_utils.host import procfs, systemd
from ansible_collections.offheap.profiler.plugins.module_utils.unit import service

_POLL_SECONDS = 0.25


class Unhealthy(OffheapError):
    """The unit does not run as it should."""


def obstacle(unit: service.Service, mapped: str | None, clean: bool) -> str | None:
    """Why the unit is not, or not yet, as requested; None if it is."""
    state = unit.text["ActiveState"]
    if state != "active":
        return f"it is {state} ({unit.text['SubState']}, result {unit.text['Result']})"
    pids = unit.pids()
    if mapped:
        leaders = [unit.main_pid] if unit.main_pid else pids
        without = [pid for pid in leaders if not _maps(pid, mapped)]
        if without or not leaders:
            return f"{mapped} is not mapped in its process {', '.join(map(str, without)) or '(there is none)'}"
    if clean:
        ours = service.pids_under_us(pids, unit.name)
        if ours:
            return f"its process {ours[0]} still runs under the profiler"
    return None


def _restart(name: str, timeout: int) -> None:
    try:
        systemd.systemctl("restart", "--", name, timeout=timeout)
    except systemd.SystemdTimeout:
        unit = service.load(name)
        raise Unhealthy(
            f"{name} has not come up {timeout} s after its restart: it is {unit.text['ActiveState']}"
            f" ({unit.text['SubState']})"
        ) from None
    except systemd.SystemdError as error:
        raise Unhealthy(f"{name} did not start: {error}") from error


def _maps(pid: int, path: str) -> bool:
    try:
        return service.maps_file(pid, path)
    except procfs.ProcessGone:
        return False


def watch(
    name: str,
    mapped: str | None,
    clean: bool,
    seconds: int,
    timeout: int,
    restart: bool = False,
    look: Callable[[service.Service], None] | None = None,
) -> service.Service:
    """Restart the unit if asked, wait for the requested state, then check that it lasts for ``seconds``.

    The restart and the wait together take at most ``timeout`` seconds. ``look`` is called once, when two thirds of
    ``seconds`` are over, so that what it does to the unit is watched too. Raises Unhealthy with what happened.
    """
    deadline = time.monotonic() + timeout
    if restart:
        _restart(name, timeout)
    unit = service.load(name)
    restarts = unit.restarts
    problem = obstacle(unit, mapped, clean)
    while problem:
        if unit.text["ActiveState"] in ("failed", "inactive") or unit.restarts > restarts:
            raise Unhealthy(f"{unit.name} did not come up: {problem}")
        if time.monotonic() > deadline:
            raise Unhealthy(f"{unit.name} is not as required after {timeout} s: {problem}")
        time.sleep(_POLL_SECONDS)
        unit = service.load(name)
        problem = obstacle(unit, mapped, clean)
    started = unit.text["InvocationID"]
    deadline = time.monotonic() + seconds
    while look or time.monotonic() < deadline:
        if look and time.monotonic() >= deadline - seconds / 3:
            began = time.monotonic()
            look(unit)
            look = None
            deadline += time.monotonic() - began
        time.sleep(_POLL_SECONDS)
        unit = service.load(name)
        if unit.text["InvocationID"] != started or unit.restarts > restarts:
            raise Unhealthy(f"{unit.name} was restarted while it was watched (result {unit.text['Result']})")
        problem = obstacle(unit, mapped, clean)
        if problem:
            raise Unhealthy(f"{unit.name} did not stay up for {seconds} s: {problem}")
    return unit
