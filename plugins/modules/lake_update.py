#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Documentation of lake_update. All of it runs on the controller, in the action plugin of the same name."""

from __future__ import annotations

DOCUMENTATION = r"""
module: lake_update
short_description: Bring a lake of Delta tables up to date with an archive
version_added: 1.0.0
description:
  - Adds to the lake those captures of an archive that it lacks. The lake is three Delta tables, V(captures), V(stacks)
    and V(points), for questions over many captures in SQL. All that is in it comes from the archive.
  - Each capture is added once, whoever adds at the same time or is killed meanwhile.
  - Captures that M(offheap.profiler.archive_prune) has removed from the archive stay in the lake until it is rebuilt.
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
    details: Says how many captures would be added.
  diff_mode:
    support: none
  idempotent:
    support: partial
    details: Not with O(compact) or O(rebuild).
requirements:
  - deltalake (Python library, on the controller)
  - numpy (Python library, on the controller)
  - pyarrow (Python library, on the controller)
  - pydemumble (Python library, on the controller)
  - symbolic (Python library, on the controller)
  - zstandard (Python library, on the controller)
options:
  archive:
    description:
      - Directory of the archive on the controller, or its address, such as C(s3://bucket/offheap).
      - A relative path starts at the directory that C(ansible-playbook) was started in.
    type: path
    required: true
  lake:
    description: Directory of the lake, or its address. It is created if missing.
    type: path
    required: true
  hosts:
    description: Hosts whose captures to add, by their names in the inventory. An empty list means all in the archive.
    type: list
    elements: str
    default: []
  compact:
    description:
      - Then write the small files of each table anew as large ones, which makes questions fast. Others may read and add
        meanwhile. Files that are no longer used are removed a week later, by the next compaction.
    type: bool
    default: false
  rebuild:
    description:
      - First delete the lake's tables, to make all of them again. Nobody may add meanwhile.
      - Functions get the names that the archive's images give them now.
    type: bool
    default: false
seealso:
  - module: offheap.profiler.heap_fetch
"""

EXAMPLES = r"""
- name: Add what the last collection has brought
  offheap.profiler.lake_update:
    archive: s3://profiles/offheap
    lake: s3://profiles/lake

- name: Once a day, keep the files large
  offheap.profiler.lake_update:
    archive: s3://profiles/offheap
    lake: s3://profiles/lake
    compact: true
"""

RETURN = r"""
captures:
  description: How many captures were added.
  returned: success
  type: int
  sample: 12
files:
  description: How many files each table has after the compaction.
  returned: with O(compact)
  type: dict
  sample: {captures: 1, stacks: 1, points: 3}
"""
