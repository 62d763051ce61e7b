# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Perf maps: the lines that we add to a runtime's own, and why there may be no map.

A line is ``<start> <size> <name>``, with numbers in hexadecimal, and tells Linux's perf where a runtime's compiled code
is (tools/perf/Documentation/jit-interface.txt). To HotSpot's map we add lines of one byte, a size that no compiled code
has: the address of an interpreted method, or of a call with all the methods inlined there.

This module is private to the collection.
"""

from __future__ import annotations

from typing import Sequence

#: reasons for a missing map that are not errors
ENDED = "its process has ended"
NONE = "its runtime has written no perf map"
#: begins a line with several names; semicolons separate them, as no Java name contains one (JVMS 4.2.2)
INLINED = "[inlined] "
#: so many methods a line has at the most; HotSpot inlines 15 deep unless told otherwise
MOST_CALLS = 64


def added(address: int, names: Sequence[str]) -> bytes:
    """A line for the method at an address, or for the methods inlined there, innermost first."""
    name = INLINED + ";".join(names) if len(names) > 1 else names[0]
    return f"{address:#x} 0x1 {name}\n".encode("utf-8", "replace")
