# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Every place on a target that holds something of ours; a rollback leaves nothing anywhere else.

This module is private to the collection.
"""

from __future__ import annotations

#: below this lies every library that this collection installs
INSTALLED = "/opt/offheap"
#: dumps and what lies beside them, a directory for each unit
SPOOLS = "/var/lib/offheap"
#: where systemd keeps those of units with DynamicUser=yes, behind a symbolic link (systemd.exec(5))
PRIVATE_SPOOLS = "/var/lib/private/offheap"
#: control sockets of agents, a directory for each unit
SOCKETS = "/run/offheap"
#: where drop-ins lie: for good, and until the host is restarted
PERSISTENT = "/etc/systemd/system"
UNTIL_REBOOT = "/run/systemd/system"


def spool_of(unit: str) -> str:
    """The directory where the unit's dumps land."""
    return f"{SPOOLS}/{unit}"


def sockets_of(unit: str) -> str:
    """The directory where the agents of the unit's processes have their control sockets."""
    return f"{SOCKETS}/{unit}"


def drop_ins_of(unit: str, until_reboot: bool) -> str:
    """The directory where the unit's drop-in lies."""
    return f"{UNTIL_REBOOT if until_reboot else PERSISTENT}/{unit}.d"
