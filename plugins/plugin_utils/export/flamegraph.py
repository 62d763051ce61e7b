# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""A profile as a flame graph: one HTML file that needs nothing else, neither files nor a network.

What hosts have sent goes into the page as JSON and as escaped text. The page's content security policy allows the one
script and the one style sheet that are in it, by their hashes, and no request at all.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..base.byte_size import as_text
from ..base.durations import per_day
from ..leaks.verdict import Suspect
from ..model import stack_summary
from ..model.profile import Frame, Kind, Profile
from .embedding import content_hash, json_text

_HERE = Path(__file__).parent
_MOST_SUSPECTS = 5
# More frames than a browser draws without stutter; of a larger tree, the narrowest are left out.
_MOST_NODES = 100_000


@dataclass(frozen=True)
class Page:
    """What the page says beside the graph. ``answer`` is a verdict's, ``baseline`` the time of the older profile."""

    unit: str
    host: str
    answer: str
    headline: str
    reason: str
    facts: list[tuple[str, str]] = field(default_factory=list)
    suspects: list[Suspect] = field(default_factory=list)
    baseline: str = ""


def render(page: Page, profile: Profile, older: Profile | None = None) -> str:
    """The HTML of the page for ``profile``; ``older``, of the same process, is what it is compared with."""
    tree = _Tree(page.suspects[:_MOST_SUSPECTS])
    tree.add(profile, older)
    script, style = _asset("flamegraph.js"), _asset("flamegraph.css")
    policy = (
        f"default-src 'none'; script-src '{content_hash(script)}'; style-src '{content_hash(style)}'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    import jinja2  # takes longer to load than most dumps to read, and no other format needs it

    environment = jinja2.Environment(autoescape=True, trim_blocks=False, keep_trailing_newline=True)
    template = environment.from_string((_HERE / "templates" / "flamegraph.html.j2").read_text(encoding="utf-8"))
    columns = tree.columns(profile.sample_interval, page.baseline if older is not None else "")
    return template.render(
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
                    "rate": f"{per_day(suspect.growth)} ± {as_text(suspect.error)}",
                    "path": stack_summary.render(suspect.path),
                }
                for number, suspect in enumerate(page.suspects[:_MOST_SUSPECTS])
            ],
        },
        policy=policy,
        script=script,
        style=style,
        profile=json_text(columns),
    )


def _asset(name: str) -> str:
    return (_HERE / "assets" / name).read_text(encoding="utf-8")


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
        """Bytes in the view in which the frame is wider."""
        return max(self.live, self.grown)


class _Tree:
    """Stacks merged from the root on, with live bytes, their change, and what of it is on suspected paths."""

    def __init__(self, suspects: list[Suspect]) -> None:
        self._suspects = suspects
        self._root = _Node(Frame("all", ""))
        self._leaves: dict[int, tuple[float, _Node]] = {}

    def add(self, profile: Profile, older: Profile | None) -> None:
        before = self._by_path(older) if older is not None else {}
        now = self._by_path(profile)
        for path, (stack, size) in now.items():
            change = size - before[path][1] if path in before else size
            self._add(profile, stack, size, change if older is not None else 0.0)
        for path, (stack, size) in before.items():
            if path not in now and older is not None:
                self._add(older, stack, 0.0, -size)

    def _by_path(self, profile: Profile) -> dict[tuple[str, ...], tuple[tuple[int, ...], float]]:
        labels = [frame.label for frame in profile.frames]
        found: dict[tuple[str, ...], tuple[tuple[int, ...], float]] = {}
        for number, stack in enumerate(profile.stacks):
            path = tuple([labels[index] for index in stack])
            known = found.get(path)
            found[path] = (stack, profile.bytes[number] + (known[1] if known else 0.0))
        return found

    def _add(self, profile: Profile, stack: tuple[int, ...], live: float, change: float) -> None:
        frames = [profile.frames[index] for index in reversed(stack)] or [Frame("[no stack]", "", Kind.UNKNOWN)]
        leaf_first = frames[::-1]
        suspect = next((number for number, suspect in enumerate(self._suspects) if suspect.covers(leaf_first)), None)
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
        """Frames of this width and below are left out. A frame is never narrower than what it calls."""
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
                for number in range(len(self._suspects))
            ],
        }


def _count(node: _Node, live: float, change: float, suspect: bool) -> None:
    node.live += live
    node.change += change
    node.grown += max(change, 0.0)
    if suspect:
        node.suspect += live
