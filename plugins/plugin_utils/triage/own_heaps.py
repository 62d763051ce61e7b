# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Runtimes that map a heap of their own, which no profile of malloc shows: its name, and how to look into it."""

from __future__ import annotations

import os
import re
from typing import NamedTuple


class OwnHeap(NamedTuple):
    """``name`` is the heap's; in ``next_step`` may stand what may in a rule's (rules.py)."""

    name: str
    next_step: str


# The program's file name. Where the steps come from: each runtime's own documentation of memory.
_BY_PROGRAM = (
    (
        r"python[0-9.]*",
        OwnHeap(
            "CPython's arenas, which hold objects of up to 512 bytes",
            "let a profile show them as well: {objects}",
        ),
    ),
    (
        r"(node|nodejs)-?[0-9.]*",
        OwnHeap("V8's heap", "take a heap snapshot: node inspect -p {pid}, then takeHeapSnapshot()"),
    ),
    (r"dotnet", OwnHeap("the .NET heap", "see what is in it: dotnet-gcdump collect -p {pid}")),
    (
        r"ruby[0-9.]*",
        OwnHeap("Ruby's object slots", "see what is in them: ObjectSpace.dump_all, from the program itself"),
    ),
    (
        r"php(-fpm|-cgi)?[0-9.]*",
        OwnHeap("PHP's memory manager", "see what it says: memory_get_usage(true); USE_ZEND_ALLOC=0 has it use malloc"),
    ),
    (
        r"beam(\.smp)?",
        OwnHeap("Erlang's carriers", "see which allocator has them: recon_alloc:memory(allocated_types)"),
    ),
)


def of(program: str) -> OwnHeap | None:
    """The own heap of a program, by its path; None if no runtime is known that has this name."""
    name = os.path.basename(program)
    return next((heap for pattern, heap in _BY_PROGRAM if re.fullmatch(pattern, name)), None)
