# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""What allocations and frees in a recording mean, whatever the order of their fields."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.offheap.profiler.plugins.module_utils.formats.errors import OffheapError
from ansible_collections.offheap.profiler.plugins.plugin_utils.model.raw import Counts, Told
from ansible_collections.offheap.profiler.plugins.plugin_utils.model.sampling import EXACT, Measure, Sampling, Scheme
from ansible_collections.offheap.profiler.plugins.plugin_utils.readers import jfr
from ansible_collections.offheap.profiler.tests.unit.strategies.small_recordings import Event, recording

ELSEWHERE = (0, 99)


def live(*chunks: list[Event]) -> list[int]:
    """Live bytes of the native stack and of the Java one."""
    records = jfr.parse(recording([ELSEWHERE, *chunks[0]], *chunks[1:]), "x", Told())
    found = {records.names[next(iter(stack))].function: number for number, stack in enumerate(records.stacks())}
    return [
        records.counts.bytes[found[name]] if name in found else 0 for name in ("serve", "java.util.zip.Deflater.init")
    ]


def test_an_allocation_counts_as_the_interval_or_as_itself() -> None:
    assert live([(1, 10, 40, 1), (2, 20, 5000, 2)]) == [1000, 5000]
    records = jfr.parse(recording([ELSEWHERE, (1, 10, 40, 1)]), "x", Told())
    assert records.total == Counts(25, 1000, 25, 1000)
    assert records.sampling == Sampling(Scheme.SYSTEMATIC, 1000) and records.unbiased


def test_what_is_freed_later_is_not_live() -> None:
    assert live([(1, 10, 40, 1), (2, 10)]) == [0, 0]
    assert live([(2, 10), (1, 10, 40, 1)]) == [0, 0], "threads write their events one after the other"
    assert live([(1, 10), (2, 10, 40, 1)]) == [1000, 0]


def test_a_later_chunk_frees_what_an_earlier_one_allocated() -> None:
    assert live([(1, 10, 40, 1)], [(2, 10)]) == [0, 0]
    assert live([(1, 10)], [(2, 10, 40, 1)]) == [1000, 0]


def test_an_address_that_is_used_again_had_been_freed() -> None:
    assert live([(1, 10, 40, 1), (2, 10, 40, 2)]) == [0, 1000]


def test_every_allocation_is_exact() -> None:
    records = jfr.parse(recording([ELSEWHERE, (1, 10, 40, 1)], interval=0), "x", Told())
    assert (records.sampling, records.total.bytes, records.total.objects) == (EXACT, 40, 1)


def test_an_allocation_of_datadog_counts_as_its_weight() -> None:
    """What it stands for is 1 / (1 - exp(-size / R)), with an R of 4000 for the last."""
    data = recording([(1, 10, 40, 1, 25.5), (2, 20, 5000, 2, 1.0)], [(3, 10, 40, 1, 100.50083)])
    records = jfr.parse(data, "x", Told())
    assert records.measure is Measure.ALLOCATED and records.unbiased
    assert records.total == Counts(127, 10040, 0, 0)
    assert records.sampling.scheme is Scheme.POISSON
    assert records.sampling.interval == pytest.approx(4000, abs=1), (
        "the largest that it had: an error is never too small"
    )


@pytest.mark.parametrize("weight", [0.5, 0.0, math.nan, math.inf, -1.0])
def test_a_weight_that_cannot_be(weight: float) -> None:
    with pytest.raises(OffheapError, match="impossible weight"):
        jfr.parse(recording([(1, 10, 40, 1, weight)]), "x", Told())


def test_a_recording_that_does_not_say_its_interval() -> None:
    data = recording([ELSEWHERE, (1, 10, 40, 1)], interval=None)
    with pytest.raises(OffheapError, match="source_interval"):
        jfr.parse(data, "x", Told())
    assert jfr.parse(data, "x", Told(interval=500)).total.bytes == 500


def test_a_service_at_rest() -> None:
    assert jfr.parse(recording([]), "x", Told()).total == Counts(0, 0, 0, 0)
    with pytest.raises(OffheapError, match="no recording of native memory"):
        jfr.parse(recording([], interval=None), "x", Told(interval=500))


def test_a_stack_that_is_not_there() -> None:
    records = jfr.parse(recording([ELSEWHERE, (1, 10, 40, 7)]), "x", Told())
    assert [name.function for name in records.names] == ["[unknown]"]


def test_a_name_for_a_terminal() -> None:
    records = jfr.parse(recording([ELSEWHERE, (1, 10, 40, 1)], native=("a\x1b[2J", "main")), "x", Told())
    assert all(name.function.isprintable() for name in records.names)


@given(st.binary(max_size=40), st.integers(0, 2000), st.booleans())
def test_damage_is_told(noise: bytes, at: int, insert: bool) -> None:
    sound = recording([ELSEWHERE, (1, 10, 40, 1), (2, 20, 5000, 2)], [(3, 10)])
    data = sound[:at] + noise + sound[at if insert else at + len(noise) :]
    try:
        records = jfr.parse(data, "x", Told())
    except OffheapError as error:
        assert str(error).isprintable()
    else:
        assert len(records.stack_ends) <= 3
