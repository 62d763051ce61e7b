#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""How builds of jemalloc and the agent get to a host, unless they are there as they were built."""

from __future__ import annotations

DOCUMENTATION = r"""
module: installed_build
short_description: Install builds of jemalloc and the agent from their tarballs
version_added: 0.1.0
description:
  - A build is a directory of files with a record (C(offheap.json)) that names each of them with its SHA-256. One that
    is incomplete or changed does not count as installed.
  - A tarball is unpacked only if it has the SHA-256 that it should have. It is unpacked beside its place and then
    renamed. At its place there is a whole build, or what was there before, at any moment.
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
  builds:
    description: The builds, in the order in which they are installed. The first that cannot be ends it.
    type: list
    elements: dict
    required: true
    suboptions:
      path:
        description: The directory of the build.
        type: path
        required: true
      tarball:
        description: A tarball on the controller that holds this directory.
        type: path
        required: true
      sha256:
        description:
          - The SHA-256 that the tarball must have. If it is empty, that in the record beside it on the controller.
        type: str
        default: ""
      pinned:
        description:
          - Files that the tarball must hold, with the SHA-256 that each must have, whatever the record in it says.
        type: dict
        default: {}
"""

EXAMPLES = r"""
- name: Install a build
  offheap.profiler.installed_build:
    builds:
      - path: /opt/offheap/jemalloc/5.3.0-4f2c8a1e
        tarball: offheap/cache/jemalloc-5.3.0-4f2c8a1e-glibc-x86_64-4096-cross.tar.gz
  become: true
"""

RETURN = r"""
faults:
  description: Why there was no whole build before, by the directory of each that was installed.
  type: dict
  returned: success
"""

import os
from typing import Any, NoReturn

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.offheap.profiler.plugins.module_utils.formats.errors import OffheapError
from ansible_collections.offheap.profiler.plugins.module_utils.malloc import whole_build

_BUILD: dict[str, Any] = {
    "path": {"type": "path", "required": True},
    "tarball": {"type": "path", "required": True},
    "sha256": {"type": "str", "default": ""},
    "pinned": {"type": "dict", "default": {}},
}


def _label(module: AnsibleModule, build: str) -> None:
    """Give the files the context that SELinux's policy has for them, where it is on. Not all that is in /opt may be
    loaded: only what is labelled as a library."""
    for directory, _directories, files in os.walk(build):
        for name in files:
            module.set_default_selinux_context(os.path.join(directory, name), False)


def main() -> NoReturn:
    """Module entry point."""
    module = AnsibleModule(
        argument_spec={"builds": {"type": "list", "elements": "dict", "required": True, "options": _BUILD}},
        supports_check_mode=True,
    )
    faults = {}
    for build in module.params["builds"]:
        fault = whole_build.fault(build["path"])
        if fault:
            faults[build["path"]] = fault
            try:
                if not module.check_mode:
                    whole_build.install(build["path"], build["tarball"], build["sha256"], build["pinned"])
                    _label(module, build["path"])
            except OffheapError as error:
                module.fail_json(msg=str(error))
    module.exit_json(changed=bool(faults), faults=faults)


if __name__ == "__main__":
    main()
