# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""See that a unit can be profiled, instead of believing it: each of its agents writes a dump, which is read back. One
that cannot, in a chroot perhaps, does not keep the others from being profiled.

That a library is mapped says little. The agent may have had no thread or no right to write, and what the first dump
would break (a filter of system calls that kills) shall break while somebody looks.

This module is private to the collection.
"""

from __future__ import annotations

import os
import time

from ansible_collections.offheap.profiler.plugins.module_utils.agent import client
from ansible_collections.offheap.profiler.plugins.module_utils.formats import preload
from ansible_collections.offheap.profiler.plugins.module_utils.formats.errors import OffheapError
from ansible_collections.offheap.profiler.plugins.module_utils.host import places, procfs, systemd
from ansible_collections.offheap.profiler.plugins.module_utils.spool import directory, dump
from ansible_collections.offheap.profiler.plugins.module_utils.unit import health
from ansible_collections.offheap.profiler.plugins.module_utils.unit.service import Service

_POLL_SECONDS = 0.25
_PATIENCE = 10.0  # until the first agent answers
_TIMEOUT = 30.0
_ALL = 300.0  # for all agents of a unit: anything of the service may listen where they do
# What the agent's one line in the journal begins with.
_AGENT = "offheap: "


class Unseen(OffheapError):
    """No dump of the unit was seen. The message says why."""


class Ended(health.Unhealthy):
    """A process of the unit has ended, or its agent, while it wrote a dump."""


def see(unit: Service, best_effort: bool) -> tuple[list[str], str]:
    """Paths of new dumps, and why there are none, or none of some of its processes; empty if there are of all.

    Raises NoDump if there are none, unless ``best_effort`` allows that; and Ended.
    """
    try:
        return _take(unit)
    except Unseen as error:
        if not best_effort:
            raise health.NoDump(f"no dump of {unit.name} can be had: {error}") from error
        return [], str(error)


def sentence(unit: str, dumps: list[str], unseen: str) -> str:
    """What to tell of a unit that is left as it is; empty if there are dumps of all of its processes."""
    if not unseen:
        return ""
    if dumps:
        return f"{unit} is profiled, but for processes of which no dump can be had: {unseen}"
    return f"{unit} is left under the profiler, but no dump of it can be had: {unseen}"


def _take(unit: Service) -> tuple[list[str], str]:
    """Paths of new dumps, one of each process with an agent that can write one which a collection could read, and why
    the others cannot.

    Raises Unseen, with what the agents say in the journal, if none can.
    """
    deadline = time.monotonic() + _PATIENCE
    try:
        while True:
            written, problems = _dumps_of_all(unit)
            if written:
                return written, "; ".join(dict.fromkeys(problems))
            if problems:
                raise Unseen("; ".join(dict.fromkeys(problems)))
            if time.monotonic() >= deadline:
                raise Unseen(f"none of its processes has an agent that answers{_of_children(unit)}")
            time.sleep(_POLL_SECONDS)
    except Ended:
        raise
    except (OffheapError, OSError) as error:
        lines = systemd.journal(f"_SYSTEMD_INVOCATION_ID={unit.text['InvocationID']}")
        told = "; ".join(line.partition(_AGENT)[2] for line in lines if _AGENT in line)
        raise Unseen(f"{error}. Its agent says: {told}" if told else str(error)) from error


def _of_children(unit: Service) -> str:
    """The way out where the main process is a child of the one that systemd has started, and had no agent for that."""
    variables = procfs.environ(unit.main_pid) if unit.main_pid else {}
    if preload.EXECUTABLE not in variables or preload.CHILDREN in variables:
        return ""
    return (
        ". If another process of the same program starts its main process, set children: true in"
        " profiled_service_agent_settings"
    )


def _dumps_of_all(unit: Service) -> tuple[list[str], list[str]]:
    """Raises Ended: what a dump has ended is not left to it."""
    written, problems = [], []
    deadline = time.monotonic() + _ALL
    for agent in client.find(unit.name):
        if time.monotonic() > deadline:
            problems.append(f"not all of its agents have answered within {_ALL:g} seconds")
            break
        try:
            written += _dump_of(agent, unit)
        except Ended:
            raise
        except OffheapError as error:
            problems.append(str(error))
    return written, problems


def _dump_of(agent: client.AgentSocket, unit: Service) -> list[str]:
    """The path of a new dump; nothing if the socket is not of a living process of the unit."""
    try:
        connection = client.Connection(agent, _TIMEOUT)
    except client.AgentGone:
        return []
    with connection:
        if connection.peer not in (unit.main_pid, *unit.pids()):
            return []
        try:
            path = connection.dump(places.spool_of(unit.name)).path
        except client.AgentGone as error:
            raise Ended(f"process {connection.peer}, or its agent, ended while it wrote a dump") from error
    _read_back(unit.name, os.path.basename(path))
    return [path]


def _read_back(unit: str, name: str) -> None:
    """Read a dump as a collection does. Raises SpoolError and DumpError."""
    with directory.Root(places.SPOOLS) as root:
        spooled = root.spool(unit)
        if spooled is None:
            raise Unseen(f"its agent has written {name}, but {places.spool_of(unit)} is not there")
        with spooled:
            fd = spooled.open(name)
            try:
                dump.read(fd, os.fstat(fd).st_size)
            finally:
                os.close(fd)
