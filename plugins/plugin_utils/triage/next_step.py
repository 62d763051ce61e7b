# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""What a verdict's next step names: commands for a unit, and what to do in their place for a container."""

from __future__ import annotations

import json
import math
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from . import look
from .growth import Growth

_PLAY = "ansible-playbook {inventory}offheap.profiler.{play} -l {host}"
# What a shell, and JSON, take as it is: a host chooses these paths.
_PLAIN_PATH = re.compile(r"/[A-Za-z0-9_.+/-]+\Z")
_PROFILED = "it is profiled, so {collect}, and then offheap.profiler.report_leaks"
_TRIM = "see what stays after a trim, which needs no restart: jcmd {pid} System.trim_native_heap, and {triage}; or "
_OF_A_UNIT = {
    "enable": "{enable}",
    "swap": "{enable} -e profiled_service_mode=swap",
    "arena_max": "add -e profiled_service_swap_arena_max=2",
    "objects": '{enable} -e \'{{"profiled_service_runtime_with": ["objects"]}}\'',
}
_OF_A_CONTAINER = {
    "enable": "fab pod brings the profiler into a workload of Kubernetes; docs/containers.md says how others get it",
    "swap": "by LD_PRELOAD, in its image or its workload",
    "arena_max": "as a variable of the container",
    "objects": "PYTHONMALLOC=malloc as a variable of the container, while it is profiled",
}


def words(growth: Growth, host: str, inventories: Sequence[str] = ()) -> dict[str, str]:
    """By what a rule calls them: ``host``, ``unit`` and ``pid``, what was looked at; ``triage``, the command that looks
    again; ``limit``, the one that gives a unit a limit that suffices; ``enable``, the one that profiles it (of several
    processes, the program that grows); ``profile``, that or, where it is profiled, those that say what came of it;
    ``trim``, how a JVM gives back what malloc keeps; ``swap``, how it gets another malloc; ``arena_max``, how fewer
    arenas; ``objects``, how a profile shows Python's objects."""
    container = look.container(growth.name)
    process = growth.process
    pid = str(process.pid if process else 0)
    triage = look_again([growth.name], host, inventories)
    enable = play("enable_profiling", {"offheap_units": [_named(growth)]}, host, inventories)
    ways = {name: way.format(enable=enable) for name, way in (_OF_A_CONTAINER if container else _OF_A_UNIT).items()}
    collect = play("collect_profiles", {}, host, inventories)
    collects = process is not None and process.profiled and not container
    return {
        "host": host,
        "unit": growth.name,
        "pid": pid,
        "triage": triage,
        "trim": _TRIM.format(pid=pid, triage=f"{triage} -e triage_watch=0") if process and process.jvm else "",
        "limit": "" if container else _enough(growth),
        "profile": _PROFILED.format(collect=collect) if collects else ways["enable"],
        **ways,
    }


def look_again(names: Iterable[str], host: str, inventories: Sequence[str]) -> str:
    """The command that looks again at units and containers on a host, by the names of their samples."""
    containers = {name: look.container(name) for name in sorted(names)}
    asked: dict[str, list[Any]] = {
        "offheap_units": [name for name, container in containers.items() if not container],
        "offheap_containers": [container for container in containers.values() if container],
    }
    return play("triage", {variable: values for variable, values in asked.items() if values}, host, inventories)


def play(name: str, variables: Mapping[str, list[Any]], host: str, inventories: Sequence[str]) -> str:
    """The command that runs a playbook on a host."""
    inventory = "".join(f"-i {shlex.quote(one)} " for one in inventories)
    command = _PLAY.format(inventory=inventory, play=name, host=host)
    return f"{command} -e '{json.dumps(variables)}'" if variables else command


def _enough(growth: Growth) -> str:
    """The command that raises a unit's limit to what a full Java heap and all else take."""
    if growth.limit is None or not growth.too_much:
        return ""
    least = math.ceil((growth.limit + growth.too_much) / (1 << 20))
    return f": systemctl set-property {shlex.quote(growth.name)} MemoryMax={least}M"


def _named(growth: Growth) -> Any:
    program = growth.process.exe if growth.process and growth.processes > 1 else ""
    if not _PLAIN_PATH.match(program):
        return growth.name
    return {"name": growth.name, "agent_settings": {"executable": program}}
