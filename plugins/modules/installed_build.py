#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Whether a build of jemalloc or the agent is on a host as it was built, and how it gets there."""

from __future__ import annotations

DOCUMENTATION = r"""
module: installed_build
short_description: Look for a build of jemalloc or the agent, or install one from its tarball
version_added: 0.1.0
description:
  - A build is a directory of files with a record (C(offheap.json)) that names each of them with its SHA-256. One that
    is incomplete or changed does not count as installed.
  - A tarball is unpacked only if it has the SHA-256 O(sha256). It is unpacked beside O(path) and then renamed. At
    O(path) there is a whole build, or what was there before, at any moment.
  - The role P(offheap.profiler.jemalloc#role) uses this module.
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
  path:
    description: The directory of the build.
    type: path
    required: true
  tarball:
    description: A tarball on the controller that holds this directory. Without it, the module only looks.
    type: path
  sha256:
    description: The SHA-256 that the tarball must have. By default, the one in the record beside it on the controller.
    type: str
  pinned:
    description:
      - Files that the tarball must hold, with the SHA-256 that each must have, whatever the record in it says.
    type: dict
    default: {}
"""

EXAMPLES = r"""
- name: Look for a build
  offheap.profiler.installed_build:
    path: /opt/offheap/jemalloc/5.3.0-4f2c8a1e
  become: true
  register: build
"""

RETURN = r"""
installed:
  description: Whether there is a whole build at O(path) now. In check mode, whether there is one already.
  type: bool
  returned: success
fault:
  description: Why there was none before. Null if there was one.
  type: str
  returned: success
"""

from typing import NoReturn

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.offheap.profiler.plugins.module_utils.formats.errors import OffheapError
from ansible_collections.offheap.profiler.plugins.module_utils.malloc import whole_build


def main() -> NoReturn:
    """Module entry point."""
    module = AnsibleModule(
        argument_spec={
            "path": {"type": "path", "required": True},
            "tarball": {"type": "path"},
            "sha256": {"type": "str"},
            "pinned": {"type": "dict", "default": {}},
        },
        required_together=[("tarball", "sha256")],
        supports_check_mode=True,
    )
    wanted = module.params
    fault = whole_build.fault(wanted["path"])
    install = bool(fault and wanted["tarball"])
    if install and not module.check_mode:
        try:
            whole_build.install(wanted["path"], wanted["tarball"], wanted["sha256"], wanted["pinned"])
        except OffheapError as error:
            module.fail_json(msg=str(error))
    module.exit_json(changed=install, installed=not fault or (install and not module.check_mode), fault=fault)


if __name__ == "__main__":
    main()
