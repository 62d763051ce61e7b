# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Samples as a flame graph in one HTML file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..model.frame import Frame, Kind
from ..model.samples import BYTES, Samples
from . import embedding

_MOST_MARKS = 5
# As many frames as a browser draws smoothly; larger trees lose their narrowest frames.
_MOST_NODES = 100_000


@dataclass(frozen=True)
class Mark:
    """Stacks to show as suspect: those whose frames (leaf first) it ``covers``. The texts are for people."""

    rate: str
    path: str
    covers: Callable[[Sequence[Frame]], bool]


@dataclass(frozen=True)
class Page:
    """The texts around the graph. ``answer`` is a verdict's, ``baseline`` the time of the older profile."""

    unit: str
    host: str
    answer: str
    headline: str
    reason: str
    facts: list[tuple[str, str]] = field(default_factory=list)
    marks: list[Mark] = field(default_factory=list)
    baseline: str = ""


def render(page: Page, samples: Samples, older: Samples | None = None, row: int = BYTES) -> str:
    """The HTML of the page for a row of ``samples``, compared with ``older`` samples of the same process if given."""
    tree = _Tree(page.marks[:_MOST_MARKS])
    tree.add(_by_path(samples, row), _by_path(older, row) if older is not None else None)
    columns = tree.columns(samples.sampling.interval, page.baseline if older is not None else "")
    return embedding.page(
        Path(__file__).parent,
        "flamegraph",
        page={
            "unit": page.unit,
            "host": page.host,
            "answer": page.answer,
            "headline": page.headline,
            "reason": page.reason,
            "facts": page.facts,
            "baseline": page.baseline if older is not None else "",
            "suspects": [
                {
                    "node": columns["leaves"][number],
                    "rate": mark.rate,
                    "path": mark.path,
                }
                for number, mark in enumerate(page.marks[:_MOST_MARKS])
            ],
        },
        profile=embedding.json_text(columns),
    )


class _Node:
    __slots__ = ("change", "children", "frame", "grown", "live", "suspect")

    def __init__(self, frame: Frame) -> None:
        self.frame = frame
        self.live = 0.0
        self.change = 0.0
        self.grown = 0.0
        self.suspect = 0.0
        self.children: dict[tuple[str, str, Kind], _Node] = {}

    @property
    def width(self) -> float:
        """Bytes in the view that draws the frame wider."""
        return max(self.live, self.grown)


# labels of the frames -> an example of the frames (leaf first), and bytes
_Stacks = dict[tuple[str, ...], tuple[tuple[Frame, ...], float]]


def _by_path(samples: Samples, row: int) -> _Stacks:
    found: _Stacks = {}
    for frames, size in zip(samples.each_stack_of_frames(), samples.values[row].tolist(), strict=True):
        path = tuple([frame.label for frame in frames])
        found[path] = (frames, size + (found[path][1] if path in found else 0.0))
    return found


class _Tree:
    """Stacks merged from the root on, with live bytes, their change, and their share on suspected paths."""

    def __init__(self, marks: list[Mark]) -> None:
        self._marks = marks
        self._root = _Node(Frame("all", ""))
        self._leaves: dict[int, tuple[float, _Node]] = {}

    def add(self, now: _Stacks, before: _Stacks | None) -> None:
        for path, (stack, size) in now.items():
            change = 0.0 if before is None else size - before[path][1] if path in before else size
            self._add(stack, size, change)
        for path, (stack, size) in (before or {}).items():
            if path not in now:
                self._add(stack, 0.0, -size)

    def _add(self, stack: tuple[Frame, ...], live: float, change: float) -> None:
        frames = stack[::-1] or (Frame("[no stack]", "", Kind.UNKNOWN),)
        suspect = next((number for number, mark in enumerate(self._marks) if mark.covers(frames[::-1])), None)
        node = self._root
        _count(node, live, change, suspect is not None)
        for frame in frames:
            name = (frame.label, frame.module, frame.kind)
            child = node.children.get(name)
            if child is None:
                child = node.children[name] = _Node(frame)
            node = child
            _count(node, live, change, suspect is not None)
        if suspect is not None and live >= self._leaves.get(suspect, (0.0, node))[0]:
            self._leaves[suspect] = (live, node)

    def _smallest_shown(self) -> float:
        """Frames of this width or less are left out. A frame is never narrower than its callees."""
        widths: list[float] = []
        pending = [self._root]
        while pending:
            node = pending.pop()
            widths.append(node.width)
            pending.extend(node.children.values())
        return 0.0 if len(widths) <= _MOST_NODES else sorted(widths)[-_MOST_NODES - 1]

    def columns(self, interval: int, baseline: str) -> dict[str, Any]:
        """The tree in preorder, as columns; bytes are rounded."""
        frames: dict[tuple[str, str, str, str, bool], int] = {}
        parents: list[int] = []
        frame_of: list[int] = []
        numbers: dict[str, list[int]] = {name: [] for name in ("live", "change", "grown", "suspect")}
        position: dict[int, int] = {}
        smallest = self._smallest_shown()
        pending = [(self._root, -1)]
        while pending:
            node, parent = pending.pop()
            index = position[id(node)] = len(parents)
            parents.append(parent)
            frame = node.frame
            shown = (frame.label, frame.module, frame.kind.value, frame.file, not frame.function)
            frame_of.append(frames.setdefault(shown, len(frames)))
            for name, column in numbers.items():
                column.append(round(getattr(node, name)))
            for child in node.children.values():
                if child.width > smallest:
                    pending.append((child, index))
        names = ("name", "module", "kind", "file", "bare")
        return {
            "interval": interval,
            "baseline": baseline,
            "frames": [dict(zip(names, frame, strict=True)) for frame in frames],
            "parents": parents,
            "frame": frame_of,
            **numbers,
            "leaves": [
                position.get(id(self._leaves[number][1]), 0) if number in self._leaves else 0
                for number in range(len(self._marks))
            ],
        }


def _count(node: _Node, live: float, change: float, suspect: bool) -> None:
    node.live += live
    node.change += change
    node.grown += max(change, 0.0)
    if suspect:
        node.suspect += live
