# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Every place on a target where we put files; a rollback has nothing to clean up anywhere else.

This module is private to the collection.
"""

from __future__ import annotations

import os
import re

#: the root of every library that this collection installs
INSTALLED = "/opt/offheap"
#: a library that traces JVMs, one directory per version
TRACER = f"{INSTALLED}/async-profiler"
#: the agent, one directory per version
AGENT = f"{INSTALLED}/agent"
#: dumps and the files beside them, one directory per unit
SPOOLS = "/var/lib/offheap"
#: where systemd keeps those of units with DynamicUser=yes; SPOOLS then has a link (systemd.exec(5))
PRIVATE_SPOOLS = "/var/lib/private/offheap"
#: control sockets of agents, one directory per unit
SOCKETS = "/run/offheap"
#: live traces while they begin, one directory each
TRACING = "/run/offheap/tracing"
#: programs that timers run to take what units offer, one directory per unit
TAKING = "/run/offheap/taking"
#: where systemd keeps those of units with DynamicUser=yes and RuntimeDirectoryPreserve=; SOCKETS then has a link
PRIVATE_SOCKETS = "/run/private/offheap"
#: where drop-ins go: for good, and until the next reboot
PERSISTENT = "/etc/systemd/system"
UNTIL_REBOOT = "/run/systemd/system"


_BUILD = re.compile(rf"({INSTALLED}/(?:jemalloc|agent)/[^/]+?)(-musl)?/")


def make(path: str, mode: int = 0o755) -> None:
    """A directory of root's there with this mode, whatever our umask, which keeps others out on many hosts."""
    os.makedirs(path, mode, exist_ok=True)
    os.chmod(path, mode)


def for_musl(library: str) -> str:
    """The file of the same build for containers with musl, which is beside it. One that is none of ours has none."""
    return _BUILD.sub(r"\1-musl/", library, count=1)


def for_host(library: str) -> str:
    """The file of the same build for this host."""
    return _BUILD.sub(r"\1/", library, count=1)


def is_for_musl(library: str) -> bool:
    """Whether it is that of a build for containers with musl."""
    return library != for_host(library)


def spool_of(unit: str) -> str:
    """The directory of the unit's dumps."""
    return f"{SPOOLS}/{unit}"


def sockets_of(unit: str) -> str:
    """The directory of the control sockets of the unit's agents."""
    return f"{SOCKETS}/{unit}"


def drop_ins_of(unit: str, until_reboot: bool) -> str:
    """The directory of the unit's drop-in."""
    return f"{UNTIL_REBOOT if until_reboot else PERSISTENT}/{unit}.d"
