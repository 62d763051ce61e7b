# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Whether a unit's filters of system calls and sockets would kill the service for what the agent does, or leave it
unreachable.

A filter either returns an error, which the agent tolerates, or kills the process (the default). systemctl prints it as
the names of all calls, with a ``~`` if they are forbidden, each with an optional ``:<error>`` (systemd.exec(5)).

This module is private to the collection.
"""

from __future__ import annotations

from ansible_collections.offheap.profiler.plugins.module_utils.host import systemd
from ansible_collections.offheap.profiler.plugins.module_utils.unit.refusal import Refusal
from ansible_collections.offheap.profiler.plugins.module_utils.unit.service import Service

# System calls that the agent's thread makes and not every program does (roles/jemalloc/files/agent/README.md).
_AGENT = """
    accept4 bind clone connect fchmod getdents64 getsockopt listen poll prctl pread64 readlink recvfrom rename sendto
    socket statfs unlink
""".split()
# With these it keeps its descriptors from what the service does to its own. Without them it manages, too.
_TO_BE_SEPARATE = "unshare close_range close dup dup2 dup3 umask chdir memfd_create".split()
_LARGEST_ERROR = 4095  # a larger number is what systemd writes for "kill" (0 in old versions)


def check(service: Service) -> None:
    """The unit's filters must not kill the agent, and must let it be reached. Raises Refusal."""
    families = service.lists["RestrictAddressFamilies"] or _none(service)
    named = [family.lstrip("~") for family in families if family != "~"]
    if named and ("AF_UNIX" in named) == families[0].startswith("~"):
        raise Refusal(
            "no-unix-sockets",
            f"{service.name} has RestrictAddressFamilies={' '.join(families)}, so nobody could ask the agent for a"
            " dump. Add AF_UNIX, or profile without the agent (jemalloc_agent=false)",
        )
    fatal = _fatal(service, _AGENT)
    if fatal:
        raise Refusal(
            "system-call-filter",
            f"the SystemCallFilter of {service.name} kills a process that makes the agent's calls ({', '.join(fatal)})."
            " Set SystemCallErrorNumber=EPERM, allow these calls, or profile without the agent",
        )


def _none(service: Service) -> list[str]:
    """``none``, which systemd shows as an empty list, as old versions of it show that there is no restriction."""
    own = systemd.read_assignments(service.own_files)
    return ["none"] if any((one.key, one.value) == ("RestrictAddressFamilies", "none") for one in own) else []


def may_unshare(service: Service) -> bool:
    """Whether the unit's filter leaves alive a process that takes descriptors of its own."""
    return not _fatal(service, _TO_BE_SEPARATE)


def _fatal(service: Service, calls: list[str]) -> list[str]:
    """Those of the calls for which the unit's filter kills."""
    words = service.lists["SystemCallFilter"]
    if not any(word.strip("~") for word in words):
        return []
    number = service.text["SystemCallErrorNumber"]
    otherwise = "" if number.isdigit() and 0 < int(number) <= _LARGEST_ERROR else "kill"
    forbids = words[0].startswith("~")
    listed = {name: error for name, _colon, error in (word.lstrip("~").partition(":") for word in words)}
    actions = {"listed": otherwise if forbids else "", "other": "" if forbids else otherwise}
    return [call for call in calls if (listed.get(call) or actions["listed" if call in listed else "other"]) == "kill"]
