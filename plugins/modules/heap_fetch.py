#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The target's half of heap_fetch: list, pack and mark the dumps in the spools."""

from __future__ import annotations

DOCUMENTATION = r"""
module: heap_fetch
short_description: Bring new heap dumps of profiled units into an archive on the controller
version_added: 0.1.0
description:
  - Finds the finished dumps that were not collected yet, brings them over the connection that Ansible already has,
    whatever the become method, verifies them, stores each dump with its facts in the archive, and marks it as
    collected. A second run brings nothing twice.
  - Also brings the executables and libraries that the dumps' addresses belong to, each file once for the whole
    archive.
  - If a process compiles code while it runs, brings a map of that code with its newest dump, so that the methods of
    Java, Python and Node have names. A JVM is asked for its map (JDK 17 and up), for the size of its Java heap and, if
    native memory tracking is on, for its numbers. One that does not answer soon is left alone. The sidecar that the
    agent wrote beside a dump becomes part of the dump's facts.
  - Agents that could not write their newest dump, as to a full disk, are asked why, and the answer is a warning.
  - A transfer that breaks leaves nothing half-written in the archive and loses nothing on the target. The next run
    brings it again.
  - Everything that a target sends is checked before use. Dumps are taken only from ordinary files that belong to the
    spool's owner.
author:
  - Offheap contributors (@offheap)
extends_documentation_fragment:
  - offheap.profiler.attributes
  - offheap.profiler.attributes.action
  - offheap.profiler.profiles.source
attributes:
  action:
    support: full
  async:
    support: none
  check_mode:
    support: full
    details: Says what would be brought. Changes neither the archive nor the target.
  diff_mode:
    support: none
  idempotent:
    support: full
  platform:
    support: full
    platforms: linux
options:
  archive:
    description:
      - Directory of the archive on the controller, or its address, such as C(s3://bucket/offheap). It is created if
        missing.
      - A relative path starts at the directory that C(ansible-playbook) was started in.
    type: path
    required: true
  units:
    description:
      - Units whose dumps to bring. You may leave out C(.service).
      - An empty list means all units that have a spool on the host. The spool remains after a unit is no longer
        profiled, so its last dumps are brought too.
    type: list
    elements: str
    default: []
  delete_collected:
    description: Delete dumps on the target once they are safe in the archive, instead of moving them to C(collected/).
    type: bool
    default: false
  max_batch:
    description:
      - How much one transfer may hold before compression, in bytes or with a unit.
      - More than this takes several transfers. Dumps that are not streamed also take several transfers if Ansible's
        temporary directory on the target has too little room.
    type: bytes
    default: 512M
  max_dump:
    description:
      - The size limit of a dump, at most 256 MiB. A larger one stays on the target and is reported in RV(unreadable).
    type: bytes
    default: 256M
  max_image:
    description: The size limit of an executable or library. A larger one is not brought; addresses in it get no names.
    type: bytes
    default: 1G
  max_captures:
    description: The largest number of dumps to bring in one run, the oldest of each process first. See RV(left).
    type: int
    default: 5000
  label:
    description:
      - A label that the archive keeps with these captures, such as the version of the service that runs on the host.
        Rankings across hosts name the label with which a leak appeared.
    type: str
    default: ""
  step:
    description: Internal. Set by the action plugin; do not use it in a task.
    type: str
    choices: [list, pack, mark]
  request:
    description: Internal. Set by the action plugin; do not use it in a task.
    type: dict
notes:
  - Over P(ansible.builtin.ssh#connection) with a key, as root or with plain P(ansible.builtin.sudo#become), the dumps
    are streamed through one connection and never stored in packed form on the target. Other connections and other ways
    to become root work too, with a packed file in Ansible's temporary directory.
  - Needs C(become) with root, or root as the login user, because spools belong to the services.
  - A capture's facts include the command line of the profiled process. Keep the archive as safe as the hosts.
  - If the connection is P(ansible.builtin.ssh#connection) and its arguments set no C(ServerAliveInterval), the module
    sets one, so that a host that vanishes ends the task after half a minute. For other connections the task's
    C(timeout) does.
requirements:
  - zstandard (Python library, on the controller)
seealso:
  - module: offheap.profiler.profiled_unit
  - module: offheap.profiler.archive_prune
"""

EXAMPLES = r"""
- name: Bring all new captures of a host
  offheap.profiler.heap_fetch:
    archive: offheap/archive
  become: true

- name: Bring the profiles that a Rust service offers with jemalloc_pprof, which do not say how they were sampled
  offheap.profiler.heap_fetch:
    archive: offheap/archive
    units: [router]
    source_interval: 512KiB
  become: true

- name: Bring the captures of one unit and leave nothing on the target
  offheap.profiler.heap_fetch:
    archive: /srv/offheap
    units: [frontend]
    delete_collected: true
  become: true
  timeout: 1800
"""

RETURN = r"""
archive:
  description: The archive's directory on the controller, or its address.
  returned: always
  type: str
  sample: /home/ops/fleet/offheap/archive
captures:
  description: The captures that were brought, or in check mode would be.
  returned: success
  type: list
  elements: dict
  contains:
    unit:
      description: The unit.
      type: str
      sample: frontend.service
    host:
      description: The host's name in the inventory.
      type: str
      sample: app1
    name:
      description: The dump's file name on the target.
      type: str
      sample: jeprof.1234.0.i0.heap
    process:
      description: The process, as its number and a fingerprint that changes with each start.
      type: str
      sample: 1234-1a2b3c4d
    size:
      description: Size of the dump in bytes.
      type: int
      sample: 91234
    time:
      description: When the dump was written, in seconds since the epoch.
      type: float
      sample: 1761234.567
images:
  description: Build-ids of the executables and libraries that were brought, or in check mode would be.
  returned: success
  type: list
  elements: str
bytes:
  description: Size of all dumps and images brought, in bytes.
  returned: success
  type: int
transferred:
  description: How many bytes went over the network for them.
  returned: success
  type: int
streamed:
  description: Whether the dumps came in a stream. If not, they were packed in Ansible's temporary directory on the
    target first.
  returned: success
  type: bool
collected:
  description: Number of dumps marked as collected on the target, including those already in the archive.
  returned: success
  type: int
incomplete:
  description: Truncated dumps that nobody is writing any more. They stay on the target.
  returned: success
  type: list
  elements: dict
  contains: &others
    unit:
      description: The unit.
      type: str
    name:
      description: The file's name in the spool.
      type: str
    size:
      description: Size in bytes.
      type: int
    reason:
      description: Why it was not brought.
      type: str
unreadable:
  description: Complete files that cannot be trusted or understood, for example because of another format version. They
    stay on the target.
  returned: success
  type: list
  elements: dict
  contains: *others
writing:
  description: Dumps that their process is still writing. The next run brings them.
  returned: success
  type: list
  elements: dict
  contains: *others
missing_images:
  description: Mapped files that could not be brought, with the reason, for example V(replaced) by an upgrade after the
    process ended. Addresses in them get no names.
  returned: success
  type: list
  elements: dict
  contains:
    path:
      description: The file's path on the target.
      type: str
    reason:
      description: Why it was not brought.
      type: str
absent:
  description: Named units that have no spool on the host.
  returned: success
  type: list
  elements: str
left:
  description: Number of dumps beyond O(max_captures), which the next run brings.
  returned: success
  type: int
summary:
  description: One line that says what was brought.
  returned: success
  type: str
  sample: "app1: 50 captures of frontend.service, 4.4 MiB (0.6 MiB over the network), 12 images"
"""

from typing import NoReturn

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.offheap.profiler.plugins.module_utils.agent import failed_dumps
from ansible_collections.offheap.profiler.plugins.module_utils.formats.errors import OffheapError
from ansible_collections.offheap.profiler.plugins.module_utils.formats.pack_request import PackRequest, SpooledDump
from ansible_collections.offheap.profiler.plugins.module_utils.spool import pack, steps


def main() -> NoReturn:
    module = AnsibleModule(
        argument_spec={
            "archive": {"type": "path", "required": True},
            "units": {"type": "list", "elements": "str", "default": []},
            "delete_collected": {"type": "bool", "default": False},
            "max_batch": {"type": "bytes", "default": "512M"},
            "max_dump": {"type": "bytes", "default": "256M"},
            "max_image": {"type": "bytes", "default": "1G"},
            "max_captures": {"type": "int", "default": 5000},
            "label": {"type": "str", "default": ""},
            "source_measure": {"type": "str", "choices": ["live", "allocated", "grown"]},
            "source_unit": {"type": "str", "choices": ["bytes", "objects"]},
            "source_interval": {"type": "str", "default": "0"},
            "step": {"type": "str", "choices": ["list", "pack", "mark"]},
            "request": {"type": "dict"},
        },
        supports_check_mode=True,
    )
    step = module.params["step"]
    if step is None or not module.params["request"]:
        module.fail_json(
            msg="heap_fetch works through its action plugin; call it as offheap.profiler.heap_fetch in a task"
        )
    if module.check_mode and step != "list":
        module.fail_json(msg=f"step {step} does not support check mode")
    try:
        request = module.params["request"]
        directory = request["staging"]
        if step == "list":
            if not module.check_mode:
                pack.clear_stale(directory)
            found = steps.find(module.params)
            found.problems.extend(failed_dumps.told(module.params["units"]))
            if not module.check_mode:
                steps.ask_jvms(found)
            module.exit_json(changed=False, free=pack.free(directory), **found.to_json())
        if step == "pack":
            module.exit_json(changed=False, **steps.pack_captures(PackRequest.from_json(request), directory))
        pack.remove(directory)
        dumps = [SpooledDump.from_json(entry) for entry in request["dumps"]]
        module.exit_json(**steps.mark(dumps, module.params["delete_collected"]))
    except OffheapError as exc:
        module.fail_json(msg=str(exc))


if __name__ == "__main__":
    main()
