# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""What a JVM holds outside malloc: the numbers stored with a capture, and their check.

This module is private to the collection.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Mapping

from ansible_collections.offheap.profiler.plugins.module_utils.formats import values
from ansible_collections.offheap.profiler.plugins.module_utils.formats.errors import OffheapError

#: the most categories of native memory tracking; HotSpot has about 30
MOST_CATEGORIES = 64
_LONGEST_CATEGORY = 40
_SIZES = ("heap_used", "heap_committed", "heap_resident", "metaspace")


class JvmMemoryError(OffheapError):
    """The numbers are unavailable or invalid. The message says why."""


@dataclass(frozen=True)
class JvmMemory:
    """The numbers at ``time`` (seconds since the epoch), in bytes; None if unknown.

    ``metaspace`` counts committed bytes, ``nmt`` mapped and committed bytes by category of native memory tracking.
    """

    time: float
    heap_used: int | None
    heap_committed: int | None
    heap_resident: int | None
    metaspace: int | None
    nmt: dict[str, int] | None

    def to_json(self) -> dict[str, Any]:
        """As stored in a capture's facts; the reverse of ``from_json``."""
        return dict(vars(self))

    @classmethod
    def from_json(cls, found: Any) -> JvmMemory:
        """Check and read the numbers, as both ends do where facts enter. Raises JvmMemoryError."""
        if not isinstance(found, dict) or set(found) != set(cls.__annotations__):
            raise JvmMemoryError("the JVM's numbers do not have the expected fields")
        right = isinstance(found["time"], float) and 0 <= found["time"] < 1e11
        right = right and all(found[key] is None or values.is_size(found[key]) for key in _SIZES)
        if not right or not (found["nmt"] is None or _is_tracked(found["nmt"])):
            raise JvmMemoryError("the JVM's numbers are invalid")
        return cls(**found)

    @classmethod
    def told(cls, found: Mapping[str, Any]) -> JvmMemory:
        """What is right of numbers in an archive, into which others may have written; the rest is unknown."""
        sizes = {key: found.get(key) if values.is_size(found.get(key)) else None for key in _SIZES}
        time = float(found["time"]) if values.is_time(found.get("time")) else 0.0
        nmt = found["nmt"] if _is_tracked(found.get("nmt")) else None
        return cls(time=time, nmt=nmt, **sizes)


def _is_tracked(nmt: object) -> bool:
    if not isinstance(nmt, dict) or len(nmt) > MOST_CATEGORIES:
        return False
    return all(values.is_text(name, _LONGEST_CATEGORY) and values.is_size(nmt[name]) for name in nmt)
