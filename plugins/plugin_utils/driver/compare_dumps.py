# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Two dumps compared: from the request to the text to show or write."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..base import libraries
from ..export import comparison
from ..views.compare import By, Change, Comparison, Side, compare
from ..views.selection import Selection
from ..views.table import Measure
from .analyze import refuse_without
from .sources import Places, Source, open_reader

_MOST_ROWS = 100
_MOST_FRAMES = 64


@dataclass(frozen=True)
class CompareRequest:
    """What to compare. ``limit`` is the number of differences to show, 0 for all of them."""

    measure: Measure = Measure.INUSE_SPACE
    by: By = By.STACKS
    selection: Selection = field(default_factory=Selection)
    as_json: bool = False
    limit: int = 0


@dataclass(frozen=True)
class Compared:
    """The differences, as found and as ``content`` to show or write."""

    found: Comparison
    before: Side
    after: Side
    content: str
    warnings: list[str]

    def data(self, limit: int) -> dict[str, Any]:
        """Totals, counts and the first differences for JSON: ``limit`` (0: none), but at most _MOST_ROWS."""
        significant = [item for item in self.found.differences if item.change is not Change.NOT_SIGNIFICANT]
        most = min(limit, _MOST_ROWS) if limit else _MOST_ROWS
        return {
            "measure": self.found.counted,
            "unit": self.found.measure.unit,
            "before": dict(self.before.facts),
            "after": dict(self.after.facts),
            "total": comparison.returned(self.found.total),
            "counts": {change.name.lower(): len(self.found.of(change)) for change in Change},
            "differences": [comparison.returned(item, _MOST_FRAMES) for item in significant[:most]],
            "comparable": not self.found.warnings,
        }


def compare_dumps(request: CompareRequest, before: Path, after: Path, places: Places) -> Compared:
    """The differences between two dumps. Raises ControllerError."""
    libraries.require(*libraries.DUMPS)
    with open_reader([before, after], places) as reader:
        sources = [reader.read(path) for path in (before, after)]
        warnings = list(dict.fromkeys(reader.warnings))
    for source in sources:
        refuse_without(source, request.measure)
    first, second = (_side(source, request.selection) for source in sources)
    found = compare(first, second, request.measure, request.by)
    if request.as_json:
        content = comparison.as_json(found, first, second)
    else:
        content = comparison.text(found, first, second, request.limit)
    return Compared(found, first, second, content, [*warnings, *found.warnings])


def _side(source: Source, selection: Selection) -> Side:
    return Side(selection.apply(source.samples), source.executable, {"dump": str(source.path), **source.facts})
