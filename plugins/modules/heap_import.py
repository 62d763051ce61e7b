#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Documentation of heap_import. All of it runs on the controller, in the action plugin of the same name."""

from __future__ import annotations

DOCUMENTATION = r"""
module: heap_import
short_description: Import heap profiles of other tools into the archive
version_added: 0.1.0
description:
  - Puts profiles that another tool or a service itself has written into the archive, where
    M(offheap.profiler.leak_report) and M(offheap.profiler.leak_assert) judge them like those that were collected.
    C(docs/sources.md) lists the formats; each is told by its content.
  - Profiles of one unit, host and process are one series. Three of them, over at least a minute, are enough for a
    verdict. Profiles that do not count live memory are kept and shown, but never judged as if they did.
  - If one of the files cannot be read, none is imported.
  - The profiles are files, or a series that a server of profiles keeps (Parca or Grafana Pyroscope).
  - Runs on the controller and connects to no host.
author:
  - Offheap contributors (@offheap)
extends_documentation_fragment:
  - offheap.profiler.attributes
  - offheap.profiler.attributes.controller
  - offheap.profiler.profiles.source
attributes:
  check_mode:
    support: full
    details: Reads the files and says which captures would be new. Writes nothing.
  diff_mode:
    support: partial
    details: Names the captures that are new, without their contents.
  idempotent:
    support: full
    details: A profile with the same content and time is imported once.
requirements:
  - numpy (Python library, on the controller)
  - protobuf (Python library, on the controller, for O(server))
  - symbolic (Python library, on the controller)
  - urllib3 (Python library, on the controller, for O(server))
  - zstandard (Python library, on the controller)
options:
  src:
    description:
      - The files, plain or packed (gzip, zstd, LZ4, xz, bzip2). A C(FILE.map) beside one names its compiled code.
      - What the agent writes beside its dumps, C(FILE.json), C(FILE.lives) and C(FILE.holders), comes along with them.
      - Either this or O(server).
    type: list
    elements: path
  server:
    description:
      - The address of a Parca or a Grafana Pyroscope, such as C(https://parca.example.org). Which of both it is, it
        says itself.
      - At most 48 profiles of one series are taken, evenly over the time since O(since).
    type: str
  query:
    description:
      - What to take from O(server), as its own page writes it. It must match a single series, so name the labels that
        tell a process from others, such as C(instance).
      - Neither server keeps how a profile was sampled, so say it, too (O(source_interval)).
      - Pyroscope's own labels (C(__session_id__) and the like) are not looked at, so that a restarted process goes on
        in its series.
    type: str
  since:
    description: From when on, like V(2026-11-22T03:00:00), in UTC, or in seconds since the epoch. By default, a day.
    type: str
  headers:
    description: Headers to add to each request to O(server), such as C(Authorization) or C(X-Scope-OrgID).
    type: dict
    default: {}
  archive:
    description:
      - Directory of the archive on the controller, or its address, such as C(s3://bucket/offheap). It is created if
        missing.
      - A relative path starts at the directory that C(ansible) was started in.
    type: path
    required: true
  unit:
    description: The service that the profiles are of.
    type: str
    required: true
  host:
    description: The host that they come from.
    type: str
    required: true
  time:
    description:
      - When the profile was taken, like V(2026-11-22T03:00:00), in UTC, or in seconds since the epoch. For one file
        only.
      - By default what the profile says itself, or else when its file was last written.
    type: str
  process:
    description:
      - The process's number, where O(unit) has several, or had others before a restart.
      - The names of the agent's own dumps tell that themselves.
    type: int
    default: 0
  label:
    description: The version of the program that ran, as in M(offheap.profiler.heap_fetch).
    type: str
  binary_path:
    description:
      - Where the program and its libraries are, if the profile has addresses instead of names. They are copied into the
        archive. A directory may have the layout of pprof (C(BUILD_ID/NAME)), of debug files
        (C(.build-id/ab/cdef.debug)), of a root file system, or just the files.
      - By default, the directories of the environment variable E(PPROF_BINARY_PATH). The controller's own files are
        not tried, because another machine may have had others.
    type: list
    elements: path
    default: []
seealso:
  - module: offheap.profiler.leak_report
  - module: offheap.profiler.heap_analyze
"""

EXAMPLES = r"""
- name: Import a day of profiles of a Go service
  offheap.profiler.heap_import:
    src: "{{ query('ansible.builtin.fileglob', 'profiles/*.pb.gz') }}"
    archive: offheap/archive
    unit: frontend
    host: app1
  delegate_to: localhost
  run_once: true

- name: Judge what Parca has of a process since yesterday
  offheap.profiler.heap_import:
    server: https://parca.example.org
    source_interval: 512KiB
    query: memory:inuse_space:bytes:space:bytes{job="frontend", instance="app1:6060"}
    archive: offheap/archive
    unit: frontend
    host: app1
  delegate_to: localhost
  run_once: true
"""

RETURN = r"""
captures:
  description: The profiles, in the order of O(src).
  returned: success
  type: list
  elements: dict
  contains:
    src:
      description: The file.
      type: str
      sample: /home/ops/profiles/0300.pb.gz
    path:
      description: The capture's directory in the archive.
      type: str
      sample: /home/ops/offheap/archive/captures/frontend.service/app1/0-1a2b3c4d/763780400-0123456789ab
    new:
      description: Whether it was not there before.
      type: bool
      sample: true
    source:
      description: What wrote the file, as in C(docs/sources.md).
      type: str
      sample: pprof
    measure:
      description: What its numbers are, V(live), V(allocated) or V(grown).
      type: str
      sample: live
    time:
      description: When it was taken, in seconds since the epoch.
      type: float
      sample: 1763780400.0
    time_from:
      description: What said so, V(option), V(profile) or V(file).
      type: str
      sample: profile
"""
