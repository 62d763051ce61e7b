#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Count which Java code is currently inside a native method."""

from __future__ import annotations

DOCUMENTATION = r"""
module: java_stacks
short_description: Count which Java code is currently inside a native method
version_added: 0.1.0
description:
  - Takes some thread dumps of a unit's JVMs over their attach sockets, and counts the stacks whose innermost frame is a
    native method, such as the one on a suspect's path.
  - A heap dump of jemalloc shows who allocated the memory that is still live. This module shows who is in the method
    now, without a restart or a profiler, so it can miss calls that are rare or short.
  - Reads only. A process that is not a HotSpot JVM gets no signal, and a JVM that does not answer in time is left
    alone. Each thread dump stops the JVM's threads for some milliseconds (more with thousands of threads).
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
    details: Changes nothing.
  platform:
    support: full
    platforms: linux
options:
  unit:
    description: The service. You may leave out C(.service).
    type: str
    required: true
  method:
    description:
      - A regular expression that must match the whole name of the native method, as C(class.method).
    type: str
    default: '.*'
  dumps:
    description: How many thread dumps to take of each JVM.
    type: int
    default: 10
  interval:
    description: Seconds between two thread dumps.
    type: float
    default: 0.5
  timeout:
    description: Seconds that a JVM may take to answer.
    type: int
    default: 10
notes:
  - Needs root, or the user that the service runs as.
seealso:
  - module: offheap.profiler.leak_report
"""

EXAMPLES = r"""
- name: See which Java code is inside zlib's inflate
  offheap.profiler.java_stacks:
    unit: frontend
    method: 'java\.util\.zip\.Inflater\.inflate.*'
  become: true
"""

RETURN = r"""
unit:
  description: The unit's full name.
  returned: always
  type: str
  sample: frontend.service
taken:
  description: Number of thread dumps taken, over all the unit's JVMs.
  returned: success
  type: int
  sample: 10
stacks:
  description: The different stacks, the most frequent first.
  returned: success
  type: list
  elements: dict
  contains:
    count:
      description: How often a thread was there, over all thread dumps.
      type: int
      sample: 7
    frames:
      description: Its Java methods, innermost first.
      type: list
      elements: str
problems:
  description: Why some JVMs of the unit gave no complete answer.
  returned: success
  type: list
  elements: str
"""

import re
import time
from collections import Counter
from typing import Any, NoReturn

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.offheap.profiler.plugins.module_utils.formats import unit_name
from ansible_collections.offheap.profiler.plugins.module_utils.formats.errors import OffheapError
from ansible_collections.offheap.profiler.plugins.module_utils.host import procfs
from ansible_collections.offheap.profiler.plugins.module_utils.runtimes import (
    hotspot_attach,
    hotspot_protocol,
    thread_dump,
)
from ansible_collections.offheap.profiler.plugins.module_utils.unit import service


def count(parameters: dict[str, Any]) -> dict[str, Any]:
    """The stacks of all of the unit's JVMs. Raises HotspotError, and SystemdError from below."""
    try:
        method = re.compile(parameters["method"])
    except re.error as error:
        raise hotspot_protocol.HotspotError(f"method is not a regular expression: {error}") from error
    unit = service.load(unit_name.service(parameters["unit"]))
    jvms, problems = _jvms(unit.pids())
    if not jvms:
        reason = f": {problems[0]}" if problems else ", or any other process" if not unit.pids() else ""
        raise hotspot_protocol.HotspotError(f"{unit.name} has no JVM that can be asked{reason}")
    found: Counter[tuple[str, ...]] = Counter()
    taken = 0
    for number in range(max(parameters["dumps"], 1)):
        if number:
            time.sleep(max(parameters["interval"], 0.0))
        for jvm in list(jvms):
            try:
                text = hotspot_attach.command(jvm, "Thread.print", parameters["timeout"])
            except OffheapError as error:
                jvms.remove(jvm)
                problems.append(str(error))
                continue
            taken += 1
            found.update(thread_dump.standing_in(text, method))
    stacks = [{"count": times, "frames": list(frames)} for frames, times in found.most_common()]
    return {"unit": unit.name, "taken": taken, "stacks": stacks, "problems": problems}


def _jvms(pids: list[int]) -> tuple[list[hotspot_protocol.Jvm], list[str]]:
    """The JVMs that can be asked, and why the others cannot; without any, why the processes are none."""
    jvms, problems, others = [], [], []
    for pid in pids:
        try:
            jvms.append(hotspot_attach.look(pid))
        except hotspot_attach.NoJvm as error:
            others.append(str(error))
        except hotspot_attach.NotHotspot as error:
            problems.append(str(error))
        except procfs.ProcessGone:
            continue
    return jvms, problems if jvms else problems + others


def main() -> NoReturn:
    """Module entry point."""
    module = AnsibleModule(
        argument_spec={
            "unit": {"type": "str", "required": True},
            "method": {"type": "str", "default": ".*"},
            "dumps": {"type": "int", "default": 10},
            "interval": {"type": "float", "default": 0.5},
            "timeout": {"type": "int", "default": 10},
        },
        supports_check_mode=True,
    )
    try:
        result = count(module.params)
    except OffheapError as error:
        module.fail_json(msg=str(error), unit=module.params["unit"])
    module.exit_json(changed=False, **result)


if __name__ == "__main__":
    main()
