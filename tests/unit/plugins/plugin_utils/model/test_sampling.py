# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.offheap.profiler.plugins.plugin_utils.model.sampling import (
    EXACT,
    Measure,
    MeasureError,
    Sampling,
    Scheme,
    coarsest,
    common_measure,
    unbias,
)

R = 524288


def test_unbiasing_is_by_the_average_size_of_the_record() -> None:
    objects, size = unbias(10, 10 * 4096, R)
    scale = 1 / (1 - math.exp(-4096 / R))
    assert (objects, size) == (10 * scale, 40960 * scale)
    assert unbias(1, 64 << 20, R)[1] == pytest.approx(64 << 20)


@pytest.mark.parametrize("interval", [0, 1])
def test_every_allocation_recorded_means_nothing_to_unbias(interval: int) -> None:
    assert unbias(3, 24, interval) == (3.0, 24.0)
    assert Sampling(Scheme.POISSON, interval).error(1e9) == 0


@pytest.mark.parametrize(("objects", "size"), [(0, 0), (0, 5), (5, 0), (2**64 - 1, 1)])
def test_impossible_records_do_no_harm(objects: int, size: int) -> None:
    assert unbias(objects, size, R) == (float(objects), float(size))


def test_only_a_poisson_sample_is_scaled() -> None:
    assert Sampling(Scheme.POISSON, R).unbias(10, 40960) == unbias(10, 40960, R)
    for scheme in (Scheme.SYSTEMATIC, Scheme.EXACT, Scheme.UNKNOWN):
        assert Sampling(scheme, R).unbias(10, 40960) == (10.0, 40960.0), "the records stand for themselves"


@pytest.mark.parametrize(
    ("scheme", "scatter"),
    [(Scheme.POISSON, R), (Scheme.SYSTEMATIC, R), (Scheme.EXACT, 0), (Scheme.UNKNOWN, math.inf)],
)
def test_each_scheme_scatters_in_its_own_way(scheme: Scheme, scatter: float) -> None:
    sampling = Sampling(scheme, R)
    assert sampling.scatter == scatter
    assert sampling.error(100 << 20) == pytest.approx(1.96 * math.sqrt(scatter * (100 << 20)))
    assert sampling.error(0) == 0


def test_the_deviation_of_fifty_mebibytes_at_the_default_rate_is_ten_percent() -> None:
    assert Sampling(Scheme.POISSON, R).deviation(50 << 20) / (50 << 20) == pytest.approx(0.1)


SAMPLINGS = st.builds(Sampling, st.sampled_from(Scheme), st.integers(0, 1 << 40))


@given(st.lists(SAMPLINGS, min_size=1), st.floats(0, 1e12))
def test_the_coarsest_has_errors_as_large_as_any(samplings: list[Sampling], size: float) -> None:
    found = coarsest(samplings)
    assert found in samplings
    assert all(sampling.error(size) <= found.error(size) for sampling in samplings)


def test_of_none_the_coarsest_is_exact() -> None:
    assert coarsest([]) == EXACT
    assert coarsest([EXACT, Sampling(Scheme.POISSON, R), Sampling(Scheme.UNKNOWN)]).scheme is Scheme.UNKNOWN


def test_one_measure_is_common_and_two_are_an_error() -> None:
    assert common_measure([Measure.GROWN, Measure.GROWN]) is Measure.GROWN
    assert common_measure([]) is Measure.LIVE
    with pytest.raises(MeasureError, match="allocated and live memory cannot be added or compared"):
        common_measure([Measure.LIVE, Measure.ALLOCATED, Measure.LIVE])
