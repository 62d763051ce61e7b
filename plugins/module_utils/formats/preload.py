# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""The variables by which a process starts under the profiler, whether a unit's drop-in or a pod's template sets them.

What the agent's mean: roles/jemalloc/files/agent/README.md.

This module is private to the collection.
"""

from __future__ import annotations

from typing import Any, Mapping

from ansible_collections.offheap.profiler.plugins.module_utils.formats import dump_name, malloc_conf

LD_PRELOAD, MALLOC_CONF = "LD_PRELOAD", "MALLOC_CONF"
UNIT = "OFFHEAP_UNIT"
EXECUTABLE = "OFFHEAP_EXECUTABLE"
CHILDREN = "OFFHEAP_CHILDREN"
UNSET = "OFFHEAP_UNSET"
SOCKETS = "OFFHEAP_SOCKET_DIR"
#: settings of the agent that are numbers; each is the variable OFFHEAP_<NAME>
NUMBERS = ("start_delay", "dump_seconds", "dump_growth", "stats_seconds", "keep_files", "keep_bytes", "minimum_free")
#: options where the kernel backs all memory with huge pages: there a few living objects keep 2 MiB resident
WITHOUT_HUGE_PAGES: Mapping[str, malloc_conf.Value] = {"thp": "never", "metadata_thp": "disabled"}


def options_of_profiler(
    options: Mapping[str, malloc_conf.Value], spool: str, by_agent: bool, start: str = ""
) -> dict[str, malloc_conf.Value]:
    """Options for a jemalloc that profiles into ``spool``, for ``malloc_conf.render``.

    ``by_agent``: the agent switches sampling on, after static initialisation. ``start`` goes into the names of dumps,
    to tell one start from another, which the agent does by itself.
    """
    merged: dict[str, malloc_conf.Value] = {"prof": True, **options}
    merged.update(prof=True, prof_prefix=f"{spool}/{dump_name.PREFIX}{start}")
    if by_agent:
        merged["prof_active"] = False
    return merged


def variables_of_agent(unit: str, program: str, settings: Mapping[str, Any], children: bool) -> dict[str, str]:
    """The agent's own: it acts in processes of ``program``, and in those that such a one forks with ``children``.

    ``settings`` are agent_settings of the modules that enable a unit; what they lack is the agent's default.
    """
    return {
        UNIT: unit,
        EXECUTABLE: program,
        "OFFHEAP_START": settings.get("start") or "sampling",
        "OFFHEAP_UNWINDER": settings.get("unwinder") or "hybrid",
        **({CHILDREN: "1"} if children else {}),
        **({"OFFHEAP_DUMP_PRESSURE": "1"} if settings.get("dump_pressure") else {}),
        **{f"OFFHEAP_{name.upper()}": str(settings[name]) for name in NUMBERS if settings.get(name) is not None},
    }
