# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Filter: what a rollout has done, and what comes next."""

from __future__ import annotations

DOCUMENTATION = r"""
name: next_steps
short_description: Say what is profiled where, and what to do next
version_added: 1.1.0
author:
  - Offheap contributors (@offheap)
description:
  - The end of the playbook C(enable_profiling), a line each.
positional: _input, inventories
options:
  _input:
    description: By host, what M(offheap.profiler.unit_enable) has returned as C(units).
    type: dict
    required: true
  inventories:
    description: The inventories of the run, for the commands that come next.
    type: list
    elements: str
    required: true
"""

EXAMPLES = r"""
- name: Say what comes next
  ansible.builtin.debug:
    msg: "{{ {inventory_hostname: enabled.units} | offheap.profiler.next_steps(ansible_inventory_sources) }}"
"""

RETURN = r"""
_value:
  description: The lines. Empty if nothing is profiled.
  type: list
  elements: str
  sample: [web.service is profiled on app1]
"""

import math
import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import Any

_NAMED = 5  # of more hosts, only the number is told


def next_steps(by_host: Mapping[str, Sequence[Mapping[str, Any]]], inventories: Sequence[str]) -> list[str]:
    """``{'app1': [...]}`` as ``['web.service is profiled on app1', ...]``."""
    hosts: dict[str, list[str]] = {}
    settings = []
    for host, units in by_host.items():
        for unit in units:
            if not unit["problem"]:
                hosts.setdefault(unit["unit"], []).append(host)
                settings.append(unit["environment"])
    if not hosts:
        return []
    lines = [
        f"{unit} is profiled on {', '.join(on) if len(on) <= _NAMED else f'{len(on)} hosts'}"
        for unit, on in sorted(hosts.items())
    ]
    play = shlex.join(["ansible-playbook", *(word for name in inventories for word in ("-i", name))])
    with_agent = [one for one in settings if "OFFHEAP_START" in one]
    every = [str(one.get("OFFHEAP_DUMP_SECONDS", "")) for one in with_agent]
    seconds = max((int(text) for text in every if text.isdecimal()), default=0)
    if any(one["OFFHEAP_START"] == "dormant" for one in with_agent):
        lines.append(f"Sampling is off. To begin: {play} offheap.profiler.switch_profiling -e state=on")
    elif seconds:
        lines.append(f"First verdict in {math.ceil(seconds / 30)} min, sooner where memory grows.")
    if with_agent:
        dump = f"{play} offheap.profiler.switch_profiling -e state=dump"
        lines.append(f"For one now, take two dumps, a minute apart: {dump}")
    lines.append(f"Then: {play} offheap.profiler.collect_profiles, and report_leaks.")
    return [*lines, "How long a slow leak takes, such as one of 60 MiB a day: fab wait 60MiB"]


class FilterModule:
    """The class that Ansible looks for in a file of filters."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """The filter by its name."""
        return {"next_steps": next_steps}
