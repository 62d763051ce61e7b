# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""What the data of a fleet tell of a unit's processes, with an agent and without."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..base.printable import printable
from ..leaks.survey import Process
from ..leaks.without_agent import Beside


def others(found: Sequence[Beside]) -> dict[str, Any] | None:
    """The unit's processes without an agent, by the newest dump; None where there are none, or nobody knows."""
    if not found:
        return None
    newest = max(found, key=lambda beside: beside.time).others
    largest = [
        {"pid": one.pid, "name": printable(one.name or ""), "exe": printable(one.exe or ""), "rss": one.rss}
        for one in newest.largest
    ]
    return {"processes": newest.processes, "rss": newest.rss, "largest": largest}


def process(one: Process, ended: bool) -> dict[str, Any]:
    """One with an agent."""
    facts = one.captures[-1].facts
    exe = next((exe for capture in one.captures if (exe := capture.facts.process.exe)), None)
    return {
        "key": one.watched.process,
        "pid": facts.process.pid,
        "exe": printable(exe or ""),
        "start": next((start for capture in one.captures if (start := capture.facts.process.start_time)), None),
        "version": printable(_version(one)),
        "ended": ended,
    }


def _version(process: Process) -> str:
    """``version 4.2.0`` from the label given to the captures, else ``build 0123456789ab`` from the executable's
    build-id (of a JVM, that is the JVM's), else nothing."""
    facts = process.captures[-1].facts
    if facts.label:
        return f"version {facts.label}"
    images = facts.build_ids
    build_id = images.get(facts.process.exe or next(iter(images), ""), "")
    return f"build {build_id[:12]}" if build_id else ""
