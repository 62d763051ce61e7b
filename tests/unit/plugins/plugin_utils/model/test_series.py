# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from ansible_collections.offheap.profiler.plugins.plugin_utils.model.frame import Frame, Kind
from ansible_collections.offheap.profiler.plugins.plugin_utils.model.sampling import (
    EXACT,
    Measure,
    MeasureError,
    Sampling,
    Scheme,
)
from ansible_collections.offheap.profiler.plugins.plugin_utils.model.series import (
    Moment,
    Stack,
    gather,
    of_samples,
    stack_of,
)
from ansible_collections.offheap.profiler.tests.unit.strategies.profiles import INTERVAL, profile

FINE = Sampling(Scheme.POISSON, 4096)
COARSE = Sampling(Scheme.POISSON, 1 << 19)


def _moment(time: float, held: dict[int, float], measure: Measure = Measure.LIVE, sampling: Sampling = FINE) -> Moment:
    sizes = np.array(list(held.values()))
    return Moment(time, measure, sampling, np.array(list(held), dtype=np.int64), sizes / 100, sizes)


def _names(numbers: list[int]) -> list[Stack]:
    return [stack_of((Frame(f"f{number}", "app"),)) for number in numbers]


def test_what_moments_hold_meets_by_the_numbers_of_their_stacks() -> None:
    found = gather([_moment(1, {7: 100.0, -3: 50.0}), _moment(2, {-3: 20.0, 9: 5.0})], _names)
    held = {stack.frames[0].function: sizes for stack, sizes in zip(found.stacks, found.bytes.tolist(), strict=True)}
    assert held == {"f7": [100, 0], "f-3": [50, 20], "f9": [0, 5]}
    assert found.objects.tolist() == (found.bytes / 100).tolist()
    assert found.times == [1, 2]


def test_a_stack_that_stands_twice_in_a_moment_is_added_up() -> None:
    twice = Moment(1, Measure.LIVE, FINE, np.array([4, 4]), np.array([1.0, 2.0]), np.array([10.0, 20.0]))
    assert gather([twice], _names).bytes.tolist() == [[30.0]]


def test_the_coarsest_sampling_of_all_moments_holds_for_the_series() -> None:
    assert gather([_moment(1, {1: 1.0}), _moment(2, {1: 1.0}, sampling=COARSE)], _names).sampling == COARSE
    assert of_samples([(1.0, profile({("a",): 1.0}))]).sampling == Sampling(Scheme.POISSON, INTERVAL)


def test_moments_of_different_measures_are_no_series() -> None:
    live, came = _moment(1, {1: 1.0}), _moment(2, {1: 1.0}, Measure.ALLOCATED)
    with pytest.raises(MeasureError, match="allocated and live memory"):
        gather([live, came], _names)
    assert gather([came], _names).measure is Measure.ALLOCATED
    found = profile({("a",): 1.0})
    with pytest.raises(MeasureError):
        of_samples([(1.0, found), (2.0, replace(found, measure=Measure.GROWN))])


def test_no_moment_is_an_empty_series() -> None:
    found = gather([], _names)
    assert (found.times, found.stacks, found.sampling, found.measure) == ([], [], EXACT, Measure.LIVE)
    assert found.paths.members == []


def test_profiles_meet_by_their_frames() -> None:
    found = of_samples(
        [(1.0, profile({("a", "main"): 10.0, ("b", "main"): 5.0})), (2.0, profile({("b", "main"): 7.0, (): 1.0}))]
    )
    held = {stack.members: sizes for stack, sizes in zip(found.stacks, found.bytes.tolist(), strict=True)}
    assert held == {("a", "main"): [10, 0], ("b", "main"): [5, 7], (): [0, 1]}


def test_stacks_of_the_same_functions_are_one_path_and_the_largest_its_example() -> None:
    small = (Frame("walk", "app", line=3), Frame("main", "app"))
    large = (Frame("walk", "app", line=3), Frame("walk", "app", line=5), Frame("main", "app"))
    stacks = [stack_of(small), stack_of(large)]
    found = gather([_moment(1, {0: 9.0, 1: 1.0}), _moment(2, {0: 9.0, 1: 90.0})], lambda _numbers: stacks)
    paths = found.paths
    assert paths.members == [("walk", "main")]
    assert paths.bytes.tolist() == [[10.0, 99.0]]
    assert paths.frames == [large]
    assert paths.at([1]).bytes.tolist() == [[99.0]] and paths.at([1]).times == [2]


def test_paths_are_compared_up_to_the_first_compiled_code() -> None:
    for kind in (Kind.JIT, Kind.JAVA, Kind.PYTHON, Kind.JS):
        stack = stack_of((Frame("inflate", "libz"), Frame("read", "", kind), Frame("start", "app")))
        assert stack.key == ("inflate", "[jit]")
        assert stack.members[0] == "inflate" and stack.members[-1] == "start"
