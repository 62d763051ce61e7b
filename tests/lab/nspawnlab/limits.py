# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""The one limit of the machine that many hosts exceed: all of them watch files as root."""

from __future__ import annotations

import os
from pathlib import Path

from .console import say
from .settings import LabError

INSTANCES = Path("/proc/sys/fs/inotify/max_user_instances")
PER_HOST = 8  # systemd, dbus, logind and udev of a host take seven
RAISED = 1024


def make_room(count: int) -> None:
    """Make sure that ``count`` more hosts can watch files; if not, raise the limit until the machine's next boot.

    Beyond the limit, hosts boot with failed .path units. Raises LabError if it cannot be raised.
    """
    limit = int(INSTANCES.read_text())
    if _in_use() + (count + 1) * PER_HOST <= limit or limit >= RAISED:
        return
    say(f"raising fs.inotify.max_user_instances from {limit} to {RAISED}: too low for {count} more hosts")
    try:
        INSTANCES.write_text(f"{RAISED}\n")
    except OSError as error:
        raise LabError(f"needs sysctl fs.inotify.max_user_instances={RAISED} for {count} hosts: {error}", 2) from error


def _in_use() -> int:
    """Inotify instances of all processes; those that end meanwhile do not count."""
    used = 0
    for link in Path("/proc").glob("[0-9]*/fd/*"):
        try:
            used += os.readlink(link) == "anon_inode:inotify"
        except OSError:
            continue
    return used
