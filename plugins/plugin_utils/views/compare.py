# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Compare two profiles: what has grown, shrunk, come and gone, and which differences mean nothing.

Stacks are compared frame by frame, never by address: by function if a symbol is known, else by offset if the image has
the same build-id on both sides, else by the image's name without its version. So runs, hosts and versions of a program
can be compared.

A difference counts only if it is larger than sampling explains. Both sides are estimates, with the variance R * L (see
Sampling.scatter). Since sampled allocations are discrete, a difference must also exceed what one of them stands for,
R bytes (the continuity correction).
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import PurePosixPath
from typing import Any

from ..model.frame import Frame, Kind
from ..model.samples import Samples
from ..model.sampling import CONFIDENCE, common_measure
from ..model.series import without_repeats
from .table import NO_STACK, Measure

_LIBRARY_VERSION = re.compile(r"(?:-\d[\d.]*)?\.so(?:\.\d+)*\Z")


class Change(Enum):
    """What became of a stack or function. A change within the error is NOT_SIGNIFICANT, whatever the numbers say."""

    GROWN = "grown"
    SHRUNK = "shrunk"
    NEW = "new"
    GONE = "gone"
    NOT_SIGNIFICANT = "not significant"


class By(Enum):
    """What is compared."""

    STACKS = "stacks"
    FUNCTIONS = "functions"


@dataclass(frozen=True)
class Side:
    """One of the two profiles: ``executable`` is (path, build-id) of the program, ``facts`` are for people."""

    samples: Samples
    executable: tuple[str, str] = ("", "")
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Difference:
    """``path`` has names, leaf first (only one if functions are compared); ``error`` is half of the 95 % interval."""

    path: tuple[str, ...]
    before: float
    after: float
    error: float
    change: Change

    @property
    def difference(self) -> float:
        return self.after - self.before


@dataclass(frozen=True)
class Comparison:
    """All differences, significant ones first, then by size; ``warnings`` says what makes them doubtful."""

    measure: Measure
    by: By
    differences: list[Difference]
    total: Difference
    warnings: list[str]
    counted: str

    def of(self, change: Change) -> list[Difference]:
        return [difference for difference in self.differences if difference.change is change]


def compare(before: Side, after: Side, measure: Measure = Measure.INUSE_SPACE, by: By = By.STACKS) -> Comparison:
    """What has changed from ``before`` to ``after``. Raises MeasureError if they measure different things."""
    common_measure((before.samples.measure, after.samples.measure))
    same_builds = _builds(before.samples) & _builds(after.samples)
    sums: dict[tuple[str, ...], list[float]] = {}
    for position, side in enumerate((before, after)):
        _add(sums, side.samples, measure, by, same_builds, position)
    found = [_difference(path, *numbers) for path, numbers in sums.items() if any(numbers)]
    found.sort(key=lambda item: (item.change is Change.NOT_SIGNIFICANT, -abs(item.difference), item.path))
    totals = [float(side.samples.values[measure.row].sum()) for side in (before, after)]
    variance = sum(float(side.samples.variance[measure.row].sum()) for side in (before, after))
    total = _difference(("total",), totals[0], totals[1], variance)
    return Comparison(measure, by, found, total, warnings(before, after), measure.named(before.samples.measure))


def warnings(before: Side, after: Side) -> list[str]:
    """Why the two should not be compared, or only with care; empty if there is no reason."""
    found = []
    if after.samples.measure.caution:
        found.append(f"the numbers are of memory {after.samples.measure.caution}")
    samplings = [side.samples.sampling for side in (before, after)]
    if any(math.isinf(sampling.scatter) for sampling in samplings):
        found.append("it is unknown how the profiles were sampled, so no difference can be told from chance")
    elif samplings[0].interval != samplings[1].interval:
        found.append(
            f"the sample intervals differ ({samplings[0].text} and {samplings[1].text}): the estimates can be compared,"
            " but the side with the larger one sees small allocations less well"
        )
    names = [PurePosixPath(side.executable[0]).name for side in (before, after)]
    if all(names) and names[0] != names[1]:
        found.append(f"the executables differ ({names[0]} and {names[1]}): these are different programs")
    elif before.executable[1] and after.executable[1] and before.executable[1] != after.executable[1]:
        found.append(
            f"the executable {names[1]} is of another build ({before.executable[1]} and {after.executable[1]}):"
            " functions are compared by name"
        )
    versions = [_versions(side.samples) for side in (before, after)]
    other = sorted(name for name in versions[0].keys() & versions[1].keys() if versions[0][name] != versions[1][name])
    other = [name for name in other if name not in names]
    if other:
        shown = ", ".join(other[:5]) + (f" and {len(other) - 5} more" if len(other) > 5 else "")
        found.append(f"libraries are of another build: {shown}; their functions are compared by name")
    return found


def _builds(samples: Samples) -> set[str]:
    return {location.build_id for location in samples.locations if location.build_id}


def _versions(samples: Samples) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for location in samples.locations:
        if location.build_id:
            found.setdefault(PurePosixPath(location.path).name, set()).add(location.build_id)
    return found


def _add(
    sums: dict[tuple[str, ...], list[float]],
    samples: Samples,
    measure: Measure,
    by: By,
    same_builds: set[str],
    position: int,
) -> None:
    names = [
        _name(samples.frames[frame], samples.locations[at].build_id in same_builds)
        for frame, at in zip(samples.place_frame.tolist(), samples.place_location.tolist(), strict=True)
    ]
    columns = (samples.values[measure.row].tolist(), samples.variance[measure.row].tolist())
    for stack, value, variance in zip(samples.each_stack(), *columns, strict=True):
        path = [names[place] for place in stack.tolist()] or [NO_STACK]
        # Repeats in a row are recursion, whose depth says nothing.
        whole = without_repeats(path)
        for key in [whole] if by is By.STACKS else [(name,) for name in dict.fromkeys(path)]:
            numbers = sums.setdefault(key, [0.0, 0.0, 0.0])
            numbers[position] += value
            numbers[2] += variance


def _name(frame: Frame, same_build: bool) -> str:
    if frame.function or frame.kind is Kind.JIT or not frame.module:
        return frame.label
    return frame.label if same_build else _LIBRARY_VERSION.sub(".so", frame.module)


def _difference(path: tuple[str, ...], before: float, after: float, variance: float) -> Difference:
    error = CONFIDENCE * math.sqrt(variance)
    change = Change.NOT_SIGNIFICANT
    difference = after - before
    # The variance of a Poisson sum, divided by the sum, is what one event adds to it.
    one_event = variance / (abs(before) + abs(after)) if variance else 0.0
    # If every allocation was recorded, less than one is rounding.
    if abs(difference) > error + one_event and abs(difference) >= 1:
        change = Change.GROWN if difference > 0 else Change.SHRUNK
        if before <= 0:
            change = Change.NEW
        elif after <= 0:
            change = Change.GONE
    return Difference(path, before, after, error, change)
