# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Verdicts on processes whose allocations are known, seen through a sampling profiler, over many seeds."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.offheap.profiler.plugins.plugin_utils.leaks.trend import (
    Measured,
    Shape,
    Trend,
    assess,
    smallest_growth,
    theil_sen,
    window,
)
from ansible_collections.offheap.profiler.plugins.plugin_utils.model.sampling import EXACT, Sampling, Scheme
from ansible_collections.offheap.profiler.plugins.plugin_utils.model.series import evenly_spread
from ansible_collections.offheap.profiler.tests.unit.strategies.simulated_heaps import sampled

MIB = 1 << 20
INTERVAL = 1 << 19
SAMPLING = Sampling(Scheme.POISSON, INTERVAL)
HOUR = 3600.0
SEEDS = 60

Live = Callable[[float], float]


def _trends(live: Live, points: int, lifetime: float = math.inf, size: int = 4096) -> list[Trend]:
    """One hour watched, with dumps at almost even times, for each of the seeds."""
    found = []
    for seed in range(SEEDS):
        generator = random.Random(seed)
        step = HOUR / (points - 1)
        times = sorted(step * index + generator.uniform(-0.1, 0.1) * step for index in range(points))
        measured = sampled(live, times, interval=INTERVAL, size=size, lifetime=lifetime, generator=generator)
        found.append(assess(measured.select(window(times)), SAMPLING))
    return found


def _shapes(trends: list[Trend]) -> Counter[Shape]:
    return Counter(trend.shape for trend in trends)


def _saw(teeth: float, height: float) -> Live:
    return lambda time: height * MIB * ((time * teeth / HOUR) % 1)


LEAKS: dict[str, tuple[Live, float]] = {
    "100 MiB/h": (lambda time: 100 * MIB * time / HOUR, 100),
    "30 MiB/h": (lambda time: 30 * MIB * time / HOUR, 30),
    "30 MiB/h beside 100 MiB that stay": (lambda time: (100 + 30 * time / HOUR) * MIB, 30),
    "60 MiB/h after a start of 200 MiB": (lambda time: (200 * min(1, time * 20 / HOUR) + 60 * time / HOUR) * MIB, 60),
}


@pytest.mark.parametrize("points", [10, 30, 100])
@pytest.mark.parametrize("name", LEAKS)
def test_a_leak_is_seen_and_its_rate_lies_in_the_interval(name: str, points: int) -> None:
    live, rate = LEAKS[name]
    trends = _trends(live, points)
    assert _shapes(trends)[Shape.GROWS] >= 0.9 * SEEDS  # 30 MiB are hardly more than the least that shows
    inside = sum(abs(trend.slope - rate * MIB / HOUR) <= trend.error for trend in trends)
    assert inside >= 0.88 * SEEDS  # 95 %, less three standard deviations of a count of 60


@pytest.mark.parametrize("begins", [0.3, 0.4, 0.5])
def test_the_rate_of_a_leak_that_began_late_is_that_since_then(begins: float) -> None:
    rate = 300 * MIB / HOUR
    trends = _trends(lambda time: max(time - begins * HOUR, 0.0) * rate, 48)
    told = [trend for trend in trends if trend.shape is Shape.GROWS]
    assert len(told) >= 0.9 * SEEDS
    assert sum(abs(trend.slope - rate) <= trend.error for trend in told) >= 0.88 * len(told)


@pytest.mark.parametrize("points", [3, 4, 6])
def test_few_dumps_suffice_for_a_plain_leak(points: int) -> None:
    assert _shapes(_trends(LEAKS["100 MiB/h"][0], points))[Shape.GROWS] >= 0.95 * SEEDS


@pytest.mark.parametrize("points", [10, 30])
def test_a_leak_of_large_buffers_is_seen(points: int) -> None:
    trends = _trends(lambda time: (10 + 400 * time / HOUR) * MIB, points, size=8 * MIB)
    assert _shapes(trends)[Shape.GROWS] >= 0.9 * SEEDS


@pytest.mark.parametrize("sampling", [SAMPLING, EXACT])
def test_a_leak_is_seen_where_no_objects_are_counted(sampling: Sampling) -> None:
    measured = Measured([600.0 * at for at in range(7)], [0.0] * 7, [(50.0 + 20 * at) * MIB for at in range(7)])
    assert assess(measured, sampling).shape is Shape.GROWS


def test_a_leak_under_a_cache_that_is_emptied_again_and_again_is_seen() -> None:
    trends = _trends(lambda time: 200 * MIB * time / HOUR + _saw(7, 100)(time), 100)
    assert _shapes(trends)[Shape.GROWS] >= 0.9 * SEEDS


HEALTHY: dict[str, tuple[Live, float]] = {
    "500 MiB, replaced every minute": (lambda time: 500 * MIB, 60),
    "500 MiB, replaced every hour": (lambda time: 500 * MIB, HOUR),
    "5 GiB, replaced every two hours": (lambda time: 5000 * MIB, 2 * HOUR),
    "50 MiB, replaced every quarter": (lambda time: 50 * MIB, HOUR / 4),
    "a cache that fills fast": (lambda time: 200 * MIB * (1 - math.exp(-time / (HOUR / 10))), math.inf),
    "a start of three minutes": (lambda time: 300 * MIB * min(1, time * 20 / HOUR), math.inf),
    "one step early": (lambda time: (50 + 200 * (time > 0.3 * HOUR)) * MIB, math.inf),
    "one step in the middle": (lambda time: (50 + 200 * (time > 0.5 * HOUR)) * MIB, math.inf),
    "one step late": (lambda time: (50 + 200 * (time > 0.8 * HOUR)) * MIB, math.inf),
    "saw-tooth, three": (_saw(3.3, 200), math.inf),
    "saw-tooth, one and a half": (_saw(1.6, 200), math.inf),
    "shrinking": (lambda time: (300 - 200 * time / HOUR) * MIB, math.inf),
    "nothing": (lambda time: 0, math.inf),
}


@pytest.mark.parametrize("points", [10, 30, 100])
@pytest.mark.parametrize("name", HEALTHY)
def test_what_is_no_leak_is_hardly_ever_called_one(name: str, points: int) -> None:
    live, lifetime = HEALTHY[name]
    trends = _trends(live, points, lifetime)
    assert _shapes(trends)[Shape.GROWS] <= 1


def test_a_cache_that_still_fills_slows_down_and_says_so() -> None:
    trends = _trends(lambda time: 200 * MIB * (1 - math.exp(-time / (HOUR / 4))), 30)
    assert _shapes(trends)[Shape.GROWS] == 0
    assert _shapes(trends)[Shape.SLOWING] >= 0.5 * SEEDS


def _steady(live: float, _time: float) -> float:
    return live


def test_false_alarms_are_rare_among_thousands_of_stacks() -> None:
    alarms = 0
    for seed in range(2000):
        generator = random.Random(seed)
        times = [60.0 * index for index in range(20)]
        size = generator.choice([64, 1024, 65536, 2 * MIB])
        steady = partial(_steady, generator.choice([2, 20, 200]) * MIB)
        lifetime = generator.choice([30.0, 600.0, 6000.0])
        measured = sampled(steady, times, interval=INTERVAL, size=size, lifetime=lifetime, generator=generator)
        alarms += assess(measured.select(window(times)), SAMPLING).shape is Shape.GROWS
    assert alarms <= 2


def _shape(live: Live) -> Counter[Shape]:
    return _shapes(_trends(live, 60))


def test_what_no_line_explains_is_told_as_what_it_is() -> None:
    root = _shape(lambda time: 600 * MIB * math.sqrt(max(time, 0) / HOUR))
    assert root[Shape.SLOWING] >= 0.95 * SEEDS and root[Shape.GROWS] <= 1
    table = _shape(lambda time: 300 * MIB * math.log1p(100 * max(time, 0) / HOUR))
    assert table[Shape.GROWS] == 0 and table[Shape.SLOWING] >= 0.9 * SEEDS
    stairs = _shape(lambda time: 60 * MIB * (1 + int(4.5 * time / HOUR)))
    assert stairs == {Shape.STEPPED: SEEDS}
    full = _shape(lambda time: 200 * MIB * min(1, 2 * time / HOUR))
    assert full[Shape.FILLED] + full[Shape.STEPPED] + full[Shape.SLOWING] == SEEDS
    assert _shape(_saw(3.3, 200))[Shape.GROWS] == 0


def test_a_leak_as_fast_as_the_limit_shows_and_one_of_a_third_hardly() -> None:
    times = [HOUR * step / 40 for step in range(41)]
    found = Counter[str]()
    for seed in range(SEEDS):
        generator = random.Random(seed)
        breath = _saw(5, 40)
        healthy = sampled(breath, times, interval=INTERVAL, size=4096, lifetime=HOUR / 20, generator=generator)
        chosen = window(times)
        growth = smallest_growth(healthy.select(chosen), SAMPLING) / (times[-1] - times[chosen[0]])
        for name, rate in (("limit", growth), ("third", growth / 3)):
            live = partial(_both, breath, rate)
            leaking = sampled(live, times, interval=INTERVAL, size=4096, lifetime=HOUR / 20, generator=generator)
            found[name] += assess(leaking.select(chosen), SAMPLING).shape is Shape.GROWS
    assert found["limit"] >= 0.85 * SEEDS and found["third"] <= 0.6 * SEEDS, found


def _both(first: Live, rate: float, time: float) -> float:
    return first(time) + rate * time


def test_theil_sen_does_not_mind_a_few_wild_points() -> None:
    times = [float(index) for index in range(20)]
    values = [2 * time for time in times]
    values[3], values[11], values[17] = 1e9, -1e9, 1e9
    assert theil_sen(times, values) == 2
    assert theil_sen([1, 1, 1], [1, 2, 3]) == 0


def test_a_crowd_of_dumps_at_the_start_counts_as_little_as_its_time() -> None:
    times = [index / 100 for index in range(100)] + [60.0 * index for index in range(1, 31)]
    assert len([position for position in evenly_spread(times, 100) if times[position] < 1]) == 1
    kept = [times[position] for position in window(times)]
    assert kept[0] == 180 and kept[-1] == 1800


@pytest.mark.parametrize(
    ("times", "kept"), [([], []), ([5.0], [0]), ([5.0, 5.0, 5.0], [2]), ([0.0, 1.0, 2.0], [0, 1, 2])]
)
def test_the_window_of_few_points_is_all_of_them(times: list[float], kept: list[int]) -> None:
    assert window(times) == kept


@given(
    st.lists(st.tuples(st.floats(0, 1e11), st.floats(0, 1e40), st.floats(0, 1e40)), min_size=3, max_size=30),
    st.sampled_from([0, 1, INTERVAL, 1 << 63]),
)
def test_any_numbers_have_a_trend(points: list[tuple[float, float, float]], interval: int) -> None:
    points.sort()
    positions = window([point[0] for point in points])
    if len(positions) >= 3:
        columns = [list(column) for column in zip(*points, strict=True)]
        assess(Measured(*columns).select(positions), Sampling(Scheme.POISSON, interval))


@pytest.mark.parametrize(
    ("interval", "step", "beats"), [(4096, 5, False), (16_384, 5, True), (MIB, 300, False)], ids=["4K", "16K", "1M"]
)
def test_counting_bytes_beats_with_requests_that_allocate_about_as_many(interval: int, step: int, beats: bool) -> None:
    """docs/live.md: of 60 requests a second, each third leaks what it allocates first."""
    leaked, freed, windows = 7160, 120 + 32_768, 14
    ends = np.arange(60 * windows * step, dtype=np.int64) * (leaked + freed) + leaked
    shapes = set()
    for already in range(0, interval, interval // 32):
        recorded = ((already + ends) // interval > (already + ends - leaked) // interval)[::3]
        held = np.add.reduceat(recorded, np.arange(windows) * 20 * step).cumsum() * max(interval, leaked)
        times = [float(step * number) for number in range(1, windows + 1)]
        measured = Measured(times, (held / leaked).tolist(), held.astype(float).tolist())
        sampling = Sampling(Scheme.SYSTEMATIC, interval)
        shapes.add(assess(measured.select(window(times)), sampling).shape)
    assert shapes == ({Shape.GROWS, Shape.SLOWING} if beats else {Shape.GROWS})
