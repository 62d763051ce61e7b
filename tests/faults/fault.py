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


@dataclass(frozen=True)
class Fault:
    """A row.

    ``do`` is the action: enable, collect, rollback or purge. ``says`` is what its output must hold, ``fails`` whether
    it must fail, ``within`` its most seconds; longer is a hang. ``service`` is the text of the unit's file.

    ``inject`` runs when the unit has been enabled and has dumped (for enable, before that), ``unplug`` takes the host
    off the network while our connection to it is open, and ``repair`` runs after the action: then a purge must do the
    rest, and leave the unit running. Both commands are shell, run as root on the host; ``{unit}`` is the unit,
    ``{file}`` its file, ``{spool}`` its spool, ``{d}`` the directory of its drop-in, ``{dump}`` a strange dump's name.
    """

    name: str
    kind: str
    do: str
    says: str = ""
    fails: bool = False
    service: str = SERVICE
    unit: str = "fault.service"
    inject: str = ""
    unplug: bool = False
    repair: str = ""
    within: int = 180
    start_timeout: int = 60
