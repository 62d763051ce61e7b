#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Watch a unit for a while, after a restart if asked: does it stay up, and does it run with, or without, a library?"""

from __future__ import annotations

DOCUMENTATION = r"""
module: unit_health
short_description: Check that a systemd unit stays up, after a restart if asked, and what its processes have mapped
version_added: 0.1.0
description:
  - Waits until the unit is active and its processes have O(mapped) in their memory, or nothing of ours (O(clean)),
    and then watches it for O(seconds).
  - C(systemctl restart) succeeds for a C(Type=simple) service that dies a moment later, and the loader skips a library
    that it cannot preload with just a line in the journal. So this module looks at the processes themselves.
  - Fails if the unit stops, is restarted (by systemd or anybody), or its processes are not as required. The message
    ends with the unit's last lines in the journal.
author:
  - Offheap contributors (@offheap)
extends_documentation_fragment:
  - offheap.profiler.attributes
attributes:
  check_mode:
    support: full
    details: Changes nothing but what O(restart) asks for; in check mode the unit is neither restarted nor watched then.
  diff_mode:
    support: none
  idempotent:
    support: partial
    details: With O(restart=true), each run restarts the unit.
  platform:
    support: full
    platforms: linux
options:
  unit:
    description: The service unit. You may leave out C(.service).
    type: str
    required: true
  seconds:
    description: How long the unit must stay up, in seconds.
    type: int
    default: 15
  timeout:
    description: How long to wait until the unit is active and its processes are as required, in seconds.
    type: int
    default: 60
  mapped:
    description: A library that the unit's main process must have mapped (without one, each of its processes).
    type: path
  clean:
    description: Require that no process of the unit runs under our preload or has a file below C(/opt/offheap) mapped.
    type: bool
    default: false
  restart:
    description:
      - Restart the unit first. The restart takes part of O(timeout), so that a unit that never reports to be ready
        fails here instead of blocking the play.
    type: bool
    default: false
  dump:
    description:
      - While the unit is watched, make the agent of each of its processes write a dump, and read it back. Fails if none
        answers, or if one cannot write, with what the agent said about it.
    type: bool
    default: false
  best_effort:
    description: Only warn if no dump can be had from a unit that runs well (O(dump)), and return RV(unseen).
    type: bool
    default: false
seealso:
  - module: offheap.profiler.profiled_unit
"""

EXAMPLES = r"""
- name: Restart the service, wait until it runs under jemalloc, and see that it stays up
  offheap.profiler.unit_health:
    unit: frontend
    restart: true
    mapped: /opt/offheap/jemalloc/5.3.0-4f2c8a1e/lib/libjemalloc.so.2
    dump: true
    seconds: 30
  become: true
"""

RETURN = r"""
unit:
  description: The canonical name of the unit.
  type: str
  returned: always
  sample: frontend.service
pids:
  description: Processes of the unit at the end.
  type: list
  elements: int
  returned: success
dumps:
  description: Paths of the dumps that were written.
  type: list
  elements: str
  returned: success
  sample: [/var/lib/offheap/frontend.service/jeprof.1f3a9c20-48213507.4711.0.m0.heap]
unseen:
  description: Why no dump could be had; empty if all went well.
  type: str
  returned: success
watched:
  description: How many seconds the unit was watched.
  type: int
  returned: success
"""

from typing import Any, NoReturn

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.offheap.profiler.plugins.module_utils.agent import first_dump
from ansible_collections.offheap.profiler.plugins.module_utils.formats import unit_name
from ansible_collections.offheap.profiler.plugins.module_utils.formats.errors import OffheapError
from ansible_collections.offheap.profiler.plugins.module_utils.unit import health, service


def look(module: AnsibleModule, unit: service.Service, seen: dict[str, Any]) -> None:
    """Take a first dump, and note in ``seen`` what came of it."""
    seen["dumps"], seen["unseen"] = first_dump.see(unit, module.params["best_effort"])
    if seen["unseen"]:
        module.warn(first_dump.sentence(unit.name, seen["dumps"], seen["unseen"]))


def main() -> NoReturn:
    """Module entry point."""
    module = AnsibleModule(
        argument_spec={
            "unit": {"type": "str", "required": True},
            "seconds": {"type": "int", "default": 15},
            "timeout": {"type": "int", "default": 60},
            "mapped": {"type": "path"},
            "clean": {"type": "bool", "default": False},
            "restart": {"type": "bool", "default": False},
            "dump": {"type": "bool", "default": False},
            "best_effort": {"type": "bool", "default": False},
        },
        supports_check_mode=True,
    )
    wanted: dict[str, Any] = module.params
    name = wanted["unit"]
    seen: dict[str, Any] = {"dumps": [], "unseen": ""}
    try:
        name = unit_name.service(name)
        if wanted["restart"] and module.check_mode:
            module.exit_json(changed=True, unit=name, pids=[], watched=0)
        unit = health.watch(
            name,
            wanted["mapped"],
            wanted["clean"],
            wanted["seconds"],
            wanted["timeout"],
            wanted["restart"],
            (lambda unit: look(module, unit, seen)) if wanted["dump"] and not module.check_mode else None,
        )
    except health.Unhealthy as error:
        module.fail_json(msg=health.with_journal(name, error), unit=name)
    except (OffheapError, OSError) as error:
        module.fail_json(msg=str(error), unit=name)
    module.exit_json(changed=wanted["restart"], unit=unit.name, pids=unit.pids(), watched=wanted["seconds"], **seen)


if __name__ == "__main__":
    main()
