#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Watch a unit for a while: does it stay up, and does it run with, or without, a library?"""

from __future__ import annotations

DOCUMENTATION = r"""
module: unit_health
short_description: Check that a systemd unit stays up, and what its processes have mapped
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
    details: Changes nothing in any mode.
  diff_mode:
    support: none
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
seealso:
  - module: offheap.profiler.profiled_unit
"""

EXAMPLES = r"""
- name: Wait until the service runs under jemalloc and stays up
  offheap.profiler.unit_health:
    unit: frontend
    mapped: /opt/offheap/jemalloc/5.3.0-4f2c8a1e/lib/libjemalloc.so.2
    seconds: 30
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
watched:
  description: How many seconds the unit was watched.
  type: int
  returned: success
"""

import re
import time
from typing import Any, NoReturn

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.offheap.profiler.plugins.module_utils.formats import command_line, unit_name
from ansible_collections.offheap.profiler.plugins.module_utils.formats.errors import OffheapError
from ansible_collections.offheap.profiler.plugins.module_utils.host import procfs
from ansible_collections.offheap.profiler.plugins.module_utils.unit import service

_POLL_SECONDS = 0.25
_JOURNAL_LINES = "15"


class Unhealthy(OffheapError):
    """The unit does not run as it should."""


def obstacle(unit: service.Service, mapped: str | None, clean: bool) -> str | None:
    """Why the unit is not, or not yet, as requested; None if it is."""
    state = unit.text["ActiveState"]
    if state != "active":
        return f"it is {state} ({unit.text['SubState']}, result {unit.text['Result']})"
    pids = unit.pids()
    if mapped:
        leaders = [unit.main_pid] if unit.main_pid else pids
        without = [pid for pid in leaders if not _maps(pid, mapped)]
        if without or not leaders:
            return f"{mapped} is not mapped in its process {', '.join(map(str, without)) or '(there is none)'}"
    if clean:
        ours = service.pids_under_us(pids, unit.name)
        if ours:
            return f"its process {ours[0]} still runs under the profiler"
    return None


def _maps(pid: int, path: str) -> bool:
    try:
        return service.maps_file(pid, path)
    except procfs.ProcessGone:
        return False


def watch(name: str, mapped: str | None, clean: bool, seconds: int, timeout: int) -> service.Service:
    """Wait for the requested state, then check that it lasts.

    Raises Unhealthy with what happened.
    """
    unit = service.load(name)
    restarts = unit.restarts
    deadline = time.monotonic() + timeout
    problem = obstacle(unit, mapped, clean)
    while problem:
        if unit.text["ActiveState"] in ("failed", "inactive") or unit.restarts > restarts:
            raise Unhealthy(f"{unit.name} did not come up: {problem}")
        if time.monotonic() > deadline:
            raise Unhealthy(f"{unit.name} is not as required after {timeout} s: {problem}")
        time.sleep(_POLL_SECONDS)
        unit = service.load(name)
        problem = obstacle(unit, mapped, clean)
    started = unit.text["InvocationID"]
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS)
        unit = service.load(name)
        if unit.text["InvocationID"] != started or unit.restarts > restarts:
            raise Unhealthy(f"{unit.name} was restarted while it was watched (result {unit.text['Result']})")
        problem = obstacle(unit, mapped, clean)
        if problem:
            raise Unhealthy(f"{unit.name} did not stay up for {seconds} s: {problem}")
    return unit


def journal(module: AnsibleModule, name: str) -> list[str]:
    """The unit's last lines in the journal; empty if there is no journal to read."""
    command = ["journalctl", "--no-pager", "--output=short-iso", "--lines", _JOURNAL_LINES, "--unit", name]
    _status, output, _errors = module.run_command(command, handle_exceptions=True)
    # A JVM says what its variables set, which may be secret.
    return re.sub(r"(Picked up \w+: ).*", rf"\1{command_line.HIDDEN}", str(output)).splitlines()


def main() -> NoReturn:
    """Module entry point."""
    module = AnsibleModule(
        argument_spec={
            "unit": {"type": "str", "required": True},
            "seconds": {"type": "int", "default": 15},
            "timeout": {"type": "int", "default": 60},
            "mapped": {"type": "path"},
            "clean": {"type": "bool", "default": False},
        },
        supports_check_mode=True,
    )
    wanted: dict[str, Any] = module.params
    name = wanted["unit"]
    try:
        name = unit_name.service(name)
        unit = watch(name, wanted["mapped"], wanted["clean"], wanted["seconds"], wanted["timeout"])
    except Unhealthy as error:
        module.fail_json(msg="\n".join([f"{error}. Its journal ends with:", *journal(module, name)]), unit=name)
    except (OffheapError, OSError) as error:
        module.fail_json(msg=str(error), unit=name)
    module.exit_json(changed=False, unit=unit.name, pids=unit.pids(), watched=wanted["seconds"])


if __name__ == "__main__":
    main()
