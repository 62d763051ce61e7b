# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Send one command to all agents of a unit, and put a map of compiled code beside each dump.

This module is private to the collection.
"""

from __future__ import annotations

import os
import stat
from typing import Any

from ansible_collections.offheap.profiler.plugins.module_utils.agent import client
from ansible_collections.offheap.profiler.plugins.module_utils.formats import dump_name
from ansible_collections.offheap.profiler.plugins.module_utils.formats.errors import OffheapError
from ansible_collections.offheap.profiler.plugins.module_utils.host import cgroup, places, systemd
from ansible_collections.offheap.profiler.plugins.module_utils.runtimes import hotspot_attach, hotspot_protocol
from ansible_collections.offheap.profiler.plugins.module_utils.spool import dump

# The agent's names of what the command schedule sets, by the module's.
_SCHEDULE = {
    "dump_seconds": "dump",
    "stats_seconds": "stats",
    "keep_files": "keep_files",
    "keep_bytes": "keep_bytes",
}


def control(parameters: dict[str, Any], unit: str, check_mode: bool) -> dict[str, Any]:
    """Send the command to each of the unit's agents. ``parameters`` are those of the module heap_control.

    Raises AgentError if no agent answers, or one refuses or breaks the protocol.
    """
    if not client.find(unit):
        unit = systemd.name_of(unit)  # what is ours has that one, whichever it was enabled by
    agents = [one for one in client.find(unit) if parameters["pid"] in (None, one.pid)]
    processes, dumps, changed, gone = [], [], False, ""
    for one in agents:
        try:
            with client.Connection(one, parameters["timeout"]) as connection:
                if not cgroup.belongs_to(connection.peer, unit):
                    raise client.AgentError(f"process {connection.peer}, which listens at {one.path}, is not of {unit}")
                answer, written, did_change = _one(connection, parameters, unit, check_mode)
        except client.AgentGone as error:
            gone = f" ({error})"  # a killed process has left its socket
            continue
        processes.append({"pid": connection.peer, "answer": answer})
        dumps += [written] if written else []
        changed = changed or did_change
    if not processes:
        raise client.AgentError(
            f"no process of {unit}{' with that pid' if parameters['pid'] else ''} has an agent that answers{gone}. Make"
            " sure that the unit is running and was enabled with the agent (enable_profiling)"
        )
    return {"changed": changed, "processes": processes, "dumps": dumps}


def _one(
    connection: client.Connection, parameters: dict[str, Any], unit: str, check_mode: bool
) -> tuple[dict[str, Any], dict[str, Any] | None, bool]:
    """Answer, dump and whether anything changes, for one agent."""
    command = parameters["command"]
    if command in ("status", "stats"):
        return connection.request(command), None, False
    status = connection.request("status")
    settings = {}
    if command == "schedule":
        settings = {name: parameters[option] for option, name in _SCHEDULE.items() if parameters[option] is not None}
        now = client.part(status, "schedule")
        changes = any(now.get(name) != value for name, value in settings.items())
    elif command in ("activate", "deactivate"):
        changes = status.get("wanted") is not (command == "activate")
    else:
        changes = True
    if check_mode or not changes:
        return status, None, changes
    if command in ("dump", "holders", "trim"):
        return status, _dump(connection, places.spool_of(unit), parameters), True
    return connection.request(command, **settings), None, True


def _dump(connection: client.Connection, spool: str, parameters: dict[str, Any]) -> dict[str, Any]:
    written = connection.dump(spool, parameters["command"])
    facts: dict[str, Any] = {**written._asdict(), "pid": connection.peer, "perf_map": None, "note": None}
    if parameters["perf_map"]:
        try:
            jvm = hotspot_attach.look(connection.peer)
            facts["perf_map"] = _save_perf_map(jvm, written.path, parameters["timeout"])
        except hotspot_attach.NotHotspot:
            pass  # other runtimes write their own maps
        except (OffheapError, OSError) as error:
            facts["note"] = f"Java methods will have no names: {error}"
    return facts


def _save_perf_map(jvm: hotspot_protocol.Jvm, path: str, timeout: int) -> str:
    """Put the map beside the dump, owned by the spool's owner. The spool is not ours, so no link is followed."""
    directory, name = os.path.split(path + dump_name.PERF_MAP)
    spool = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        addresses = _addresses(spool, os.path.basename(path))
        owner = os.fstat(spool)
        partial = f".{name}.part"
        descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600, dir_fd=spool)
        try:
            with os.fdopen(descriptor, "wb") as target:
                hotspot_attach.perf_map(jvm, target, timeout, addresses=addresses)
                os.fchown(target.fileno(), owner.st_uid, owner.st_gid)
            os.rename(partial, name, src_dir_fd=spool, dst_dir_fd=spool)
        except BaseException:
            os.unlink(partial, dir_fd=spool)
            raise
    finally:
        os.close(spool)
    return path + dump_name.PERF_MAP


def _addresses(spool: int, name: str) -> set[int]:
    descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=spool)
    try:
        status = os.fstat(descriptor)
        return dump.addresses(descriptor, status.st_size) if stat.S_ISREG(status.st_mode) else set()
    finally:
        os.close(descriptor)
