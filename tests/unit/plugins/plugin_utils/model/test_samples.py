# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given

from ansible_collections.offheap.profiler.plugins.plugin_utils.columns import series_reader
from ansible_collections.offheap.profiler.plugins.plugin_utils.model.frame import Frame, Kind
from ansible_collections.offheap.profiler.plugins.plugin_utils.model.location import Location
from ansible_collections.offheap.profiler.plugins.plugin_utils.model.raw import CountColumns, Counts, Records
from ansible_collections.offheap.profiler.plugins.plugin_utils.model.samples import (
    ACCUM_BYTES,
    BYTES,
    OBJECTS,
    Samples,
    combine,
    located,
    named,
    variances,
)
from ansible_collections.offheap.profiler.plugins.plugin_utils.model.sampling import (
    Measure,
    MeasureError,
    Sampling,
    Scheme,
    unbias,
)
from ansible_collections.offheap.profiler.plugins.plugin_utils.readers import heap_v2
from ansible_collections.offheap.profiler.tests.unit.strategies import heap_dumps
from ansible_collections.offheap.profiler.tests.unit.strategies.profiles import profile
from ansible_collections.offheap.profiler.tests.unit.strategies.samples import samples_of

R = 524288
BIG = 2 << 30


@given(heap_dumps.dumps())
def test_any_dump_that_parses_becomes_samples(described: heap_dumps.DescribedDump) -> None:
    found = located(heap_v2.parse(described.text(), "x"), {})
    result = named(found, lambda places: [(Frame(f"f{place.address}", "app"),) for place in places])
    expected = [unbias(*stack.counts[:2], described.interval)[1] for stack in described.stacks]
    assert result.total(BYTES) == pytest.approx(math.fsum(expected))
    assert [[frame.function for frame in frames] for frames in result.each_stack_of_frames()] == [
        [f"f{address}" for address in stack.addresses] for stack in described.stacks
    ]


def _samples(stacks: Sequence[tuple[Sequence[str], int]]) -> Samples:
    """Samples with one object of 2 GiB per stack (so that unbiasing changes nothing); names are module!function, with
    what is inlined into a place first, as in module!inner>outer."""
    names = sorted({name for stack, _size in stacks for name in stack})
    described = heap_dumps.DescribedDump(
        stacks=[
            heap_dumps.DescribedStack([names.index(name) for name in stack], (1, size, 0, 0), [])
            for stack, size in stacks
        ]
    )

    def resolve(locations: Sequence[Location]) -> list[tuple[Frame, ...]]:
        frames: list[tuple[Frame, ...]] = []
        for location in locations:
            module, _mark, function = names[location.address].rpartition("!")
            frames.append(tuple([Frame(each, module or "app") for each in function.split(">")]))
        return frames

    return named(located(heap_v2.parse(described.text(), "x"), {}), resolve)


def _labels(samples: Samples) -> list[list[str]]:
    return [[frame.label for frame in frames] for frames in samples.each_stack_of_frames()]


@pytest.mark.parametrize(
    ("stack", "left"),
    [
        (["prof_backtrace_impl", "imalloc_body", "malloc", "own", "main"], ["own", "main"]),
        (["libjemalloc.so.2!", "libjemalloc.so.2!", "own"], ["own"]),
        (["liboffheap.so!hook", "libjemalloc.so.2!x", "libjemalloc.so.2!malloc", "operator new", "own"], ["own"]),
        (["je_prof_backtrace", "je_malloc_default", "calloc", "own"], ["own"]),
        (["os::malloc", "AllocateHeap"], ["os::malloc", "AllocateHeap"]),
        (["own", "libjemalloc.so.2!"], ["own", "libjemalloc.so.2+0x0"]),
        (["malloc>dup", "own"], ["dup", "own"]),
        (["libjemalloc.so.2!", "part>malloc>dup", "own"], ["dup", "own"]),
        (["do_malloc>malloc", "own"], ["own"]),
        (["malloc"], []),
        ([], []),
    ],
)
def test_the_allocators_own_frames_are_cut_off_the_leaf(stack: list[str], left: list[str]) -> None:
    result = _samples([(stack, BIG)])
    assert _labels(result) == [left]
    assert result.total(BYTES) == BIG


def test_a_series_keeps_the_function_into_which_malloc_is_inlined_too() -> None:
    frames = [(Frame("malloc", "ld.so"), Frame("dup", "ld.so")), (Frame("own", "app"),)]
    whole = series_reader._own_frames(np.array([0, 1]), np.array([0, 2]), frames)
    assert [frame.function for frame in whole(0)] == ["dup", "own"]


def test_stacks_that_differ_only_inside_the_allocator_become_one_when_they_are_combined() -> None:
    result = _samples([(["malloc", "own", "main"], BIG), (["calloc", "own", "main"], BIG), (["other"], BIG)])
    assert _labels(result) == [["own", "main"], ["own", "main"], ["other"]]
    one = combine([(result, 1.0)])
    assert _labels(one) == [["own", "main"], ["other"]]
    assert one.values[BYTES].tolist() == [2 * BIG, BIG]
    assert one.values[OBJECTS].tolist() == [2, 1]


def test_records_are_unbiased_before_they_are_summed() -> None:
    described = heap_dumps.DescribedDump(
        stacks=[
            heap_dumps.DescribedStack([9], (1, 100, 0, 0), []),
            heap_dumps.DescribedStack([9], (1, 10 << 20, 0, 0), []),
        ]
    )
    found = located(heap_v2.parse(described.text(), "x"), {})
    result = combine([(named(found, lambda places: [(Frame("same", "app"),)] * len(places)), 1.0)])
    assert len(result) == 1
    assert result.total(OBJECTS) == pytest.approx(R / 100, rel=0.01)
    assert result.total(BYTES) == pytest.approx(R + (10 << 20), rel=0.01)


INNER, OUTER, MAIN = Frame("inner", "app", Kind.INLINED), Frame("outer", "app"), Frame("main", "app")


def _named_by_the_file(measure: Measure, sampling: Sampling) -> Records:
    """Two stacks of a file that names its own code; the second is the caller of the first."""
    counts = CountColumns()
    counts.append(b"2", b"8192", b"3", b"12288")
    counts.append(b"1", b"100", b"0", b"0")
    return Records(
        file="x.pb.gz",
        measure=measure,
        sampling=sampling,
        total=Counts(3, 8292, 3, 12288),
        threads=[],
        addresses=array("Q"),
        stack_places=array("I", [0, 1, 2, 2]),
        stack_ends=array("Q", [3, 4]),
        counts=counts,
        thread_stack=array("I"),
        thread_uid=array("Q"),
        thread_counts=CountColumns(),
        mappings=[],
        names=[INNER, OUTER, MAIN],
    )


def _no_symbols(locations: Sequence[Location]) -> list[tuple[Frame, ...]]:
    assert not locations, "there is no address to look up"
    return []


def test_names_without_addresses_become_samples() -> None:
    records = _named_by_the_file(Measure.ALLOCATED, Sampling(Scheme.SYSTEMATIC, 4096))
    found = named(located(records, {}), _no_symbols)
    assert list(found.each_stack_of_frames()) == [(INNER, OUTER, MAIN), (MAIN,)]
    assert (found.measure, found.sampling) == (Measure.ALLOCATED, Sampling(Scheme.SYSTEMATIC, 4096))
    assert found.values[BYTES].tolist() == [8192, 100], "a systematic sample comes as what it stands for"
    assert found.values[ACCUM_BYTES].tolist() == [12288, 0]
    assert found.variance[BYTES].tolist() == [4096 * 8192, 4096 * 100]
    assert not any(location.in_file for location in found.locations)


def test_names_and_addresses_stand_beside_each_other() -> None:
    records = _named_by_the_file(Measure.LIVE, Sampling(Scheme.EXACT))
    places, ends = array("I", [0, 1, 1]), array("Q", [2, 3])
    mixed = replace(records, addresses=array("Q", [0x1001]), names=[MAIN], stack_places=places, stack_ends=ends)
    found = named(located(mixed, {}), lambda locations: [(INNER, OUTER)] * len(locations))
    assert list(found.each_stack_of_frames()) == [(INNER, OUTER, MAIN), (MAIN,)]


def test_names_are_kept_apart_when_samples_are_combined() -> None:
    found = named(located(_named_by_the_file(Measure.LIVE, Sampling(Scheme.EXACT)), {}), _no_symbols)
    other = profile({("main",): 5.0})
    both = combine([(found, 1.0), (found, 1.0), (other, 1.0)])
    assert _labels(both) == [["inner", "outer", "main"], ["main"]]
    at = {
        frame: both.place_location[both.place_frame.tolist().index(number)] for number, frame in enumerate(both.frames)
    }
    assert len({at[INNER], at[OUTER], at[MAIN]}) == 3, "each name is a place of its own"


@pytest.mark.parametrize(
    ("scheme", "bytes_", "objects"),
    [
        (Scheme.POISSON, R * 8192.0, R * 4 / 8192),
        (Scheme.SYSTEMATIC, R * 8192.0, R * 4 / 8192),
        (Scheme.EXACT, 0.0, 0.0),
        (Scheme.UNKNOWN, math.inf, math.inf),
    ],
)
def test_the_variance_of_bytes_and_objects_is_the_schemes(scheme: Scheme, bytes_: float, objects: float) -> None:
    found = profile({("a",): 8192.0, ("nothing",): 0.0})
    variance = variances(found.values, Sampling(scheme, R))
    assert variance[BYTES].tolist() == [bytes_, 0], "of nothing nothing is in doubt"
    assert variance[OBJECTS].tolist() == [objects, 0]


def test_what_measures_different_things_is_not_added_up() -> None:
    live = profile({("a",): 1.0})
    grown = replace(live, measure=Measure.GROWN)
    with pytest.raises(MeasureError, match="grown and live memory"):
        combine([(live, 1.0), (grown, -1.0)])
    assert combine([(grown, 1.0), (grown, 1.0)]).measure is Measure.GROWN


def test_a_sum_is_as_doubtful_as_its_coarsest_part() -> None:
    fine, coarse = profile({("a",): 1.0}), profile({("b",): 1.0})
    fine = replace(fine, sampling=Sampling(Scheme.POISSON, 4096))
    assert combine([(fine, 1.0), (coarse, 1.0)]).sampling == coarse.sampling


def test_a_thread_has_its_own_part_of_the_stacks() -> None:
    whole = samples_of()
    part = whole.of_thread(1)
    assert len(part) == 2 and len(whole.of_thread(0)) == 1
    assert 0 < part.total(BYTES) < whole.total(BYTES)
    assert part.variance[BYTES].tolist() == (whole.sampling.scatter * part.values[BYTES]).tolist()
