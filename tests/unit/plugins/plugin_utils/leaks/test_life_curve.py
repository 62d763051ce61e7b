# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
from __future__ import annotations

import math

import numpy as np
import pytest

from ansible_collections.offheap.profiler.plugins.plugin_utils.leaks.life_curve import LifeCurve, life_curve
from ansible_collections.offheap.profiler.plugins.plugin_utils.leaks.lives_verdict import verdict_on
from ansible_collections.offheap.profiler.tests.bench.shapes import DAY, SHAPES, process

INTERVAL = 1 << 16


def _curve(name: str, until: float = DAY) -> LifeCurve:
    seen = process(SHAPES[name], np.random.default_rng(3), INTERVAL)
    found = life_curve(seen.lives(until), [0])
    assert found is not None
    return found


def _at(curve: LifeCurve, age: float) -> float:
    return float(np.interp(age, curve.ages, curve.alive))


def test_what_leaks_does_not_fall_and_was_born_all_the_time() -> None:
    curve = _curve("steady")
    assert set(curve.alive) == {1.0} and curve.ages[-1] > DAY / 4
    assert min(curve.born) > 0.5 * max(curve.born) and len(curve.born) == 48


@pytest.mark.parametrize(("name", "mean"), [("cache-0.02", 0.02), ("cache-0.1", 0.1), ("cache-0.5", 0.5)])
def test_a_cache_falls_as_its_entries_do(name: str, mean: float) -> None:
    """Though many of the entries live still, and will die later."""
    curve = _curve(name)
    for age, share in zip(curve.ages, curve.alive, strict=True):
        if age < DAY / 2:
            assert share == pytest.approx(math.exp(-age / (mean * DAY)), abs=0.05)


def test_of_a_churn_the_share_that_leaks_is_where_it_levels_off() -> None:
    assert _at(_curve("churn-10%"), DAY / 4) == pytest.approx(0.1, abs=0.02)


def test_bursts_are_seen_in_the_births_of_what_lives() -> None:
    assert sum(size > 0 for size in _curve("bursts-4").born) == 4


def test_nothing_was_born() -> None:
    lives = process(SHAPES["steady"], np.random.default_rng(3), INTERVAL).lives(DAY)
    assert life_curve(lives, []) is None


def test_a_leak_is_told_with_its_curve_and_that_of_all_else() -> None:
    seen = process(SHAPES["steady"], np.random.default_rng(3), INTERVAL)
    verdict = verdict_on("1", seen.series(DAY), seen.lives(DAY))
    (suspect,) = verdict.suspects
    assert suspect.lives is not None and verdict.others is not None
    assert _at(suspect.lives, DAY / 8) == 1.0
    assert _at(verdict.others, DAY / 8) < 0.1
