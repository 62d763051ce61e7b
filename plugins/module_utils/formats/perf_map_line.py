# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Perf maps between the ends: lines that a runtime does not write, and why there may be no map.

A line is ``<start> <size> <name>``, numbers in hexadecimal, as runtimes tell Linux's perf where their compiled code
lies (tools/perf/Documentation/jit-interface.txt). To HotSpot's we add lines of one byte, which no compiled code is: the
address of an interpreted method, or of one call with all the methods that it stands for.

This module is private to the collection.
"""

from __future__ import annotations

from typing import Sequence

#: reasons for no map that are nobody's fault
ENDED = "its process has ended"
NONE = "its runtime has written no perf map"
#: what begins the name in a line that has several; between them stand semicolons, which no Java name has (JVMS 4.2.2)
INLINED = "[inlined] "
#: so many methods a line has at the most; HotSpot inlines 15 deep unless told otherwise
MOST_CALLS = 64


def added(address: int, names: Sequence[str]) -> bytes:
    """A line of ours: the method at an address, or the calls that are compiled into one, innermost first."""
    name = INLINED + ";".join(names) if len(names) > 1 else names[0]
    return f"{address:#x} 0x1 {name}\n".encode("utf-8", "replace")
