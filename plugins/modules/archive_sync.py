#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Documentation of archive_sync. All of it runs on the controller, in the action plugin of the same name."""

from __future__ import annotations

DOCUMENTATION = r"""
module: archive_sync
short_description: Copy an archive to or from object storage
version_added: 0.1.0
description:
  - Copies what one archive has and the other lacks, to or from any address that the Python library fsspec supports,
    such as C(s3://bucket/offheap) with s3fs installed. Several controllers may share one such archive.
  - Nothing is ever removed. Everything that comes from elsewhere is verified by its checksums and build-ids.
  - Runs on the controller and connects to no host.
author:
  - Offheap contributors (@offheap)
extends_documentation_fragment:
  - offheap.profiler.attributes
  - offheap.profiler.attributes.controller
attributes:
  check_mode:
    support: full
    details: Says how much would be copied.
  diff_mode:
    support: none
  idempotent:
    support: full
requirements:
  - fsspec (Python library, on the controller), and its backend for the address, such as s3fs
  - pyarrow (Python library, on the controller)
  - zstandard (Python library, on the controller)
options:
  archive:
    description:
      - Directory of the archive on the controller, or its address. With O(direction=pull) it is created if missing.
      - A relative path starts at the directory that C(ansible-playbook) was started in.
    type: path
    required: true
  url:
    description: Where the other archive is.
    type: str
    required: true
  direction:
    description: V(push) copies from O(archive) to O(url), V(pull) from O(url) to O(archive).
    type: str
    choices: [push, pull]
    required: true
  storage_options:
    description: Options for fsspec's file system, such as C(key), C(secret) and C(endpoint_url) of s3fs.
    type: dict
    default: {}
seealso:
  - module: offheap.profiler.heap_fetch
"""

EXAMPLES = r"""
- name: Pull what other controllers have collected, and push our own captures
  offheap.profiler.archive_sync:
    archive: offheap/archive
    url: s3://profiles/offheap
    direction: "{{ item }}"
  loop: [pull, push]
"""

RETURN = r"""
captures:
  description: How many captures were copied.
  returned: success
  type: int
  sample: 12
images:
  description: How many executables and libraries were copied.
  returned: success
  type: int
  sample: 3
"""
