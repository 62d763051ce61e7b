#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Take the profiler out of all units of a host, each on its own."""

from __future__ import annotations

DOCUMENTATION = r"""
module: unit_rollback
short_description: Take the profiler out of all units of a host, each on its own
version_added: 0.1.0
description:
  - Removes our drop-ins, and restarts each unit that runs under them. Needs to know nothing about the run that enabled
    profiling, because it finds our files on the host.
  - A unit that cannot be rolled back does not keep the others under the profiler. The module succeeds all the same and
    tells in RV(problems) what is not done, why, and what to do, so that a playbook can print the whole list first.
  - A unit that could not start again is not stopped for a restart. One that a restart of this module did stop, and
    that did not come up, is started by the next run. A job (C(Type=oneshot)) is never broken off.
  - What a restart takes along, such as units with C(Requires=) on this one, runs again afterwards, or is named.
  - Waits until another run that changes units of the host has ended, even one whose controller was interrupted, for
    O(timeout) seconds at most.
  - Leaves the dumps where they are.
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
  units:
    description: The units to roll back. By default, all of which something of ours is on the host.
    type: list
    elements: str
  always_restart:
    description:
      - Restart these units even if nothing of them runs under the profiler, for example because they have crashed.
      - Needs O(units).
    type: bool
    default: false
  seconds:
    description: How long a unit must stay up after its restart, in seconds.
    type: int
    default: 3
  timeout:
    description: How long the restart of one unit may take, in seconds.
    type: int
    default: 120
seealso:
  - module: offheap.profiler.profiled_unit
  - module: offheap.profiler.unit_health
"""

EXAMPLES = r"""
- name: Take the profiler out of every unit
  offheap.profiler.unit_rollback:
  become: true
  register: rolled_back

- name: Fail if a unit is not rolled back
  ansible.builtin.fail:
    msg: "{{ rolled_back.problems | join(' ') }}"
  when: rolled_back.problems | length > 0
"""

RETURN = r"""
units:
  description: What was done, by unit.
  type: list
  elements: dict
  returned: success
  contains:
    unit:
      description: The unit.
      type: str
    restarted:
      description: Whether its restart was begun.
      type: bool
    problem:
      description: What is not done, why, and what to do. Empty if all is done.
      type: str
    summary:
      description: The outcome in one sentence.
      type: str
problems:
  description: The summaries of the units that are not rolled back.
  type: list
  elements: str
  returned: success
stays:
  description: The places of ours that still hold something, which is what was installed, and the spools.
  type: list
  elements: dict
  returned: success
  contains:
    path:
      description: The directory.
      type: str
    files:
      description: How many files it has.
      type: int
    dumps:
      description: How many of them are dumps.
      type: int
    size:
      description: The room that they take, in bytes.
      type: int
"""

import contextlib
from typing import NoReturn

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.offheap.profiler.plugins.module_utils.unit import at_work, rollback, what_stays


def main() -> NoReturn:
    """Module entry point."""
    module = AnsibleModule(
        argument_spec={
            "units": {"type": "list", "elements": "str"},
            "always_restart": {"type": "bool", "default": False},
            "seconds": {"type": "int", "default": 3},
            "timeout": {"type": "int", "default": 120},
        },
        required_if=[("always_restart", True, ("units",))],
        supports_check_mode=True,
    )
    wanted = module.params
    try:
        with contextlib.nullcontext() if module.check_mode else at_work.alone(wanted["timeout"]):
            units = rollback.units() if wanted["units"] is None else wanted["units"]
            done = rollback.roll_back_each(
                units, module.check_mode, wanted["always_restart"], wanted["seconds"], wanted["timeout"]
            )
    except OSError as error:
        module.fail_json(msg=f"the units that were profiled cannot be found: {error}")
    except at_work.SomebodyAtWork as error:
        module.fail_json(msg=str(error))
    module.exit_json(
        changed=any(one.changes.any for one in done),
        diff=[part for one in done for part in one.changes.diff()],
        units=[
            {"unit": one.unit, "restarted": one.restarted, "problem": one.problem, "summary": one.sentence()}
            for one in done
        ],
        problems=[one.sentence() for one in done if one.problem],
        stays=[place._asdict() for place in what_stays.what_stays()],
    )


if __name__ == "__main__":
    main()
