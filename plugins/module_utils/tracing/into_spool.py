# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""What was taken of a running unit, into its spool: from there it is fetched like any other dump.

This module is private to the collection.
"""

from __future__ import annotations

import os

from ansible_collections.offheap.profiler.plugins.module_utils.host import places
from ansible_collections.offheap.profiler.plugins.module_utils.spool import directory
from ansible_collections.offheap.profiler.plugins.module_utils.unit import spool_directory
from ansible_collections.offheap.profiler.plugins.module_utils.unit.changes import Changes
from ansible_collections.offheap.profiler.plugins.module_utils.unit.programs import Owner


def have(unit: str, owner: Owner) -> None:
    """Make the spool of a unit that has none. Raises UnitError."""
    if not os.path.lexists(places.spool_of(unit)):
        spool_directory.make(Changes(check_mode=False), places.spool_of(unit), owner)


def has(unit: str, name: str) -> bool:
    """Whether the dump is there already, collected or not. Raises SpoolError."""
    if not os.path.isdir(places.SPOOLS):
        return False
    with directory.Root() as root:
        spool = root.spool(unit)
        if spool is None:
            return False
        with spool:
            return spool.has(name)


def keep(unit: str, name: str, source: int, size: int, written: int | None = None) -> None:
    """Add a dump, as Spool.add does. Raises SpoolError."""
    with directory.Root() as root:
        spool = root.spool(unit)
        if spool is None:
            raise directory.SpoolError(f"the spool of {unit} was removed")
        with spool:
            spool.add(name, source, size, written)
