#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The target's half of heap_fetch: list, pack and mark what lies in the spools."""

from __future__ import annotations

DOCUMENTATION = r"""
module: heap_fetch
short_description: Bring new heap dumps of profiled units into an archive on the controller
version_added: 0.1.0
description:
  - Finds the dumps that are finished and were not brought home yet, packs them once on the target, brings the file
    over the connection that Ansible already has, whatever the become method, verifies it, stores each dump with its
    facts in the archive, and marks it as collected. A second run brings nothing twice.
  - The executables and libraries that the dumps' addresses belong to are brought once per build-id for the whole
    archive.
  - Where a process compiles code while it runs, a map of that code is brought with its newest dump, so that the
    methods of Java, Python and Node have names. A JVM is asked for it (JDK 17 and up); one that does not answer soon is
    left alone. The agent's sidecar of a dump becomes part of its facts. A JVM is also asked how large its Java heap is,
    and what native memory tracking has counted where that is on.
  - A transfer that breaks leaves nothing half-written in the archive and loses nothing on the target; the next run
    brings it again.
  - What a target sends is checked before it is used. Dumps are only taken from ordinary files that belong to the
    owner of the spool.
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
    details: Says what would be brought. Neither the archive nor the target is changed.
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
      - Directory of the archive on the controller. It is made when it does not exist.
      - A relative path begins at the directory that C(ansible-playbook) was started in.
    type: path
    required: true
  units:
    description:
      - Units whose dumps are brought. C(.service) may be left out.
      - All units that have a spool on the host, when the list is empty. The spool remains when a unit is no longer
        profiled, so its last dumps are brought too.
    type: list
    elements: str
    default: []
  delete_collected:
    description: Delete dumps on the target after they are safe in the archive, instead of moving them to C(collected/).
    type: bool
    default: false
  max_batch:
    description:
      - What one transfer may hold, before compression, as a number of bytes or with a unit.
      - More than this is brought in several transfers. So is what has no room in Ansible's temporary directory on the
        target, where it is not streamed.
    type: bytes
    default: 512M
  max_dump:
    description: A larger dump is left on the target and reported in RV(unreadable).
    type: bytes
    default: 1G
  max_image:
    description: A larger executable or library is not brought; addresses in it stay without names.
    type: bytes
    default: 1G
  max_captures:
    description: At most this many dumps are brought in one run, the oldest of each process first. See RV(left).
    type: int
    default: 5000
  label:
    description:
      - What the archive notes with these captures, such as the version of the service that runs on the host. Rankings
        over hosts say the label with which a leak appeared.
    type: str
    default: ""
  step:
    description: Internal. Set by the action plugin, not to be used in a task.
    type: str
    choices: [list, pack, mark]
  request:
    description: Internal. Set by the action plugin, not to be used in a task.
    type: dict
notes:
  - Over P(ansible.builtin.ssh#connection) with a key, as root or with plain P(ansible.builtin.sudo#become), the dumps
    are streamed through one connection and never lie packed on the target. Other connections and other ways to become
    root work too, with a packed file in Ansible's temporary directory.
  - Needs C(become) with root, or root as the login user, since spools belong to the services.
  - The command line of a profiled process is kept among the facts of a capture. Keep the archive as safe as the hosts.
  - Where the connection is P(ansible.builtin.ssh#connection) and no C(ServerAliveInterval) is among its arguments, one
    is set, so that a host that is gone without a word ends the task after half a minute. The task's C(timeout) ends it
    for other connections.
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
  description: The archive's directory on the controller.
  returned: always
  type: str
  sample: /home/ops/fleet/offheap/archive
captures:
  description: What was brought, or in check mode would be.
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
      description: The process, by its number and a fingerprint that differs after each start.
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
  description: What went over the network for them, in bytes.
  returned: success
  type: int
streamed:
  description: Whether the dumps came in a stream. If not, they were packed in Ansible's temporary directory on the
    target first.
  returned: success
  type: bool
collected:
  description: Number of dumps marked as collected on the target, with those that were in the archive already.
  returned: success
  type: int
incomplete:
  description: Dumps that are cut off and that nobody writes any more. They are left on the target.
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
  description: Whole files that are no dumps to be trusted or understood, for example of another format version. They
    are left on the target.
  returned: success
  type: list
  elements: dict
  contains: *others
writing:
  description: Dumps that their process is writing. The next run brings them.
  returned: success
  type: list
  elements: dict
  contains: *others
missing_images:
  description: Files of the dumps that could not be brought, with the reason, for example V(replaced) by an upgrade
    while the process is gone. Addresses in them stay without names.
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
  description: Dumps beyond O(max_captures), for the next run.
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

from ansible_collections.offheap.profiler.plugins.module_utils.spool import directory as spool
from ansible_collections.offheap.profiler.plugins.module_utils.spool import pack, steps


def main() -> NoReturn:
    module = AnsibleModule(
        argument_spec={
            "archive": {"type": "path", "required": True},
            "units": {"type": "list", "elements": "str", "default": []},
            "delete_collected": {"type": "bool", "default": False},
            "max_batch": {"type": "bytes", "default": "512M"},
            "max_dump": {"type": "bytes", "default": "1G"},
            "max_image": {"type": "bytes", "default": "1G"},
            "max_captures": {"type": "int", "default": 5000},
            "label": {"type": "str", "default": ""},
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
        module.fail_json(msg=f"the step {step} has no check mode")
    try:
        request = module.params["request"]
        directory = request["staging"]
        if step == "list":
            if not module.check_mode:
                pack.clear_stale(directory)
            found = steps.find(module.params)
            if not module.check_mode:
                steps.ask_jvms(found)
            module.exit_json(changed=False, free=pack.free(directory), **found)
        if step == "pack":
            module.exit_json(changed=False, **steps.pack(request, directory))
        pack.remove(directory)
        module.exit_json(**steps.mark(request["dumps"], module.params["delete_collected"]))
    except (spool.SpoolError, pack.StagingError) as exc:
        module.fail_json(msg=str(exc))


if __name__ == "__main__":
    main()
