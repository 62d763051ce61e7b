# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""A function's source lines, with what was allocated there. If the source is not found, lines have no text."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path

from ..base.printable import printable
from ..views.selection import SelectionError, compiled
from ..views.table import Table
from . import top

_AROUND = 5
_MOST_LINES = 100000
_LONGEST = 500

Site = tuple[str, str, int]


def render(table: Table, pattern: str, look: top.Look, find_source: Callable[[str], Path | None]) -> str:
    """The functions that match, by file and line; ``find_source`` finds the file for a path in debug information.

    Raises SelectionError if nothing matches, or no line of it is known.
    """
    search = compiled(pattern).search
    samples = table.samples
    wanted = {at for at, frame in enumerate(samples.frames) if frame.function and search(frame.function)}
    if not wanted:
        raise SelectionError(f"no function of the profile matches {pattern!r}")
    flat: dict[Site, float] = {}
    cumulative: dict[Site, float] = {}
    values = samples.values[table.measure.row].tolist()
    sites: list[Site] = [(frame.function, frame.file, frame.line) for frame in samples.frames]
    for stack, value in zip(samples.each_stack(), values, strict=True):
        frames = samples.place_frame[stack].tolist()
        if frames and frames[0] in wanted:
            flat[sites[frames[0]]] = flat.get(sites[frames[0]], 0.0) + value
        for site in {sites[frame] for frame in frames if frame in wanted}:
            cumulative[site] = cumulative.get(site, 0.0) + value
    if not any(line for _function, _file, line in cumulative):
        raise SelectionError(f"what matches {pattern!r} has no debug information, so its lines are unknown")
    lines = [top.total_line(table, look)]
    by_function: dict[tuple[str, str], dict[int, tuple[float, float]]] = {}
    for site, value in cumulative.items():
        function, file, line = site
        by_function.setdefault((function, file), {})[line] = (flat.get(site, 0.0), value)
    for (function, file), numbers in sorted(by_function.items()):
        lines.extend(_function(table, look, function, file, numbers, find_source(file) if file else None))
    return "\n".join(lines) + "\n"


def _function(
    table: Table,
    look: top.Look,
    function: str,
    file: str,
    numbers: dict[int, tuple[float, float]],
    source: Path | None,
) -> Iterator[str]:
    text = _text(source)
    yield ""
    yield f"{function} in {file or '(unknown file)'}" + ("" if text else " (source not found)")
    yield f"{'flat':>10} {'cum':>10}   line"
    known = [line for line in numbers if line]
    shown = sorted(numbers)
    if text and known:
        shown = list(range(max(min(known) - _AROUND, 1), min(max(known) + _AROUND, len(text)) + 1))
        shown += [line for line in numbers if line > len(text)]
    for line in shown:
        flat, cumulative = numbers.get(line, (0.0, 0.0))
        amounts = [table.measure.text(value, look.exact) if value else "." for value in (flat, cumulative)]
        yield f"{amounts[0]:>10} {amounts[1]:>10} {line:>6}: {text[line - 1] if 0 < line <= len(text) else ''}".rstrip()


def _text(source: Path | None) -> Sequence[str]:
    if source is None:
        return []
    try:
        with source.open(encoding="utf-8", errors="replace") as stream:
            lines = [line.rstrip("\n")[:_LONGEST].expandtabs() for line in islice(stream, _MOST_LINES)]
    except OSError:
        return []
    return [printable(line) for line in lines]
