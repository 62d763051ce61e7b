# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""What an administrator, or a crash of ours, has done to our files."""

from __future__ import annotations

from ansible_collections.offheap.profiler.tests.faults.fault import Fault


def row(name: str, inject: str, says: str = "rolled back", do: str = "rollback", **more: object) -> Fault:
    return Fault(name, "drop-in", do, says, inject=inject, **more)  # type: ignore[arg-type]


CONF = "{d}/90-offheap.conf"
ROWS = [
    row("it was emptied", f": > {CONF}", everyday=True),
    row("it was deleted", f"rm {CONF}"),
    row("it was deleted, and systemd told", f"rm {CONF}; systemctl daemon-reload"),
    row("its directory was deleted", "rm -r {d}; systemctl daemon-reload"),
    row("it was edited", f"echo Nice=3 >> {CONF}"),
    row("it is garbage", f"head -c 300 /dev/urandom > {CONF}"),
    row("its record is no JSON", f"sed -i '1s/.*/# offheap: {{{{nonsense/' {CONF}"),
    row("only a temporary file is left", f"mv {CONF} {{d}}/.90-offheap-x1; systemctl daemon-reload"),
    row("a temporary file lies beside it", "touch {d}/.90-offheap-zz"),
    row("it is a link", f"mv {CONF} /root/kept-{{unit}}; ln -s /root/kept-{{unit}} {CONF}"),
    row("it is a broken link", f"ln -sf /nowhere {CONF}"),
    row("others may write it", f"chmod 0666 {CONF}"),
    row(
        "it is also below /run",
        "mkdir -p /run/systemd/system/{unit}.d; cp {d}/90-offheap.conf /run/systemd/system/{unit}.d",
    ),
    row(
        "a file of somebody else is beside it",
        "printf '[Service]\\nNice=1\\n' > {d}/99-x.conf",
        repair="rm -f {d}/99-x.conf; rmdir --ignore-fail-on-non-empty {d}; systemctl daemon-reload",
    ),
    row("the directory of sockets is gone", "rm -rf /run/offheap/{unit}"),
    row("the socket is gone", "rm -f /run/offheap/{unit}/*"),
    row("the sockets' directory is a file", "rm -rf /run/offheap/{unit}; touch /run/offheap/{unit}"),
    row("it was emptied", f": > {CONF}", do="purge"),
    row("it was deleted", f"rm {CONF}; systemctl daemon-reload", do="purge"),
    row("it was emptied", f": > {CONF}", "", do="collect"),
    row("the socket is gone", "rm -f /run/offheap/{unit}/*", "no process", do="switch", fails=True),
]
