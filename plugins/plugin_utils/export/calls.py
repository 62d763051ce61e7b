# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Who calls whom, as text: peek (some functions with their callers and callees) and tree (all functions)."""

from __future__ import annotations

from collections.abc import Iterator

from ..views.selection import SelectionError, compiled
from ..views.table import Row, Table
from . import top


def peek(table: Table, pattern: str, look: top.Look, facts: list[tuple[str, str]]) -> str:
    """The functions that match, each between its callers and callees. Raises SelectionError if none does."""
    search = compiled(pattern).search
    rows = [row for row in table.rows(look.cumulative) if search(row.name)]
    if not rows:
        raise SelectionError(f"no function matches {pattern!r}; the format text lists them (fab top)")
    return "\n".join([*top.head(facts), *_blocks(table, rows, look)]) + "\n"


def tree(table: Table, look: top.Look, facts: list[tuple[str, str]]) -> str:
    """All functions (or the first ``look.limit``), each between its callers and callees."""
    return "\n".join([*top.head(facts), *_blocks(table, top.shown(table, look), look)]) + "\n"


def _blocks(table: Table, rows: list[Row], look: top.Look) -> Iterator[str]:
    callers: dict[str, list[tuple[float, str]]] = {}
    callees: dict[str, list[tuple[float, str]]] = {}
    for (caller, callee), value in table.calls.items():
        callers.setdefault(table.names[callee], []).append((value, table.names[caller]))
        callees.setdefault(table.names[caller], []).append((value, table.names[callee]))
    yield top.total_line(table, look)
    yield f"{'flat':>10} {'flat%':>6} {'cum':>10} {'cum%':>6} {'±':>10} {'calls%':>7}  function"
    total = table.total
    for row in rows:
        yield "-" * 60
        yield from _edges(table, callers.get(row.name, []), row, look)
        yield (
            f"{table.measure.text(row.flat, look.exact):>10} {top.percent(row.flat, total):>6}"
            f" {table.measure.text(row.cumulative, look.exact):>10} {top.percent(row.cumulative, total):>6}"
            f" {table.measure.text(row.error, look.exact):>10} {'|':>7}  {row.name}"
        )
        yield from _edges(table, callees.get(row.name, []), row, look)


def _edges(table: Table, edges: list[tuple[float, str]], row: Row, look: top.Look) -> Iterator[str]:
    for value, name in sorted(edges, key=lambda edge: (-edge[0], edge[1])):
        if value:
            share = top.percent(value, row.cumulative)
            yield f"{'':>17} {table.measure.text(value, look.exact):>10} {'':>17} {share:>7}    {name}"
