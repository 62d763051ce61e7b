# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Bring the profiler into a unit: what it takes, what rules it out, and what is then written.

This module is private to the collection.
"""

from __future__ import annotations

import os
from typing import Any

from ansible_collections.offheap.profiler.plugins.module_utils.formats import aids, dump_name, preload
from ansible_collections.offheap.profiler.plugins.module_utils.host import places, procfs, systemd
from ansible_collections.offheap.profiler.plugins.module_utils.unit import (
    container,
    drop_in,
    drop_in_files,
    own_jemalloc,
    preflight,
    preload_obstacles,
    programs,
    rehearsal,
    resource_limits,
    root_commands,
    sandbox,
    service,
    spool_directory,
    syscall_filter,
)
from ansible_collections.offheap.profiler.plugins.module_utils.unit.changes import Changes
from ansible_collections.offheap.profiler.plugins.module_utils.unit.refusal import Refusal

_AUTO = "auto"
# A sample per 512 KiB, and the largest interval that the agent takes (roles/jemalloc/files/agent/config.c).
_LG_SAMPLE, _MOST_LG_SAMPLE = 19, 40

#: how a unit is profiled, as an argument_spec; documented in the fragment offheap.profiler.injection
OPTIONS: dict[str, dict[str, Any]] = {
    "mode": {"type": "str", "choices": ["profile", "own", "swap"], "default": "profile"},
    "allocator": {"type": "str", "choices": ["jemalloc", "own"], "default": "jemalloc"},
    "arena_max": {"type": "int", "default": 0},
    "library": {"type": "path"},
    "malloc_conf": {"type": "dict", "default": {}},
    "version": {"type": "str"},
    "agent": {"type": "path"},
    "agent_settings": {
        "type": "dict",
        "options": {
            "executable": {"type": "path", "default": _AUTO},
            "start": {"type": "str", "choices": ["sampling", "dormant"], "default": "sampling"},
            "unwinder": {"type": "str", "choices": ["hybrid", "fp", "builtin"], "default": "hybrid"},
            "children": {"type": "bool"},
            "dump_pressure": {"type": "bool", "default": False},
            **{name: {"type": "int"} for name in preload.NUMBERS},
        },
    },
    "runtime": {"type": "str", "choices": ["auto", *aids.NAMES], "default": "native"},
    "runtime_without": {"type": "list", "elements": "str", "choices": list(aids.AID_NAMES), "default": []},
    "runtime_with": {"type": "list", "elements": "str", "choices": list(aids.ASKED_NAMES), "default": []},
    "until_reboot": {"type": "bool", "default": False},
    "min_free_mib": {"type": "int", "default": 512},
    "outliving": {"type": "bool", "default": False},
}


def few_arenas(parameters: dict[str, Any]) -> bool:
    """Whether only glibc's arenas are limited, for which there is nothing to preload."""
    return bool(parameters["mode"] == "swap" and parameters["arena_max"] > 0)


def keeps_allocator(parameters: dict[str, Any]) -> bool:
    """Whether the agent alone is preloaded, which samples the allocator that is there."""
    return bool(parameters["mode"] == "profile" and parameters["allocator"] == "own")


def preloaded(parameters: dict[str, Any]) -> str | None:
    """The library that processes of the unit must have, None if nothing is preloaded.

    Raises ValueError if no option names it.
    """
    if few_arenas(parameters) or parameters["mode"] == "own":
        return None
    name = "agent" if keeps_allocator(parameters) else "library"
    if not parameters[name]:
        raise ValueError(f"{name} is required: without, there is nothing to preload")
    return str(parameters[name])


def prepare(parameters: dict[str, Any], unit: service.Service, check_mode: bool) -> drop_in_files.WantedFiles:
    """What to write for the unit, once every reason not to has been ruled out. Raises Refusal with the reason.

    ``parameters`` are OPTIONS with their values.
    """
    preflight.check_state(unit)
    _check_outliving(parameters, unit)
    if parameters["mode"] == "swap":
        return _prepare_swap(parameters, unit, check_mode)
    if parameters["mode"] == "own":
        return _prepare_own(parameters, unit)
    if unit.runs_podman:
        return _prepare_container(parameters, unit, check_mode)
    replaces = not keeps_allocator(parameters)
    library = preloaded(parameters) or ""
    own = systemd.read_assignments(unit.own_files)
    manager = systemd.manager_environment()
    _check_container(parameters, unit)
    program = _check(parameters, unit, drop_in.read_environment(own, manager, unit.name), check_mode)
    owner = None if unit.text["DynamicUser"] == "yes" else programs.owner(unit)
    spool = places.spool_of(unit.name)
    directory = places.drop_ins_of(unit.name, parameters["until_reboot"])
    agent = _agent_of(parameters, unit, program, check_mode)
    if agent:
        resource_limits.check(unit, owner.uid if owner else None)
    libraries = [library, agent.library] if agent and replaces else [library]
    opened = sandbox.lines(unit, libraries, spool) + (sandbox.socket_lines(unit) if agent else [])
    injection = drop_in.compose(
        unit.name,
        library,
        parameters["malloc_conf"],
        own,
        manager,
        opened,
        directory,
        agent,
        _aids_of(parameters, unit, program),
        defaults=drop_in.huge_page_options() if replaces else {},
    )
    root_commands.check(unit, own, injection.environment)
    if not _carries_everything(unit, injection):
        resource_limits.check_memory(unit, replaces)
        if os.path.exists(library):
            rehearsal.check(unit, program, injection.environment, own)
    writers = [owner] if owner else []
    if agent and owner and not root_commands.options_that_dump(injection.environment):
        writers = programs.writers(unit, owner, program, preload.CHILDREN in agent.variables)
    return drop_in_files.WantedFiles(directory, injection, spool, writers)


def _prepare_container(
    parameters: dict[str, Any], unit: service.Service, check_mode: bool
) -> drop_in_files.WantedFiles:
    """The same in the unit's container, whose environment is not the unit's, and whose files are inside it."""
    container.check(unit, _by_hand(parameters, unit))
    replaces = not keeps_allocator(parameters)
    if replaces and container.has_musl(unit):
        builds = {name: places.for_musl(parameters[name]) for name in ("library", "agent") if parameters[name]}
        parameters = {**parameters, **builds}
    library = preloaded(parameters) or ""
    program = _check(parameters, unit, drop_in.Environment({}, []), check_mode)
    agent = _agent_of(parameters, unit, program, check_mode)
    if agent is None:
        raise Refusal("no-agent", f"{unit.name} runs in a container, which takes the agent (jemalloc_agent: true)")
    libraries = [library, agent.library] if replaces else [library]
    directory = places.drop_ins_of(unit.name, parameters["until_reboot"])
    injection = drop_in.compose(
        unit.name,
        library,
        parameters["malloc_conf"],
        [],
        {},
        [],
        directory,
        agent,
        container.free_of(_aids_of(parameters, unit, program), unit),
        defaults=drop_in.huge_page_options() if replaces else {},
    )
    if not (check_mode or _carries_everything(unit, injection)):
        resource_limits.check_memory(unit, replaces)
        container.rehearse(unit, program, injection.environment, libraries)
    writers = programs.writers(unit, programs.Owner(0, 0), program, preload.CHILDREN in agent.variables)
    injection = container.into(injection, unit, libraries, writers[0], directory)
    return drop_in_files.WantedFiles(directory, injection, places.spool_of(unit.name), writers)


def _check_container(parameters: dict[str, Any], unit: service.Service) -> None:
    """For one that we cannot change, the refusal has what to add to its command."""
    try:
        preflight.check_container(unit)
    except Refusal as refusal:
        if refusal.reason != "container" or not preloaded(parameters):
            raise
        raise Refusal(refusal.reason, f"{refusal}. {_by_hand(parameters, unit)}") from None


def _by_hand(parameters: dict[str, Any], unit: service.Service) -> str:
    variables = preload.variables_of_agent(unit.name, "/THE/PROGRAM/INSIDE", parameters["agent_settings"] or {}, False)
    agent = drop_in.AgentSettings(parameters["agent"], variables) if parameters["agent"] else None
    return container.by_hand(unit, preloaded(parameters) or "", parameters["malloc_conf"], agent)


def _check(
    parameters: dict[str, Any], unit: service.Service, environment: drop_in.Environment, check_mode: bool
) -> str:
    """What holds for a service in a container and for any other. Returns its program. Raises Refusal."""
    replaces = not keeps_allocator(parameters)
    library = preloaded(parameters) or ""
    preflight.check_path(library)
    preflight.check_wrappers(unit, library, environment, replaces)
    preflight.check_programs(unit, library, replaces)
    program = _program_of(parameters, unit)
    _check_program(parameters, unit, program, environment)
    preflight.check_space(places.spool_of(unit.name), parameters["min_free_mib"])
    if replaces:
        preflight.check_library(library, parameters["malloc_conf"], parameters["version"], may_be_missing=check_mode)
    return program


def _prepare_swap(parameters: dict[str, Any], unit: service.Service, check_mode: bool) -> drop_in_files.WantedFiles:
    """Only the malloc: no agent, no spool."""
    own = systemd.read_assignments(unit.own_files)
    manager = systemd.manager_environment()
    arena_max = parameters["arena_max"]
    library = "" if arena_max else parameters["library"]
    options = {} if arena_max else parameters["malloc_conf"]
    if library:
        preflight.check_path(library)
    _check_container(parameters, unit)
    preflight.check_programs(unit, library)
    if library:
        environment = drop_in.read_environment(own, manager, unit.name)
        preflight.check_wrappers(unit, library, environment)
        preload_obstacles.check(unit, environment.variables, [], [library])
        preflight.check_library(library, options, parameters["version"], may_be_missing=check_mode)
    opened = sandbox.lines(unit, [library], None) if library else []
    directory = places.drop_ins_of(unit.name, parameters["until_reboot"])
    swap = drop_in.Swap(arena_max)
    injection = drop_in.compose(unit.name, library, options, own, manager, opened, directory, instead=swap)
    return drop_in_files.WantedFiles(directory, injection, places.spool_of(unit.name), [])


def _prepare_own(parameters: dict[str, Any], unit: service.Service) -> drop_in_files.WantedFiles:
    """Only the variable of the jemalloc that the program brings itself: nothing is preloaded."""
    own = systemd.read_assignments(unit.own_files)
    _check_container(parameters, unit)
    variable = own_jemalloc.check(programs.executable(unit), unit)
    owner = None if unit.text["DynamicUser"] == "yes" else programs.owner(unit)
    spool = places.spool_of(unit.name)
    preflight.check_space(spool, parameters["min_free_mib"])
    preflight.check_options(parameters["malloc_conf"])
    injection = drop_in.compose(
        unit.name,
        "",
        {**own_jemalloc.OPTIONS, **parameters["malloc_conf"]},
        own,
        systemd.manager_environment(),
        sandbox.lines(unit, [], spool),
        directory := places.drop_ins_of(unit.name, parameters["until_reboot"]),
        instead=drop_in.OwnMalloc(variable),
    )
    root_commands.check(unit, own, {preload.MALLOC_CONF: injection.environment[variable]})
    return drop_in_files.WantedFiles(directory, injection, spool, [owner] if owner else [])


def _program_of(parameters: dict[str, Any], unit: service.Service) -> str:
    """The executable of the processes that will have an agent."""
    wanted = (parameters["agent_settings"] or {}).get("executable") or _AUTO
    return programs.executable(unit) if wanted == _AUTO else str(wanted)


def _check_program(
    parameters: dict[str, Any], unit: service.Service, program: str, environment: drop_in.Environment
) -> None:
    """The program must bear the preload also where it is not the main one: its process that holds most is looked at."""
    processes = sorted(programs.of(unit, program) if unit.is_running else [], key=lambda process: -process.rss)
    replaces = not keeps_allocator(parameters)
    libraries = [parameters["library"] if replaces else "", parameters["agent"]]
    try:
        preload_obstacles.check(
            unit, environment.variables, [process.pid for process in processes[:1]], libraries, replaces
        )
        path = programs.file_of(unit, program)
        if os.path.exists(path):
            preflight.check_program(path, unit, preloaded(parameters) or "", replaces)
    except Refusal as refusal:
        main = programs.running(unit)[0]
        if program == main:
            raise
        raise Refusal(
            refusal.reason,
            f"{refusal}. It is {program} that is looked at, since it holds most of the unit's memory; to profile {main}"
            " all the same, which starts it, name that in executable of profiled_service_agent_settings",
        ) from None


def _agent_of(
    parameters: dict[str, Any], unit: service.Service, program: str, check_mode: bool
) -> drop_in.AgentSettings | None:
    """The agent with its settings as the variables that it reads."""
    library = parameters["agent"]
    if not library:
        return None
    preflight.check_path(library)
    syscall_filter.check(unit)
    if not (check_mode or os.path.exists(library)):
        raise Refusal("no-agent", f"{library} does not exist here; the role offheap.profiler.jemalloc installs it")
    wanted = parameters["agent_settings"] or {}
    children = wanted.get("children")
    if children is None:
        children = programs.has_workers(unit, program)
    return drop_in.AgentSettings(
        library,
        {
            # Such a service is a child of the process that systemd starts, and children have no agent by default.
            **preload.variables_of_agent(unit.name, program, wanted, children or unit.text["Type"] == "forking"),
            **({"OFFHEAP_MAY_UNSHARE": "1"} if syscall_filter.may_unshare(unit) else {}),
            **(_of_the_sampler(parameters, unit) if keeps_allocator(parameters) else {}),
        },
    )


def _of_the_sampler(parameters: dict[str, Any], unit: service.Service) -> dict[str, str]:
    """What MALLOC_CONF says where there is jemalloc."""
    options = dict(parameters["malloc_conf"])
    interval = str(options.pop("lg_prof_sample", _LG_SAMPLE))
    if options or not (interval.isdigit() and int(interval) <= _MOST_LG_SAMPLE):
        raise Refusal(
            "bad-option",
            "where the service keeps its allocator, malloc_conf may name lg_prof_sample (0 to"
            f" {_MOST_LG_SAMPLE}) and nothing else: no jemalloc reads it. Correct it",
        )
    return {
        "OFFHEAP_PREFIX": f"{places.spool_of(unit.name)}/{dump_name.PREFIX}",
        "OFFHEAP_LG_SAMPLE": interval,
    }


def _aids_of(parameters: dict[str, Any], unit: service.Service, program: str) -> dict[str, list[str]]:
    """What makes the frames of the unit's language runtime visible."""
    runtime = parameters["runtime"]
    processes = programs.of(unit, program) if unit.is_running and runtime != "native" else []
    mapped = list(procfs.mapped_files(max(processes, key=lambda one: one.rss).pid)) if processes else []
    if runtime == "auto":
        runtime = aids.detect(program, mapped)
    return aids.additions(runtime, parameters["runtime_without"], parameters["runtime_with"], program, mapped)


def write(changes: Changes, unit: service.Service, wanted: drop_in_files.WantedFiles) -> None:
    """Write what is missing, and let systemd read it."""
    if wanted.writers:
        spool_directory.make(changes, wanted.spool, wanted.writers)
    was_there = bool(drop_in_files.installed(unit.name))
    try:
        drop_in_files.write(changes, unit.name, wanted)
        for alias in filter(lambda name: name != unit.name, unit.names):
            drop_in_files.remove(changes, alias)  # systemd would read that one, or ours
        drop_in_files.reload(changes, unit)
    except BaseException:
        if not was_there:  # else the next start would be under it, and nobody would look
            drop_in_files.remove(Changes(check_mode=False), unit.name)
        raise


def _check_outliving(parameters: dict[str, Any], unit: service.Service) -> None:
    """What a restart does not end cannot be rolled back by one. Whoever wants that unit all the same has to say so."""
    if unit.spares_processes and unit.is_running and not parameters["outliving"]:
        raise Refusal(
            "outliving-processes",
            f"{_outliving(unit)}. Say profiled_service_outliving: true if that may be, or give the unit"
            " KillMode=control-group",
        )


def warnings(unit: service.Service, wanted: drop_in_files.WantedFiles) -> list[str]:
    """What to know of the unit before it is restarted."""
    program = wanted.injection.environment.get(preload.EXECUTABLE, "")
    return list(filter(None, [_outliving(unit), preload_obstacles.advice(program) if program else ""]))


def _outliving(unit: service.Service) -> str:
    if not unit.spares_processes:
        return ""
    return (
        f"{unit.name} has KillMode={unit.text['KillMode']}: processes that outlive its restart go on as they are,"
        " and after a rollback some may still run under the profiler until you end them"
    )


def restart_needed(unit: service.Service, wanted: drop_in_files.WantedFiles) -> bool:
    """Whether the unit runs with other settings than those written.

    Never for a job: a restart would break it off and do its work twice, and its next run has what is written.
    """
    return unit.is_running and unit.text["Type"] != "oneshot" and not _carries_everything(unit, wanted.injection)


def _carries_everything(unit: service.Service, injection: drop_in.Injection) -> bool:
    """Whether every process that could have started under the drop-in did."""
    leaders = unit.leaders()
    try:
        return bool(leaders) and all(_carries(pid, injection) for pid in leaders)
    except procfs.ProcessGone:
        return False


def _carries(pid: int, injection: drop_in.Injection) -> bool:
    """The library may have been missing when the process started, or may have been replaced since."""
    mapped = not injection.library or service.maps_file(pid, injection.library)
    return mapped and service.carries(pid, injection.environment)
