# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Samples as a flame graph in one HTML file: the report's page, with nothing on it but one profile."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..base.printable import printable_lines
from ..model.frame import Frame
from ..model.samples import BYTES, Samples
from ..model.sampling import CONFIDENCE, Measure
from . import embedding
from .stack_tree import Frames, Held, StackTree, differences

FORMAT = 1
_MOST_MARKS = 5
# As many frames as a browser draws smoothly, with their paths; of larger trees the smallest stacks become one frame.
_MOST_NODES = 100_000


@dataclass(frozen=True)
class Mark:
    """Stacks to show as suspect: those whose frames (leaf first) it ``covers``, with their rate in bytes per day, half
    of its 95 % interval, the path for people, and known causes, each a title, what to check, and a link."""

    growth: float
    error: float
    path: str
    covers: Callable[[Sequence[Frame]], bool]
    hints: Sequence[Mapping[str, str]] = ()


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
    about = [f"{page.unit} on {page.host}", page.headline, page.reason, ""]
    facts = [f"{name}: {value}" for name, value in page.facts]
    return embedding.page(_data(page, samples, older, row), printable_lines("\n".join([*about, *facts])))


def _data(page: Page, samples: Samples, older: Samples | None, row: int) -> dict[str, Any]:
    """The data of a fleet with one unit on one host that has only these dumps, and the texts of the page."""
    frames = Frames()
    tree = StackTree(frames)

    def hold(profile: Samples) -> Held:
        return tree.hold(tree.paths(profile.each_stack_of_frames()), profile.values[row])

    newest = hold(samples)
    dumps = [(page.baseline, hold(older)), ("now", newest)] if older is not None else [("now", newest)]
    marked = [(mark, tree.matching(mark.covers)) for mark in page.marks[:_MOST_MARKS]]
    left_out = tree.grow(set().union(*(paths for _mark, paths in marked)), _MOST_NODES, _MOST_NODES)
    measure = samples.measure if row == BYTES else Measure.ALLOCATED
    live = dict(zip(newest.paths.tolist(), newest.bytes.tolist(), strict=True))
    host = {
        "host": page.host,
        "answer": page.answer,
        "headline": page.headline,
        "reason": page.reason,
        "process": "",
        "processes": [{"key": "", "version": ""}],
        "dumps": [
            {"time": number, "name": name, "process": 0, **tree.by_node(held)}
            for number, (name, held) in enumerate(dumps)
        ],
        "threads": [],
        "suspects": [
            {
                "short": mark.path,
                "growth": round(mark.growth),
                "error": round(mark.error),
                "live": round(sum(live.get(path, 0.0) for path in paths)),
                "nodes": differences(tree.leaves(paths)),
                "hints": list(mark.hints),
            }
            for mark, paths in marked
        ],
    }
    unit = {
        "unit": page.unit,
        "interval": samples.sampling.known_interval,
        "measure": measure.value,
        "sizes": samples.sampling.remark + (f" They are of memory {measure.caution}." if measure.caution else ""),
        "left_out": left_out,
        "hosts": [host],
        "tree": tree.columns(),
    }
    alone = {"headline": page.headline, "reason": page.reason, "facts": page.facts}
    return {"format": FORMAT, "confidence": CONFIDENCE, "alone": alone, "units": [unit], "frames": frames.columns()}
