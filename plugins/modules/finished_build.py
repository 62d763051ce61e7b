#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Documentation of finished_build, whose work is done in the action plugin of the same name."""

from __future__ import annotations

DOCUMENTATION = r"""
module: finished_build
short_description: Build jemalloc or the agent, where no finished build is at hand
version_added: 1.1.0
description:
  - Has the controller build for all hosts of a platform, or one host for all of them, or each host for itself. Or takes
    what was built before.
  - A finished build lies in O(cache), with a record that has its SHA-256. M(offheap.profiler.installed_build) brings it
    to a host. What a host builds for itself alone stays there and is installed at once.
  - Of tasks that want the same build at the same time, one makes it.
  - Refuses a cache that others can write to, and whatever could not be built, in check mode as well.
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
  places:
    description:
      - What to build, C(library) or C(agent) or both, with the directory of each on the host. The last part of that is
        the name of the build.
      - Or C(library-musl) and C(agent-musl), the same for containers with musl, whose names end in C(-musl), too. The
        controller alone builds these, whatever O(method) is, and leaves them out where it cannot.
    type: dict
    required: true
  method:
    description:
      - V(cross) builds on the controller, V(build) on O(build_host), or, without one, on each host for itself.
        V(archive) takes O(archive).
      - V(auto) is V(cross) where the controller has the compiler and the collection the checksum, else V(build).
    type: str
    choices: [auto, cross, build, archive]
    required: true
  hosts:
    description:
      - What M(offheap.profiler.allocator_info) has returned on each host of the play, this one among them, with
        O(places) as its option C(builds).
    type: dict
    required: true
  build_host:
    description: The host that builds for all.
    type: str
    default: ""
  cache:
    description: Directory on the controller for sources and finished builds.
    type: path
    required: true
  archive:
    description: A tarball of the library on the controller, which an earlier build left. The agent's is beside it.
    type: path
    default: ""
  archive_checksums:
    description: The SHA-256 of O(archive), as C(library), and of the one beside it, as C(agent).
    type: dict
    default: {}
  files:
    description: The directory on the controller with the agent's sources, the patches, and what builds them.
    type: path
    required: true
  cross:
    description:
      - What the controller can build for. C(compiler) is the release of ziglang, C(libc) the oldest glibc, C(targets)
        has the compiler's name of each platform.
    type: dict
    required: true
  version:
    description: The release of jemalloc.
    type: str
    required: true
  source:
    description: Its tarball, as a URL or a path on the controller.
    type: str
    required: true
  checksum:
    description: The SHA-256 of that tarball.
    type: str
    required: true
  patches:
    description: Names of the patches, with the SHA-256 of each.
    type: dict
    required: true
  configure_options:
    description: Options of jemalloc's configure.
    type: list
    elements: str
    required: true
  cflags:
    description: More flags for the compiler of jemalloc.
    type: str
    required: true
seealso:
  - module: offheap.profiler.installed_build
"""

EXAMPLES = r"""
- name: Build the agent, where it is missing
  offheap.profiler.finished_build:
    places: {agent: /opt/offheap/agent/0a1b2c3d4e5f}
    method: auto
    hosts: "{{ {inventory_hostname: found} }}"
    cache: offheap/cache
    files: "{{ role_path }}/files"
    cross: {compiler: 0.17.1, libc: '2.17', targets: {glibc-x86_64-4096: x86_64-linux-gnu.2.17}}
    version: 5.3.0
    source: /srv/sources/jemalloc-5.3.0.tar.bz2
    checksum: 2db82d1e7119df3e71b7640219b6dfe84789bc0537983c3b7ac4f7189aecfeaa
    patches: {}
    configure_options: [--enable-prof]
    cflags: -g0
  become: true
  register: build
"""

RETURN = r"""
builds:
  description: The builds that this host lacks and that lie on the controller now. In check mode, that would.
  type: list
  elements: dict
  returned: success
  contains:
    path:
      description: The directory on the host.
      type: str
    tarball:
      description: The finished build on the controller.
      type: str
    sha256:
      description: Its SHA-256, if it is from an archive. Else it is in the record beside it.
      type: str
    pinned:
      description: The library in it, with the SHA-256 that the collection has for it.
      type: dict
"""
