# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
from hypothesis import given

from ansible_collections.offheap.profiler.plugins.plugin_utils.model import profile
from ansible_collections.offheap.profiler.plugins.plugin_utils.model.profile import Frame, Kind
from ansible_collections.offheap.profiler.plugins.plugin_utils.readers import heap_v2
from ansible_collections.offheap.profiler.tests.unit.strategies import heap_dumps

R = 524288


def test_unbiasing_is_by_the_average_size_of_the_record() -> None:
    objects, size = profile.unbias(10, 10 * 4096, R)
    scale = 1 / (1 - math.exp(-4096 / R))
    assert (objects, size) == (10 * scale, 40960 * scale)
    assert profile.unbias(1, 64 << 20, R)[1] == pytest.approx(64 << 20)


@pytest.mark.parametrize("interval", [0, 1])
def test_every_allocation_recorded_means_nothing_to_unbias(interval: int) -> None:
    assert profile.unbias(3, 24, interval) == (3.0, 24.0)
    assert profile.sampling_error(1e9, interval) == 0


@pytest.mark.parametrize(("objects", "size"), [(0, 0), (0, 5), (5, 0), (2**64 - 1, 1)])
def test_impossible_records_do_no_harm(objects: int, size: int) -> None:
    assert profile.unbias(objects, size, R) == (float(objects), float(size))


def test_the_error_of_fifty_mebibytes_at_the_default_rate_is_ten_percent() -> None:
    assert profile.sampling_error(50 << 20, R) / (50 << 20) == pytest.approx(0.1)


@given(heap_dumps.dumps())
def test_any_dump_that_parses_becomes_a_profile(described: heap_dumps.DescribedDump) -> None:
    dump = heap_v2.parse(described.text(), "x")
    result = profile.from_dump(dump, lambda dump: [(Frame(f"f{address}", "app"),) for address in dump.addresses])
    expected = [profile.unbias(*stack.counts[:2], described.interval)[1] for stack in described.stacks]
    assert result.total_bytes == pytest.approx(math.fsum(expected))
    assert len(set(result.stacks)) == len(result.stacks) == len(result.bytes) == len(result.accum_objects)


def _profile(stacks: Sequence[tuple[Sequence[str], int]]) -> profile.Profile:
    """A profile of one object of 2 GiB per stack (so that unbiasing changes nothing); names are module!function."""
    names = sorted({name for stack, _size in stacks for name in stack})
    described = heap_dumps.DescribedDump(
        stacks=[
            heap_dumps.DescribedStack([names.index(name) for name in stack], (1, size, 0, 0), [])
            for stack, size in stacks
        ]
    )

    def resolve(dump: heap_v2.Dump) -> list[tuple[Frame, ...]]:
        frames: list[tuple[Frame, ...]] = []
        for address in dump.addresses:
            module, _mark, function = names[address].rpartition("!")
            frames.append((Frame(function, module or "app"),))
        return frames

    return profile.from_dump(heap_v2.parse(described.text(), "x"), resolve)


BIG = 2 << 30


@pytest.mark.parametrize(
    ("stack", "left"),
    [
        (["prof_backtrace_impl", "imalloc_body", "malloc", "own", "main"], ["own", "main"]),
        (["libjemalloc.so.2!", "libjemalloc.so.2!", "own"], ["own"]),
        (["liboffheap.so!hook", "libjemalloc.so.2!x", "libjemalloc.so.2!malloc", "operator new", "own"], ["own"]),
        (["je_prof_backtrace", "je_malloc_default", "calloc", "own"], ["own"]),
        (["os::malloc", "AllocateHeap"], ["os::malloc", "AllocateHeap"]),
        (["own", "libjemalloc.so.2!"], ["own", "libjemalloc.so.2+0x0"]),
        (["malloc"], ["[no stack]"]),
        ([], ["[no stack]"]),
    ],
)
def test_the_allocators_own_frames_are_cut_off_the_leaf(stack: list[str], left: list[str]) -> None:
    result = _profile([(stack, BIG)])
    assert result.labels(result.stacks[0]) == left
    assert result.total_bytes == BIG


def test_stacks_that_differ_only_inside_the_allocator_are_one() -> None:
    result = _profile([(["malloc", "own", "main"], BIG), (["calloc", "own", "main"], BIG), (["other"], BIG)])
    assert sorted(result.bytes) == [BIG, 2 * BIG]
    assert list(result.objects) == [2, 1]


def test_records_are_unbiased_before_they_are_summed() -> None:
    described = heap_dumps.DescribedDump(
        stacks=[
            heap_dumps.DescribedStack([1, 9], (1, 100, 0, 0), []),
            heap_dumps.DescribedStack([2, 9], (1, 10 << 20, 0, 0), []),
        ]
    )
    same = Frame("same", "app")
    result = profile.from_dump(heap_v2.parse(described.text(), "x"), lambda dump: [(same,)] * len(dump.addresses))
    assert len(result.stacks) == 1
    assert result.objects[0] == pytest.approx(R / 100, rel=0.01)
    assert result.bytes[0] == pytest.approx(R + (10 << 20), rel=0.01)


@pytest.mark.parametrize(
    ("frame", "label", "group"),
    [
        (Frame("inflate", "libz.so.1"), "inflate", "inflate"),
        (Frame("", "libz.so.1", Kind.NATIVE, 0xBDC5), "libz.so.1+0xbdc5", "libz.so.1"),
        (Frame("", "", Kind.JIT), "[jit]", "[jit]"),
        (Frame("", "", Kind.UNKNOWN), "[unmapped]", "[unmapped]"),
    ],
)
def test_frames_are_named_by_what_is_known(frame: Frame, label: str, group: str) -> None:
    assert (frame.label, frame.group) == (label, group)
