# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""The matrix: every fault, how it is injected, under which action, and what the run must say."""

from __future__ import annotations

from ansible_collections.offheap.profiler.tests.faults.fault import Fault

NEVER_READY = (
    "[Service]\nType=notify\nUser=app\nTimeoutStartSec=infinity\n"
    "ExecStart=/bin/sh -c '[ -z \"$MALLOC_CONF\" ] || exec sleep 1000; exec /usr/local/bin/ticker'\n"
)

MATRIX = [
    Fault(
        "the unit file was deleted while it runs",
        "unit",
        "rollback",
        "its unit file is not-found",
        fails=True,
        inject="mv {file} /root/kept; systemctl daemon-reload",
        repair="mv /root/kept {file}; systemctl daemon-reload",
    ),
    Fault(
        "it cannot start any more",
        "unit",
        "rollback",
        "did not start",
        fails=True,
        inject="echo ExecStartPre=/bin/false >> {file}; systemctl daemon-reload",
        repair="sed -i /ExecStartPre/d {file}; systemctl daemon-reload",
    ),
    Fault(
        "never ready under the preload, TimeoutStartSec=infinity",
        "unit",
        "enable",
        "has not come up 5 s after its restart",
        fails=True,
        service=NEVER_READY,
        start_timeout=5,
    ),
    Fault("the drop-in was emptied", "drop-in", "rollback", "rolled back", inject=": > {d}/90-offheap.conf"),
    Fault(
        "a crash has cut a dump off",
        "spool",
        "purge",
        "could never be collected",
        inject="cd {spool}; printf 'heap_v2/524288\\n t*: 1: 2' >{dump}; chown app {dump}",
    ),
    Fault("off the network while our connection is open", "host", "collect", fails=True, unplug=True, within=75),
    Fault("off the network while our connection is open", "host", "rollback", fails=True, unplug=True, within=75),
]
