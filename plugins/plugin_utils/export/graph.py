# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""The call graph: as text for Graphviz, and as a picture if Graphviz is installed.

Nodes and edges are left out as in jeprof (PrintDot), so that its options mean the same here.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass

from ..base.errors import ControllerError
from ..base.printable import printable_lines
from ..views.table import Table

PICTURES = ("svg", "pdf", "png", "gif", "ps")
_SECONDS = 120
_HEAVIEST = 100000


class GraphError(ControllerError):
    """No picture can be made. The message says why and what helps."""


@dataclass(frozen=True)
class GraphLimits:
    """The most nodes, the least share of the total for a node and for an edge, and the most edges at a node."""

    nodes: int = 80
    node_fraction: float = 0.005
    edge_fraction: float = 0.001
    degree: int = 8


def dot(table: Table, title: str, limits: GraphLimits) -> str:
    """The graph in Graphviz's language."""
    total = table.total
    nodes = _nodes(table, limits, total)
    lines = [f"digraph {_quoted(title)} {{", 'node [shape=box,width=0.375,height=0.25,fontname="sans-serif"];']
    dropped = f"Dropped: nodes up to {_amount(table, limits.node_fraction * total)}, edges up to "
    legend = [title, f"Total: {_amount(table, total)} ± {_amount(table, table.total_error)} ({table.counted})"]
    legend.append(dropped + _amount(table, limits.edge_fraction * total))
    lines.append("legend [shape=plaintext,fontsize=18,label=" + _quoted("\n".join(legend) + "\n", "\\l") + "];")
    for name, number in nodes.items():
        lines.append(_node(table, name, number, total))
    lines.extend(_edges(table, nodes, limits, total))
    return "\n".join([*lines, "}"]) + "\n"


def picture(source: str, kind: str) -> bytes:
    """The graph drawn by Graphviz; ``kind`` is one of PICTURES. Raises GraphError."""
    program = shutil.which("dot")
    if program is None:
        raise GraphError(
            f"drawing a call graph as {kind} needs Graphviz, but there is no 'dot' on PATH: install the package"
            " graphviz, or ask for the format dot (text) or flamegraph (needs nothing)"
        )
    command = [program, "-Tps2" if kind == "ps" else f"-T{kind}"]
    try:
        result = subprocess.run(command, input=source.encode(), capture_output=True, timeout=_SECONDS, check=False)
    except subprocess.TimeoutExpired as error:
        raise GraphError(f"{program} took over {_SECONDS} s; ask for fewer nodes") from error
    except OSError as error:
        raise GraphError(f"{program}: {error.strerror or error}") from error
    if result.returncode or not result.stdout:
        reason = result.stderr.decode("utf-8", "replace").strip() or f"exit status {result.returncode}"
        raise GraphError(f"{program} -T{kind}: {reason[:500]}")
    return result.stdout


def _nodes(table: Table, limits: GraphLimits, total: float) -> dict[int, int]:
    """Index of a name -> number of its node, the largest first."""
    cumulative = table.cumulative.tolist()
    ordered = sorted(range(len(table.names)), key=lambda name: (-abs(cumulative[name]), table.names[name]))
    least = int(limits.node_fraction * abs(total))
    kept = [name for name in ordered[: limits.nodes] if abs(cumulative[name]) > least]
    return {name: number for number, name in enumerate(kept, 1)}


def _node(table: Table, name: int, number: int, total: float) -> str:
    flat, cumulative = float(table.flat[name]), float(table.cumulative[name])
    label = f"{table.names[name]}\n{_amount(table, flat)} ({_share(flat, total)})"
    if flat != cumulative:
        label += f"\nof {_amount(table, cumulative)} ({_share(cumulative, total)})"
    label += f"\n± {_amount(table, table.error(float(table.cumulative_variance[name])))}"
    size = 8 + 50 * abs(flat / total) ** 0.5 if total else 8
    return f"N{number} [label={_quoted(label)},fontsize={min(size, 58):.1f}];"


def _edges(table: Table, nodes: dict[int, int], limits: GraphLimits, total: float) -> Iterator[str]:
    incoming: dict[int, int] = {}
    outgoing: dict[int, int] = {}
    least = int(limits.edge_fraction * abs(total))
    edges = [(edge, value) for edge, value in table.calls.items() if edge[0] in nodes and edge[1] in nodes and value]
    edges.sort(key=lambda item: (-abs(item[1]), nodes[item[0][0]], nodes[item[0][1]]))
    for (caller, callee), value in edges:
        # The largest edge into a node always stays; otherwise the node would be unconnected.
        if incoming.get(callee, 0) and (
            abs(value) <= least or outgoing.get(caller, 0) >= limits.degree or incoming.get(callee, 0) >= limits.degree
        ):
            continue
        outgoing[caller] = outgoing.get(caller, 0) + 1
        incoming[callee] = incoming.get(callee, 0) + 1
        width = max(1.0, 2 * min(1.0, 3 * abs(value / total))) if total else 1.0
        # dot is known to crash on weights that are too large.
        weight = int(min(abs(value) ** 0.7, _HEAVIEST))
        label = _quoted(_amount(table, value))
        yield f"N{nodes[caller]} -> N{nodes[callee]} [label={label},weight={weight},penwidth={width:.2f}];"


def _amount(table: Table, value: float) -> str:
    return table.measure.text(value)


def _share(part: float, total: float) -> str:
    return f"{100 * part / total:.1f}%" if total else "-"


def _quoted(text: str, line_end: str = "\\n") -> str:
    """A text as Graphviz's quoted string."""
    return '"' + printable_lines(text).replace("\\", "\\\\").replace('"', '\\"').replace("\n", line_end) + '"'
