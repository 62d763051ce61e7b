# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from ansible_collections.offheap.profiler.plugins.plugin_utils.leaks import by_lives, workers
from ansible_collections.offheap.profiler.plugins.plugin_utils.leaks.lives_verdict import (
    verdict_on,
    verdict_on_generations,
)
from ansible_collections.offheap.profiler.plugins.plugin_utils.leaks.own_numbers import OwnNumbers
from ansible_collections.offheap.profiler.plugins.plugin_utils.leaks.verdict import Answer
from ansible_collections.offheap.profiler.plugins.plugin_utils.model import series
from ansible_collections.offheap.profiler.plugins.plugin_utils.model.lives import Lives
from ansible_collections.offheap.profiler.plugins.plugin_utils.model.series import Series
from ansible_collections.offheap.profiler.tests.bench.shapes import DAY, MIB, SHAPES, Objects, Process, process
from ansible_collections.offheap.profiler.tests.unit.strategies.profiles import profile

INTERVAL = 1 << 19


def _four(rate: float) -> list[Process]:
    """Workers that each leak so many MiB a day."""
    shape = replace(SHAPES["steady"], rate=rate)
    return [process(shape, np.random.default_rng(number), INTERVAL) for number in range(4)]


def test_a_leak_spread_over_workers_is_told_of_their_sum_with_its_rate() -> None:
    four = _four(15)
    each = [one.series(DAY) for one in four]
    lives = [one.lives(DAY) for one in four]
    summed, whole = workers.sum_of_series(each, workers.common_times(each)), workers.sum_of_lives(lives)
    verdict = verdict_on("1", summed, whole)
    assert verdict.answer is Answer.LEAK
    assert [suspect.key[0] for suspect in verdict.suspects] == ["keep"]
    assert abs(verdict.growth - 60 * MIB) <= 1.5 * verdict.error < 60 * MIB
    assert summed.bytes[:, -1].sum() == pytest.approx(sum(one.bytes[:, -1].sum() for one in each))
    assert whole is not None and whole.births.sum() == sum(one.births.sum() for one in lives)
    assert not any(verdict_on("1", one, book).answer.leaks for one, book in zip(each, lives, strict=True))


def test_what_may_stay_is_bounded_over_all_of_them() -> None:
    """Four that were seen to keep nothing bound it better than by the sum of what each may keep."""
    four = [process(SHAPES["cache-0.02"], np.random.default_rng(number), INTERVAL) for number in range(4)]
    each = [one.series(DAY) for one in four]
    lives = [one.lives(DAY) for one in four]
    alone = [verdict_on("1", one, book) for one, book in zip(each, lives, strict=True)]
    whole = verdict_on("1", workers.sum_of_series(each, workers.common_times(each)), workers.sum_of_lives(lives))
    assert {one.answer for one in (*alone, whole)} == {Answer.NO_LEAK}
    assert max(one.bound for one in alone) <= whole.bound < sum(one.bound for one in alone)


def test_ages_stay_what_they_are_though_books_end_at_different_times() -> None:
    first, second = (one.lives(until) for one, until in zip(_four(60), (DAY, 0.9 * DAY), strict=False))
    whole = workers.sum_of_lives([first, second])
    assert whole is not None
    assert np.sort(whole.age) == pytest.approx(np.sort(np.concatenate([first.age, second.age])), abs=1e-4)
    assert (whole.now, whole.span) == (first.now, second.span)
    coarse = replace(second, sampling=replace(second.sampling, interval=1 << 20))
    assert workers.sum_of_lives([first, coarse]) is None


def test_only_those_that_ran_side_by_side_until_the_end_are_added() -> None:
    day = (0.0, 100.0)
    assert workers.beside([day, (1.0, 99.0), (10.0, 80.0)]) == [0, 1, 2]
    assert workers.beside([day, (100.0, 200.0)]) == [1], "a restart"
    assert workers.beside([day, (95.0, 100.0)]) == [0], "a worker that has just begun"
    assert workers.beside([day, (0.0, 60.0), (60.0, 100.0)]) == [0], "a worker, and the one in its place"
    assert workers.beside([]) == []


def short_worker(part: float, seed: int, leak: float = 3000) -> Lives:
    """A worker's book after so large a part of a day: it keeps so many MiB a day, and loaded 20 MiB at its start."""
    random = np.random.default_rng(seed)
    kept = np.sort(random.uniform(0, DAY, random.poisson(leak * MIB / INTERVAL)))
    start = np.sort(random.uniform(0, 0.05 * part * DAY, random.poisson(20 * MIB / INTERVAL)))
    churn = np.sort(random.uniform(0, DAY, random.poisson(20000 * MIB / INTERVAL)))
    forever = [Objects(born, np.full(len(born), math.inf)) for born in (kept, start)]
    worker = Process(
        INTERVAL, [*forever, Objects(churn, random.exponential(60, len(churn))), Objects(kept[:0], kept[:0])]
    )
    return worker.lives(part * DAY)


def test_workers_that_end_too_soon_are_judged_by_all_their_lives() -> None:
    each = [(levels(0), short_worker(0.01 * (1 + number % 3 / 10), number)) for number in range(12)]
    verdict = verdict_on_generations(each)
    assert verdict is not None and verdict.answer is Answer.CANNOT_TELL
    assert verdict.reason.startswith("12 processes ended after 15 min on average, too soon to be judged one by one")
    assert ": keep ← handle ← main;" in verdict.reason and "nobody can tell" in verdict.reason
    assert verdict.unexplained == pytest.approx(3000 * MIB, rel=0.25)
    start_up = [(levels(0), short_worker(0.01, number, leak=0)) for number in range(12)]
    assert verdict_on_generations(start_up) is None
    assert verdict_on_generations([]) is None


def levels(*gained: float) -> Series:
    """Those of a worker that has gained so many MiB at each dump of a minute."""
    times = [60.0 * number for number in range(len(gained) + 1)]
    sizes = [50.0, *(50.0 + more for more in gained)]
    return series.of_samples(
        (time, profile({("keep", "main"): size * MIB})) for time, size in zip(times, sizes, strict=True)
    )


def test_without_lives_workers_are_judged_by_what_they_gain() -> None:
    verdict = verdict_on_generations([(levels(4.0, 8.0 + number % 3), None) for number in range(8)])
    assert verdict is not None and verdict.answer is Answer.CANNOT_TELL
    assert "8 processes ended after 2 min on average" in verdict.reason and "8.9 MiB each" in verdict.reason
    assert verdict.unexplained == pytest.approx(8.875 / 120 * DAY * MIB)
    assert verdict_on_generations([(levels(4.0, (-1) ** number * 9.0), None) for number in range(8)]) is None
    assert verdict_on_generations([(levels(8.0), None), (levels(8.0), None)]) is None, "two are too few"
    at_once = [replace(levels(8.0), times=[5.0, 5.0]) for _number in range(8)]  # a service may set its files' times
    assert verdict_on_generations([(one, None) for one in at_once]) is None


def test_workers_of_several_ages_do_not_fill_up() -> None:
    """Nothing grows in either, but the older one has seen more deaths."""
    cache = SHAPES["cache-0.02"]
    first, second = (process(cache, np.random.default_rng(number), INTERVAL) for number in range(2))
    books = [first.lives(DAY), second.lives(DAY)]
    young = replace(
        books[1],
        began=books[1].now - DAY / 1.95,
        deaths=books[1].deaths / 1.95,
        ages=books[1].ages / 1.95,
        births=books[1].births / 1.95,
    )
    whole = workers.sum_of_lives([books[0], young])
    assert whole is not None and whole.of_deaths == pytest.approx((DAY + DAY / 1.95) / 2)
    assert by_lives.find(whole).filling == []
    assert by_lives.find(replace(whole, watched=None)).filling != [], "as if the younger one's time were all"


def test_a_number_that_one_does_not_tell_is_told_by_none() -> None:
    series = _four(15)[0].series(DAY)
    both = [{"allocated": 1, "rss": 5}] * len(series.times), [{"allocated": 2, "rss": "much"}] * len(series.times)
    each = [(series, OwnNumbers(memory, runtime="", left=7.0)) for memory in both]
    own = workers.sum_of_own_numbers(each, series.times[:3])
    assert own.memory == [{"allocated": 3}] * 3
    assert own.left == 7
