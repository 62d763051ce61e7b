#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Documentation of leak_report. All of it runs on the controller, in the action plugin of the same name."""

from __future__ import annotations

DOCUMENTATION = r"""
module: leak_report
short_description: Say which code path leaks, from the captures in an archive
version_added: 0.1.0
description:
  - Reads the captures that M(offheap.profiler.heap_fetch) has brought, says for each unit on each host whether it
    leaks native memory, how fast, and through which code path, and writes a table, folded stacks and a flame graph.
  - Writes one page for all of them, C(report.html), which needs no network. It shows each host's growth, its suspects,
    where its resident memory is, and a flame graph that moves in time and compares times, hosts and versions.
    C(report.txt) holds the same for a ticket, and C(report.json) for other programs. Where the archive has lives,
    C(report.svg) beside the ticket shows how the objects of the leaking paths live.
  - Runs on the controller and connects to no host. One task for V(localhost) reports on the whole archive.
  - jemalloc's samples are unbiased record by record. All numbers are estimates, and every C(±) is the 95 % interval
    due to sampling.
  - A leak is memory that grows steadily, and still does in the later part of the time. What a program allocates at its
    start, a cache that fills up, steps that a deploy takes, and memory that is allocated and freed again are not leaks.
    Growth that slows down, and growth of many code paths alike over less than a day, are left open, with how long to
    watch.
  - Processes are never mixed. After a restart, the newest process that was watched long enough decides.
author:
  - Offheap contributors (@offheap)
extends_documentation_fragment:
  - offheap.profiler.attributes
  - offheap.profiler.attributes.controller
  - offheap.profiler.cluster
attributes:
  check_mode:
    support: full
    details: Analyses the captures and says the verdicts and which files would change. Writes nothing.
  diff_mode:
    support: partial
    details: Names the files that are written, without their contents.
  idempotent:
    support: full
    details: The same captures give the same files, byte for byte.
requirements:
  - symbolic (Python library, on the controller)
  - pydemumble (Python library, on the controller)
  - jinja2 (Python library, on the controller)
  - numpy (Python library, on the controller)
options:
  archive:
    description:
      - Directory of the archive on the controller, or its address, such as C(s3://bucket/offheap).
      - A relative path starts at the directory that C(ansible-playbook) was started in.
    type: path
    required: true
  dest:
    description:
      - Directory for the reports, on the controller. It is created if missing.
      - It receives C(report.html), C(report.json) and C(report.txt), and C(report.svg) where the archive has lives.
      - For each unit and host it receives C(UNIT/HOST.txt), C(UNIT/HOST.folded) and C(UNIT/HOST.html).
      - A relative path starts at the directory that C(ansible-playbook) was started in.
    type: path
    default: offheap/report
  units:
    description: Units to report on. You may leave out C(.service). An empty list means all that the archive has.
    type: list
    elements: str
    default: []
  hosts:
    description: Hosts to report on, by their names in the inventory. An empty list means all that the archive has.
    type: list
    elements: str
    default: []
  top:
    description: How many suspects each report names.
    type: int
    default: 5
  min_span:
    description:
      - How many seconds a process's dumps must span for a verdict.
      - The longer a process is watched, the smaller the leaks that show. A minute shows only large ones.
    type: int
    default: 60
  force:
    description: Replace existing reports. If V(false), only missing ones are written.
    type: bool
    default: true
  show:
    description: Print the summary while the task runs, at any verbosity.
    type: bool
    default: true
  hints:
    description:
      - YAML files with causes of leaks that you know of, in the form that C(plugins/plugin_utils/leaks/hints.yml)
        describes. They take precedence over those that the collection knows.
      - A relative path starts at the directory that C(ansible-playbook) was started in.
    type: list
    elements: path
    default: []
  triage:
    description:
      - Directory of the looks that the role P(offheap.profiler.triage#role) has taken. If it exists, the fleet's page
        shows their verdicts too.
      - A relative path starts at the directory that C(ansible-playbook) was started in.
    type: path
    default: offheap/triage
seealso:
  - module: offheap.profiler.heap_fetch
"""

EXAMPLES = r"""
- name: Say what leaks, on all hosts
  hosts: localhost
  gather_facts: false
  tasks:
    - name: Report leaks
      offheap.profiler.leak_report:
        archive: offheap/archive
        dest: offheap/report
      register: leaks

    - name: Stop if a frontend leaks
      ansible.builtin.assert:
        that: leaks.reports | selectattr('verdict', 'equalto', 'leak') | length == 0
        fail_msg: "{{ leaks.summary | join('\n') }}"

- name: Say what leaks in one unit on two hosts that were watched for a day
  hosts: localhost
  gather_facts: false
  tasks:
    - name: Report leaks
      offheap.profiler.leak_report:
        archive: /srv/offheap
        units: [frontend]
        hosts: [app1, app2]
        min_span: 86400
"""

RETURN = r"""
dest:
  description: The directory of the reports.
  returned: success
  type: str
  sample: /home/ops/fleet/offheap/report
files:
  description: Paths of C(page), C(json), C(text) and perhaps C(picture), the report on all hosts. Empty if there is
    nothing to report.
  returned: success
  type: dict
  sample:
    page: /home/ops/fleet/offheap/report/report.html
    json: /home/ops/fleet/offheap/report/report.json
    text: /home/ops/fleet/offheap/report/report.txt
    picture: /home/ops/fleet/offheap/report/report.svg
reports:
  description: One report for each unit on each host, by unit and host.
  returned: success
  type: list
  elements: dict
  contains:
    unit:
      description: The unit.
      type: str
      sample: frontend.service
    host:
      description: The host's name in the inventory.
      type: str
      sample: app1
    verdict:
      description:
        - V(leak), V(no-leak), or V(cannot-tell) if there is too little to judge by.
        - Where the lives of what was sampled are known, also V(bursts) for a leak that comes in bursts, V(grew) for
          growth that is kept and has ended, V(fills-up) for a path whose objects die and will level off higher, and
          V(overflows) if that does not fit the memory that the unit's limit or its host leaves.
      type: str
      sample: leak
    reason:
      description: Why, in one sentence.
      type: str
      sample: 2 code paths grow steadily over 3 h and 42 dumps
    growth_bytes_per_day:
      description: How fast all suspects together grow. Without a suspect, the trend of all live memory.
      type: int
      sample: 67108864
    growth_error:
      description: Half of the 95 % interval of RV(reports[].growth_bytes_per_day).
      type: int
      sample: 6291456
    path:
      description: The functions of the first suspect, the one that allocates first. Empty without a suspect.
      type: list
      elements: str
      sample: [inflate, Java_java_util_zip_Inflater_inflateBytesBytes, "[jit]"]
    suspects:
      description: The code paths that grow, the fastest first, at most O(top).
      type: list
      elements: dict
      contains:
        path:
          description: The functions, the one that allocates first.
          type: list
          elements: str
          sample: [inflate, Java_java_util_zip_Inflater_inflateBytesBytes, "[jit]"]
        sources:
          description:
            - Where each of them is in the source, by the debug information of the files in the newest dump. Empty where
              that is not known.
          type: list
          elements: str
          sample: ["", "", ""]
        growth_bytes_per_day:
          description: How fast it grows.
          type: int
          sample: 67108864
        growth_error:
          description: Half of the 95 % interval of RV(reports[].suspects[].growth_bytes_per_day).
          type: int
          sample: 6291456
        live_bytes:
          description: How much of it was live in the newest dump.
          type: int
          sample: 13421772
        stacks:
          description: How many different stacks, compared by function, are summed up here.
          type: int
          sample: 1
        held:
          description: Who holds what it has allocated, where processes were asked, see V(holders) of
            M(offheap.profiler.heap_control). Empty elsewhere.
          type: str
          sample: "98 % (95 to 99 %) kept by global session_cache of app, through 128-byte blocks (412 samples)"
        hints:
          description: Known causes that this path resembles, each with C(id), C(title), C(check) and C(link).
          type: list
          elements: dict
          sample:
            - id: java-inflater
              title: an Inflater, Deflater or a stream above it is not closed
              check: Find the streams that are opened in the method that calls this, and close them.
              link: https://bugs.openjdk.org/browse/JDK-5072161
    process:
      description: The process that the verdict is about. Empty if there is none.
      type: str
      sample: 1234-1a2b3c4d
    captures:
      description: How many captures of this unit on this host the archive has.
      type: int
      sample: 42
    files:
      description: Paths of C(text), C(folded) and C(flamegraph). Empty if no capture could be read.
      type: dict
      sample:
        text: /home/ops/fleet/offheap/report/frontend.service/app1.txt
        folded: /home/ops/fleet/offheap/report/frontend.service/app1.folded
        flamegraph: /home/ops/fleet/offheap/report/frontend.service/app1.html
found:
  description: The same as counts and the worst, small enough to be passed on in a workflow.
  returned: success
  type: dict
  contains:
    leaks:
      description: Units that leak, counted on each host.
      type: int
    overflows:
      description: Units that fill up beyond what their limit or their host leaves of memory.
      type: int
    no_leaks:
      description: Units that do not leak.
      type: int
    cannot_tell:
      description: Units about which there is too little to judge by.
      type: int
    worst:
      description: The ten that grow fastest, at most, each with C(unit), C(host), C(path) and C(growth_bytes_per_day).
      type: list
      elements: dict
      sample:
        - unit: frontend.service
          host: app1
          path: inflate < Java_java_util_zip_Inflater_inflateBytesBytes < [jit]
          growth_bytes_per_day: 67108864
summary:
  description: The reports as lines of text.
  returned: success
  type: list
  elements: str
  sample:
    - frontend.service
    - "  app1  Leak of 64.0 MiB/day ± 6.0 MiB"
    - "        64.0 MiB/day  inflate ← Java_java_util_zip_Inflater_inflateBytesBytes ← [jit]"
    - "        one code path grows steadily over 3 h and 42 dumps"
    - "        /home/ops/fleet/offheap/report/frontend.service/app1.html"
    - "all of it: /home/ops/fleet/offheap/report/report.html"
"""
