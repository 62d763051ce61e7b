#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Documentation of heap_compare. All of it runs on the controller, in the action plugin of the same name."""

from __future__ import annotations

DOCUMENTATION = r"""
module: heap_compare
short_description: Compare two heap profiles
version_added: 0.1.0
description:
  - Reads two dumps that jemalloc or another source (C(docs/sources.md)) wrote and says which stacks or functions have
    grown, shrunk, appeared or disappeared.
  - Compares by function, or by build-id and offset if there is no symbol, and never by address. So the dumps may come
    from two processes, two hosts, or two versions of a program.
  - Reports a difference only if it is larger than sampling explains. Everything else is counted as not significant.
  - Runs on the controller and connects to no host.
author:
  - Offheap contributors (@offheap)
extends_documentation_fragment:
  - offheap.profiler.attributes
  - offheap.profiler.attributes.controller
  - offheap.profiler.profiles
  - offheap.profiler.profiles.source
attributes:
  check_mode:
    support: full
    details: Compares the dumps and says whether O(dest) would change. Writes nothing.
  diff_mode:
    support: partial
    details: Names the file that is written, without its contents.
  idempotent:
    support: full
    details: The same dumps and options give the same file, byte for byte.
options:
  before:
    description: The first dump, or the directory of a capture in an archive.
    type: path
    required: true
  after:
    description: The second dump, or the directory of a capture in an archive.
    type: path
    required: true
  by:
    description: Compare whole stacks, or functions including everything that they called.
    type: str
    choices: [stacks, functions]
    default: stacks
  focus:
    description: Regular expression. Only stacks through a matching function, C(file:line) or address are compared.
    type: str
    default: ""
  ignore:
    description: Regular expression. Stacks through a matching function, C(file:line) or address are left out.
    type: str
    default: ""
  format:
    description:
      - V(text) for people, V(json) for programs.
      - The JSON has the keys that are returned here, and all differences, including those that are not significant.
    type: str
    choices: [text, json]
    default: text
seealso:
  - module: offheap.profiler.heap_analyze
  - module: offheap.profiler.leak_report
"""

EXAMPLES = r"""
# ansible localhost -m offheap.profiler.heap_compare -a "before=a.heap after=b.heap"

- name: Compare one host with another
  offheap.profiler.heap_compare:
    before: offheap/archive/captures/frontend.service/app1/4711-1a2b3c4d/000042-0123456789ab
    after: offheap/archive/captures/frontend.service/app2/815-5e6f7a8b/000040-ba9876543210
  register: compared

- name: Stop if something has grown since the last version
  ansible.builtin.assert:
    that: compared.counts.grown + compared.counts.new == 0
"""

RETURN = r"""
dest:
  description: The file that was written.
  returned: when O(dest) is set
  type: str
  sample: /home/ops/fleet/versions.txt
measure:
  description: What was counted.
  returned: success
  type: str
  sample: inuse_space
unit:
  description: The unit of the numbers, V(bytes) or V(objects).
  returned: success
  type: str
  sample: bytes
before:
  description: What is known about the first dump. A bare dump does not name its host, unit or time.
  returned: success
  type: dict
  sample:
    dump: a.heap
    exe: /usr/bin/app
    build_id: 330c29ae110f411ab2ed4ab630d25ce6edbbbb7e
    sample_interval: 524288
    threads: 42
after:
  description: What is known about the second dump.
  returned: success
  type: dict
  sample:
    dump: b.heap
    exe: /usr/bin/app
    build_id: 330c29ae110f411ab2ed4ab630d25ce6edbbbb7e
    sample_interval: 524288
    threads: 42
comparable:
  description: Whether the two dumps can be compared. If not, the task warns and says why.
  returned: success
  type: bool
  sample: true
total:
  description: The overall difference, in the form of an element of RV(differences).
  returned: success
  type: dict
  sample:
    path: [total]
    change: grown
    before: 33554432
    after: 67108864
    difference: 33554432
    error: 14680064
counts:
  description: How many stacks or functions have changed in which way.
  returned: success
  type: dict
  sample:
    grown: 2
    shrunk: 0
    new: 1
    gone: 0
    not_significant: 214
differences:
  description: The significant ones, the largest first, at most O(limit) and 100.
  returned: success
  type: list
  elements: dict
  contains:
    path:
      description: The functions, the one that allocates first, at most 64. With O(by=functions), one.
      type: list
      elements: str
      sample: [inflate, Java_java_util_zip_Inflater_inflateBytesBytes, "[jit]"]
    change:
      description: V(grown), V(shrunk), V(new) or V(gone).
      type: str
      sample: grown
    before:
      description: How large it was.
      type: int
      sample: 1048576
    after:
      description: How large it is.
      type: int
      sample: 34603008
    difference:
      description: How much larger it is.
      type: int
      sample: 33554432
    error:
      description: Half of the 95 % interval of RV(differences[].difference).
      type: int
      sample: 8388608
"""
