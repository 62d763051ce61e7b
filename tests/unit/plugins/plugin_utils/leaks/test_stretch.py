# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.offheap.profiler.plugins.plugin_utils.archive.capture import Capture
from ansible_collections.offheap.profiler.plugins.plugin_utils.leaks.stretch import newest, with_stretch
from ansible_collections.offheap.profiler.plugins.plugin_utils.leaks.verdict import Answer, Verdict
from ansible_collections.offheap.profiler.tests.unit.plugins.plugin_utils.archive import capture_samples

OFF: dict[str, Any] = {"active": False, "active_since": None}
NO_LEAK = Verdict(Answer.NO_LEAK, "no code path grows", process="7-aa", points=4, span=180.0)


def on(since: float | None) -> dict[str, Any]:
    return {"active": True, "active_since": since}


def dumps(*agents: dict[str, Any] | None) -> list[Capture]:
    """A dump a minute, each with this from the agent."""
    facts = capture_samples.facts()
    return [
        Capture(Path(), "app1", "web.service", "7-aa", number, 60.0 * number, replace(facts, agent=agent))
        for number, agent in enumerate(agents)
    ]


def chosen(*agents: dict[str, Any] | None) -> list[int]:
    return [capture.sequence for capture in newest(list(reversed(dumps(*agents))), 60).captures]


def test_without_a_switch_every_dump_counts_oldest_first() -> None:
    assert chosen(on(5.5), on(5.5), on(5.5)) == [0, 1, 2]
    assert newest(dumps(on(5.5), on(5.5)), 60).caution == ""


def test_what_is_not_known_is_no_switch() -> None:
    """Dumps that jemalloc made itself have no note of the agent's; nor has a profile from elsewhere."""
    assert chosen(None, on(5.5), {"problem": "no sidecar"}, on(None), on(5.5)) == [0, 1, 2, 3, 4]
    assert chosen(None, None) == [0, 1]


def test_only_the_newest_stretch_is_judged() -> None:
    assert chosen(on(5.5), on(5.5), on(5.5), OFF, on(200.0), on(200.0), on(200.0)) == [4, 5, 6]
    assert chosen(on(5.5), on(5.5), on(5.5), on(200.0), on(200.0), on(200.0)) == [3, 4, 5], "nobody dumped meanwhile"


@pytest.mark.parametrize("after", [(OFF,), (on(200.0),), (on(200.0), on(200.0))])
def test_a_stretch_that_is_too_short_does_not_hide_the_one_before(after: tuple[dict[str, Any], ...]) -> None:
    assert chosen(on(5.5), on(5.5), on(5.5), on(5.5), OFF, *after) == [0, 1, 2, 3]


def test_where_none_is_long_enough_the_longest_is_shown() -> None:
    assert chosen(on(5.5), OFF, on(90.0), on(90.0), OFF) == [2, 3]


def test_what_is_left_out_is_told() -> None:
    stretch = newest(dumps(on(5.5), OFF, *[on(90.0)] * 3), 60)
    verdict = with_stretch(NO_LEAK, stretch)
    told = "no code path grows; 2 other dumps are left out, because sampling began anew in between"
    assert (verdict.answer, verdict.reason) == (Answer.NO_LEAK, told)


def test_sampling_that_ended_for_good_is_not_said_to_have_begun_anew() -> None:
    stretch = newest(dumps(*[on(5.5)] * 3, OFF, OFF), 60)
    assert [capture.sequence for capture in stretch.captures] == [0, 1, 2]
    assert stretch.caution == "2 other dumps are left out, because sampling was off then"


def test_before_the_clock_was_set_back_is_another_time() -> None:
    """The first two dumps were made after a boot with a clock that was two minutes ahead."""
    found = dumps(*[on(5.5)] * 6)
    shifted = [replace(one, time=one.time + (200 if one.sequence < 2 else 0)) for one in found]
    stretch = newest(shifted, 60)
    assert [capture.sequence for capture in stretch.captures] == [2, 3, 4, 5]
    assert stretch.caution == "2 other dumps are left out, because the clock of the host was set in between"
    at_once = [replace(one, time=one.time + (61 if one.sequence == 3 else 0)) for one in found]
    assert [capture.sequence for capture in newest(at_once, 60).captures] == [0, 1, 2, 4, 3, 5]
    noted = [replace(one, facts=replace(one.facts, agent=None)) for one in shifted]
    assert len(newest(noted, 60).captures) == 6, "nobody knows whose numbers they are"


def test_what_is_older_than_its_process_is_of_a_clock_that_was_set_forward() -> None:
    """The host came up years behind. Of the start, only what it said after it knew the time is right."""
    found = []
    for one in dumps(*[on(5.5)] * 6):
        process = replace(one.facts.process, start_time={0: 5.0, 4: 1e9, 5: None}.get(one.sequence, 1e9 + 1))
        found.append(
            replace(one, time=one.time + (1e9 if one.sequence > 1 else 0), facts=replace(one.facts, process=process))
        )
    stretch = newest(found, 60)
    assert [capture.sequence for capture in stretch.captures] == [2, 3, 4, 5]
    assert stretch.caution == "2 other dumps are left out, because the clock of the host was set in between"
    late = [replace(one, time=1e8 + one.sequence) for one in found]
    assert len(newest(late, 60).captures) == 6, "a start after all of them says nothing"


def test_without_sampling_nobody_can_tell() -> None:
    stretch = newest(dumps(OFF, OFF, OFF), 60)
    assert len(stretch.captures) == 3
    verdict = with_stretch(NO_LEAK, stretch)
    assert (verdict.answer, verdict.points, verdict.span) == (Answer.CANNOT_TELL, 4, 180.0)
    assert verdict.reason == "sampling was off at each of its 3 dumps, so they cannot show what it allocates"
