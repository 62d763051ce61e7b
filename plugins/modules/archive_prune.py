#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Documentation of archive_prune. All of it runs on the controller, in the action plugin of the same name."""

from __future__ import annotations

DOCUMENTATION = r"""
module: archive_prune
short_description: Remove old captures from an archive, and thin series of them
version_added: 0.1.0
description:
  - Removes captures older than O(keep_days), thins the captures of each process to O(keep_captures), and thins all of
    them to O(keep_size). Without any of these options nothing is removed.
  - A thinned series keeps its first and its newest capture, the last one with a perf map, with lives and with
    holders, and others at growing distances from the newest, so that a leak still shows over the whole time.
  - A capture counts as no newer than its arrival in the archive (at an address, in this user's cache of it), since a
    host's clock may be wrong.
  - M(offheap.profiler.heap_fetch) does not bring removed captures again. Executables, libraries and symbol caches stay.
  - Runs on the controller and connects to no host. Others may write to the archive at the same time.
author:
  - Offheap contributors (@offheap)
extends_documentation_fragment:
  - offheap.profiler.attributes
  - offheap.profiler.attributes.controller
attributes:
  check_mode:
    support: full
    details: Says what would be removed.
  diff_mode:
    support: none
  idempotent:
    support: full
    details: With O(keep_days), until more captures become older than that.
requirements:
  - zstandard (Python library, on the controller)
options:
  archive:
    description:
      - Directory of the archive on the controller, or its address, such as C(s3://bucket/offheap).
      - A relative path starts at the directory that C(ansible-playbook) was started in.
    type: path
    required: true
  keep_days:
    description:
      - Remove captures that are older than this many days. A process with a younger capture keeps its newest.
      - V(0) sets no limit.
    type: float
    default: 0
  keep_captures:
    description: Thin the captures of each process to this number, at least two. V(0) sets no limit.
    type: int
    default: 0
  keep_size:
    description:
      - Thin the captures of all processes until their files, without executables and libraries, fit this size, in bytes
        or with a unit. If two captures per process are still too much, the processes that ended first are removed.
      - V(0) sets no limit.
    type: bytes
    default: "0"
seealso:
  - module: offheap.profiler.heap_fetch
"""

EXAMPLES = r"""
- name: Keep half a year and a hundred captures per process
  offheap.profiler.archive_prune:
    archive: offheap/archive
    keep_days: 180
    keep_captures: 100
  delegate_to: localhost
  run_once: true
"""

RETURN = r"""
removed:
  description: The captures that were removed, by their path in the archive.
  returned: success
  type: list
  elements: str
  sample: [captures/frontend.service/app1/1234-1a2b3c4d/000007-1c8e1f7ab203]
bytes:
  description: Size of the files that were removed, in bytes.
  returned: success
  type: int
  sample: 5242880
"""
