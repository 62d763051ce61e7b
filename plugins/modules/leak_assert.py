#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Documentation of leak_assert. All of it runs on the controller, in the action plugin of the same name."""

from __future__ import annotations

DOCUMENTATION = r"""
module: leak_assert
short_description: Fail when a unit leaks native memory, for pipelines
version_added: 0.1.0
description:
  - Ranks the leaks of an archive over all hosts and restarts, and fails when one grows faster than O(max_growth), or is
    not in O(baseline). Without either, every leak fails.
  - Put it behind a soak test whose captures M(offheap.profiler.heap_fetch) has brought.
  - Runs on the controller and connects to no host.
author:
  - Offheap contributors (@offheap)
extends_documentation_fragment:
  - offheap.profiler.attributes
  - offheap.profiler.attributes.action
attributes:
  action:
    support: full
  async:
    support: none
  check_mode:
    support: full
    details: Judges, and writes neither O(record) nor anything into the archive.
  diff_mode:
    support: none
  idempotent:
    support: full
  platform:
    support: full
    platforms: posix
requirements:
  - symbolic (Python library, on the controller)
  - pydemumble (Python library, on the controller)
  - pyarrow (Python library, on the controller)
  - zstandard (Python library, on the controller)
options:
  archive:
    description:
      - Directory of the archive on the controller.
      - A relative path begins at the directory that C(ansible-playbook) was started in.
    type: path
    required: true
  units:
    description: Units to look at. C(.service) may be left out. All that the archive has, when the list is empty.
    type: list
    elements: str
    default: []
  hosts:
    description: Hosts to look at, by their names in the inventory. All that the archive has, when the list is empty.
    type: list
    elements: str
    default: []
  max_growth:
    description:
      - Bytes per day, or with a unit, that a leak may grow on one host.
      - A leak fails when the lower end of the 95 % interval of its rate is above that, so that sampling alone fails no
        pipeline.
    type: bytes
  baseline:
    description: A file that an earlier run has written with O(record). Leaks that are in it are known and do not fail,
      unless they grow faster than O(max_growth).
    type: path
  record:
    description: A file to write the leaks to, as a baseline for later runs.
    type: path
  min_span:
    description: Seconds that the dumps of a process must span for a verdict.
    type: int
    default: 60
  require_verdict:
    description: Fail also when no process could be judged, for example since there are too few dumps.
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

- name: Stop a release that has a leak which the last one did not have
  offheap.profiler.leak_assert:
    archive: offheap/archive
    baseline: known-leaks.json
"""

RETURN = r"""
leaks:
  description: The leaks over all hosts and restarts, the fastest first, whether they are too much or not.
  returned: when the archive could be read
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
      description: How fast it grows on all hosts together.
      type: int
      sample: 134217728
    growth_error:
      description: Half of the 95 % interval of RV(leaks[].growth_bytes_per_day).
      type: int
      sample: 12582912
    hosts:
      description: The hosts that have it, each with its rate in bytes per day.
      type: dict
      sample: {app1: 67108864, app2: 67108864}
    watched:
      description: How many hosts of the unit could be judged.
      type: int
      sample: 40
    outliers:
      description: Hosts whose rate is far from the others'.
      type: list
      elements: str
      sample: []
    processes:
      description: In how many processes it was seen, those before restarts too.
      type: int
      sample: 3
    share:
      description: Its part of the growth of the unit, from 0 to 1.
      type: float
      sample: 0.97
    first_seen:
      description: When a dump first had any of it, in seconds since the epoch.
      type: float
      sample: 1761234567.25
    label:
      description: The label with which it appeared (option O(offheap.profiler.heap_fetch#module:label)), empty where
        no process with another label was seen without it before.
      type: str
      sample: "2.4.1"
offences:
  description: Why leaks are too much, one sentence for each.
  returned: when the archive could be read
  type: list
  elements: str
  sample: ["frontend.service: inflate ← [jit] grows by 64.0 MiB/day, more than 1.0 MiB/day"]
judged:
  description: How many processes could be judged.
  returned: when the archive could be read
  type: int
  sample: 2
"""
