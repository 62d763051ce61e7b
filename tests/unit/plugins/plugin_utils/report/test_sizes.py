# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
from __future__ import annotations

import numpy as np

from ansible_collections.offheap.profiler.plugins.plugin_utils.model.sampling import Measure, Sampling, Scheme
from ansible_collections.offheap.profiler.plugins.plugin_utils.model.series import Series, stack_of
from ansible_collections.offheap.profiler.plugins.plugin_utils.report.sizes import SizeClass, by_size

KIB = 1024.0


def _series(objects: list[list[float]], size: list[list[float]]) -> Series:
    stacks = [stack_of(()) for _row in objects]
    return Series([0.0, 60.0], Measure.LIVE, Sampling(Scheme.EXACT, 1), stacks, np.array(objects), np.array(size))


def test_each_stack_counts_by_the_mean_of_its_allocations() -> None:
    buffers = ([1.0, 3.0], [64 * KIB, 192 * KIB])
    nodes = ([100.0, 50.0], [4800.0, 2400.0])
    other_nodes = ([0.0, 10.0], [0.0, 320.0])
    objects, size = zip(buffers, nodes, other_nodes, strict=True)
    found = {one.least: one for one in by_size(_series(list(objects), list(size)))}
    assert found[32] == SizeClass(32, 4800.0, 2720.0, 60.0)
    assert found[65536] == SizeClass(65536, 64 * KIB, 192 * KIB, 3.0)
    assert list(found) == [1 << power for power in range(5, 17)]
    assert sum(one.live for one in found.values()) == 192 * KIB + 2720.0


def test_a_class_ends_before_twice_its_size() -> None:
    found = by_size(_series([[1.0, 1.0], [1.0, 1.0]], [[127.0, 127.0], [128.0, 128.0]]))
    assert [(one.least, one.live) for one in found] == [(64, 127.0), (128, 128.0)]


def test_a_source_that_counts_no_allocations_has_none() -> None:
    assert by_size(_series([[0.0, 0.0]], [[100.0, 200.0]])) == []


def test_impossible_sizes_end_nothing() -> None:
    found = by_size(_series([[1.0, 1.0], [5.0, 5.0]], [[2.0**62, 2.0**62], [1.0, 1.0]]))
    assert [one.least for one in found] == [1 << 48]
