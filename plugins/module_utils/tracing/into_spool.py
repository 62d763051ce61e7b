# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""What was taken of a running unit, into its spool: from there it is fetched like any other dump.

This module is private to the collection.
"""

from __future__ import annotations

import contextlib
import os

from ansible_collections.offheap.profiler.plugins.module_utils.host import places
from ansible_collections.offheap.profiler.plugins.module_utils.spool import directory
from ansible_collections.offheap.profiler.plugins.module_utils.unit import spool_directory
from ansible_collections.offheap.profiler.plugins.module_utils.unit.changes import Changes
from ansible_collections.offheap.profiler.plugins.module_utils.unit.programs import Owner


def have(unit: str, owner: Owner) -> bool:
    """Make the spool of a unit that has none, and say whether it had none. Raises UnitError."""
    if os.path.lexists(places.spool_of(unit)):
        return False
    spool_directory.make(Changes(check_mode=False), places.spool_of(unit), [owner])
    return True


def remove_empty(unit: str) -> None:
    """Remove the spool of a unit, and the directory of all, unless something is in it."""
    for path in (places.spool_of(unit), places.SPOOLS):
        with contextlib.suppress(OSError):
            os.rmdir(path)


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
