# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Perf maps: the lines that we add to a runtime's own, why there may be no map, and what in a name is no name.

A line is ``<start> <size> <name>``, with numbers in hexadecimal, and tells Linux's perf where a runtime's compiled code
is (tools/perf/Documentation/jit-interface.txt). To HotSpot's map we add lines of one byte, a size that no compiled code
has: the address of an interpreted method, or of a call with all the methods inlined there.

This module is private to the collection.
"""

from __future__ import annotations

import re
from typing import Sequence

#: reasons for a missing map that are not errors
ENDED = "its process has ended"
NONE = "its runtime has written no perf map"
#: begins a line with several names; semicolons separate them, as no Java name contains one (JVMS 4.2.2)
INLINED = "[inlined] "
#: so many methods a line has at the most; HotSpot inlines 15 deep unless told otherwise
MOST_CALLS = 64
_HIDDEN_CLASS = re.compile(r"(?:\$[0-9]+)?(?:[/+.]0x[0-9a-fA-F]+|/[0-9]+(?=\.))")


def added(address: int, names: Sequence[str]) -> bytes:
    """A line for the method at an address, or for the methods inlined there, innermost first."""
    name = INLINED + ";".join(names) if len(names) > 1 else names[0]
    return f"{address:#x} 0x1 {name}\n".encode("utf-8", "replace")


def without_hidden_class(name: str) -> str:
    """A Java method's name without the address of its hidden class, which differs between processes; in JDK 8, a
    decimal number."""
    return _HIDDEN_CLASS.sub("", name)
