# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""The page on the corpus, from what was seen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ansible_collections.offheap.profiler.tests.corpus.catalog import CASES

_HEAD = """<!--
SPDX-License-Identifier: GPL-3.0-or-later
SPDX-FileCopyrightText: Offheap contributors
-->
<!-- Written by `make corpus`; edit tests/corpus/corpus_page.py. -->

# Profiles by others' writers, beside their own readers

`make corpus` runs each writer on a program whose functions hold memory, reads its file as `fab top` does, and compares
the total and the ten largest functions with what the writer's own reader says: to the byte, or to the digits that the
reader prints (a byte more or less where it cuts what it has scaled, one for each stack of Go's texts). What is no
profile of memory must be refused with its name and what to do.

jeprof and google-pprof blame the nearest symbol below where an image has none at an address; a row of ours without a
function that holds just as much counts as that one. Where they do not know the allocator's own functions, what the
program's functions hold with all that they call is compared.
"""


@dataclass
class Seen:
    """What came of a case: the file's size, the total and how many functions its own reader named, what differs; or
    what we said when we refused it."""

    name: str
    day: str
    version: str
    size: int
    total: int = 0
    functions: int = 0
    refused: str = ""
    differences: list[str] = field(default_factory=list)


def page(seen: Sequence[Seen]) -> str:
    """The whole page."""
    cases = {case.name: case for case in CASES}
    compared = [one for one in seen if cases[one.name].own]
    equal = [one for one in compared if not one.differences]
    writers = {cases[one.name].writer.name for one in compared}
    lines = [_line(("file", "writer", "version", "written with", "its own reader", "bytes", "what came of it"))]
    lines.append(_line(["---"] * 7))
    for one in seen:
        case = cases[one.name]
        came = "; ".join(one.differences) or (
            f"refused: {one.refused.partition(': ')[2]}" if one.refused else f"equal, with {one.functions} functions"
        )
        reader = case.writer.reader if case.own else "-"
        total = str(one.total) if case.own else "-"
        lines.append(_line([case.name, case.writer.name, one.version, case.mode, reader, total, came]))
    counts = (
        f"Of {len(compared)} files by {len(writers)} writers, {len(equal)} are equal. {len(seen) - len(compared)} more"
        " are no profiles of memory, or not yet."
    )
    lacks = [f"- {name}: {what}." for name, what in _lacks()]
    return "\n".join([_HEAD, counts, "", *lines, "", "What the files of each writer lack:", "", *lacks, ""])


def _lacks() -> list[tuple[str, str]]:
    found = {case.writer.name: case.writer.lacks for case in CASES if case.writer.lacks}
    return list(found.items())


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"
