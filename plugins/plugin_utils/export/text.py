# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""A profile as a table of functions, flat and cumulative, with error bars."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ..base.byte_size import as_text
from ..model.profile import Profile


@dataclass(frozen=True)
class Row:
    """A function: bytes it allocated itself (``flat``), and with all it called (``cumulative``, recursion once)."""

    name: str
    flat: float
    cumulative: float


def rows(profile: Profile) -> list[Row]:
    """All functions, those that allocate most themselves first."""
    flat: dict[str, float] = {}
    cumulative: dict[str, float] = {}
    for number, stack in enumerate(profile.stacks):
        names = profile.labels(stack)
        size = profile.bytes[number]
        flat[names[0]] = flat.get(names[0], 0.0) + size
        for name in set(names):
            cumulative[name] = cumulative.get(name, 0.0) + size
    found = [Row(name, flat.get(name, 0.0), size) for name, size in cumulative.items() if size > 0]
    return sorted(found, key=lambda row: (-row.flat, -row.cumulative, row.name))


def render(profile: Profile, facts: list[tuple[str, str]]) -> str:
    """The table, under what is to be known about it (name, value)."""
    return "\n".join([*_head(facts), *_table(profile)]) + "\n"


def _head(facts: list[tuple[str, str]]) -> Iterator[str]:
    width = max((len(name) for name, _value in facts), default=0)
    for name, value in facts:
        first, *more = value.splitlines() or [""]
        yield f"{name:<{width}}  {first}".rstrip()
        for line in more:
            yield f"{'':<{width}}  {line}".rstrip()
    if facts:
        yield ""


def _table(profile: Profile) -> Iterator[str]:
    total = profile.total_bytes
    yield f"Total: {as_text(total)} ± {as_text(profile.error(total))} live ({round(total)} bytes)"
    yield "± is the 95 % interval of cum, as sampling alone makes it."
    yield ""
    yield f"{'flat':>10} {'flat%':>6} {'cum':>10} {'cum%':>6} {'±':>10}  function"
    for row in rows(profile):
        yield (
            f"{as_text(row.flat):>10} {_percent(row.flat, total):>6} {as_text(row.cumulative):>10}"
            f" {_percent(row.cumulative, total):>6} {as_text(profile.error(row.cumulative)):>10}  {row.name}"
        )


def _percent(part: float, total: float) -> str:
    return f"{100 * part / total:.1f}%" if total else "-"
