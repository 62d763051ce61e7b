#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Documentation of leak_push. All of it runs on the controller, in the action plugin of the same name."""

from __future__ import annotations

DOCUMENTATION = r"""
module: leak_push
short_description: Send profiles to Pyroscope, and growth to Prometheus
version_added: 0.1.0
description:
  - Sends the profiles of an archive to Grafana Pyroscope (C(/ingest), pprof), each once, and writes growth and totals
    for the textfile collector of Prometheus' node_exporter.
  - The archive remembers what a server has been sent. What could not be sent is sent by the next run.
  - Runs on the controller and connects to no host but the server.
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
    details: Says how many profiles would be sent. Nothing is sent or written.
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
  - protobuf (Python library, on the controller)
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
    description: Units to send. C(.service) may be left out. All that the archive has, when the list is empty.
    type: list
    elements: str
    default: []
  hosts:
    description: Hosts to send, by their names in the inventory. All that the archive has, when the list is empty.
    type: list
    elements: str
    default: []
  pyroscope_url:
    description:
      - Where Pyroscope, or what receives for it, is reached. Nothing is sent without it.
      - A profile's series is the unit's name, with C(host), C(process) and C(version) (the label of
        M(offheap.profiler.heap_fetch)) as labels.
    type: str
  pyroscope_tenant:
    description: The tenant, for the header C(X-Scope-OrgID). Without it there is no such header.
    type: str
    default: ""
  pyroscope_headers:
    description: Headers to add to each request, such as C(Authorization).
    type: dict
    default: {}
  attempts:
    description: How often a profile is sent while the server cannot be reached, is busy (429) or broken (5xx).
    type: int
    default: 4
  timeout:
    description: Seconds after which an attempt is given up.
    type: int
    default: 30
  max_profiles:
    description: At most so many profiles are sent in one run, the newest of each process first.
    type: int
    default: 100
  textfile:
    description: A file to write for the textfile collector. Its name has to end with C(.prom).
    type: path
  required:
    description: Fail when something cannot be sent or written. Else there is a warning, and the play goes on.
    type: bool
    default: false
seealso:
  - module: offheap.profiler.leak_report
"""

EXAMPLES = r"""
- name: Show the fleet's profiles in Grafana
  offheap.profiler.leak_push:
    archive: offheap/archive
    pyroscope_url: https://pyroscope.example.org
    pyroscope_tenant: platform
    textfile: /var/lib/prometheus/node-exporter/offheap.prom
"""

RETURN = r"""
pushed:
  description: How many profiles were sent.
  returned: always
  type: int
  sample: 12
left:
  description: How many profiles the server does not have yet.
  returned: always
  type: int
  sample: 0
"""
