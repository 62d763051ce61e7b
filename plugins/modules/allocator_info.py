#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Which allocators are installed on a host, and which one a process uses."""

from __future__ import annotations

DOCUMENTATION = r"""
module: allocator_info
short_description: Which jemalloc libraries are on a host, whether they can profile, and what a unit uses
version_added: 0.1.0
description:
  - Finds jemalloc libraries in the usual places and says for each whether it can write heap profiles here.
    This is proven, not read off a version. A throw-away process runs under the library, samples, and dumps.
  - A release that is known to crash services is never said to be able to (RV(unsound)). Nor is a library that others
    than root could replace. Root must own every part of its path, and nobody else may write there.
  - Says which allocators each process of a unit uses, and how to profile each.
author:
  - Offheap contributors (@offheap)
extends_documentation_fragment:
  - offheap.profiler.attributes
attributes:
  check_mode:
    support: full
    details: Changes nothing in any mode.
  diff_mode:
    support: none
  idempotent:
    support: full
  platform:
    support: full
    platforms: linux
options:
  paths:
    description: More libraries to look at, in addition to those found.
    type: list
    elements: path
    default: []
  discover:
    description: Look in the usual places too. If V(false), only at O(paths).
    type: bool
    default: true
  prove:
    description: Run each library in a throw-away process.
    type: bool
    default: true
  must_profile:
    description: Fail if one of the libraries cannot profile, and warn of one that has none of our patches.
    type: bool
    default: false
  unit:
    description: A service unit whose processes to look at. You may leave out C(.service).
    type: str
  builds:
    description: Directories of builds of this collection. RV(missing) then has those that are not whole.
    type: list
    elements: path
    default: []
  musl_builds:
    description: The same for containers with musl. They count only if one of O(units) runs in such a container.
    type: list
    elements: path
    default: []
  units:
    description: Service units whose containers to look at for O(musl_builds).
    type: list
    elements: str
    default: []
  mapped_below:
    description: A directory. RV(mapped_by) then lists all processes on the host that have a file below it mapped.
    type: path
"""

EXAMPLES = r"""
- name: Find the libraries and the allocator that the service uses
  offheap.profiler.allocator_info:
    unit: frontend
  become: true
  register: allocators

- name: Prove one library
  offheap.profiler.allocator_info:
    discover: false
    paths: [/opt/offheap/jemalloc/5.3.0-4f2c8a1e/lib/libjemalloc.so.2]
  become: true
"""

RETURN = r"""
platform:
  description: What a library must be built for.
  type: dict
  returned: always
  contains:
    libc:
      description: The C library.
      type: str
      sample: glibc
    libc_version:
      description: Its version, as numbers.
      type: list
      elements: int
      sample: [2, 36]
    architecture:
      description: The machine's architecture.
      type: str
      sample: x86_64
    page_size:
      description: Size of a memory page in bytes.
      type: int
      sample: 4096
    cores:
      description: Number of processors.
      type: int
      sample: 2
    python:
      description: The Python interpreter that runs the modules.
      type: str
      sample: /usr/bin/python3
    key:
      description: One word for C library, architecture and page size.
      type: str
      sample: glibc-x86_64-4096
libraries:
  description: The libraries found.
  type: list
  elements: dict
  returned: always
  contains:
    path:
      description: Where it is, links resolved.
      type: str
    version:
      description: The version that the library reports.
      type: str
    patches:
      description: The patches that this collection's build of it has. Empty for the library of anybody else.
      type: list
      elements: str
      sample: [seeds.patch]
    build_id:
      description: Its build-id.
      type: str
    sha256:
      description: Checksum of the file.
      type: str
    prof:
      description: Whether it can profile here, and nothing is known against its release. Null without O(prove).
      type: bool
    failure:
      description:
        - Why it cannot. One of V(does-not-load), V(page-size), V(late-tls), V(no-prof), V(invalid-conf), V(crashed),
          V(timeout), V(no-dump), V(broken-unwinder), V(not-readable), V(unsound), V(untrusted-path).
      type: str
    message:
      description: The same in words.
      type: str
unsound:
  description: Releases of jemalloc under which no service must run, each with the reason and the way out.
  type: dict
  returned: always
processes:
  description: Processes of O(unit).
  type: list
  elements: dict
  returned: always
  contains:
    pid:
      description: The process.
      type: int
    exe:
      description: Its executable.
      type: str
    allocator:
      description: One of V(jemalloc), V(tcmalloc), V(mimalloc), V(libc), V(unknown); V(other) for any
        that is linked into the program.
      type: str
    library:
      description: The library that provides it, if it is a separate one.
      type: str
    preloaded:
      description: Whether the library was preloaded.
      type: bool
    allocators:
      description: All that it has, since a program or a library may bring one besides. The first is the one that
        C(malloc) leads to in the program itself.
      type: list
      elements: dict
      contains:
        allocator:
          description: As above.
          type: str
          sample: jemalloc
        file:
          description: The program or library that it is in.
          type: str
          sample: /usr/local/bin/router
        profile:
          description: How to profile it, or why that is impossible.
          type: str
          sample: "profiled_service_mode: own sets _RJEM_MALLOC_CONF"
missing:
  description: Those of O(builds) and O(musl_builds) that are no whole build, with each file as its record says.
  type: list
  elements: str
  returned: always
mapped_by:
  description: Processes that have a file below O(mapped_below) mapped.
  type: list
  elements: int
  returned: always
"""

from typing import Any, NoReturn

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.offheap.profiler.plugins.module_utils.formats.errors import OffheapError
from ansible_collections.offheap.profiler.plugins.module_utils.host import procfs
from ansible_collections.offheap.profiler.plugins.module_utils.malloc import (
    allocator_libraries,
    process_allocators,
    proof,
    whole_build,
)
from ansible_collections.offheap.profiler.plugins.module_utils.unit import container, service

_UNPATCHED = (
    "in a service whose threads come and go, as with a thread per request, it can miss leaks altogether, or show them"
    " too large. The library that jemalloc_method=build makes has no such fault (docs/jemalloc_patches.md)."
)


def processes(unit: str) -> list[dict[str, Any]]:
    """The allocator of each process of a unit; processes that end meanwhile are left out."""
    found = []
    for pid in service.load(unit).pids():
        try:
            found.append({**allocator_libraries.of_process(pid), "allocators": process_allocators.of_process(pid)})
        except procfs.ProcessGone:
            continue
    return found


def main() -> NoReturn:
    """Module entry point."""
    module = AnsibleModule(
        argument_spec={
            "paths": {"type": "list", "elements": "path", "default": []},
            "discover": {"type": "bool", "default": True},
            "prove": {"type": "bool", "default": True},
            "must_profile": {"type": "bool", "default": False},
            "unit": {"type": "str"},
            "builds": {"type": "list", "elements": "path", "default": []},
            "musl_builds": {"type": "list", "elements": "path", "default": []},
            "units": {"type": "list", "elements": "str", "default": []},
            "mapped_below": {"type": "path"},
        },
        supports_check_mode=True,
    )
    wanted = module.params
    paths = allocator_libraries.installed(wanted["paths"]) if wanted["discover"] else wanted["paths"]
    try:
        used = processes(wanted["unit"]) if wanted["unit"] else []
        has_musl = any(container.has_musl(service.load(name)) for name in wanted["units"])
    except OffheapError as error:
        module.fail_json(msg=str(error))
    libraries = [allocator_libraries.describe(path, wanted["prove"]) for path in paths]
    for library in libraries if wanted["must_profile"] else []:
        if not library["prof"]:
            module.fail_json(msg=f"{library['path']}: {library['message']} ({library['failure']})")
        if "seeds.patch" not in library["patches"]:
            module.warn(f"{library['path']} is not patched: {_UNPATCHED}")
    builds = wanted["builds"] + (wanted["musl_builds"] if has_musl else [])
    module.exit_json(
        changed=False,
        platform=allocator_libraries.host_platform(),
        libraries=libraries,
        unsound=proof.UNSOUND,
        processes=used,
        missing=[path for path in builds if whole_build.fault(path)],
        mapped_by=service.pids_mapping(wanted["mapped_below"]) if wanted["mapped_below"] else [],
    )


if __name__ == "__main__":
    main()
