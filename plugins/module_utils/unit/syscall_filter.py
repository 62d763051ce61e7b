# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Whether a unit's system call filter would kill the service for what the agent does.

A filter either returns an error, which the agent tolerates, or kills the process (the default). systemctl prints it as
the names of all calls, with a ``~`` if they are forbidden, each with an optional ``:<error>`` (systemd.exec(5)).

This module is private to the collection.
"""

from __future__ import annotations

from ansible_collections.offheap.profiler.plugins.module_utils.unit.refusal import Refusal
from ansible_collections.offheap.profiler.plugins.module_utils.unit.service import Service

# System calls that the agent's thread makes and not every program does (roles/jemalloc/files/agent/README.md).
_AGENT = """
    accept4 bind clone fchmod getdents64 getsockopt listen poll prctl pread64 readlink recvfrom rename sendto socket
    statfs unlink
""".split()
_LARGEST_ERROR = 4095  # a larger number is what systemd writes for "kill" (0 in old versions)


def check(service: Service) -> None:
    """The unit's filter must not kill the agent. Raises Refusal."""
    words = service.lists["SystemCallFilter"]
    if not any(word.strip("~") for word in words):
        return
    number = service.text["SystemCallErrorNumber"]
    otherwise = "" if number.isdigit() and 0 < int(number) <= _LARGEST_ERROR else "kill"
    forbids = words[0].startswith("~")
    listed = {name: error for name, _colon, error in (word.lstrip("~").partition(":") for word in words)}
    actions = {"listed": otherwise if forbids else "", "other": "" if forbids else otherwise}
    fatal = [
        call for call in _AGENT if (listed.get(call) or actions["listed" if call in listed else "other"]) == "kill"
    ]
    if fatal:
        raise Refusal(
            "system-call-filter",
            f"the SystemCallFilter of {service.name} kills a process that makes the agent's calls ({', '.join(fatal)})."
            " Set SystemCallErrorNumber=EPERM, allow these calls, or profile without the agent",
        )
