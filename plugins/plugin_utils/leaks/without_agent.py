# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""What the unit's processes without an agent hold: of memory that nobody looked at there is no "no leak".

Each dump notes how much that is (the sidecar's ``others``). A launcher that leaks nothing says nothing of the JVM that
it has started.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ...module_utils.formats.sidecar import OtherFacts, OthersFacts
from ..archive.capture import Capture
from ..base.byte_size import as_text
from ..base.durations import DAY, duration
from ..base.printable import printable
from .own_numbers import LEAST_GROWTH, told_size
from .trend import window
from .verdict import Answer, Verdict


@dataclass(frozen=True)
class Beside:
    """What a process's newest dump, at ``time``, says of the memory of its unit, in bytes: its ``own``, without files,
    and that of the ``others`` without an agent, which gained ``gained`` in ``span`` seconds. ``program`` is its own
    executable, ``before`` holds by pid those of the others that were among the largest at first."""

    time: float
    own: float
    others: OthersFacts
    gained: float
    span: float
    program: str
    before: dict[int, int]

    @property
    def most(self) -> OtherFacts | None:
        """The one of them that holds most."""
        return max(self.others.largest, key=lambda one: one.rss, default=None)


def beside(captures: Sequence[Capture]) -> Beside | None:
    """By the captures of one process, the newest last; None where they say nothing of others, or there are none."""
    known = [(capture, others) for capture in captures if (others := capture.facts.others) is not None]
    if not known or not known[-1][1].processes:
        return None
    chosen = window([capture.time for capture, _others in known])
    first, last = known[chosen[0] if chosen else -1], known[-1]
    memory = last[0].facts.memory
    files = math.fsum(told_size(memory.get(part)) or 0.0 for part in ("rss_file", "rss_shmem"))
    own = max((told_size(memory.get("rss")) or 0.0) - files, 0.0)
    return Beside(
        time=last[0].time,
        own=own,
        others=last[1],
        gained=float(last[1].rss - first[1].rss),
        span=last[0].time - first[0].time,
        program=next((exe for capture in captures if (exe := capture.facts.process.exe)), ""),
        before={one.pid: one.rss for one in first[1].largest},
    )


def with_others(verdict: Verdict, found: Sequence[Beside]) -> Verdict:
    """The verdict on a unit, given what its processes that ran last say of those without an agent.

    Where these hold more than those with one, or gained more than the verdict says could have been missed, nobody can
    tell.
    """
    newest = max(found, key=lambda one: one.time, default=None)
    if newest is None:
        return verdict
    own = math.fsum(one.own for one in found if one.time >= newest.time - newest.span / 3)
    bound = verdict.bound or (verdict.limits[0].rate if verdict.limits else 0.0)
    holds_most = newest.others.rss > own
    known = max(bound, verdict.growth) / DAY * newest.span
    if not holds_most and newest.gained <= max(known, LEAST_GROWTH):
        return verdict
    text = _sentence(newest, own, holds_most)
    if not verdict.answer.is_calm:
        return replace(verdict, reason=f"{verdict.reason}; {text}")
    rate = max(newest.gained, 0.0) / newest.span * DAY if newest.span else 0.0
    reason = f"{text}; {verdict.reason}"
    return replace(verdict, answer=Answer.CANNOT_TELL, reason=reason, unexplained=rate, bound=0.0, limits=())


def _sentence(newest: Beside, own: float, holds_most: bool) -> str:
    others, most = newest.others, newest.most
    count = "one process" if others.processes == 1 else f"{others.processes} processes"
    gained = _gained(newest.gained, newest.span)
    if holds_most:
        whole = f"{as_text(others.rss)} of {as_text(others.rss + own)}{gained}"
        text = f"most of the unit's memory, {whole}, is in {count} without an agent"
    else:
        hold = "holds" if others.processes == 1 else "hold"
        text = f"{count} of the unit without an agent {hold} {as_text(others.rss)}{gained}"
    if most is None:
        return text
    name = printable(most.name or "one")
    own_gain = _gained(most.rss - newest.before[most.pid], newest.span) if most.pid in newest.before else ""
    if others.processes == 1:
        text += f": {name}, pid {most.pid}"
    else:
        text += f", most in {name}, pid {most.pid}, {as_text(most.rss)}{own_gain}"
    return f"{text} ({_way_out(newest.program, most)})"


def _gained(size: float, span: float) -> str:
    return f", {as_text(size)} more than {duration(span)} before" if size >= LEAST_GROWTH else ""


def _way_out(program: str, most: OtherFacts) -> str:
    """What profiles it."""
    if most.exe and most.exe == program:
        return "children: true in profiled_service_agent_settings profiles it"
    path = f"executable: {printable(most.exe)}" if most.exe else "its executable"
    return f"{path} in profiled_service_agent_settings profiles it"
