# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""The dumps of a process between which sampling was never switched: only those make a series.

What a process allocates while sampling is off is in no dump, ever. Across such a time a leak seems to pause, and after
it memory that is replaced seems to grow. The agent notes with each dump whether sampling was on, and since when.

It numbers them, too: where a later one has an earlier time, the host's clock was set back, as after a boot with a wrong
one. By such times a leak seems to rise and fall. Where one is older than its process, the clock was set forward, and a
leak of an hour seems to take years. A host tells the start of a process by the clock that it has then, so what it said
last counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ..archive.capture import Capture
from .verdict import LEAST_POINTS, Answer, Verdict

# By how many seconds time has to fall. Two dumps at once may end in the other order, and a start is told to a second.
_SET_BACK = 60.0


@dataclass(frozen=True)
class Stretch:
    """Dumps of one process, oldest first. ``caution`` says what was left out, and is empty if nothing was; ``sampled``
    is whether sampling was on."""

    captures: list[Capture]
    caution: str = ""
    sampled: bool = True


def newest(captures: Sequence[Capture], least_span: float) -> Stretch:
    """The newest stretch with dumps enough to be judged over ``least_span`` seconds, else the longest."""
    ordered = sorted(captures, key=lambda capture: (capture.time, capture.sequence))
    started = _started(captures)
    stretches: list[list[Capture]] = []
    since: object = None
    for capture in ordered:
        told = capture.facts.agent or {}
        if told.get("active") is False:
            continue
        begun = told.get("active_since")
        if not stretches or (begun is not None and since is not None and begun != since):
            stretches.append([])
        stretches[-1].append(capture)
        since = begun if begun is not None else since
    if not stretches:
        caution = f"sampling was off at each of its {len(ordered)} dumps, so they cannot show what it allocates"
        return Stretch(ordered, caution, sampled=False)
    parts = [_timely(one, started) for one in stretches]
    enough = [one for one in parts if len(one) >= LEAST_POINTS and _span(one) >= least_span]
    chosen = enough[-1] if enough else max(parts, key=_length)
    left = len(ordered) - len(chosen)
    if not left:
        return Stretch(chosen)
    others = "one other dump is" if left == 1 else f"{left} other dumps are"
    why = "sampling began anew in between" if parts == stretches else "the clock of the host was set in between"
    if left == len(ordered) - sum(map(len, stretches)):
        why = "sampling was off then"
    return Stretch(chosen, f"{others} left out, because {why}")


def _started(captures: Sequence[Capture]) -> float:
    """When the process started, as its newest dump says that says it; 0 where none does."""
    for capture in sorted(captures, key=lambda capture: capture.sequence, reverse=True):
        if capture.facts.process.start_time:
            return capture.facts.process.start_time
    return 0.0


def _timely(stretch: list[Capture], started: float) -> list[Capture]:
    """The longest part of a stretch in which the clock was not set; all, where one agent has not numbered all."""
    if any((capture.facts.agent or {}).get("active_since") is None for capture in stretch):
        return stretch
    stretch = [capture for capture in stretch if capture.time >= started - _SET_BACK] or stretch
    parts: list[list[Capture]] = [[]]
    for capture in sorted(stretch, key=lambda capture: capture.sequence):
        if parts[-1] and capture.time < parts[-1][-1].time - _SET_BACK:
            parts.append([])
        parts[-1].append(capture)
    longest = max(parts, key=_length)
    return sorted(longest, key=lambda capture: (capture.time, capture.sequence))


def with_stretch(verdict: Verdict, stretch: Stretch) -> Verdict:
    """The verdict, with what was left out because sampling was switched off. Without sampling it is none."""
    if not stretch.sampled:
        return Verdict(
            Answer.CANNOT_TELL, stretch.caution, process=verdict.process, points=verdict.points, span=verdict.span
        )
    return replace(verdict, reason=f"{verdict.reason}; {stretch.caution}") if stretch.caution else verdict


def _length(captures: Sequence[Capture]) -> tuple[float, int]:
    return _span(captures), len(captures)


def _span(captures: Sequence[Capture]) -> float:
    return captures[-1].time - captures[0].time
