# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Why agents cannot write their dumps: a full disk, for one, which nobody hears of who only sees that nothing is new.

This module is private to the collection.
"""

from __future__ import annotations

import contextlib
import os
import time
from typing import Any, Iterator, Sequence

from ansible_collections.offheap.profiler.plugins.module_utils.agent import client
from ansible_collections.offheap.profiler.plugins.module_utils.formats import unit_name, values
from ansible_collections.offheap.profiler.plugins.module_utils.formats.errors import OffheapError
from ansible_collections.offheap.profiler.plugins.module_utils.host import cgroup, places

# Seconds for all agents of a host, any of which may hang; and how many complaints are enough.
_PATIENCE, _MOST = 5.0, 20
_LONGEST = 300


def told(units: Sequence[str], root: str = places.SOCKETS) -> list[str]:
    """What the agents of these units, or of all, say that have written no dump since one has failed."""
    deadline = time.monotonic() + _PATIENCE
    found: list[str] = []
    for unit, agent in _agents(units, root):
        left = deadline - time.monotonic()
        if left <= 0 or len(found) == _MOST:
            break
        with contextlib.suppress(OffheapError), client.Connection(agent, left) as connection:
            if cgroup.belongs_to(connection.peer, unit):
                why = _why(connection.request("status"))
                found += [f"the agent in process {connection.peer} of {unit} says: {why}"] if why else []
    return found


def _agents(units: Sequence[str], root: str) -> Iterator[tuple[str, client.AgentSocket]]:
    names = {unit_name.service(unit) for unit in units}
    for place in () if units else (root, places.SPOOLS):  # one whose socket is abstract has a spool alone
        with contextlib.suppress(OSError):
            names.update(filter(unit_name.is_service, os.listdir(place)))
    for unit in sorted(names):
        with contextlib.suppress(client.AgentError):
            for agent in client.find(unit, root):
                yield unit, agent


def _why(status: dict[str, Any]) -> str:
    """Empty if its newest dump is newer than its last problem, or none has failed."""
    failed, problem = client.part(status, "spool").get("dumps_failed"), status.get("problem")
    when, written = status.get("problem_time"), client.part(status, "last_dump").get("time", 0)
    if (
        not failed
        or not isinstance(failed, int)
        or not isinstance(problem, str)
        or not values.is_time(when)
        or not values.is_time(written)
    ):
        return ""
    return f"{problem[:_LONGEST]} ({failed} of its dumps failed)" if when >= written else ""
