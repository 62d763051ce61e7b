# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Which captures of an archive to remove: by age, by number per process, by total size.

A thinned series keeps its first and its newest capture. Between them the distances from the newest grow exponentially:
the last hour keeps its minutes, the last month its days. The last capture with a perf map also stays, since the map
names compiled code in the dumps around it, and so do the last with lives and the last with holders: verdicts read them.
"""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from .archive import Archive
from .capture import FACTS, HOLDERS, LIVES, PERF_MAP, Capture

#: what every thinned series keeps: its first and its newest
_LEAST = 2


@dataclass(frozen=True)
class Keep:
    """Limits; 0 is no limit. ``age`` is in seconds, ``count`` per process, ``size`` in bytes over all captures."""

    age: float = 0.0
    count: int = 0
    size: int = 0


def prune(archive: Archive, keep: Keep, now: float, check_mode: bool = False) -> tuple[list[Capture], int]:
    """Remove what exceeds the limits. Returns the removed captures and their size in bytes. Raises ArchiveError."""
    captures = [_timely(capture) for capture in archive.captures()]
    sizes = {capture.path: archive.size_of(capture) for capture in captures}
    removed = too_much(captures, keep, now, [sizes[capture.path] for capture in captures])
    for capture in removed:
        if not check_mode:
            archive.remove_capture(capture)
    return removed, sum(sizes[capture.path] for capture in removed)


def _timely(capture: Capture) -> Capture:
    """The capture, no newer than its arrival here: a host whose clock is ahead decides nothing about others."""
    return replace(capture, time=min(capture.time, (capture.path / FACTS).stat().st_mtime))


def too_much(captures: Sequence[Capture], keep: Keep, now: float, sizes: Sequence[int]) -> list[Capture]:
    """The captures to remove. ``sizes`` are theirs, in bytes.

    To meet the size limit, all processes are thinned alike; if two captures of each are still too many, the oldest
    processes go.
    """
    by_path = {capture.path: size for capture, size in zip(captures, sizes, strict=True)}
    kept: list[list[Capture]] = []
    ordered = sorted(captures, key=lambda c: (c.unit, c.host, c.process, c.time, c.sequence))
    for _process, members in itertools.groupby(ordered, key=lambda c: (c.unit, c.host, c.process)):
        series = list(members)
        if keep.age:
            series = [capture for capture in series if now - capture.time <= keep.age or capture is series[-1]]
        kept.append(_thinned(series, keep.count) if keep.count else series)
    if keep.age:
        # A process whose newest capture is too old goes entirely.
        kept = [series for series in kept if now - series[-1].time <= keep.age]
    if keep.size:
        kept = _within(kept, keep.size, by_path)
    staying = {capture.path for series in kept for capture in series}
    return [capture for capture in captures if capture.path not in staying]


def _within(kept: list[list[Capture]], limit: int, sizes: dict[Path, int]) -> list[list[Capture]]:
    def size(series: list[Capture]) -> int:
        return sum(sizes[capture.path] for capture in series)

    low, high = _LEAST, max(map(len, kept), default=0)
    if sum(map(size, kept)) <= limit:
        return kept
    while low < high:  # finds the largest number per process that fits
        middle = (low + high + 1) // 2
        if sum(size(_thinned(series, middle)) for series in kept) <= limit:
            low = middle
        else:
            high = middle - 1
    thinned = sorted((_thinned(series, low) for series in kept), key=lambda series: series[-1].time, reverse=True)
    totals = list(itertools.accumulate(map(size, thinned)))
    return [series for series, total in zip(thinned, totals, strict=True) if total <= limit]


def _thinned(series: list[Capture], count: int) -> list[Capture]:
    """At most ``count`` (at least two) captures of a process, chosen by time as this file's docstring says."""
    if len(series) <= max(count, _LEAST):
        return series
    newest, first = series[-1].time, series[0].time
    step = min((newest - capture.time for capture in series if capture.time < newest), default=1.0)
    ratio = max((newest - first) / step, 1.0)
    chosen = {0, len(series) - 1}
    for name in (PERF_MAP, LIVES, HOLDERS):
        having = [position for position, capture in enumerate(series) if capture.has(name)]
        if having and len(chosen) < count:
            chosen.add(having[-1])
    free = count - len(chosen)
    left = [position for position in range(len(series)) if position not in chosen]
    for number in range(1, free + 1):
        wanted = newest - step * math.pow(ratio, (number - 0.5) / free)
        after = bisect.bisect_left(left, wanted, key=lambda at: series[at].time)
        nearest = min(
            range(max(after - 1, 0), min(after + 1, len(left))), key=lambda i: abs(series[left[i]].time - wanted)
        )
        chosen.add(left.pop(nearest))
    return [series[position] for position in sorted(chosen)]
