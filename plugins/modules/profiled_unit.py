#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Preload a profiling jemalloc into a systemd unit, or take it out again."""

from __future__ import annotations

DOCUMENTATION = r"""
module: profiled_unit
short_description: Preload a profiling jemalloc into a systemd unit with a drop-in
version_added: 0.1.0
description:
  - Writes one drop-in, C(90-offheap.conf), for a service unit, and creates the directory for its dumps.
    The unit's own settings stay in force. An existing C(LD_PRELOAD) stays behind ours, options that the unit
    already has in C(MALLOC_CONF) stay unless O(malloc_conf) names them, and the sandbox is opened for the dumps only.
  - Refuses what cannot work, with the reason and the way out, before it touches anything.
  - Does not restart the unit. RV(restart_needed) says whether its processes differ from what is written. The role
    P(offheap.profiler.profiled_service#role) restarts the unit, verifies it, and rolls it back if it fails.
author:
  - Offheap contributors (@offheap)
extends_documentation_fragment:
  - offheap.profiler.attributes
attributes:
  check_mode:
    support: full
  diff_mode:
    support: full
  idempotent:
    support: full
  platform:
    support: full
    platforms: linux
options:
  unit:
    description: The service unit. You may leave out C(.service).
    type: str
    required: true
  state:
    description:
      - V(present) writes the drop-in. V(absent) removes it, wherever it is, and nothing else.
      - V(absent) needs none of the other options.
    type: str
    choices: [present, absent]
    default: present
  mode:
    description:
      - V(profile) preloads jemalloc with its profiler. V(swap) only changes the malloc, to see whether RSS differs.
      - With V(swap) there is no agent, no runtime option and no directory for dumps.
    type: str
    choices: [profile, swap]
    default: profile
  arena_max:
    description:
      - With O(mode=swap), how many arenas glibc's malloc may have (C(MALLOC_ARENA_MAX)). V(0) preloads O(library).
    type: int
    default: 0
  library:
    description: Path of the jemalloc library on the target. Required with O(state=present), unless O(arena_max) is set.
    type: path
  malloc_conf:
    description:
      - Options for jemalloc, by its own names, for example C(lg_prof_sample).
      - The module sets C(prof) and C(prof_prefix) itself.
      - It checks the names against the options of the library's version.
    type: dict
    default: {}
  version:
    description:
      - Version of the library, to check O(malloc_conf) against while the library is not on the target yet, as in check
        mode.
      - By default the library itself is asked.
    type: str
  agent:
    description:
      - Path of the agent's library on the target. It is preloaded behind jemalloc.
      - Sampling then begins some seconds after the start of the process, and M(offheap.profiler.heap_control) can
        switch it while the process runs.
    type: path
  agent_settings:
    description: What the agent does.
    type: dict
    suboptions:
      executable:
        description:
          - The program in which the agent acts. Other processes of the unit inherit the preload, but the agent does
            nothing in them.
          - By default the program of the unit's main process or, if that is a shell, of its largest process.
        type: path
      start:
        description: V(dormant) leaves sampling off until somebody switches it on.
        type: str
        choices: [sampling, dormant]
        default: sampling
      unwinder:
        description:
          - V(hybrid) follows frame pointers where unwind tables end, V(fp) uses only frame pointers, V(builtin) is
            jemalloc's own unwinder.
        type: str
        choices: [hybrid, fp, builtin]
        default: hybrid
      children:
        description:
          - Profile each child that runs the same program too, as a process of its own, such as prefork workers.
          - A child under another user than the main process cannot write to the spool, and is not profiled.
        type: bool
        default: false
      start_delay:
        description: Seconds from the start of the process until sampling begins.
        type: int
      dump_seconds:
        description: Seconds between two dumps. V(0) takes none.
        type: int
      stats_seconds:
        description: Seconds between two records of memory statistics. V(0) writes none.
        type: int
      keep_files:
        description: How many dumps the spool may hold. The first, the newest and log-spaced ones between them stay.
        type: int
      keep_bytes:
        description: How many bytes of dumps the spool may hold.
        type: int
      minimum_free:
        description: How many bytes must stay free. A dump that would leave less is not written.
        type: int
  runtime:
    description:
      - The language runtime. It gets options that make its frames visible, for example a JVM gets
        C(-XX:+PreserveFramePointer) through C(JAVA_TOOL_OPTIONS). What the unit already sets stays.
      - V(auto) looks at the running process.
    type: str
    choices: [auto, jvm, python, node, dotnet, native]
    default: native
  runtime_without:
    description: Which of a runtime's options to leave out.
    type: list
    elements: str
    choices: [frame-pointers, interpreted-frames, memory-tracking, perf-map]
    default: []
  until_reboot:
    description: Write the drop-in below C(/run) instead of C(/etc), so that a reboot ends the profiling.
    type: bool
    default: false
  min_free_mib:
    description: Refuse if the file system of the dumps has less than this free, in MiB.
    type: int
    default: 512
  purge_spool:
    description:
      - With O(state=absent), also remove the directory of the dumps.
      - Refuses while it holds dumps that were not collected, unless they never can be, such as one that a crash has cut
        off. Those are told in a warning.
    type: bool
    default: false
  discard_dumps:
    description: With O(purge_spool=true), also remove dumps that were not collected.
    type: bool
    default: false
seealso:
  - module: offheap.profiler.unit_health
  - module: offheap.profiler.allocator_info
"""

EXAMPLES = r"""
- name: Preload jemalloc into a service
  offheap.profiler.profiled_unit:
    unit: frontend
    library: /opt/offheap/jemalloc/5.3.0-4f2c8a1e/lib/libjemalloc.so.2
    malloc_conf:
      lg_prof_sample: 19
      lg_prof_interval: 30

- name: Take it out again
  offheap.profiler.profiled_unit:
    unit: frontend
    state: absent
"""

RETURN = r"""
unit:
  description: The canonical name of the unit.
  type: str
  returned: always
  sample: frontend.service
drop_in:
  description: Path of the drop-in.
  type: str
  returned: success
  sample: /etc/systemd/system/frontend.service.d/90-offheap.conf
environment:
  description:
    - The variables that the unit is started with.
    - Values in C(90-offheap.env), which contain those of an C(EnvironmentFile) of the unit, are not shown.
  type: dict
  returned: with O(state=present)
  sample:
    LD_PRELOAD: /opt/offheap/jemalloc/5.3.0-4f2c8a1e/lib/libjemalloc.so.2
    MALLOC_CONF: prof:true,lg_prof_sample:19,prof_prefix:/var/lib/offheap/frontend.service/jeprof
restart_needed:
  description: Whether the unit's running processes differ from what is written.
  type: bool
  returned: success
active:
  description: Whether the unit is running.
  type: bool
  returned: success
spool:
  description: Directory of the dumps.
  type: str
  returned: success
  sample: /var/lib/offheap/frontend.service
refusal:
  description: Short name of the reason, if the module refuses.
  type: str
  returned: when refused
  sample: static-binary
"""

import os
from typing import Any, NoReturn

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.offheap.profiler.plugins.module_utils.formats.errors import OffheapError
from ansible_collections.offheap.profiler.plugins.module_utils.host import places, procfs, systemd
from ansible_collections.offheap.profiler.plugins.module_utils.runtimes import aids
from ansible_collections.offheap.profiler.plugins.module_utils.spool import listing
from ansible_collections.offheap.profiler.plugins.module_utils.unit import (
    drop_in,
    drop_in_files,
    preflight,
    resource_limits,
    rollback,
    root_commands,
    sandbox,
    service,
    spool_directory,
    syscall_filter,
)
from ansible_collections.offheap.profiler.plugins.module_utils.unit.changes import Changes
from ansible_collections.offheap.profiler.plugins.module_utils.unit.refusal import Refusal

# Settings of the agent that are numbers; each is the variable OFFHEAP_<NAME>.
AGENT_NUMBERS = ("start_delay", "dump_seconds", "stats_seconds", "keep_files", "keep_bytes", "minimum_free")


def prepare(parameters: dict[str, Any], unit: service.Service, check_mode: bool) -> drop_in_files.WantedFiles:
    """Everything that O(state=present) will write, once every reason not to has been ruled out."""
    preflight.check_state(unit)
    if parameters["mode"] == "swap":
        return _prepare_swap(parameters, unit, check_mode)
    library = parameters["library"]
    own = systemd.read_assignments(unit.own_files)
    manager = systemd.manager_environment()
    preflight.check_path(library)
    preflight.check_container(unit)
    preflight.check_wrappers(unit, library, drop_in.read_environment(own, manager, unit.name))
    preflight.check_programs(unit, library)
    owner = None if unit.text["DynamicUser"] == "yes" else preflight.owner(unit)
    spool = places.spool_of(unit.name)
    preflight.check_space(spool, parameters["min_free_mib"])
    preflight.check_library(library, parameters["malloc_conf"], parameters["version"], may_be_missing=check_mode)
    directory = places.drop_ins_of(unit.name, parameters["until_reboot"])
    agent = agent_of(parameters, unit, check_mode)
    if agent:
        resource_limits.check(unit, owner.uid if owner else None)
    libraries = [library, agent.library] if agent else [library]
    opened = sandbox.lines(unit, libraries, spool) + (sandbox.socket_lines(unit) if agent else [])
    injection = drop_in.compose(
        unit.name, library, parameters["malloc_conf"], own, manager, opened, directory, agent, aids_of(parameters, unit)
    )
    root_commands.check(unit, own, injection.environment)
    if agent and owner and not root_commands.options_that_dump(injection.environment):
        owner = preflight.writer(unit, owner)
    return drop_in_files.WantedFiles(directory, injection, spool, owner)


def _prepare_swap(parameters: dict[str, Any], unit: service.Service, check_mode: bool) -> drop_in_files.WantedFiles:
    """Only the malloc: no agent, no spool."""
    own = systemd.read_assignments(unit.own_files)
    manager = systemd.manager_environment()
    arena_max = parameters["arena_max"]
    library = "" if arena_max else parameters["library"]
    options = {} if arena_max else parameters["malloc_conf"]
    if library:
        preflight.check_path(library)
    preflight.check_container(unit)
    preflight.check_programs(unit, library)
    if library:
        preflight.check_wrappers(unit, library, drop_in.read_environment(own, manager, unit.name))
        preflight.check_library(library, options, parameters["version"], may_be_missing=check_mode)
    opened = sandbox.lines(unit, [library], None) if library else []
    directory = places.drop_ins_of(unit.name, parameters["until_reboot"])
    swap = drop_in.Swap(arena_max)
    injection = drop_in.compose(unit.name, library, options, own, manager, opened, directory, swap=swap)
    return drop_in_files.WantedFiles(directory, injection, places.spool_of(unit.name), None)


def agent_of(parameters: dict[str, Any], unit: service.Service, check_mode: bool) -> drop_in.AgentSettings | None:
    """The agent with its settings as the variables that it reads."""
    library = parameters["agent"]
    if not library:
        return None
    preflight.check_path(library)
    syscall_filter.check(unit)
    if not (check_mode or os.path.exists(library)):
        raise Refusal("no-agent", f"{library} does not exist here; the role offheap.profiler.jemalloc installs it")
    wanted = parameters["agent_settings"] or {}
    numbers = {f"OFFHEAP_{name.upper()}": str(wanted[name]) for name in AGENT_NUMBERS if wanted.get(name) is not None}
    return drop_in.AgentSettings(
        library,
        {
            "OFFHEAP_UNIT": unit.name,
            "OFFHEAP_EXECUTABLE": wanted.get("executable") or preflight.executable(unit),
            "OFFHEAP_START": wanted.get("start") or "sampling",
            "OFFHEAP_UNWINDER": wanted.get("unwinder") or "hybrid",
            # Such a service is a child of the process that systemd starts, and children have no agent by default.
            **({"OFFHEAP_CHILDREN": "1"} if wanted.get("children") or unit.text["Type"] == "forking" else {}),
            **numbers,
        },
    )


def aids_of(parameters: dict[str, Any], unit: service.Service) -> dict[str, list[str]]:
    """What makes the frames of the unit's language runtime visible."""
    runtime, executable = parameters["runtime"], preflight.executable(unit)
    mapped = list(procfs.mapped_files(unit.main_pid)) if unit.main_pid and runtime != "native" else []
    if runtime == "auto":
        runtime = aids.detect(executable, mapped)
    return aids.additions(runtime, parameters["runtime_without"], executable, mapped)


def present(module: AnsibleModule, unit: service.Service) -> dict[str, Any]:
    """Write what is missing, and say whether the unit has to be restarted for it."""
    wanted = prepare(module.params, unit, module.check_mode)
    changes = Changes(module.check_mode)
    if wanted.owner:
        spool_directory.make(changes, wanted.spool, wanted.owner)
    drop_in_files.write(changes, unit.name, wanted)
    drop_in_files.reload(changes, unit)
    if unit.text["KillMode"] in rollback.SPARING:
        module.warn(
            f"{unit.name} has KillMode={unit.text['KillMode']}: processes that outlive its restart go on as they are,"
            " and after a rollback some may still run under the profiler until you end them"
        )
    return {
        "changed": changes.any,
        "diff": changes.diff(),
        "drop_in": f"{wanted.directory}/{drop_in.NAME}",
        "environment": wanted.injection.shown(),
        "active": unit.is_running,
        # A restart would break a job off and do its work twice; its next run has what is written.
        "restart_needed": unit.is_running and unit.text["Type"] != "oneshot" and not _carries_everything(unit, wanted),
        "spool": wanted.spool,
    }


def _carries_everything(unit: service.Service, wanted: drop_in_files.WantedFiles) -> bool:
    """Whether every process that could have started under the drop-in did."""
    leaders = [unit.main_pid] if unit.main_pid else unit.pids()
    try:
        return bool(leaders) and all(_carries(pid, wanted.injection) for pid in leaders)
    except procfs.ProcessGone:
        return False


def _carries(pid: int, injection: drop_in.Injection) -> bool:
    """The library may have been missing when the process started, or may have been replaced since."""
    mapped = not injection.library or service.maps_file(pid, injection.library)
    return mapped and service.carries(pid, injection.environment)


def absent(module: AnsibleModule, unit: service.Service) -> dict[str, Any]:
    """Remove our files only, and say whether processes of the unit still run under them."""
    changes = Changes(module.check_mode)
    found = drop_in_files.installed(unit.name)
    carrying = rollback.take_out(changes, unit)
    spool = places.spool_of(unit.name)
    if module.params["purge_spool"]:
        # In check mode, the restart that a playbook makes before this has not happened.
        in_use = bool(carrying) and not module.check_mode
        remaining = listing.remaining(places.SPOOLS, unit.name)
        spool_directory.purge(changes, spool, in_use, [] if module.params["discard_dumps"] else remaining.waiting)
        if remaining.lost:
            name, reason = next(iter(remaining.lost.items()))
            module.warn(
                f"{spool} was removed with {len(remaining.lost)} dumps that could never be collected, the first was"
                f" {name}: {reason}"
            )
    return {
        "changed": changes.any,
        "diff": changes.diff(),
        "drop_in": found[0] if found else f"{places.drop_ins_of(unit.name, False)}/{drop_in.NAME}",
        "active": unit.is_running,
        "restart_needed": unit.is_running and bool(carrying),
        "spool": spool,
    }


def main() -> NoReturn:
    """Module entry point."""
    module = AnsibleModule(
        argument_spec={
            "unit": {"type": "str", "required": True},
            "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
            "mode": {"type": "str", "choices": ["profile", "swap"], "default": "profile"},
            "arena_max": {"type": "int", "default": 0},
            "library": {"type": "path"},
            "malloc_conf": {"type": "dict", "default": {}},
            "version": {"type": "str"},
            "agent": {"type": "path"},
            "agent_settings": {
                "type": "dict",
                "options": {
                    "executable": {"type": "path"},
                    "start": {"type": "str", "choices": ["sampling", "dormant"], "default": "sampling"},
                    "unwinder": {"type": "str", "choices": ["hybrid", "fp", "builtin"], "default": "hybrid"},
                    "children": {"type": "bool", "default": False},
                    **{name: {"type": "int"} for name in AGENT_NUMBERS},
                },
            },
            "runtime": {"type": "str", "choices": ["auto", *aids.NAMES], "default": "native"},
            "runtime_without": {"type": "list", "elements": "str", "choices": list(aids.AID_NAMES), "default": []},
            "until_reboot": {"type": "bool", "default": False},
            "min_free_mib": {"type": "int", "default": 512},
            "purge_spool": {"type": "bool", "default": False},
            "discard_dumps": {"type": "bool", "default": False},
        },
        supports_check_mode=True,
    )
    name = module.params["unit"]
    few_arenas = module.params["mode"] == "swap" and module.params["arena_max"] > 0
    if module.params["state"] == "present" and not module.params["library"] and not few_arenas:
        module.fail_json(msg="library is required if state is present")
    try:
        unit = service.load(name)
        name = unit.name
        result = present(module, unit) if module.params["state"] == "present" else absent(module, unit)
    except Refusal as refusal:
        module.fail_json(msg=f"{name} is unchanged: {refusal}", unit=name, refusal=refusal.reason)
    except (OffheapError, OSError) as error:
        module.fail_json(msg=str(error), unit=name)
    module.exit_json(unit=name, **result)


if __name__ == "__main__":
    main()
