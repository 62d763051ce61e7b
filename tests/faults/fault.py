# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""What a row of the matrix says: a service, an injection, an action, and what must come of it."""

from __future__ import annotations

from dataclasses import dataclass

#: the service of a row, where the row does not say otherwise
SERVICE = """\
[Service]
User=app
ExecStart=/usr/local/bin/ticker
"""
#: grows by a block that jemalloc samples, ten times a second; ``begin`` of a row runs first
PROGRAM = """\
import ctypes, os, signal, socket, struct, sys, time
{begin}
kept = []
while True:
    kept.append(bytearray(64 << 10))
    time.sleep(0.1)
"""


@dataclass(frozen=True)
class Fault:
    """A row.

    ``do`` is the action: enable, switch, collect, rollback or purge. ``says`` is what its output must hold about the
    unit, ``fails`` whether it must fail for the unit (None: it may), ``within`` its most seconds; longer is a hang. The
    service is the text of its file, ``service`` and then ``lines``; or a program in Python that does ``begin`` first.

    ``inject`` runs when the unit has been enabled and has dumped (for enable, before that), and ``repair`` after the
    action: then a purge must do the rest, and leave the unit ``active``. Both are shell, run as root on the host;
    ``{unit}`` is the unit, ``{file}`` its file, ``{spool}`` its spool, ``{d}`` the directory of its drop-in, ``{dump}``
    the name of a dump that no process wrote, ``{dumped}`` one of those that the unit wrote.

    Rows of one action run together, each with a unit of its own, so that none may keep another. A row is alone if
    something strikes the whole host or the controller: ``unplug`` takes the host off the network while our connection
    to it is open; ``delay`` seconds after the output of the run holds ``at``, ``strike`` runs on the host ("unplug"
    takes it off the network), or ``signal`` is sent to the controller. What was struck must succeed when it is run
    again. Neither may a row that ``stops`` a rollout be with others. The spools of a ``small`` row lie on a file
    system of 24 MiB.

    Rows that are ``everyday`` are tried whenever tests run, the others by make faults.
    """

    name: str
    kind: str
    do: str
    says: str = ""
    fails: bool | None = False
    service: str = ""
    lines: str = ""
    begin: str = ""
    unit: str = ""
    host: str = "app2"
    inject: str = ""
    repair: str = ""
    unplug: bool = False
    at: str = ""
    strike: str = ""
    delay: float = 0.0
    signal: str = ""
    stops: bool = False
    small: bool = False
    active: str = "active"
    dumps: bool = True
    within: int = 180
    start_timeout: int = 60
    everyday: bool = False

    @property
    def is_alone(self) -> bool:
        """Whether it needs the host, or the controller, for itself."""
        return self.is_struck or self.stops

    @property
    def is_struck(self) -> bool:
        """Whether the whole host, or the controller, is."""
        return self.unplug or bool(self.at)

    @property
    def text(self) -> str:
        """The unit's file."""
        if self.begin:
            return f"[Service]\nExecStart=/usr/bin/python3 {self.program}\n{self.lines}\n"
        return f"{self.service or SERVICE}{self.lines}\n"

    @property
    def program(self) -> str:
        """Where the program in Python lies."""
        return f"/usr/local/bin/{self.unit.encode().hex()}.py"
