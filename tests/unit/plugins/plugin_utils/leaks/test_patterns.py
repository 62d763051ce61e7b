# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Non-leaks of known shape, seen through a sampling profiler, over many seeds."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest

from ansible_collections.offheap.profiler.plugins.plugin_utils.leaks.patterns import Pattern, pattern_of
from ansible_collections.offheap.profiler.plugins.plugin_utils.leaks.verdict import judge
from ansible_collections.offheap.profiler.plugins.plugin_utils.model import series
from ansible_collections.offheap.profiler.plugins.plugin_utils.model.samples import Samples
from ansible_collections.offheap.profiler.plugins.plugin_utils.model.sampling import Sampling, Scheme
from ansible_collections.offheap.profiler.tests.unit.strategies.profiles import profile
from ansible_collections.offheap.profiler.tests.unit.strategies.simulated_heaps import sampled

MIB, INTERVAL, HOUR, SEEDS = 1 << 20, 1 << 19, 3600.0, 40
SAMPLING = Sampling(Scheme.POISSON, INTERVAL)

SHAPES: dict[str, tuple[Callable[[float], float], float, Pattern]] = {
    "a start": (lambda time: 200 * MIB * min(1, time * 12 / HOUR), math.inf, Pattern.START_UP),
    "a cache that fills in half of the time": (
        lambda time: 200 * MIB * min(1, 2 * time / HOUR),
        math.inf,
        Pattern.STEP,
    ),
    "a jump": (lambda time: (20 + 100 * (time > 0.6 * HOUR)) * MIB, math.inf, Pattern.STEP),
    "a saw-tooth": (lambda time: 150 * MIB * ((time * 4 / HOUR) % 1), math.inf, Pattern.SAW_TOOTH),
    "a rise": (lambda time: 200 * MIB * time / HOUR, math.inf, Pattern.RISES),
    "what stays": (lambda _time: 100.0 * MIB, math.inf, Pattern.NOISE),
    "what is replaced": (lambda _time: 100.0 * MIB, HOUR / 4, Pattern.NOISE),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_the_patterns_are_told_apart(shape: str) -> None:
    live, lifetime, expected = SHAPES[shape]
    times = [HOUR * step / 40 for step in range(41)]
    right = 0
    for seed in range(SEEDS):
        generator = random.Random(seed)
        measured = sampled(live, times, interval=INTERVAL, size=4096, lifetime=lifetime, generator=generator)
        right += pattern_of(times, measured.bytes, SAMPLING) is expected
    assert right >= 0.95 * SEEDS


def test_a_verdict_says_what_else_changes() -> None:
    def at(time: float) -> Samples:
        part = time / HOUR
        return profile(
            {
                ("inflate", "serve"): (5 + 100 * part) * MIB,
                ("put", "cache"): 60 * MIB * min(1, 2 * part),
                ("read", "batch"): 40 * MIB * ((4 * part) % 1),
                ("table",): 30.0 * MIB,
            }
        )

    verdict = judge("7-aa", series.of_samples((HOUR * step / 40, at(HOUR * step / 40)) for step in range(41)))
    assert [suspect.key[0] for suspect in verdict.suspects] == ["inflate"]
    assert [(change.path[0].label, change.pattern) for change in verdict.changes] == [
        ("put", Pattern.STEP),
        ("read", Pattern.SAW_TOOTH),
    ]
