#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Documentation of triage_report. All of it runs on the controller, in the action plugin of the same name."""

from __future__ import annotations

DOCUMENTATION = r"""
module: triage_report
short_description: Say what kind of growth the memory of each unit shows, and whether it is native
version_added: 0.1.0
description:
  - Reads the samples that P(offheap.profiler.triage#role) has kept, says for each unit on each host what grows, how
    fast, and what to do next, and writes that as JSON.
  - Runs on the controller and connects to no host. One task for V(localhost) reports on the whole fleet.
  - Growth is that of one process over all looks at it, and each rate has its 95 % interval. Once there are two looks at
    a process from when it was older than ten minutes, its earlier looks do not count.
  - C(docs/triage.md) explains the rules, which are a table in C(plugins/plugin_utils/triage/rules.py).
author:
  - Offheap contributors (@offheap)
extends_documentation_fragment:
  - offheap.profiler.attributes
  - offheap.profiler.attributes.controller
attributes:
  check_mode:
    support: full
    details: Says the verdicts and writes nothing.
  diff_mode:
    support: none
  idempotent:
    support: full
    details: The same samples give the same verdicts.
options:
  samples:
    description:
      - Directory of the samples on the controller.
      - A relative path starts at the directory that C(ansible-playbook) was started in.
    type: path
    default: offheap/triage
  dest:
    description: File for the verdicts, on the controller. By default C(verdicts.json) in O(samples).
    type: path
  units:
    description: Units to report on. You may leave out C(.service). An empty list means all of them.
    type: list
    elements: str
    default: []
  hosts:
    description: Hosts to report on, by their names in the inventory. An empty list means all of them.
    type: list
    elements: str
    default: []
  show:
    description: Print the table while the task runs, at any verbosity.
    type: bool
    default: true
seealso:
  - module: offheap.profiler.native_memory_info
  - module: offheap.profiler.leak_report
"""

EXAMPLES = r"""
- name: Say what grows, on all hosts
  hosts: localhost
  gather_facts: false
  tasks:
    - name: Report
      offheap.profiler.triage_report:
      register: triage

    - name: Stop if a frontend leaks native memory
      ansible.builtin.assert:
        that: triage.verdicts | selectattr('verdict', 'equalto', 'native-growth') | length == 0
        fail_msg: "{{ triage.summary | join('\n') }}"
"""

RETURN = r"""
dest:
  description: The file with the verdicts.
  returned: success
  type: str
  sample: /home/ops/fleet/offheap/triage/verdicts.json
verdicts:
  description: One for each unit on each host, by unit and host.
  returned: success
  type: list
  elements: dict
  contains:
    unit:
      description: The unit; C((host\)) for a host whose memory goes elsewhere.
      type: str
      sample: frontend.service
    host:
      description: The host's name in the inventory.
      type: str
      sample: app1
    verdict:
      description:
        - V(does-not-fit), V(java-heap), V(direct-buffers), V(metaspace), V(threads), V(stacks), V(malloc-arenas),
          V(fragmentation), V(mapped-files), V(shared-memory), V(huge-pages), V(native-growth), V(other-memory),
          V(page-cache), V(kernel-memory), V(sockets), V(swapped), V(host), V(not-growing), or V(cannot-tell).
      type: str
      sample: native-growth
    reason:
      description: The numbers that led to it.
      type: str
    next_step:
      description: What to do next, in one sentence.
      type: str
    source:
      description: Where the rule comes from.
      type: str
    pid:
      description: The process that was judged. Null if there is none.
      type: int
    rss:
      description: Its resident bytes at the last look.
      type: int
    time:
      description: When it was looked at last, in seconds since the epoch.
      type: float
    watched:
      description: Seconds between the first and the last look that count.
      type: float
    growth_bytes_per_hour:
      description:
        - How fast what the process holds grows, swap and reserved huge pages included.
        - Of a host, how fast its available memory falls.
      type: int
      sample: 67108864
    growth_error:
      description: Half of the 95 % interval of RV(verdicts[].growth_bytes_per_hour).
      type: int
      sample: 4194304
    growth_by_part:
      description: The rate of each part of it.
      type: dict
    notes:
      description:
        - Whether others were looked at long after it, agents in the JVM, earlier crashes of the service, and what could
          not be read.
      type: list
      elements: str
summary:
  description: The table as lines of text.
  returned: success
  type: list
  elements: str
"""
