#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Documentation of leak_assert. All of it runs on the controller, in the action plugin of the same name."""

from __future__ import annotations

DOCUMENTATION = r"""
module: leak_assert
short_description: Fail a pipeline if a unit leaks native memory
version_added: 0.1.0
description:
  - Ranks the leaks of an archive across all hosts and restarts, and fails if one grows faster than O(max_growth) or is
    not in O(baseline). Without these options, every leak fails.
  - Run it after a soak test, once M(offheap.profiler.heap_fetch) has brought the captures.
  - Runs on the controller and connects to no host.
author:
  - Offheap contributors (@offheap)
extends_documentation_fragment:
  - offheap.profiler.attributes
  - offheap.profiler.attributes.controller
  - offheap.profiler.cluster
attributes:
  check_mode:
    support: full
    details: Gives the verdict, but writes neither O(record), O(junit) nor anything into the archive.
  diff_mode:
    support: none
  idempotent:
    support: full
requirements:
  - symbolic (Python library, on the controller)
  - pydemumble (Python library, on the controller)
  - pyarrow (Python library, on the controller)
  - zstandard (Python library, on the controller)
options:
  archive:
    description:
      - Directory of the archive on the controller, or its address, such as C(s3://bucket/offheap).
      - A relative path starts at the directory that C(ansible-playbook) was started in.
    type: path
    required: true
  units:
    description: Units to look at. You may leave out C(.service). An empty list means all that the archive has.
    type: list
    elements: str
    default: []
  hosts:
    description: Hosts to look at, by their names in the inventory. An empty list means all that the archive has.
    type: list
    elements: str
    default: []
  max_growth:
    description:
      - How much a leak may grow per day on one host, in bytes or with a unit.
      - A leak fails if the lower end of its rate's 95 % interval is above this, so that sampling alone fails no
        pipeline.
    type: bytes
  baseline:
    description: A file that an earlier run wrote with O(record). Leaks in it are known, and fail only if they grow
      faster than O(max_growth).
    type: path
  record:
    description: Write the leaks to this file, as a baseline for later runs. With O(baseline), not when that fails.
    type: path
  junit:
    description:
      - Write what came of each unit to this file, in JUnit's form, which Jenkins, GitLab and others show beside their
        tests. A unit of which nobody can tell yet is skipped.
    type: path
  min_span:
    description: How many seconds a process's dumps must span for a verdict.
    type: int
    default: 60
  require_verdict:
    description: Also fail if no process could be judged, for example because there are too few dumps.
    type: bool
    default: true
seealso:
  - module: offheap.profiler.leak_report
"""

EXAMPLES = r"""
- name: Stop a release that leaks more than a megabyte a day
  offheap.profiler.leak_assert:
    archive: offheap/archive
    units: [frontend]
    max_growth: 1M

- name: Stop a release that has a leak that the last one did not have
  offheap.profiler.leak_assert:
    archive: offheap/archive
    baseline: known-leaks.json
    junit: leaks.xml
"""

RETURN = r"""
leaks:
  description: The leaks across all hosts and restarts, the fastest first, whether they fail or not.
  returned: if the archive could be read
  type: list
  elements: dict
  contains:
    unit:
      description: The unit.
      type: str
      sample: frontend.service
    path:
      description: The functions, the one that allocates first.
      type: list
      elements: str
      sample: [inflate, Java_java_util_zip_Inflater_inflateBytesBytes, "[jit]"]
    growth_bytes_per_day:
      description: How fast it grows, summed over all hosts.
      type: int
      sample: 134217728
    growth_error:
      description: Half of the 95 % interval of RV(leaks[].growth_bytes_per_day).
      type: int
      sample: 12582912
    hosts:
      description: The hosts that have it, with the rate of each in bytes per day.
      type: dict
      sample: {app1: 67108864, app2: 67108864}
    watched:
      description: How many of the unit's hosts could be judged.
      type: int
      sample: 40
    outliers:
      description: Hosts whose rate is far from the others'.
      type: list
      elements: str
      sample: []
    processes:
      description: In how many processes it was seen, including those before restarts.
      type: int
      sample: 3
    share:
      description: Its share of the unit's growth, from 0 to 1.
      type: float
      sample: 0.97
    first_seen:
      description: When a dump first showed it, in seconds since the epoch.
      type: float
      sample: 1761234567.25
    label:
      description: The label with which it appeared (option O(offheap.profiler.heap_fetch#module:label)). Empty if no
        earlier process with another label was seen without it.
      type: str
      sample: "2.4.1"
offences:
  description: Why leaks fail, one sentence for each.
  returned: if the archive could be read
  type: list
  elements: str
  sample: ["frontend.service: inflate ← [jit] grows by 64.0 MiB/day, more than 1.0 MiB/day"]
judged:
  description: How many processes could be judged.
  returned: if the archive could be read
  type: int
  sample: 2
"""
