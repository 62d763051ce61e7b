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
  - Removes captures that are older than O(keep_days), and thins the captures of each process to O(keep_captures), and
    all of them to O(keep_size). Without any of these nothing is removed.
  - A thinned series keeps its first and its newest capture, the last one with a perf map, and others at growing
    distances from the newest, so that a leak is still seen over the whole time.
  - What was removed is not brought again from its host. Executables, libraries and symbol caches stay.
  - Runs on the controller and connects to no host. Others may write to the archive meanwhile.
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
    details: Says what would be removed.
  diff_mode:
    support: none
  idempotent:
    support: full
    details: For O(keep_days) as long as nothing has become older than that.
  platform:
    support: full
    platforms: posix
requirements:
  - zstandard (Python library, on the controller)
options:
  archive:
    description:
      - Directory of the archive on the controller.
      - A relative path begins at the directory that C(ansible-playbook) was started in.
    type: path
    required: true
  keep_days:
    description:
      - Captures that are older are removed. A process of which one capture is younger keeps its newest.
      - V(0) is without limit.
    type: float
    default: 0
  keep_captures:
    description: The captures of each process are thinned to this number, two at least. V(0) is without limit.
    type: int
    default: 0
  keep_size:
    description:
      - The captures of all processes are thinned until their files, without executables and libraries, have this size
        in bytes, or with a unit. Where two captures of each process are still more, the processes that ended first go.
      - V(0) is without limit.
    type: bytes
    default: "0"
seealso:
  - module: offheap.profiler.heap_fetch
"""

EXAMPLES = r"""
- name: Keep half a year, and a hundred captures of each process
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
