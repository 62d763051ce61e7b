#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Talk to the agent in a unit's processes."""

from __future__ import annotations

DOCUMENTATION = r"""
module: heap_control
short_description: Take a heap dump now, and switch sampling in running processes
version_added: 0.1.0
description:
  - Talks to the agent that M(offheap.profiler.profiled_unit) has preloaded into the processes of a unit, over its
    control socket. Nothing is restarted.
  - For a HotSpot JVM, a dump is followed by a map of its compiled code (C(Compiler.perfmap), JDK 17 and up), so that
    Java methods have names later. No C(jcmd) is needed for it.
author:
  - Offheap contributors (@offheap)
extends_documentation_fragment:
  - offheap.profiler.attributes
attributes:
  check_mode:
    support: full
  diff_mode:
    support: none
  idempotent:
    support: partial
    details: V(dump) and V(reset) do what they say each time.
  platform:
    support: full
    platforms: linux
options:
  unit:
    description: The service unit. C(.service) may be left out.
    type: str
    required: true
  command:
    description:
      - V(status) tells what the agent does and whether anything is wrong.
      - V(dump) has a dump written and waits until it is whole.
      - V(activate) and V(deactivate) switch sampling.
      - V(reset) forgets all samples, and can set O(lg_sample).
      - V(stats) tells the memory statistics of the process and its allocator.
      - V(schedule) changes O(dump_seconds), O(stats_seconds), O(keep_files) and O(keep_bytes).
    type: str
    choices: [status, dump, activate, deactivate, reset, stats, schedule]
    default: status
  pid:
    description: Only this process. By default all processes of the unit that have an agent.
    type: int
  lg_sample:
    description: For V(reset), sample once per so many bytes from now on, as a power of two.
    type: int
  dump_seconds:
    description: For V(schedule), a dump every so many seconds; V(0) for none.
    type: int
  stats_seconds:
    description: For V(schedule), memory statistics every so many seconds; V(0) for none.
    type: int
  keep_files:
    description: For V(schedule), how many dumps the spool may hold.
    type: int
  keep_bytes:
    description: For V(schedule), how many bytes of dumps the spool may hold.
    type: int
  perf_map:
    description: With V(dump), also ask a JVM for the map of its compiled code.
    type: bool
    default: true
  timeout:
    description: How long to wait for an answer, in seconds.
    type: int
    default: 60
seealso:
  - module: offheap.profiler.profiled_unit
  - module: offheap.profiler.heap_fetch
"""

EXAMPLES = r"""
- name: Take a dump now
  offheap.profiler.heap_control:
    unit: frontend
    command: dump
  register: dumped

- name: Switch sampling on, without a restart
  offheap.profiler.heap_control:
    unit: frontend
    command: activate
"""

RETURN = r"""
unit:
  description: The canonical name of the unit.
  type: str
  returned: always
  sample: frontend.service
processes:
  description: What each agent answered, as it says it.
  type: list
  elements: dict
  returned: success
  contains:
    pid:
      description: The process.
      type: int
    answer:
      description: The agent's answer. In check mode, its status.
      type: dict
dumps:
  description: For V(dump), the dumps that were written.
  type: list
  elements: dict
  returned: success
  contains:
    pid:
      description: The process.
      type: int
    path:
      description: The dump.
      type: str
    size:
      description: Its size in bytes.
      type: int
    objects:
      description: Sampled objects, as the dump's header has them, not unbiased.
      type: int
    bytes:
      description: Their bytes, likewise.
      type: int
    perf_map:
      description: The map of compiled code that belongs to it.
      type: str
    note:
      description: Why there is no map, where one was to be expected.
      type: str
"""

import os
from typing import Any, NoReturn

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.offheap.profiler.plugins.module_utils import agent, drop_in, hotspot, procfs, systemd

_SETTINGS = {
    "schedule": {
        "dump": "dump_seconds",
        "stats": "stats_seconds",
        "keep_files": "keep_files",
        "keep_bytes": "keep_bytes",
    },
    "reset": {"lg_sample": "lg_sample"},
}


class ControlError(Exception):
    """There is no agent to talk to, or the command makes no sense."""


def control(parameters: dict[str, Any], unit: str, check_mode: bool) -> dict[str, Any]:
    """Send the command to each of the unit's agents."""
    agents = [one for one in agent.find(unit) if parameters["pid"] in (None, one.pid)]
    processes, dumps, changed = [], [], False
    for one in agents:
        try:
            with agent.Connection(one, parameters["timeout"]) as connection:
                answer, dump, did_change = _one(connection, parameters, unit, check_mode)
        except agent.AgentGone:
            continue  # a socket that a killed process has left
        processes.append({"pid": connection.peer, "answer": answer})
        dumps += [dump] if dump else []
        changed = changed or did_change
    if not processes:
        raise ControlError(
            f"no process of {unit}{' with that number' if parameters['pid'] else ''} has an agent. Is the unit running,"
            " and was it enabled with the agent (enable-profiling.yml)?"
        )
    return {"changed": changed, "processes": processes, "dumps": dumps}


def _one(
    connection: agent.Connection, parameters: dict[str, Any], unit: str, check_mode: bool
) -> tuple[dict[str, Any], dict[str, Any] | None, bool]:
    """Answer, dump and whether anything changes, for one agent."""
    command = parameters["command"]
    if command in ("status", "stats"):
        return connection.request(command), None, False
    status = connection.request("status")
    settings = {
        name: parameters[option]
        for name, option in _SETTINGS.get(command, {}).items()
        if parameters[option] is not None
    }
    if command == "schedule":
        now = status.get("schedule", {})
        changes = any(now.get(name) != value for name, value in settings.items())
    elif command in ("activate", "deactivate"):
        changes = status.get("wanted") is not (command == "activate")
    else:
        changes = True
    if check_mode or not changes:
        return status, None, changes
    if command == "dump":
        return status, _dump(connection, drop_in.spool_of(unit), parameters), True
    return connection.request(command, **settings), None, True


def _dump(connection: agent.Connection, spool: str, parameters: dict[str, Any]) -> dict[str, Any]:
    dump = connection.dump(spool)
    facts: dict[str, Any] = {**dump._asdict(), "pid": connection.peer, "perf_map": None, "note": None}
    if parameters["perf_map"]:
        try:
            jvm = hotspot.look(connection.peer)
            facts["perf_map"] = _save_perf_map(jvm, dump.path, parameters["timeout"])
        except hotspot.NotHotspot:
            pass  # other runtimes write their maps by themselves
        except (hotspot.HotspotError, procfs.ProcfsError, OSError) as error:
            facts["note"] = f"Java methods will have no names: {error}"
    return facts


def _save_perf_map(jvm: hotspot.Jvm, dump: str, timeout: int) -> str:
    """Put the map beside the dump, as the spool's owner has it; the spool is not ours, so no link is followed."""
    directory, name = os.path.split(dump + ".map")
    spool = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        owner = os.fstat(spool)
        partial = f".{name}.part"
        descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600, dir_fd=spool)
        try:
            with os.fdopen(descriptor, "wb") as target:
                hotspot.perf_map(jvm, target, timeout)
                os.fchown(target.fileno(), owner.st_uid, owner.st_gid)
            os.rename(partial, name, src_dir_fd=spool, dst_dir_fd=spool)
        except BaseException:
            os.unlink(partial, dir_fd=spool)
            raise
    finally:
        os.close(spool)
    return dump + ".map"


def main() -> NoReturn:
    """Module entry point."""
    module = AnsibleModule(
        argument_spec={
            "unit": {"type": "str", "required": True},
            "command": {
                "type": "str",
                "choices": ["status", "dump", "activate", "deactivate", "reset", "stats", "schedule"],
                "default": "status",
            },
            "pid": {"type": "int"},
            "lg_sample": {"type": "int"},
            "dump_seconds": {"type": "int"},
            "stats_seconds": {"type": "int"},
            "keep_files": {"type": "int"},
            "keep_bytes": {"type": "int"},
            "perf_map": {"type": "bool", "default": True},
            "timeout": {"type": "int", "default": 60},
        },
        supports_check_mode=True,
    )
    unit = module.params["unit"]
    try:
        unit = systemd.service_name(unit)
        result = control(module.params, unit, module.check_mode)
    except (agent.AgentError, ControlError, systemd.SystemdError, procfs.ProcfsError, OSError) as error:
        module.fail_json(msg=str(error), unit=unit)
    module.exit_json(unit=unit, **result)


if __name__ == "__main__":
    main()
