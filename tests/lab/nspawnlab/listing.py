# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""A host's files with mode, owner and checksum, sorted by path: equal listings mean that nothing changed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from . import access
from .settings import LabError, Settings

ROOTS = ("/etc", "/opt", "/usr", "/var/lib", "/run/systemd")

# Left out: shell patterns for whole paths ("*" also matches slashes), each with its reason. A pattern that matches a
# directory also excludes what is below it.
LEFT_OUT = {
    "/run/systemd/units/invocation:*": "names the current start of a unit: every restart changes it",
    "/run/systemd/units/log-*": "journald's copy of a unit's log settings, made with each start",
    "/run/systemd/journal/*": "journald's sockets and one stream per started process",
    "/run/systemd/sessions": "one file per login, including the SSH login that makes this listing",
    "/run/systemd/users": "logged-in users, with session numbers and times",
    "/run/systemd/seats": "active sessions of a seat",
    "/run/systemd/transient/session-*": "the scope of a login session",
    "/run/systemd/ask-password-block": "markers of running systemctl processes that might ask for a password",
    "/run/systemd/inhibit": "locks that logind grants while it works",
    "/run/systemd/dynamic-uid": "the user ids that running DynamicUser services hold",
    "/run/systemd/propagate": "mount propagation of sandboxed services: made with the service's start",
    "/run/systemd/incoming": "mount propagation of sandboxed services: made with the service's start",
    "/var/lib/systemd/random-seed": "written at shutdown and boot",
    "/var/lib/systemd/timers": "when timers last ran",
    "/var/lib/systemd/timesync": "the clock, saved now and then",
    "/var/lib/private/vault": "written by the workload vault itself",
}

_SCRIPT = Path(__file__).with_name("listing_on_host.py")


def show(settings: Settings, host: str) -> int:
    """Print the listing of ``host``, one line per path.

    Raises LabError if the host cannot be read completely.
    """
    program = _SCRIPT.read_text() + f"\nmain({json.dumps(ROOTS)}, {json.dumps(list(LEFT_OUT))})\n"
    argv = access.ssh_command(settings, host, ["sudo", "/usr/bin/python3", "-I", "-"])
    done = subprocess.run(argv, input=program.encode(), stdout=subprocess.PIPE, check=False)
    if done.returncode != 0:
        raise LabError(f"listing {host} failed with status {done.returncode}")
    sys.stdout.buffer.write(done.stdout)
    sys.stdout.flush()
    return 0
