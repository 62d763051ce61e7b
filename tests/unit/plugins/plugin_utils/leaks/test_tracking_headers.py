# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ansible_collections.offheap.profiler.plugins.module_utils.formats.jvm_memory import JvmMemory
from ansible_collections.offheap.profiler.plugins.plugin_utils.archive.capture import Capture
from ansible_collections.offheap.profiler.plugins.plugin_utils.leaks.own_numbers import own_numbers, with_own_numbers
from ansible_collections.offheap.profiler.plugins.plugin_utils.leaks.verdict import Answer, judge
from ansible_collections.offheap.profiler.plugins.plugin_utils.model import series
from ansible_collections.offheap.profiler.tests.unit.plugins.plugin_utils.archive import capture_samples
from ansible_collections.offheap.profiler.tests.unit.strategies.profiles import profile

MIB = 1 << 20
TIMES = [900.0 * step for step in range(41)]
POOL = ("libjvm.so+0x10", "java:Pool.grow", "java:Server.main")


def _reason(path: tuple[str, ...], block: int, nmt: dict[str, int] | None) -> str:
    """What is said of a JVM that leaks blocks of a size."""
    jvm = JvmMemory(0.0, None, None, None, None, nmt).to_json()
    facts = replace(capture_samples.facts(), jvm=jvm)
    captures = [Capture(Path(), "app1", "web", "7-aa", number, time, facts) for number, time in enumerate(TIMES)]
    watched = series.of_samples(
        (time, profile({path: (100 + time / 60) * MIB, ("cache", "main"): 9.0 * MIB}, block)) for time in TIMES
    )
    verdict = with_own_numbers(judge("7-aa", watched), watched, own_numbers(captures))
    assert verdict.answer is Answer.LEAK
    return verdict.reason


@pytest.mark.parametrize("block", [5 * MIB, 20 << 10, 80])
def test_blocks_that_a_header_makes_a_quarter_larger_are_told(block: int) -> None:
    assert "up to a fifth of the rate is not what the service asks for" in _reason(POOL, block, {"Other": 1})


def test_other_sizes_other_callers_and_a_jvm_that_does_not_track_are_not() -> None:
    assert "a fifth" not in _reason(POOL, 4 * MIB, {"Other": 1})
    assert "a fifth" not in _reason(POOL, 6 * MIB, {"Other": 1})
    assert "a fifth" not in _reason(POOL, 5 * MIB, None)
    assert "a fifth" not in _reason(("deflateInit2_", "Java_Deflater_init"), 5 * MIB, {"Other": 1})
