# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""What systemd stops or restarts together with a unit, and whether it runs again afterwards.

A restart takes along what requires the unit, is bound to it or is part of it (systemd.unit(5)). systemd starts these
again with it, but not if the unit fails and comes up later, as it does when it is put back. A socket that has tried in
vain to start its service fails too.

This module is private to the collection.
"""

from __future__ import annotations

import contextlib
from typing import Iterable, Mapping, Sequence

from ansible_collections.offheap.profiler.plugins.module_utils.host import systemd
from ansible_collections.offheap.profiler.plugins.module_utils.unit.service import DEPENDENTS, TRIGGERS, Service

_RUNS = ("active", "reloading", "activating")
_SECONDS = 60.0


def running(unit: Service) -> list[str]:
    """The units that a restart of this one takes along, at any distance, and what triggers it or one of them.

    Those that do not run are not named, nor is a job at work: that one ends by itself.
    """
    found: set[str] = set()
    triggers = set(unit.lists[TRIGGERS])
    new = _taken(unit.lists)
    while new:
        found |= new
        shown = systemd.show_each(sorted(new), (*DEPENDENTS, TRIGGERS))
        lists = [{kind: names.split() for kind, names in one.items()} for one in shown]
        triggers.update(name for one in lists for name in one.get(TRIGGERS, ()))
        new = set().union(*map(_taken, lists)) - found
    together = (found | triggers) - {unit.name}
    return [name for name, state in _states(together) if state in ("active", "reloading")]


def _taken(lists: Mapping[str, Sequence[str]]) -> set[str]:
    return {name for kind in DEPENDENTS for name in lists.get(kind, ())}


def _states(names: Iterable[str]) -> list[tuple[str, str]]:
    ordered = sorted(names)
    return [(one["Id"], one["ActiveState"]) for one in systemd.show_each(ordered, ("Id", "ActiveState"))]


def stopped(names: Sequence[str]) -> list[str]:
    """Those that do not run."""
    return [name for name, state in _states(names) if state not in _RUNS]


def bring_back(names: Sequence[str]) -> list[str]:
    """Start those that no longer run, and wait for those that systemd starts already. Returns what still does not."""
    gone = stopped(names)
    for name in gone:
        with contextlib.suppress(systemd.SystemdError):  # what does not run is returned
            systemd.systemctl("reset-failed", "--", name)
    if gone:
        with contextlib.suppress(systemd.SystemdError):
            systemd.systemctl("start", "--", *gone, timeout=_SECONDS)
    return stopped(gone)


def sentence(down: Sequence[str], unit: str) -> str:
    """What is down that ran before, and what to do; empty if nothing is."""
    if not down:
        return ""
    return (
        f"{', '.join(down)} ran before and went down with {unit}: look at 'systemctl status {' '.join(down)}', and"
        " start what you need"
    )
