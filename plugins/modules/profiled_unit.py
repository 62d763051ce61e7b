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
  - offheap.profiler.injection
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
  become: true

- name: Take it out again
  offheap.profiler.profiled_unit:
    unit: frontend
    state: absent
  become: true
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

import contextlib
from typing import Any, NoReturn

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.offheap.profiler.plugins.module_utils.formats.errors import OffheapError
from ansible_collections.offheap.profiler.plugins.module_utils.host import places
from ansible_collections.offheap.profiler.plugins.module_utils.spool import listing
from ansible_collections.offheap.profiler.plugins.module_utils.unit import (
    at_work,
    drop_in,
    drop_in_files,
    enabling,
    rollback,
    service,
    spool_directory,
)
from ansible_collections.offheap.profiler.plugins.module_utils.unit.changes import Changes
from ansible_collections.offheap.profiler.plugins.module_utils.unit.refusal import Refusal

_PATIENCE = 120.0  # for another run that changes units of this host


def present(module: AnsibleModule, unit: service.Service) -> dict[str, Any]:
    """Write what is missing, and say whether the unit has to be restarted for it."""
    wanted = enabling.prepare(module.params, unit, module.check_mode)
    changes = Changes(module.check_mode)
    enabling.write(changes, unit, wanted)
    for warning in enabling.warnings(unit, wanted):
        module.warn(warning)
    return {
        "changed": changes.any,
        "diff": changes.diff(),
        "drop_in": wanted.drop_in,
        "environment": wanted.injection.shown(),
        "active": unit.is_running,
        "restart_needed": enabling.restart_needed(unit, wanted),
        "spool": wanted.spool,
    }


def absent(module: AnsibleModule, unit: service.Service) -> dict[str, Any]:
    """Remove our files only, and say whether processes of the unit still run under them."""
    changes = Changes(module.check_mode)
    found = drop_in_files.installed(unit.name)
    carrying = rollback.take_out(changes, unit)
    spool = places.spool_of(unit.name)
    if module.params["purge_spool"]:
        # In check mode, the restart that a playbook makes before this has not happened.
        in_use = bool(carrying) and not module.check_mode
        for name in unit.names:
            _purge(module, changes, name, in_use)
    return {
        "changed": changes.any,
        "diff": changes.diff(),
        "drop_in": found[0] if found else f"{places.drop_ins_of(unit.name, False)}/{drop_in.NAME}",
        "active": unit.is_running,
        "restart_needed": unit.is_running and bool(carrying),
        "spool": spool,
    }


def _purge(module: AnsibleModule, changes: Changes, unit: str, in_use: bool) -> None:
    spool, remaining = places.spool_of(unit), listing.remaining(places.SPOOLS, unit)
    spool_directory.purge(changes, spool, in_use, [] if module.params["discard_dumps"] else remaining.waiting)
    if remaining.lost:
        name, reason = next(iter(remaining.lost.items()))
        module.warn(
            f"{spool} was removed with {len(remaining.lost)} dumps that could never be collected, the first was"
            f" {name}: {reason}"
        )


def main() -> NoReturn:
    """Module entry point."""
    module = AnsibleModule(
        argument_spec={
            "unit": {"type": "str", "required": True},
            "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
            **enabling.OPTIONS,
            "purge_spool": {"type": "bool", "default": False},
            "discard_dumps": {"type": "bool", "default": False},
        },
        supports_check_mode=True,
    )
    name = module.params["unit"]
    wanted = module.params
    if wanted["state"] == "present":
        try:
            enabling.preloaded(wanted)
        except ValueError as error:
            module.fail_json(msg=f"{error}.")
    try:
        with contextlib.nullcontext() if module.check_mode else at_work.alone(_PATIENCE):
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
