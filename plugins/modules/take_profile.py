#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Take a profile that a running unit offers by itself."""

from __future__ import annotations

DOCUMENTATION = r"""
module: take_profile
short_description: Take a heap profile that a service offers by itself, without a preload or a restart
version_added: 1.0.0
description:
  - Takes the heap profile of a running unit from its own HTTP endpoint, over TCP or a Unix socket, or those that it has
    dumped into a directory, and puts them into the unit's spool. M(offheap.profiler.heap_fetch) collects them from
    there, and M(offheap.profiler.leak_report) judges three or more of a process like the dumps of a profiled service.
  - Takes profiles of pprof (Go, Rust with jemalloc_pprof, tcmalloc), jemalloc and gperftools, plain or with gzip.
  - The process that answers has to be one of the unit's. One that listens in its stead is not asked.
  - An answer may take 90 seconds and 64 MiB. Redirects are not followed.
  - From a directory, takes the newest 100 files that the unit's processes have written since the main one started, and
    none twice. Links, files of other users, and files that are still being written are left, and told in RV(left).
author:
  - Offheap contributors (@offheap)
extends_documentation_fragment:
  - offheap.profiler.attributes
attributes:
  check_mode:
    support: full
    details: Asks for the profile, and keeps nothing.
  diff_mode:
    support: none
  idempotent:
    support: partial
    details: Each run takes a new profile from an endpoint; from a directory, only what is new.
  platform:
    support: full
    platforms: linux
options:
  unit:
    description: The service unit. You may leave out C(.service).
    type: str
    required: true
  url:
    description:
      - The endpoint, C(http://) or C(https://) with V(127.0.0.1), V(localhost) or V([::1]) as its host.
      - No certificate of the server's is looked at, since the kernel says that a process of the unit answers.
    type: str
  socket:
    description: The path of the Unix socket to ask O(url) over, as C(curl --unix-socket) does.
    type: path
  token_file:
    description:
      - The path of a file on the host with the bearer token that O(url) takes. Nobody but root may be able to write it
        or to replace it.
      - The token is told to processes of the unit only, and is kept nowhere else.
    type: path
    version_added: 1.1.0
  certificate_file:
    description:
      - The path of a file on the host with the certificate and its key, as PEM and without a password, that an O(url)
        of C(https://) wants. Nobody but root may be able to write it or to replace it.
    type: path
    version_added: 1.1.0
  directory:
    description: The directory that the service dumps profiles into. No part of its path may be a link.
    type: path
  every:
    description:
      - Take more, so many seconds apart, with a transient timer of systemd on the host. V(0) takes only one.
      - The timer and what it runs are below C(/run), and are gone after O(count) times, after a reboot, and after a
        rollback. A timer for the same task is left alone; any other of the unit is replaced.
      - A profile that cannot be taken is told in the host's journal. When the spool has 256 MiB that were not
        collected, no more are taken.
    type: int
    default: 0
  count:
    description: How many more to take with O(every).
    type: int
    default: 144
seealso:
  - module: offheap.profiler.heap_fetch
  - module: offheap.profiler.heap_import
"""

EXAMPLES = r"""
- name: Take the heap profile of a Go service
  offheap.profiler.take_profile:
    unit: gateway
    url: http://127.0.0.1:6060/debug/pprof/heap
  become: true

- name: Take one now, and one every ten minutes for a day
  offheap.profiler.take_profile:
    unit: gateway
    url: http://127.0.0.1:6060/debug/pprof/heap
    every: 600
  become: true

- name: Take it over a Unix socket
  offheap.profiler.take_profile:
    unit: gateway
    url: http://localhost/debug/pprof/heap
    socket: /run/gateway/debug.sock
  become: true

- name: Take what a service has dumped
  offheap.profiler.take_profile:
    unit: store
    directory: /var/lib/store/profiles
  become: true
"""

RETURN = r"""
unit:
  description: The unit's full name.
  returned: success
  type: str
  sample: gateway.service
pid:
  description: The process that answered; for a directory, the unit's main process.
  returned: success
  type: int
dumps:
  description: What is new in the unit's spool, by name.
  returned: success
  type: list
  elements: str
goes_on:
  description: Whether a timer was started, or would be in check mode.
  returned: success
  type: bool
left:
  description: Files that were left in the directory, with the reason.
  returned: success
  type: dict
"""

from typing import Any, NoReturn

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.offheap.profiler.plugins.module_utils.formats.errors import OffheapError
from ansible_collections.offheap.profiler.plugins.module_utils.tracing import offered


def main() -> NoReturn:
    """Module entry point."""
    module = AnsibleModule(
        argument_spec={
            "unit": {"type": "str", "required": True},
            "url": {"type": "str"},
            "socket": {"type": "path"},
            "token_file": {"type": "path", "no_log": False},
            "certificate_file": {"type": "path"},
            "directory": {"type": "path"},
            "every": {"type": "int", "default": 0},
            "count": {"type": "int", "default": 144},
        },
        required_one_of=[("url", "directory")],
        mutually_exclusive=[(name, "directory") for name in ("url", "socket", "token_file", "certificate_file")],
        supports_check_mode=True,
    )
    given: dict[str, Any] = {name: value for name, value in module.params.items() if value is not None}
    try:
        taken = offered.begin(offered.Wanted(**given), module.check_mode)
    except (OffheapError, OSError) as error:
        module.fail_json(msg=str(error))
    module.exit_json(changed=bool(taken.dumps) or taken.goes_on, **taken.to_json())


if __name__ == "__main__":
    main()
