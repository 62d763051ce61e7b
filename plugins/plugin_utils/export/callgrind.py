# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""A profile for KCachegrind and its like, in Callgrind's profile format, version 1.

Format: https://valgrind.org/docs/manual/cl-format.html. Costs are rounded bytes or objects. A function's own cost is at
the source line of the allocation (0 if unknown), the cost of its calls at the line of the call. A sampling profiler
does not know how often a call was made, so every call says 1.
"""

from __future__ import annotations

from ..base.printable import printable
from ..model.samples import Samples
from ..views.table import Measure

Node = tuple[str, str, str]


def render(samples: Samples, measure: Measure, command: str = "") -> str:
    """The profile as text."""
    own: dict[Node, dict[int, float]] = {}
    through: dict[Node, dict[tuple[int, Node, int], float]] = {}
    nodes = [(frame.module or "[none]", frame.file or "??", frame.label) for frame in samples.frames]
    lines = [frame.line for frame in samples.frames]
    for stack, value in zip(samples.each_stack(), samples.values[measure.row].tolist(), strict=True):
        frames = samples.place_frame[stack].tolist()
        if not frames:
            costs = own.setdefault(("[none]", "??", "[no stack]"), {})
            costs[0] = costs.get(0, 0.0) + value
            continue
        costs = own.setdefault(nodes[frames[0]], {})
        costs[lines[frames[0]]] = costs.get(lines[frames[0]], 0.0) + value
        # Count a call that recurs within a stack once.
        for caller, callee in dict.fromkeys(zip(frames[1:], frames[:-1], strict=True)):
            calls = through.setdefault(nodes[caller], {})
            key = (lines[caller], nodes[callee], lines[callee])
            calls[key] = calls.get(key, 0.0) + value
    total = round(samples.total(measure.row))
    head = ["# callgrind format", "version: 1", "creator: offheap.profiler", "positions: line"]
    head += [f"cmd: {_plain(command)}"] if command else []
    head += [
        f"event: {measure.named(samples.measure)} : {measure.unit}",
        f"events: {measure.named(samples.measure)}",
        f"summary: {total}",
        "",
    ]
    names = _Names()
    body: list[str] = []
    for node in sorted(own.keys() | through.keys()):
        body += [names.text("ob", node[0]), names.text("fl", node[1]), names.text("fn", node[2])]
        body += [f"{line} {round(value)}" for line, value in sorted(own.get(node, {}).items())]
        for (line, callee, callee_line), value in sorted(through.get(node, {}).items()):
            body += [names.text("cob", callee[0]), names.text("cfi", callee[1]), names.text("cfn", callee[2])]
            body += [f"calls=1 {callee_line}", f"{line} {round(value)}"]
        body.append("")
    return "\n".join([*head, *body])


class _Names:
    """Callgrind's name compression: the first use writes name and number, later ones the number alone."""

    def __init__(self) -> None:
        self._known: dict[str, dict[str, int]] = {"ob": {}, "fl": {}, "fn": {}}

    def text(self, kind: str, name: str) -> str:
        known = self._known[{"cob": "ob", "cfi": "fl", "cfn": "fn"}.get(kind, kind)]
        if name in known:
            return f"{kind}=({known[name]})"
        known[name] = len(known) + 1
        return f"{kind}=({known[name]}) {_plain(name)}"


def _plain(text: str) -> str:
    return printable(" ".join(text.split()))
