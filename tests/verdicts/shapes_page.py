# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""The page on shapes of leaks, from what was seen of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ansible_collections.offheap.profiler.tests.verdicts.scripts import KEPT, SPAN, WATCHED, Watched

_HEAD = """<!--
SPDX-License-Identifier: GPL-3.0-or-later
SPDX-FileCopyrightText: Offheap contributors
-->
<!-- Written by `make shapes`; edit tests/verdicts/shapes_page.py. -->

# Leaks of every shape, and what only looks like one

What the report says of services whose memory is known to the byte. `make shapes` plays a script for each shape, in C,
C++, Java (memory that `Unsafe` takes) and Python, as services on one booted host of Debian 12, with a sample each 64
KiB and a dump each 15 seconds, for eight minutes, from enabling to the report, all by the playbooks. Beside the path
that a shape is about, each has one whose blocks live for half a second.

- **right**: the answers that are true of the shape. A leak that has just begun, a cache whose entries have not lived
  out their time, and a block that grows by `realloc` cannot be told from each other yet.
- False is "no leak" of what has lost 40 samples' worth since the first tenth of the time, and a leak of what loses
  nothing, of a cache once it was watched for as long as its entries live on average.
- The other columns have what was said: in bold where it is not right. **since** is how far the time that the report
  gives for the beginning is from the true one, in seconds; **rate** is what it says of a steady leak, by the truth.
"""
_LANGUAGES = ("c", "c++", "java", "python")
_DAY = 86400


@dataclass
class Told:
    """What the report said of a service, on which day. Rates are bytes a day; ``since`` are seconds after the start,
    of the first suspect, which is ``named`` by the function that keeps what it allocates; ``looks`` is how often
    somebody looked, and ``wrong`` when what was said then was false."""

    shape: str
    language: str
    day: str
    verdict: str
    reason: str
    rate: float
    error: float
    named: bool
    since: float
    looks: int
    wrong: list[int]

    def is_right(self, watched: Watched) -> bool:
        """Whether the answer is, and what it says of a leak."""
        leaks = self.verdict in ("leak", "bursts")
        return self.verdict in watched.right and (not leaks or self.named)


def page(told: Sequence[Told]) -> str:
    """The whole page."""
    by_shape = {watched.name: {one.language: one for one in told if one.shape == watched.name} for watched in WATCHED}
    right = sum(one.is_right(watched) for watched in WATCHED for one in by_shape[watched.name].values())
    days = sorted({one.day for one in told})
    columns = ["shape", "right", *_LANGUAGES]
    lines = [_line(columns), _line(["---"] * len(columns))]
    for watched in WATCHED:
        cells = [_cell(watched, by_shape[watched.name].get(language)) for language in _LANGUAGES]
        lines.append(_line([watched.name, " or ".join(watched.right), *cells]))
    seen = days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}"
    looks = sum(one.looks for one in told)
    wrong = [f"{one.shape} after {' and '.join(map(str, one.wrong))} s" for one in told if one.wrong]
    return (
        f"{_HEAD}\nOf {len(told)} services, seen on {seen}, {right} are told right in the end. Looked at after each"
        f" dump of those in C, {looks} times in all, {sum(len(one.wrong) for one in told)} answers are false"
        f"{': ' if wrong else ''}{'; '.join(wrong)}.\n\n" + "".join(lines)
    )


def _cell(watched: Watched, told: Told | None) -> str:
    if told is None:
        return ""
    text = told.verdict if told.is_right(watched) else f"**{told.verdict}**"
    if told.verdict == "leak" and watched.name == "steady":
        text += f", rate {told.rate / (KEPT / SPAN * _DAY):.2f} ± {told.error / (KEPT / SPAN * _DAY):.2f}"
    if told.verdict == "leak" and watched.since:
        text += f", since {told.since - watched.since:+.0f} s"
    return text


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |\n"
