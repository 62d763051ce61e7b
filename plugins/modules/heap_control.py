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
  - After the dump of a HotSpot JVM it also asks for a map of its compiled code (C(Compiler.perfmap), JDK 17 and up), so
    that Java methods have names later. This does not need C(jcmd).
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
    details: V(dump), V(holders), V(trim) and V(reset) act each time.
  platform:
    support: full
    platforms: linux
options:
  unit:
    description: The service unit. You may leave out C(.service).
    type: str
    required: true
  command:
    description:
      - V(status) returns what the agent does and whether anything is wrong.
      - V(dump) takes a dump and waits until it is complete.
      - V(holders) takes a dump, and looks for two seconds at most who holds what lives in the process, which a report
        then says of each suspect. The look reads the memory of the process, and brings no content of it.
      - V(trim) takes a dump, has the allocator give back all memory that it keeps for later (under glibc by
        C(malloc_trim)), and takes another dump, so that the archive has both. An experiment that says how much of the
        growth is only kept, without a restart. Threads that allocate may wait meanwhile, some hundred milliseconds for
        each GiB.
      - V(activate) and V(deactivate) switch sampling.
      - V(reset) forgets all samples. It is refused under a jemalloc that the role C(offheap.profiler.jemalloc) did not
        build, since it could crash the service.
      - V(stats) returns the memory statistics of the process and its allocator.
      - V(schedule) changes O(dump_seconds), O(stats_seconds), O(keep_files) and O(keep_bytes).
    type: str
    choices: [status, dump, holders, trim, activate, deactivate, reset, stats, schedule]
    default: status
  pid:
    description: Talk only to this process. By default, to all processes of the unit that have an agent.
    type: int
  dump_seconds:
    description: For V(schedule), seconds between two dumps. V(0) takes none.
    type: int
  stats_seconds:
    description: For V(schedule), seconds between two records of memory statistics. V(0) writes none.
    type: int
  keep_files:
    description: For V(schedule), how many dumps the spool may hold.
    type: int
  keep_bytes:
    description: For V(schedule), how many bytes of dumps the spool may hold.
    type: int
  perf_map:
    description: With V(dump), V(holders) and V(trim), also ask a JVM for the map of its compiled code.
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
  become: true
  register: dumped

- name: Switch sampling on, without a restart
  offheap.profiler.heap_control:
    unit: frontend
    command: activate
  become: true
"""

RETURN = r"""
unit:
  description: The canonical name of the unit.
  type: str
  returned: always
  sample: frontend.service
processes:
  description: What each agent answered, unchanged.
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
  description: For V(dump), V(holders) and V(trim), the dumps that were written; of V(trim) the second.
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
      description: Number of sampled objects in the dump's header, not unbiased.
      type: int
    bytes:
      description: Their size in bytes, not unbiased.
      type: int
    rss_before:
      description: For V(trim), how many bytes were resident before it.
      type: int
    rss_after:
      description: For V(trim), how many bytes were resident after it.
      type: int
    perf_map:
      description: The map of compiled code that belongs to it.
      type: str
    note:
      description: Why there is no map, if one was expected.
      type: str
"""

from typing import NoReturn

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.offheap.profiler.plugins.module_utils.agent import commands
from ansible_collections.offheap.profiler.plugins.module_utils.formats import unit_name
from ansible_collections.offheap.profiler.plugins.module_utils.formats.errors import OffheapError


def main() -> NoReturn:
    """Module entry point."""
    module = AnsibleModule(
        argument_spec={
            "unit": {"type": "str", "required": True},
            "command": {
                "type": "str",
                "choices": [
                    "status",
                    "dump",
                    "holders",
                    "trim",
                    "activate",
                    "deactivate",
                    "reset",
                    "stats",
                    "schedule",
                ],
                "default": "status",
            },
            "pid": {"type": "int"},
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
        unit = unit_name.service(unit)
        result = commands.control(module.params, unit, module.check_mode)
    except (OffheapError, OSError) as error:
        module.fail_json(msg=str(error), unit=unit)
    module.exit_json(unit=unit, **result)


if __name__ == "__main__":
    main()
