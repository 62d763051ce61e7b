# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""The host dies, hangs, is cut off or is full while it is at work."""

from __future__ import annotations

from ansible_collections.offheap.profiler.tests.faults.fault import Fault
from ansible_collections.offheap.profiler.tests.faults.rows.runs import MOMENTS

# As the title of the process of a connection is, before OpenSSH 9.8 and since; not the shell that looks for it.
SEVERED = "pkill -KILL -f '[s]shd(-session)?: deploy'"


def struck(name: str, do: str, strike: str, **more: object) -> Fault:
    return Fault(f"{name} at '{MOMENTS[do]}'", "host", do, at=MOMENTS[do], strike=strike, **more)  # type: ignore[arg-type]


ROWS = [
    Fault("off the network while our connection is open", "host", "collect", fails=True, unplug=True, within=75),
    Fault("off the network while our connection is open", "host", "rollback", fails=True, unplug=True, within=75),
    # Between two steps of the playbook, Ansible connects anew.
    *[struck("its sshd is killed", do, SEVERED, fails=None, delay=1) for do in MOMENTS],
]
