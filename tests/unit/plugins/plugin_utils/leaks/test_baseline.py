# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
from __future__ import annotations

from ansible_collections.offheap.profiler.plugins.plugin_utils.leaks import baseline
from ansible_collections.offheap.profiler.plugins.plugin_utils.leaks.baseline import too_much
from ansible_collections.offheap.profiler.plugins.plugin_utils.leaks.verdict import Answer, Verdict
from ansible_collections.offheap.profiler.plugins.plugin_utils.leaks.watched import Watched

MIB = 1 << 20


def _spread(
    growth: float = 60.0, answer: Answer = Answer.LEAK, *, unit: str = "web.service", start: float = 0.0
) -> Watched:
    """A process that grows by so many MiB ± 5 MiB a day, in no code path that stands out."""
    verdict = Verdict(answer, "live memory grows", growth * MIB, 5.0 * MIB)
    return Watched(unit, "app1", f"{start:.0f}-aa", "", start, start + 3600, verdict)


def test_growth_that_no_code_path_explains_is_too_much() -> None:
    (reason,) = too_much([], [_spread()], limit=0.0)
    assert reason.text == "web.service on app1 grows by 60.0 MiB/day, spread over many code paths"
    assert len(too_much([], [_spread()], limit=None, known=[])) == 1, "no baseline knows it"


def test_what_of_it_is_within_the_limit_is_not() -> None:
    assert too_much([], [_spread()], limit=56.0 * MIB) == []
    assert len(too_much([], [_spread()], limit=54.0 * MIB)) == 1, "the lower end of the interval counts"


def test_only_the_processes_that_ran_last_count_by_unit() -> None:
    cured = _spread(0.0, Answer.NO_LEAK, start=7200.0)
    assert too_much([], [_spread(), cured], limit=0.0) == []
    young = _spread(0.0, Answer.CANNOT_TELL, start=7200.0)
    assert len(too_much([], [_spread(), young], limit=0.0)) == 1
    elsewhere = _spread(0.0, Answer.NO_LEAK, unit="other.service", start=7200.0)
    assert len(too_much([], [_spread(), elsewhere], limit=0.0)) == 1


def test_a_path_without_functions_is_known_as_itself_alone() -> None:
    assert baseline._is_same((), ()) and not baseline._is_same((), ("keep", "main"))
    assert baseline._is_same(("keep",), ("keep", "main"))
