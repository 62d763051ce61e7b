# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""No verdict about memory that nobody looked at."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.offheap.profiler.plugins.plugin_utils.archive.capture import Capture
from ansible_collections.offheap.profiler.plugins.plugin_utils.leaks.code_paths import Limit
from ansible_collections.offheap.profiler.plugins.plugin_utils.leaks.verdict import Answer, Verdict
from ansible_collections.offheap.profiler.plugins.plugin_utils.leaks.watched import Watched, verdict_on_host
from ansible_collections.offheap.profiler.plugins.plugin_utils.leaks.without_agent import beside
from ansible_collections.offheap.profiler.tests.unit.plugins.plugin_utils.archive import capture_samples

MIB = 1 << 20
MINUTES = 10
JAVA = "/usr/lib/jvm/bin/java"


def captures(own: float, child: Callable[[int], float], **more: Any) -> list[Capture]:
    """Those of a launcher that holds ``own`` MiB, with a JVM of ``child`` MiB by minutes, and a small helper."""
    found = []
    for minute in range(MINUTES):
        size = round(child(minute) * MIB)
        java = {"pid": 9, "name": "java\x1b[2J", "exe": JAVA, "rss": size}
        largest = [java, {"pid": 8, "name": None, "exe": None, "rss": MIB}]
        others = {"processes": 2, "rss": size + MIB, "largest": largest, **more}
        memory = {"rss": round((own + 7) * MIB), "rss_file": 7 * MIB}
        facts = replace(capture_samples.facts(), agent={"others": others, "memory": memory})
        found.append(Capture(Path(), "app1", "web.service", "7-aa", minute, 60.0 * minute, facts))
    return found


def judged(found: list[Capture], verdict: Verdict, process: str = "7-aa") -> Watched:
    return Watched("web.service", "app1", process, "", 0.0, 60.0 * (MINUTES - 1), verdict, beside=beside(found))


def no_leak(bound: float = 30.0) -> Verdict:
    return Verdict(Answer.NO_LEAK, "nothing stays", bound=bound * MIB, points=MINUTES, span=540.0)


def test_memory_that_is_mostly_elsewhere_is_named_with_the_way_to_look_at_it() -> None:
    verdict = verdict_on_host([judged(captures(4, lambda minute: 182 + 39 * minute), no_leak())])
    assert (verdict.answer, verdict.bound) == (Answer.CANNOT_TELL, 0.0) and verdict.unexplained > 0
    assert verdict.reason == (
        "most of the unit's memory, 534.0 MiB of 538.0 MiB, 312.0 MiB more than 8 min before, is in 2 processes without"
        " an agent, most in java�[2J, pid 9, 533.0 MiB, 312.0 MiB more than 8 min before"
        " (executable: /usr/lib/jvm/bin/java in profiled_service_agent_settings profiles it); nothing stays"
    )


def test_growth_elsewhere_beyond_what_could_be_missed_is_no_all_clear() -> None:
    grows = captures(1000, lambda minute: 50 + minute)
    assert verdict_on_host([judged(grows, no_leak(bound=300.0))]).answer is Answer.CANNOT_TELL
    assert verdict_on_host([judged(grows, no_leak(bound=3000.0))]).answer is Answer.NO_LEAK
    by_levels = replace(no_leak(), bound=0.0, limits=[Limit(3000.0 * MIB)])
    assert verdict_on_host([judged(grows, by_levels)]).answer is Answer.NO_LEAK


def test_small_and_flat_processes_change_nothing() -> None:
    assert verdict_on_host([judged(captures(100, lambda _minute: 50), no_leak())]) == no_leak()


def test_what_others_with_an_agent_hold_is_looked_at() -> None:
    """Two of 40 MiB with agents, and 60 MiB without."""
    worker = judged(captures(40, lambda _minute: 60), no_leak())
    assert verdict_on_host([worker]).answer is Answer.CANNOT_TELL
    assert verdict_on_host([worker, replace(worker, process="8-aa")]).answer is Answer.NO_LEAK


def test_a_leak_stays_one() -> None:
    leak = Verdict(Answer.LEAK, "one code path keeps", growth=9.0 * MIB)
    verdict = verdict_on_host([judged(captures(4, lambda _minute: 182), leak)])
    assert verdict.answer is Answer.LEAK
    assert verdict.reason.startswith("one code path keeps; most of the unit's memory, 183.0 MiB of 187.0 MiB, is in")


def test_a_worker_of_the_same_program_is_profiled_as_a_child() -> None:
    found = captures(4, lambda _minute: 182)
    same = replace(found[0].facts.process, exe=JAVA)
    found = [replace(capture, facts=replace(capture.facts, process=same)) for capture in found]
    assert "(children: true in profiled" in verdict_on_host([judged(found, no_leak())]).reason


@pytest.mark.parametrize("more", [{"rss": "much"}, {"largest": [{"pid": 9}]}, {"processes": 0}])
def test_what_a_host_says_of_others_is_hostile(more: dict[str, Any]) -> None:
    assert verdict_on_host([judged(captures(4, lambda _minute: 182, **more), no_leak())]).answer is Answer.NO_LEAK


def test_the_largest_may_be_unknown() -> None:
    verdict = verdict_on_host([judged(captures(4, lambda _minute: 182, largest=[]), no_leak())])
    assert (
        verdict.reason
        == "most of the unit's memory, 183.0 MiB of 187.0 MiB, is in 2 processes without an agent; nothing stays"
    )
