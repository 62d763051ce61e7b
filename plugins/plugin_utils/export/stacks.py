# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Stacks as text: collapsed for flame graph tools, and traces for people."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ..base import libraries
from ..views.table import NO_STACK, Table
from . import top

if TYPE_CHECKING:
    import numpy as np
else:
    np = libraries.optional("numpy")


def collapsed(table: Table) -> Iterator[bytes]:
    """Lines ``root;caller;leaf number``, one per stack, sorted frame by frame, rounded, without zeros.

    The format has no escapes: a semicolon in a name is written ``%3B`` and a per cent sign ``%25``.
    """
    # Names take many times the size of the stacks, so each line is made on demand.
    escaped = [name.replace("%", "%25").replace(";", "%3B") for name in table.names]
    names = sorted({*escaped, NO_STACK})
    rank = {name: number for number, name in enumerate(names)}
    ranks = np.array([rank[name] for name in escaped] or [0], dtype=np.int32)
    encoded = [name.encode("utf-8", "replace") for name in names]
    sums: dict[bytes, float] = {}
    # All stacks, from the last one's root to the first one's leaf. Big-endian numbers sort as their bytes do.
    backwards = ranks.astype(">i4")[table.name_of_place][table.samples.stacks[::-1]].tobytes()
    bounds = (len(backwards) - 4 * table.samples.bounds).tolist()
    for end, start, value in zip(bounds[:-1], bounds[1:], table.values.tolist(), strict=True):
        key = backwards[start:end] or rank[NO_STACK].to_bytes(4, "big")
        sums[key] = sums.get(key, 0.0) + value
    for key in sorted(sums):
        size = round(sums[key])
        if size:
            stack = np.frombuffer(key, dtype=">i4").tolist()
            yield b"%b %d\n" % (b";".join([encoded[name] for name in stack]), size)


def traces(table: Table, look: top.Look, facts: list[tuple[str, str]]) -> str:
    """Each stack with its number and error, largest stack first, leaf first."""
    return "\n".join([*top.head(facts), *_traces(table, look)]) + "\n"


def _traces(table: Table, look: top.Look) -> Iterator[str]:
    yield top.total_line(table, look)
    for number, (names, value, error) in enumerate(table.stacks()):
        if look.limit and number == look.limit:
            break
        yield "-" * 60
        amount = f"{table.measure.text(value, look.exact)} ± {table.measure.text(error, look.exact)}"
        for at, name in enumerate(names):
            yield f"{amount if at == 0 else '':>24}  {name}"
