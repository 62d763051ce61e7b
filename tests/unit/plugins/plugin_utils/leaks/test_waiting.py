# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from ansible_collections.offheap.profiler.plugins.plugin_utils.leaks.lives_verdict import verdict_on
from ansible_collections.offheap.profiler.plugins.plugin_utils.leaks.verdict import LEAST_SPAN, Answer
from ansible_collections.offheap.profiler.plugins.plugin_utils.leaks.waiting import until_told
from ansible_collections.offheap.profiler.tests.bench.shapes import DAY, MIB, SHAPES, process

INTERVAL = 1 << 19


def _told(rate: float, until: float) -> int:
    """Of 20 processes that leak so many MiB a day, those of which it is said by then."""
    shape = replace(SHAPES["steady"], rate=rate)
    seen = [process(shape, np.random.default_rng(number), INTERVAL) for number in range(20)]
    return sum(verdict_on("1", one.series(until), one.lives(until)).answer is Answer.LEAK for one in seen)


@pytest.mark.parametrize("rate", [100, 1000])
def test_a_leak_is_told_by_then_and_seldom_in_half_the_time(rate: float) -> None:
    until = until_told(rate * MIB, INTERVAL)
    assert until < DAY
    assert _told(rate, until) >= 18
    assert _told(rate, until / 2) < 10


def test_the_time_is_inverse_to_the_rate_and_the_fineness() -> None:
    for other in (until_told(2 * MIB, INTERVAL), until_told(MIB, INTERVAL / 2)):
        assert other == pytest.approx(until_told(MIB, INTERVAL) / 2)


def test_no_leak_is_told_sooner_than_any_process_is_judged() -> None:
    assert until_told(1e18, INTERVAL) == LEAST_SPAN
