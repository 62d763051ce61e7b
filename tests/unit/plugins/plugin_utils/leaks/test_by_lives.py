# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""The verdict from lives, on simulated processes; ``make bench-truth`` has hundreds of each shape."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from ansible_collections.offheap.profiler.plugins.plugin_utils.leaks import by_lives, hazard
from ansible_collections.offheap.profiler.plugins.plugin_utils.leaks.diary import Course, diary
from ansible_collections.offheap.profiler.plugins.plugin_utils.leaks.lives_verdict import verdict_on
from ansible_collections.offheap.profiler.plugins.plugin_utils.leaks.verdict import Answer, Verdict, judge
from ansible_collections.offheap.profiler.plugins.plugin_utils.model.sampling import Sampling, Scheme
from ansible_collections.offheap.profiler.tests.bench.shapes import (
    DAY,
    MIB,
    PATH,
    SHAPES,
    Objects,
    Process,
    Shape,
    process,
)


def _process(name: str, interval: int = 1 << 19, seed: int = 1) -> Process:
    return process(SHAPES[name], np.random.default_rng([seed, *name.encode()]), interval)


def _verdict(name: str, interval: int = 1 << 19, until: float = DAY, seed: int = 1) -> Verdict:
    seen = _process(name, interval, seed)
    return verdict_on("7-aa", seen.series(until), seen.lives(until))


def test_a_steady_leak_has_its_rate_and_what_would_look_the_same() -> None:
    verdict = _verdict("steady")
    assert verdict.answer is Answer.LEAK
    assert abs(verdict.growth - 300 * MIB) < 1.5 * verdict.error
    (suspect,) = verdict.suspects
    assert suspect.key == PATH.key and suspect.first_seen == 0.0
    assert verdict.reason.startswith(
        "one code path keeps what it allocates (over 24 h): a cache would look the same only"
    )
    assert (verdict.process, verdict.span) == ("7-aa", DAY)


@pytest.mark.parametrize("name", ["churn-1%", "churn-10%", "begins-0.5", "pauses"])
def test_leaks_of_other_shapes_are_leaks(name: str) -> None:
    assert _verdict(name).answer is Answer.LEAK


def test_a_leak_that_began_later_says_when() -> None:
    verdict = _verdict("begins-0.5", 1 << 16)
    assert "since 1970-01-01 12:0" in verdict.reason
    assert abs(verdict.growth - 300 * MIB) < 1.5 * verdict.error


@pytest.mark.parametrize("name", ["begins-0.8", "begins-0.9"])
def test_what_is_too_young_is_left_open_until_a_time_that_holds(name: str) -> None:
    verdict = _verdict(name)
    assert verdict.answer is Answer.CANNOT_TELL
    assert "too young to say whether it stays" in verdict.reason and "keep ← handle" in verdict.reason
    assert DAY < verdict.known_after < 3 * DAY


def test_bursts_are_told_with_the_last_one() -> None:
    verdict = _verdict("bursts-4")
    assert (verdict.answer, verdict.answer.leaks) == (Answer.BURSTS, True)
    assert _verdict("nights").answer is Answer.BURSTS
    assert "4 so far" in verdict.reason and "the last at 1970-01-01 21:00" in verdict.reason


def test_a_leak_that_has_ended_grew_and_is_judged_again() -> None:
    verdict = _verdict("stopped")
    assert verdict.answer is Answer.GREW
    assert "from 1970-01-01 00:00:00 UTC to 1970-01-01 14:2" in verdict.reason
    assert "it is judged again after 5 d 23 h of dumps" in verdict.reason


def _batch_beside_churn(random: np.random.Generator, count: float) -> Objects:
    """All that stays comes within a minute; of what dies, some is always left."""
    batch = 0.6 * DAY + random.uniform(0, 60, random.poisson(count))
    churn = random.uniform(0, DAY, random.poisson(10 * count))
    life = np.append(np.full(len(batch), math.inf), random.exponential(0.01 * DAY, len(churn)))
    return Objects(np.append(batch, churn), life)


def test_what_has_yet_to_die_does_not_say_that_a_batch_goes_on() -> None:
    """Some of these were called a leak, at three times its rate, for a single object that came later."""
    for seed in range(8):
        seen = process(Shape("batch", _batch_beside_churn), np.random.default_rng([seed, 5]), 1 << 19)
        assert verdict_on("7-aa", seen.series(DAY), seen.lives(DAY)).answer is Answer.GREW, seed


@pytest.mark.parametrize("seed", range(8))
def test_a_leak_that_has_just_begun_again_goes_on(seed: int) -> None:
    """Few objects have come since its pause, and none of the path dies."""
    assert _verdict("pauses", until=0.7 * DAY, seed=seed).answer is Answer.LEAK


@pytest.mark.parametrize("name", ["cache-0.02", "cache-0.1", "ramp", "wave", "tail-1.2", "tail-0.9"])
def test_what_dies_is_no_leak_above_a_bound(name: str) -> None:
    verdict = _verdict(name)
    assert verdict.answer is Answer.NO_LEAK, verdict.reason
    assert 0 < verdict.bound < math.inf


@pytest.mark.parametrize("interval", [1 << 19, 1 << 16])
def test_entries_with_a_term_are_no_leak_as_soon_as_the_first_have_reached_it(interval: int) -> None:
    """After 7.2 hours, of what is older than six all has died, though most of the younger ones live."""
    assert _verdict("term-6h", interval, 0.3 * DAY).answer is not Answer.LEAK


@pytest.mark.parametrize("seed", [4, 9, 52])
def test_what_the_start_up_left_does_not_hide_that_entries_die(seed: int) -> None:
    """Of these, some entries were called a leak while they were judged together with what the start-up left."""
    assert _verdict("term-6h", 1 << 19, 0.3 * DAY, seed).answer is not Answer.LEAK


def test_a_cache_that_fills_says_where_it_levels_off() -> None:
    verdict = _verdict("cache-0.5", 1 << 16, DAY / 2)
    assert verdict.answer is Answer.FILLS_UP, verdict.reason
    assert verdict.to_come[0] > verdict.to_come[1] > 0
    assert "live memory levels off at" in verdict.reason


@pytest.mark.parametrize("part", [0.7, 0.8, 1.0])
def test_a_cache_whose_entries_have_a_term_is_full_when_it_is_over(part: float) -> None:
    """It was to hold half as much again, while all ages were said to die alike."""
    for seed in range(4):
        seen = process(Shape("term", _of_half_a_day, rate=150), np.random.default_rng([seed, 7]), 1 << 17)
        (found,) = [one for one in by_lives.find(seen.lives(part * DAY)).dying if one.key == PATH.key]
        assert found.size == 0


def _of_half_a_day(random: np.random.Generator, count: float) -> Objects:
    born = np.sort(random.uniform(0, DAY, random.poisson(count)))
    return Objects(born, np.full(len(born), DAY / 2))


def test_a_leak_names_the_shortest_term_that_would_look_the_same() -> None:
    """For ten days on average, as of entries that die at any age alike, those with a term need not live."""
    seen = process(Shape("term", _of_half_a_day, rate=150), np.random.default_rng(7), 1 << 17)
    verdict = verdict_on("7-aa", seen.series(DAY / 2), seen.lives(DAY / 2))
    assert verdict.answer is Answer.LEAK
    assert verdict.reason.endswith("on average, or longer than 10 h 46 min where they have a term"), verdict.reason


def test_an_object_that_grows_by_realloc_is_judged_by_levels() -> None:
    seen = _process("doubling")
    assert verdict_on("7-aa", seen.series(DAY), seen.lives(DAY)).answer is not Answer.NO_LEAK


def test_lives_that_are_not_whole_are_no_basis() -> None:
    seen = _process("steady")
    series, lives = seen.series(DAY), replace(seen.lives(DAY), lost=3)
    verdict, levels = verdict_on("7-aa", series, lives), judge("7-aa", series)
    assert (verdict.answer, verdict.growth) == (levels.answer, levels.growth)
    assert "its lives are not whole" in verdict.reason
    assert verdict_on("7-aa", series, None) == levels


def test_large_objects_count_as_what_they_are() -> None:
    seen = _process("steady")
    lives = seen.lives(DAY)
    large = replace(lives, size=np.full(len(lives.size), 64.0 * MIB))
    assert large.weight[0] == pytest.approx(64 * MIB) and large.variance[0] == pytest.approx(0.0, abs=1.0)
    exact = replace(lives, sampling=Sampling(Scheme.EXACT))
    assert exact.weight.tolist() == exact.size.tolist()


def test_the_bound_of_nothing_seen_is_not_nothing() -> None:
    no_deaths = hazard.at_most(np.zeros(2), np.array([10.0, 100.0]), 1)
    assert no_deaths[0] == pytest.approx(10 * no_deaths[1], rel=0.01)
    assert hazard.at_least(np.zeros(1), np.ones(1), 1).tolist() == [0.0]
    assert hazard.at_most(np.ones(1), np.zeros(1), 1).tolist() == [math.inf]


def test_bounds_hold_at_every_look() -> None:
    """A death every ten seconds of exposure on average, looked at a hundred times."""
    random = np.random.default_rng(7)
    looks = np.arange(1, 101) * 10.0
    broken = 0
    for _run in range(300):
        deaths = random.poisson(1.0, 100).cumsum().astype(float)
        low, high = hazard.at_least(deaths, looks, 1), hazard.at_most(deaths, looks, 1)
        broken += bool((low > 0.1).any() or (high < 0.1).any())
    assert broken <= 300 * 2 * hazard.ALPHA


def test_a_pause_is_longer_than_chance_and_an_end_longer_than_pauses() -> None:
    steady = list(np.arange(0.0, 100.0, 1.0))
    assert diary(steady, 0.0, 100.0).course is Course.GOES_ON
    assert diary(steady, 0.0, 100.0).ever
    assert diary(steady, 0.0, 130.0).course is Course.ENDED
    bursts = sorted(start + part / 100 for start in (10, 40, 70) for part in range(100))
    told = diary(bursts, 0.0, 80.0)
    assert (told.course, len(told.bursts), told.ever) == (Course.BURSTS, 3, False)
    assert diary(bursts, 0.0, 140.0).course is Course.ENDED


def test_few_births_after_many_go_on_unless_as_many_have_yet_to_die() -> None:
    births = [*np.arange(40.0, 41.0, 0.01), 90.0, 91.0]
    assert diary(births, 0.0, 95.0).course is Course.GOES_ON
    told = diary(births, 0.0, 95.0, 0.5)
    assert (told.course, told.until) == (Course.ENDED, births[99])
    assert diary(births, 0.0, 95.0, 0.01).course is Course.GOES_ON, "too many for chance"
    assert diary([*births, *np.arange(92.0, 95.0, 0.1)], 0.0, 95.0, 9.0).course is Course.GOES_ON


def test_few_lives_say_little() -> None:
    seen = _process("steady")
    young = seen.lives(DAY / 500)
    assert by_lives.find(young).kept == []
