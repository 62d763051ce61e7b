# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""What the report would have said after each dump of a service, had somebody looked then."""

from __future__ import annotations

from collections.abc import Iterator

from ansible_collections.offheap.profiler.plugins.plugin_utils.archive.archive import Archive
from ansible_collections.offheap.profiler.plugins.plugin_utils.columns.series_reader import reading
from ansible_collections.offheap.profiler.plugins.plugin_utils.leaks.scope import Scope
from ansible_collections.offheap.profiler.plugins.plugin_utils.leaks.survey import survey
from ansible_collections.offheap.profiler.plugins.plugin_utils.leaks.trend import WARM_UP
from ansible_collections.offheap.profiler.plugins.plugin_utils.leaks.verdict import Answer
from ansible_collections.offheap.profiler.tests.bench.shapes import SHAPES
from ansible_collections.offheap.profiler.tests.verdicts.scripts import LEAD, SPAN, Watched, script

# So many samples' worth was lost, as in tests/bench/looks.py.
_ENOUGH = 40 << 16


def answers(archive: Archive, unit: str) -> Iterator[tuple[float, Answer]]:
    """The time of each dump (seconds since the epoch), and the answer that rests on it and those before it."""
    later = archive.root / "later"
    moved = [(capture.time, capture.path, later / str(at)) for at, capture in enumerate(archive.captures(unit))]
    later.mkdir()
    for _time, path, aside in moved:
        path.rename(aside)
    for time, path, aside in sorted(moved):
        aside.rename(path)
        with reading(archive, lambda _warning: None) as reader:
            for host in survey(archive, reader, Scope([unit]), lambda _warning: None):
                yield time, host.verdict.answer
    later.rmdir()


def beginnings(archive: Archive) -> dict[str, float]:
    """When the first suspect of each unit began (seconds since the epoch)."""
    with reading(archive, lambda _warning: None) as reader:
        found = list(survey(archive, reader, Scope(), lambda _warning: None))
    return {host.unit: host.verdict.suspects[0].first_seen for host in found if host.verdict.suspects}


def wrong(watched: Watched, said: list[tuple[float, Answer]], started: float) -> list[float]:
    """When an answer was false, in seconds after the start: "no leak" of what had lost something, or a leak of what
    loses nothing, of a cache only if it was watched for as long as its entries live on average."""
    shape = SHAPES[watched.shape or watched.name]
    losses = _losses(watched)
    found = []
    for time, answer in said:
        after = time - started
        lost = sum(size for due, size in losses if WARM_UP * after < due <= after)
        is_wrong = answer.leaks and after >= LEAD + shape.mean * SPAN
        if shape.leaks:
            is_wrong = answer is Answer.NO_LEAK and lost >= _ENOUGH
        if is_wrong:
            found.append(after)
    return found


def _losses(watched: Watched) -> list[tuple[float, int]]:
    """When something is allocated that is never freed, and how many bytes."""
    lines = [line.split() for line in script(watched).splitlines()]
    freed = {words[2] for words in lines if words[1] == "-"}
    workers = watched.workers or 1
    return [
        (int(words[0]) / 1000, int(words[3]) * workers) for words in lines if words[1] == "+" and words[2] not in freed
    ]
