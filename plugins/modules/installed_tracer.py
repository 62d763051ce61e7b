#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Documentation of installed_tracer, whose work is done in the action plugin of the same name."""

from __future__ import annotations

DOCUMENTATION = r"""
module: installed_tracer
short_description: Install async-profiler's library on a host
version_added: 1.1.0
description:
  - Reads a file of the controller once, compares its SHA-256, and sends the library that it is or holds.
  - The playbook C(offheap.profiler.trace_live) uses this module.
author:
  - Offheap contributors (@offheap)
extends_documentation_fragment:
  - offheap.profiler.attributes
attributes:
  check_mode:
    support: full
  diff_mode:
    support: none
  idempotent:
    support: full
  platform:
    support: full
    platforms: linux
options:
  src:
    description: The library, whose name ends in C(.so), or the tarball of a release, on the controller.
    type: path
    required: true
  checksum:
    description: The SHA-256 of O(src).
    type: str
    required: true
  path:
    description: Where the library is to be on the host. It and its directory belong to root.
    type: path
    required: true
seealso:
  - module: offheap.profiler.trace_live
"""

EXAMPLES = r"""
- name: Install async-profiler's library
  offheap.profiler.installed_tracer:
    src: async-profiler-4.5-linux-x64.tar.gz
    checksum: 4f2c8a1e0b7d4f2c8a1e0b7d4f2c8a1e0b7d4f2c8a1e0b7d4f2c8a1e0b7d4f2c
    path: /opt/offheap/async-profiler/4.5/libasyncProfiler.so
  become: true
"""

RETURN = r"""
"""
