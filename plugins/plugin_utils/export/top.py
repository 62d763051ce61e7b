# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""A table of names, flat and cumulative: what ``jeprof --text`` prints, plus error bars."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, partial

from ..base.printable import printable
from ..views.table import Row, Table


@dataclass(frozen=True)
class Look:
    """How to show a table: sorted by cumulative numbers, at most so many rows (0: all), numbers in whole bytes."""

    cumulative: bool = False
    limit: int = 0
    exact: bool = False


def shown(table: Table, look: Look) -> list[Row]:
    """The rows to show."""
    rows = table.rows(look.cumulative)
    return rows[: look.limit] if look.limit else rows


def render(table: Table, look: Look, facts: list[tuple[str, str]]) -> str:
    """The table, below its facts (name, value)."""
    return "\n".join([*head(facts), *_lines(table, look)]) + "\n"


def head(facts: list[tuple[str, str]]) -> Iterator[str]:
    """The facts, with further lines of a value below its first, then an empty line."""
    width = max((len(name) for name, _value in facts), default=0)
    for name, value in facts:
        first, *more = map(printable, value.splitlines() or [""])
        yield f"{name:<{width}}  {first}".rstrip()
        yield from (f"{'':<{width}}  {line}".rstrip() for line in more)
    if facts:
        yield ""


def total_line(table: Table, look: Look) -> str:
    """``Total: 12.0 MiB ± 1.5 MiB (inuse_space, by functions)``"""
    number = table.measure.text(table.total, look.exact)
    error = table.measure.text(table.total_error, look.exact)
    unit = "" if table.measure.unit == "bytes" and not look.exact else f" {table.measure.unit}"
    return f"Total: {number} ± {error}{unit} ({table.counted}, by {table.granularity.value})"


def percent(part: float, total: float) -> str:
    return f"{100 * part / total:.1f}%" if total else "-"


def _lines(table: Table, look: Look) -> Iterator[str]:
    yield total_line(table, look)
    yield "± is the 95 % interval of cum from sampling alone."
    yield ""
    yield f"{'flat':>10} {'flat%':>6} {'sum%':>6} {'cum':>10} {'cum%':>6} {'±':>10}  {table.granularity.value[:-1]}"
    total, running, before, own = table.total, 0.0, math.nan, ""
    text, share = cache(table.measure.writer(look.exact)), cache(partial(percent, total=total))
    for name, flat, cumulative, error in shown(table, look):
        if flat or flat != before:  # most functions allocate nothing themselves
            running += flat
            own = f"{text(flat):>10} {share(flat):>6} {share(running):>6}"
            before = flat
        yield f"{own} {text(cumulative):>10} {share(cumulative):>6} {text(error):>10}  {name}"
