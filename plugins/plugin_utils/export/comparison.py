# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""A comparison of two profiles, as text and as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from ..base.durations import moment
from ..model.sampling import whole
from ..views.compare import Change, Comparison, Difference, Side

_ORDER = (Change.NEW, Change.GROWN, Change.SHRUNK, Change.GONE)
FORMAT = 1


def text(comparison: Comparison, before: Side, after: Side, limit: int = 0) -> str:
    """For people: what is compared, why that may be unsound, then the differences by kind, largest first."""
    return "\n".join(_lines(comparison, before, after, limit)) + "\n"


def as_json(comparison: Comparison, before: Side, after: Side) -> str:
    """Everything for programs, including differences that are not significant."""
    document = {
        "format": FORMAT,
        "measure": comparison.counted,
        "unit": comparison.measure.unit,
        "by": comparison.by.value,
        "before": dict(before.facts),
        "after": dict(after.facts),
        "warnings": comparison.warnings,
        "total": returned(comparison.total),
        "differences": [returned(difference) for difference in comparison.differences],
    }
    return json.dumps(document, indent=1, ensure_ascii=True) + "\n"


def returned(difference: Difference, most_frames: int = 0) -> dict[str, Any]:
    """A difference as plain data, with whole numbers."""
    path = difference.path[:most_frames] if most_frames else difference.path
    return {
        "path": list(path),
        "change": difference.change.value,
        "before": round(difference.before),
        "after": round(difference.after),
        "difference": round(difference.difference),
        "error": whole(difference.error),
    }


def _lines(comparison: Comparison, before: Side, after: Side, limit: int) -> Iterator[str]:
    for name, side in (("Before", before.facts), ("After", after.facts)):
        yield f"{name:<8}{_facts(side)}"
    for warning in comparison.warnings:
        yield f"Warning: {warning}"
    yield ""
    total = comparison.total
    yield (
        f"Total: {_text(comparison, total.before)} before, {_text(comparison, total.after)} after: "
        f"{_signed(comparison, total)} ({comparison.counted}, {total.change.value})"
    )
    yield "± is the 95 % interval of the difference from sampling alone, on both sides."
    for change in _ORDER:
        found = comparison.of(change)
        if found:
            yield ""
            yield f"{change.value.capitalize()}: {len(found)} {comparison.by.value}"
            for difference in found[:limit] if limit else found:
                yield from _difference(comparison, difference)
    rest = comparison.of(Change.NOT_SIGNIFICANT)
    yield ""
    yield f"Not significant: {len(rest)} {comparison.by.value}, with differences within their errors"


def _difference(comparison: Comparison, difference: Difference) -> Iterator[str]:
    before, after = _text(comparison, difference.before), _text(comparison, difference.after)
    yield f"  {_signed(comparison, difference)}  ({before} → {after})"
    for name in difference.path:
        yield f"      {name}"


def _signed(comparison: Comparison, difference: Difference) -> str:
    sign = "+" if difference.difference >= 0 else "-"
    amount = _text(comparison, abs(difference.difference))
    return f"{sign}{amount} ± {_text(comparison, difference.error)}"


def _text(comparison: Comparison, value: float) -> str:
    return comparison.measure.text(value)


def _facts(facts: Mapping[str, Any]) -> str:
    said = {**facts, "time": moment(facts["time"]) if facts.get("time") else None}
    shown = [f"{name} {value}" for name, value in said.items() if value not in (None, "")]
    return ", ".join(shown)
