# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""What a case of the corpus is: a file that a writer of others' wrote, and what the writer's own reader says of it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

#: rows of a table that are compared
TOP = 10


@dataclass(frozen=True)
class Writer:
    """A program or library that writes profiles. ``lacks`` is what its files cannot say, for the page."""

    name: str
    version: Callable[[], str]
    reader: str
    lacks: str = ""


@dataclass(frozen=True)
class Own:
    """What a writer's own reader says: the total in bytes, and the largest functions by what they hold.

    ``digits`` are the significant ones that it prints, 0 for all of them. ``cumulative`` says that what a function's
    callees hold counts, too. ``nearest``: it blames the nearest symbol below, where an image has none at an address.
    ``slack`` are bytes that it may lose by cutting what it has scaled.
    """

    total: int
    top: dict[str, int] = field(default_factory=dict)
    digits: int = 0
    cumulative: bool = False
    nearest: bool = False
    slack: int = 1


@dataclass(frozen=True)
class Case:
    """A file: how it is written (in an empty directory), and what must come of it.

    Either ``own`` says what the writer's own reader makes of it, or ``refused`` is what we must say of it, as a regular
    expression. ``source`` is what a user has to say, as in ``fab top --source``; ``measure`` is that of ``fab top``.
    """

    name: str
    writer: Writer
    mode: str
    write: Callable[[Path], Path]
    own: Callable[[Path], Own] | None = None
    source: str = ""
    measure: str = "inuse_space"
    refused: str = ""


def short(name: str) -> str:
    """A function's name without what readers add or leave out: parameters, template arguments, versions, clones."""
    name = name.removesuffix(" (inline)")
    name = re.sub(r"<[0-9a-f]{16}>$", "", name)
    name = re.sub(r"@@?[A-Z][A-Za-z_0-9.]*$|@[0-9a-f]+$", "", name)
    while (shorter := re.sub(r"\([^()]*\)(\s*const)?", "", name)) != name:
        name = shorter
    while (shorter := re.sub(r"<[^<>]*>", "", name)) != name:
        name = shorter
    name = re.sub(r"^.*\s+(\w+::)", r"\1", name)
    return re.sub(r"\.(?:part|cold|constprop|isra|localalias)(?:\.\d+)?|\[clone[^\]]*\]", "", name).strip()


def largest(rows: Iterable[tuple[str, int]]) -> dict[str, int]:
    """The largest rows, by short names; what has no name is left out."""
    sums: Counter[str] = Counter()
    for name, size in rows:
        if re.search(r"[A-Za-z_]{2}", short(name)) and not name.startswith(("0x", "??", "[")):
            sums[short(name)] += size
    return dict(sums.most_common(TOP))


def differences(own: Own, total: float, rows: Sequence[tuple[str, float]]) -> list[str]:
    """What is not as the own reader says, in words."""
    found = []
    if not _same(total, own.total, own):
        found.append(f"total {total:.0f}, its own {own.total}")
    ours: dict[str, float] = {}
    for name, size in rows:
        ours[short(name)] = ours.get(short(name), 0) + size
    nameless = [size for name, size in rows if "+0x" in name or name.startswith("0x")]
    for name, size in own.top.items():
        blamed = own.nearest and any(_same(mine, size, own) for mine in nameless)
        if not _same(ours.get(name, 0), size, own) and not blamed:
            found.append(f"{name} {ours.get(name, 0):.0f}, its own {size}")
    return found


def _same(ours: float, its: int, own: Own) -> bool:
    lost = 0.5 * 10.0 ** (len(str(its)) - own.digits) if own.digits else 0.0
    return abs(ours - its) <= lost + own.slack
