# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""One process of a unit, judged, and the verdict on all of them on a host."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from .monitoring import with_monitoring
from .verdict import Answer, Verdict
from .without_agent import Beside, with_others

NOTHING_READ = Verdict(Answer.CANNOT_TELL, "none of the captures can be read")


@dataclass(frozen=True)
class Watched:
    """One process of a unit, judged. ``label`` is the newest capture's, times are seconds since the epoch, ``live`` is
    bytes in the newest capture, ``beside`` what the unit's processes without an agent hold, and ``left`` the bytes that
    the unit's limit or its host left then, None where that is not known."""

    unit: str
    host: str
    process: str
    label: str
    start: float
    end: float
    verdict: Verdict
    live: float = 0.0
    beside: Beside | None = None
    left: float | None = None


def verdict_on_host(processes: Sequence[Watched]) -> Verdict:
    """The verdict over all that was judged of a unit on a host, in any order, and on processes without an agent.

    The newest process that can be judged decides, together with those that ran beside it (workers): a leak comes
    first, then growth that the stacks do not explain. Earlier ones are named where they grew to more than these hold.
    """
    if not processes:
        return NOTHING_READ
    ran_last = last_on_each_host(processes)
    return with_monitoring(with_others(_with_agents(processes), [one.beside for one in ran_last if one.beside]))


def _with_agents(processes: Sequence[Watched]) -> Verdict:
    """The verdict over the processes with an agent."""
    judged = [process for process in processes if process.verdict.counts]
    if not judged:
        newest_first = sorted(processes, key=lambda process: process.end, reverse=True)
        return max((one.verdict for one in newest_first), key=lambda verdict: (verdict.points, verdict.span))
    beside = last_on_each_host(judged)
    leaking = [process.verdict for process in beside if process.verdict.answer.leaks]
    if leaking:
        return _add_up(leaking)
    newest = max(processes, key=lambda process: process.end)
    if newest not in judged and newest.verdict.known_after:
        # It has grown, and nobody knows yet what that is: one before it that did not leak says nothing of it.
        return newest.verdict
    verdict = max((process.verdict for process in beside), key=lambda verdict: (verdict.unexplained, *_graver(verdict)))
    # One that grew to less than what these hold without growing may have filled a cache until a restart cut it off.
    most = max(process.live for process in beside)
    earlier = [one for one in judged if one not in beside and one.verdict.answer.leaks and one.live > most]
    if earlier:
        last = max(earlier, key=lambda process: process.end).process
        number = "an earlier process" if len(earlier) == 1 else f"{len(earlier)} earlier processes"
        grew = f"{number} (newest: {last}) grew steadily, to more than is live now"
        return replace(verdict, reason=f"{verdict.reason}; but {grew}")
    return verdict


def _graver(verdict: Verdict) -> tuple[int, float]:
    """The gravest answer is the largest, and of those the one that was watched for longest."""
    return -list(Answer).index(verdict.answer), verdict.span


def last_on_each_host(judged: Sequence[Watched]) -> list[Watched]:
    """The process that ran last on each host and those that ran beside it (workers), the latest first."""
    newest: dict[str, Watched] = {}
    for process in sorted(judged, key=lambda process: process.end):
        newest[process.host] = process
    found = [process for process in judged if process.end >= newest[process.host].start]
    return sorted(found, key=lambda process: process.end, reverse=True)


def _add_up(leaking: list[Verdict]) -> Verdict:
    """One verdict for processes that leak side by side: the worst one's, with the growth of all."""
    worst = max(leaking, key=lambda verdict: verdict.growth)
    if len(leaking) == 1:
        return worst
    growth = math.fsum(verdict.growth for verdict in leaking)
    error = math.hypot(*(verdict.error for verdict in leaking))
    reason = f"{worst.reason} in process {worst.process}, the worst of {len(leaking)} that leak"
    return replace(worst, growth=growth, error=error, reason=reason)
