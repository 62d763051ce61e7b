# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""What a JVM holds outside of malloc: the numbers that go with a capture, and their check.

This module is private to the collection.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ansible_collections.offheap.profiler.plugins.module_utils.formats import values
from ansible_collections.offheap.profiler.plugins.module_utils.formats.errors import OffheapError

#: categories of native memory tracking; HotSpot has some 30
MOST_CATEGORIES = 64
_LONGEST_CATEGORY = 40
_SIZES = ("heap_used", "heap_committed", "heap_resident", "metaspace")


class JvmMemoryError(OffheapError):
    """There are no such numbers, or they are not what they must be. The message says why."""


@dataclass(frozen=True)
class JvmMemory:
    """The numbers at ``time`` (seconds since the epoch), in bytes; what is not known is None.

    ``metaspace`` is what is committed, ``nmt`` what is mapped and committed, by category of native memory tracking.
    """

    time: float
    heap_used: int | None
    heap_committed: int | None
    heap_resident: int | None
    metaspace: int | None
    nmt: dict[str, int] | None

    def to_json(self) -> dict[str, Any]:
        """As a capture's facts have it; the reverse of ``from_json``."""
        return dict(vars(self))

    @classmethod
    def from_json(cls, found: Any) -> JvmMemory:
        """Checked, as both ends do where facts enter. Raises JvmMemoryError."""
        if not isinstance(found, dict) or set(found) != set(cls.__annotations__):
            raise JvmMemoryError("the JVM's numbers have other fields than they must have")
        nmt = found["nmt"]
        right = isinstance(found["time"], float) and 0 <= found["time"] < 1e11
        right = right and all(found[key] is None or values.is_size(found[key]) for key in _SIZES)
        if nmt is not None:
            right = right and isinstance(nmt, dict) and len(nmt) <= MOST_CATEGORIES
            right = right and all(values.is_text(name, _LONGEST_CATEGORY) and values.is_size(nmt[name]) for name in nmt)
        if not right:
            raise JvmMemoryError("the JVM's numbers are not what they must be")
        return cls(**found)
