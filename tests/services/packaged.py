# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""A packaged service as it is tried, and the ways in which clients talk to one."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

# What packages and units are called in each suite of Debian, where that says a version.
SUITES = {
    "bookworm": {
        "{php}": "8.2",
        "{postgresql}": "15",
        "{tomcat}": "10",
        "{postfix}": "postfix@-",
        "{minetest}": "minetest",
    },
    "trixie": {"{php}": "8.4", "{postgresql}": "17", "{tomcat}": "11", "{postfix}": "postfix", "{minetest}": "luanti"},
}


@dataclass(frozen=True)
class Service:
    """One unit. Commands run as root on the host: ``setup`` once, ``client`` again and again, ``upgrade`` under load.

    ``writes`` matches files that the service itself changes outside of /var/lib. With ``children``, workers are
    profiled beside the main process. ``worker`` prints the process that is attached to, where it is not the one with
    the most memory.
    """

    unit: str
    packages: str
    client: str
    setup: str = ""
    upgrade: str = ""
    writes: str = ""
    children: bool = False
    worker: str = ""
    note: str = ""

    @property
    def name(self) -> str:
        """What tells it from others in the table, and names its file: the unit, and what is special."""
        return re.sub(r"[^\w.@-]+", "-", f"{self.unit} {self.note}".strip())

    def of(self, suite: str) -> Service:
        """The same with the names that a suite has for it."""
        found = self
        for field in ("unit", "packages", "client", "setup", "upgrade", "worker"):
            text = getattr(found, field)
            for word, version in SUITES[suite].items():
                text = text.replace(word, version)
            found = replace(found, **{field: text})
        return found


def web(port: int, path: str = "/") -> str:
    return f"curl -s -o /dev/null http://127.0.0.1:{port}{path}"


def talk(port: int, words: str, answer: str = "") -> str:
    """Send lines to a port and expect an answer that matches."""
    return f"printf '{words}\\r\\n' | nc -q 1 -w 3 127.0.0.1 {port} | grep -aq '{answer}'"


def datagram(port: int, content: str) -> str:
    """Send one datagram and expect an answer."""
    return f"printf '{content}' | nc -u -w 1 127.0.0.1 {port} | head -c 1 | wc -c | grep -q 1"


def child(unit: str) -> str:
    """One of its workers."""
    return f"pgrep -o -P $(systemctl show -P MainPID {unit})"


def dns(name: str, kind: str = "A") -> str:
    return f"dig +time=2 +tries=1 @127.0.0.1 {name} {kind} > /dev/null"
