#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Documentation of leak_push. All of it runs on the controller, in the action plugin of the same name."""

from __future__ import annotations

DOCUMENTATION = r"""
module: leak_push
short_description: Send profiles to Pyroscope or by OTLP, and growth to Prometheus
version_added: 0.1.0
description:
  - Sends each profile of an archive once, to Grafana Pyroscope (C(/ingest), pprof) or to whatever takes profiles of
    OpenTelemetry by HTTP (C(/v1development/profiles), protobuf). Writes growth and totals for the textfile collector of
    Prometheus' node_exporter.
  - The archive remembers what each server was sent. The next run sends what could not be sent.
  - Runs on the controller and connects only to the server.
author:
  - Offheap contributors (@offheap)
extends_documentation_fragment:
  - offheap.profiler.attributes
  - offheap.profiler.attributes.controller
  - offheap.profiler.cluster
attributes:
  check_mode:
    support: full
    details: Says how many profiles would be sent. Sends and writes nothing.
  diff_mode:
    support: none
  idempotent:
    support: full
requirements:
  - symbolic (Python library, on the controller)
  - pydemumble (Python library, on the controller)
  - protobuf (Python library, on the controller)
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
    description: Units to send. You may leave out C(.service). An empty list means all that the archive has.
    type: list
    elements: str
    default: []
  hosts:
    description: Hosts to send, by their names in the inventory. An empty list means all that the archive has.
    type: list
    elements: str
    default: []
  pyroscope_url:
    description:
      - The address of Pyroscope, or of what receives for it. Without it, nothing is sent.
      - A profile's series is the unit's name, with C(host), C(process) and C(version) (the label of
        M(offheap.profiler.heap_fetch)) as labels.
    type: str
  pyroscope_tenant:
    description: The tenant, for the header C(X-Scope-OrgID). Without it, the header is left out.
    type: str
    default: ""
  pyroscope_headers:
    description: Headers to add to each request, such as C(Authorization).
    type: dict
    default: {}
  otlp_url:
    description:
      - The address of a collector of OpenTelemetry, such as C(http://collector:4318), or of what takes its profiles.
        They are sent to C(/v1development/profiles) below it, as protobuf by HTTP.
      - C(grpc://collector:4317) is one that speaks gRPC, and C(grpcs://) one with TLS.
        This needs C(grpcio) on the controller.
      - What lives and what was allocated are profiles of their own, in bytes and in objects. The resource has
        C(service.name) (the unit), C(service.version) (the label of M(offheap.profiler.heap_fetch)),
        C(service.instance.id), C(host.name), C(process.executable.path) and C(systemd.unit).
    type: str
  otlp_headers:
    description: Headers to add to each request, such as C(Authorization).
    type: dict
    default: {}
  attempts:
    description: How often to try to send a profile while the server is unreachable, busy (429) or broken (5xx).
    type: int
    default: 4
  timeout:
    description: Seconds after which to give up an attempt.
    type: int
    default: 30
  max_profiles:
    description: The largest number of profiles to send in one run, the newest of each process first.
    type: int
    default: 100
  textfile:
    description: A file to write for the textfile collector. Its name must end with C(.prom).
    type: path
  required:
    description:
      - Fail if something cannot be sent or written, once all else was done, so that a pipeline notices. If false, the
        task warns and the play goes on.
    type: bool
    default: true
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

- name: Send them to a collector of OpenTelemetry
  offheap.profiler.leak_push:
    archive: offheap/archive
    otlp_url: http://collector.example.org:4318
"""

RETURN = r"""
pushed:
  description: How many profiles were sent.
  returned: always
  type: int
  sample: 12
left:
  description: How many profiles the server still lacks.
  returned: always
  type: int
  sample: 0
"""
