# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""The stacks of many profiles of a unit, each path stored once: a dump then holds only a number for each path.

Functions are matched by name, wherever they lie. So dumps of one process, of its next start and of other hosts share
this tree, and any two of them can be compared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..base import libraries
from ..base.printable import printable
from ..model.frame import Frame, Kind

if TYPE_CHECKING:
    import numpy as np

    from ..model.samples import Integers, Numbers
else:
    np = libraries.optional("numpy")

Path = tuple[int, ...]
Site = tuple[str, int]  # a file, which may be empty, and a line, or 0 where only the file is known
ALL = Frame("all", "")
REST = Frame("[smaller stacks]", "", Kind.UNKNOWN)
_NO_STACK = Frame("[no stack]", "", Kind.UNKNOWN)


class Frames:
    """Frames by name, as comparisons match them: a function is the same in every build of its library."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self._first: list[Frame] = []
        self._modules: list[str] = []

    def number(self, frame: Frame) -> int:
        number = self._numbers.setdefault(frame.label, len(self._numbers))
        if number == len(self._first):
            self._first.append(frame)
            self._modules.append(frame.module)
        elif self._modules[number] != frame.module:
            self._modules[number] = _of_both(self._modules[number], frame.module)
        return number

    def columns(self) -> dict[str, list[str]]:
        """What is shown of each: its name, the kind that it had where it was first seen, and its module: of libraries
        that differ between hosts, the name without the version, so that no host is told that it has another's."""
        return {
            "name": [frame.label for frame in self._first],
            "module": self._modules,
            "kind": [frame.kind.value for frame in self._first],
        }


def _of_both(one: str, other: str) -> str:
    """``libz.so`` of ``libz.so.1.2.11`` and ``libz.so.1.2.13``; empty where even that differs."""
    stems = {name.partition(".so")[0] for name in (one, other)}
    return f"{stems.pop()}.so" if len(stems) == 1 and ".so" in one else ""


@dataclass
class Held:
    """Live bytes by path; paths are the tree's numbers, in ascending order."""

    paths: Integers
    bytes: Numbers

    @property
    def total(self) -> float:
        return float(self.bytes.sum())


class StackTree:
    """Paths from the root on, of all added profiles."""

    def __init__(self, frames: Frames) -> None:
        self._frames = frames
        self._numbers: dict[Frame, int] = {}
        self._paths: dict[Path, int] = {}
        self._largest: Numbers = np.zeros(0)
        self._examples: list[tuple[Frame, ...]] = []
        self._sites: dict[Site, int] = {}
        self._site_of: dict[Frame, int] = {}
        self._sites_of: dict[int, set[tuple[int, ...]]] = {}
        self._nodes: dict[tuple[int, int], int] = {}
        self._parents: list[int] = []
        self._frame_of: list[int] = []
        self._leaf_of: dict[int, int] = {}
        self._rest = 0

    def paths(self, stacks: Iterable[tuple[Frame, ...]]) -> Integers:
        """The numbers of these stacks (leaf first); new ones are added."""
        found = []
        for stack in stacks:
            frames = stack or (_NO_STACK,)
            try:
                path = tuple(map(self._numbers.__getitem__, frames))
            except KeyError:
                self._learn(frames)
                path = tuple(map(self._numbers.__getitem__, frames))
            number = self._path(path[::-1], frames)
            found.append(number)
            if self._site_of and any(lines := tuple(self._site_of.get(frame, 0) for frame in reversed(frames))):
                self._sites_of.setdefault(number, set()).add(lines)
        return np.array(found, dtype=np.int64)

    def _learn(self, frames: Iterable[Frame]) -> None:
        for frame in frames:
            if frame in self._numbers:
                continue
            self._numbers[frame] = self._frames.number(frame)
            if frame.file or frame.line:
                site = (printable(frame.file), frame.line)
                self._site_of[frame] = self._sites.setdefault(site, len(self._sites) + 1)

    def _path(self, path: Path, frames: tuple[Frame, ...]) -> int:
        number = self._paths.setdefault(path, len(self._examples))
        if number == len(self._examples):
            self._examples.append(frames)
        return number

    def hold(self, paths: Integers, sizes: Numbers, whole: float | None = None) -> Held:
        """What a profile holds: bytes by path. A path may occur several times in ``paths``. Of a part of a profile,
        as one thread's, ``whole`` is what the profile holds.
        """
        sums: Numbers = np.bincount(paths, np.maximum(sizes, 0.0), len(self._examples)).astype(np.float64)
        self._largest = np.pad(self._largest, (0, len(sums) - len(self._largest)))
        np.maximum(self._largest, sums / (whole or sums.sum() or 1.0), out=self._largest)
        held = np.flatnonzero(sums)
        return Held(held, sums[held])

    def matching(self, covers: Callable[[Sequence[Frame]], bool], among: Iterable[int] | None = None) -> set[int]:
        """The paths, of all or of some, whose frames (leaf first) a suspect covers."""
        numbers = range(len(self._examples)) if among is None else among
        return {number for number in numbers if covers(self._examples[number])}

    def grow(self, always: Iterable[int], most_paths: int, most_nodes: int) -> float:
        """Create the nodes of the ``always`` wanted paths, then of the largest. Paths left out share one node.

        Returns the largest share of any dump that a path left out has.
        """
        paths = list(self._paths)
        wanted = set(always)
        largest = np.pad(self._largest, (0, len(paths) - len(self._largest))).tolist()
        ranked = sorted(range(len(paths)), key=lambda number: (number not in wanted, -largest[number], number))
        self._node(-1, self._frames.number(ALL))
        self._rest = self._node(0, self._frames.number(REST))
        left_out = 0.0
        for position, number in enumerate(ranked):
            if number not in wanted and (position >= most_paths or len(self._parents) >= most_nodes):
                left_out = max(left_out, largest[number])
                continue
            node = 0
            for frame in paths[number]:
                known = self._nodes.get((node, frame))
                node = self._node(node, frame) if known is None else known
            self._leaf_of[number] = node
        return left_out

    def _node(self, parent: int, frame: int) -> int:
        """A new one."""
        self._nodes[parent, frame] = node = len(self._parents)
        self._parents.append(parent)
        self._frame_of.append(frame)
        return node

    def leaves(self, paths: Iterable[int]) -> list[int]:
        """The nodes at which these paths end, in ascending order."""
        return sorted({self._leaf_of[path] for path in paths if path in self._leaf_of})

    def by_node(self, held: Held) -> dict[str, list[int]]:
        """What a dump holds, by nodes in ascending order, as differences from the previous one; whole bytes."""
        leaves = [self._leaf_of.get(path, self._rest) for path in held.paths.tolist()]
        sums = np.bincount(np.array(leaves, dtype=np.int64), held.bytes)
        nodes = np.flatnonzero(sums)
        return {"nodes": np.diff(nodes, prepend=0).tolist(), "bytes": np.rint(sums[nodes]).astype(np.int64).tolist()}

    def columns(self) -> Mapping[str, Any]:
        """Each node's distance to its parent, and its frame. Node 0 is the root; parents come before children.

        Where debug information is, also ``sites``, each a file and a line, and ``lines``: which of them (from
        0) a node's stacks have, in all builds that were seen.
        """
        distances = [node - parent for node, parent in enumerate(self._parents)]
        columns = {"parent": [0, *distances[1:]], "frame": self._frame_of}
        seen = self._seen_at()
        if not seen:
            return columns
        used = {site: number for number, site in enumerate(sorted(set().union(*seen.values())))}
        every = list(self._sites)
        lines = {node: sorted(used[site] for site in sites) for node, sites in sorted(seen.items())}
        return {**columns, "sites": [every[site - 1] for site in used], "lines": lines}

    def _seen_at(self) -> dict[int, set[int]]:
        """The numbers of the sites of each node that has some."""
        found: dict[int, set[int]] = {}
        for path, number in self._paths.items():
            if number not in self._leaf_of:
                continue
            for lines in self._sites_of.get(number, ()):
                node = 0
                for frame, site in zip(path, lines, strict=True):
                    node = self._nodes[node, frame]
                    if site:
                        found.setdefault(node, set()).add(site)
        return found


def differences(numbers: Sequence[int]) -> list[int]:
    """Ascending numbers as steps, which are shorter to write."""
    steps: list[int] = np.diff(np.asarray(numbers, dtype=np.int64), prepend=0).tolist()
    return steps
