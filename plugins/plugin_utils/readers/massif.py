# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Valgrind massif's output: a tree of what was live in its last detailed snapshot.

    snapshot=13
    mem_heap_B=1050
    heap_tree=detailed
    n2: 1050 (heap allocation functions) malloc/new/new[], --alloc-fns, etc.
     n1: 1000 0x109169: leak (leak.c:4)
      n0: 1000 0x1091C0: main (in /srv/app)
     n0: 50 in 1 place, below massif's threshold (1.00%)

Indentation is depth, and callers are below what they call. massif records every allocation. What lies below its
threshold has no stack. Format: massif/ms_main.c of Valgrind.

Valgrind's tools write the same for --xtree-memory, with a tree for each of their numbers in place of a moment: the
first one is what is live in bytes, the others are blocks, or what was freed (coregrind/m_xtree.c).
"""

from __future__ import annotations

import re

from ..model.raw import Records, Told
from ..model.sampling import EXACT, Measure
from .format_error import FormatError, UnusableError
from .stack_builder import MOST_FRAMES, StackBuilder
from .valgrind_place import frame_of

_NODE = re.compile(r"( *)n(\d{1,9}): (\d{1,20}) (.*)")
_XTREE = b"desc: xtree."
_PAGES = "(page allocation syscalls)"


def recognizes(data: bytes) -> bool:
    return data.startswith(b"desc:") and b"\ncmd:" in data[:4096]


def parse(data: bytes, name: str, _told: Told) -> Records:
    """The last detailed snapshot in ``data``; ``name`` is only for messages. Raises FormatError, UnusableError."""
    if data.startswith(_XTREE):
        start = data.find(b"heap_tree=detailed\n")
    else:
        start = max(data.rfind(b"heap_tree=detailed\n"), data.rfind(b"heap_tree=peak\n"))
    if start < 0:
        raise UnusableError(name, "has no detailed snapshot: run massif with --detailed-freq=1")
    line = data.count(b"\n", 0, start) + 1
    tree = data[start:].partition(b"\n#-----------")[0].decode("utf-8", "replace").split("\n")[1:]
    found = _Tree(name)
    for number, text in enumerate(tree, line + 1):
        if text:
            node = _NODE.fullmatch(text)
            if node is None or not found.add(len(node[1]), int(node[2]), int(node[3]), node[4]):
                raise FormatError(name, number, "a place in the tree, as 'n1: 9 0x1091C0: main (a.c:6)'", text.encode())
    return found.records()


class _Tree:
    """Turns nodes, which come from the leaf to the root of each stack, into stacks."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._builder = StackBuilder(name)
        self._measure = Measure.LIVE
        self._places: dict[str, int | None] = {}
        # The nodes above the next one: a place, if it is one, what is not yet part of a stack, and nodes yet to come.
        self._path: list[tuple[int | None, int, int]] = []

    def add(self, depth: int, nodes: int, size: int, text: str) -> bool:
        """Whether the node, which has ``nodes`` below it, can be here."""
        if depth > min(len(self._path), MOST_FRAMES) or (depth == 0 and self._path):
            return False
        self._end(depth)
        if depth:
            place, rest, missing = self._path[-1]
            if size > rest or not missing:
                return False
            self._path[-1] = (place, rest - size, missing - 1)
        elif text.startswith(_PAGES):
            self._measure = Measure.GROWN
        self._path.append((self._place(text) if depth else None, size, nodes))
        return True

    def _end(self, depth: int) -> None:
        """Make stacks of what the nodes from this depth on hold beside their callers."""
        while len(self._path) > depth:
            _place, rest, missing = self._path[-1]
            if missing:
                raise UnusableError(self._name, f"its last tree lacks {missing} places: it is cut off")
            if rest:
                self._builder.add([place for place, *_rest in self._path if place is not None], (0, rest))
            self._path.pop()

    def _place(self, text: str) -> int | None:
        if text not in self._places:
            frame = frame_of(text)
            self._places[text] = None if frame is None else self._builder.named(frame)
        return self._places[text]

    def records(self) -> Records:
        if not self._path:
            raise UnusableError(self._name, "its last detailed snapshot is empty: it is cut off")
        self._end(0)
        return self._builder.records(self._measure, EXACT)
