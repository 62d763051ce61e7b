# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Whether root would write dumps into the spool of another user, who could put a link in their place.

Commands of a unit with ``+`` or ``!`` in front run as root, in the environment of the service (systemd.service(5),
"Command lines"). A jemalloc that dumps by itself does so in each of them. The agent acts in one program only, and
follows no link.

This module is private to the collection.
"""

from __future__ import annotations

import re
from typing import Mapping, Sequence

from ansible_collections.offheap.profiler.plugins.module_utils.formats import malloc_conf
from ansible_collections.offheap.profiler.plugins.module_utils.host.systemd import Assignment
from ansible_collections.offheap.profiler.plugins.module_utils.unit import programs
from ansible_collections.offheap.profiler.plugins.module_utils.unit.refusal import Refusal
from ansible_collections.offheap.profiler.plugins.module_utils.unit.service import Service

_COMMANDS = re.compile(r"Exec(Condition|StartPre|Start|StartPost|Reload|Stop|StopPost)\Z")
_PREFIX = re.compile(r"[-@:|+!]*")
# With PermissionsStartOnly, which systemd no longer documents, only this one runs as the service's user.
_MAIN = "ExecStart"
_TRUE = ("1", "yes", "y", "true", "t", "on")


def check(service: Service, own: Sequence[Assignment], environment: Mapping[str, str]) -> None:
    """``own`` are the unit's assignments, ``environment`` holds our MALLOC_CONF, if any. Raises Refusal."""
    dumping = options_that_dump(environment)
    of_root = service.text["DynamicUser"] != "yes" and programs.owner(service).uid == 0
    if of_root or not dumping:
        return
    for command in _as_root(own):
        raise Refusal(
            "root-command",
            f"{command.path} runs a command of {service.name} as root ({command.key}=), and with {dumping[0]} jemalloc"
            " dumps in it too: the service's user could make root write elsewhere through a link in the spool. Profile"
            " with the agent and without this option, or take the + or ! from the command",
        )


def options_that_dump(environment: Mapping[str, str]) -> list[str]:
    """The options with which jemalloc takes dumps by itself; where it does, it follows links."""
    options = malloc_conf.parse(environment.get("MALLOC_CONF", ""))
    dumping = [name for name in ("prof_final", "prof_gdump") if options.get(name) == "true"]
    return dumping + ([] if options.get("lg_prof_interval", "-1").startswith("-") else ["lg_prof_interval"])


def _as_root(own: Sequence[Assignment]) -> list[Assignment]:
    """The commands in force that run as root."""
    commands: dict[str, list[Assignment]] = {}
    start_only = False
    for assignment in own:
        if assignment.key == "PermissionsStartOnly":
            start_only = assignment.value.lower() in _TRUE
        elif _COMMANDS.match(assignment.key):
            if assignment.value:
                commands.setdefault(assignment.key, []).append(assignment)
            else:
                commands.pop(assignment.key, None)
    return [
        command
        for key, found in commands.items()
        for command in found
        if (start_only and key != _MAIN) or _is_privileged(command.value)
    ]


def _is_privileged(value: str) -> bool:
    """``!!`` is without effect since Linux 4.3, which has ambient capabilities."""
    prefix = _PREFIX.match(value)
    return prefix is not None and ("+" in prefix.group() or prefix.group().count("!") == 1)
