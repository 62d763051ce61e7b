# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from ansible_collections.offheap.profiler.plugins.module_utils.formats.capture_facts import KnownImage
from ansible_collections.offheap.profiler.plugins.plugin_utils.archive.capture import Capture
from ansible_collections.offheap.profiler.plugins.plugin_utils.base.carried_builds import carried
from ansible_collections.offheap.profiler.plugins.plugin_utils.leaks.own_numbers import (
    beyond_the_stacks,
    growth_beyond,
    own_numbers,
    with_own_numbers,
)
from ansible_collections.offheap.profiler.plugins.plugin_utils.leaks.verdict import Answer, Verdict, judge
from ansible_collections.offheap.profiler.plugins.plugin_utils.leaks.watched import Watched, verdict_on_host
from ansible_collections.offheap.profiler.plugins.plugin_utils.model import series
from ansible_collections.offheap.profiler.plugins.plugin_utils.model.sampling import Sampling, Scheme
from ansible_collections.offheap.profiler.tests.unit.plugins.plugin_utils.archive import capture_samples
from ansible_collections.offheap.profiler.tests.unit.strategies.profiles import profile

MIB = 1 << 20
SAMPLING = Sampling(Scheme.POISSON, 1 << 19)
JAVA, PYTHON = "/opt/jdk/lib/server/libjvm.so", "/usr/bin/python3.11"
TIMES = [900.0 * step for step in range(41)]  # ten hours

Numbers = dict[str, Callable[[float], float]]


def _flat(_hours: float) -> float:
    return 100.0


def _captures(numbers: Numbers, image: str = "") -> list[Capture]:
    """One capture at each of TIMES with these numbers, in MiB by hours, of a process that has an image mapped."""
    facts = capture_samples.facts()
    if image:
        facts = replace(facts, images=(KnownImage(image, "00" * 20, 1),))
    captures = []
    for number, time in enumerate(TIMES):
        memory: dict[str, Any] = {name: round(at(time / 3600) * MIB) for name, at in numbers.items()}
        with_memory = replace(facts, agent={"memory": memory})
        captures.append(Capture(Path(), "app1", "web.service", "7-aa", number, time, with_memory))
    return captures


def _verdict(numbers: Numbers, live: Callable[[float], float] = _flat, image: str = "") -> Verdict:
    watched = series.of_samples((time, profile({("table", "main"): live(time / 3600) * MIB})) for time in TIMES)
    return with_own_numbers(judge("7-aa", watched), watched, own_numbers(_captures(numbers, image)))


def _rising(hours: float) -> float:
    return 105 + 10 * hours


def test_where_all_is_flat_nothing_leaks() -> None:
    assert _verdict({"allocated": _flat, "rss": _flat, "rss_file": _flat}).answer is Answer.NO_LEAK
    assert _verdict({}).answer is Answer.NO_LEAK


def test_where_more_is_given_out_than_the_stacks_explain_nobody_can_tell() -> None:
    verdict = _verdict({"allocated": _rising, "rss": _rising})
    assert (verdict.answer, round(verdict.unexplained / MIB)) == (Answer.CANNOT_TELL, 240)
    assert (verdict.bound, list(verdict.limits)) == (0.0, []), "what it would have been is contradicted"
    assert verdict.reason.startswith("what malloc has given out grows by 240.0 MiB/day ± ")
    assert "and the stacks explain 0 B of it: 240.0 MiB/day are left, which the samples miss; no code" in verdict.reason


@pytest.mark.parametrize("page", [4096, 16384, 65536])
def test_a_sampled_block_takes_four_of_the_pages_that_the_library_was_built_for(page: int) -> None:
    """With pages of 64 KiB, half as much again is given out as the stacks hold, and the samples miss none of it."""
    (built,) = [one for name, one in carried().items() if name.startswith("jem") and name.endswith(f"-aarch64-{page}")]
    leaked = [(100 + 2000 * time / 3600) * MIB for time in TIMES]
    at_times = zip(TIMES, leaked, strict=True)
    watched = series.of_samples((time, profile({("leak", "main"): live}, 1000)) for time, live in at_times)
    watched = replace(watched, sampling=SAMPLING)
    more = -math.expm1(-1000 / SAMPLING.interval) * (4 * page - 1000) / 1000
    numbers: Numbers = {"allocated": lambda hours: (100 + 2000 * hours) * (1 + more)}
    library = KnownImage("/opt/offheap/jemalloc/5.3.0-0a/lib/libjemalloc.so.2", "00" * 20, 1, built)
    captures = [replace(one, facts=replace(one.facts, images=(library,))) for one in _captures(numbers)]
    assert beyond_the_stacks(own_numbers(captures), watched) is None
    assert (beyond_the_stacks(own_numbers(_captures(numbers)), watched) is None) is (page == 4096)


def test_the_pages_that_sampled_blocks_take_are_not_what_the_samples_miss() -> None:
    """Of 1,000 bytes, one in 524 is sampled and counted as 16 KiB, which is 2.9 % more; of 32 KiB, none is."""

    def verdict(size: int, more: float) -> Verdict:
        watched = series.of_samples(
            (time, profile({("leak", "main"): (100 + 2000 * time / 3600) * MIB}, size)) for time in TIMES
        )
        own = _captures({"allocated": lambda hours: 100 + 2000 * hours * more})
        return with_own_numbers(judge("7-aa", watched), watched, own_numbers(own))

    assert "samples miss" not in verdict(1000, 1.029).reason
    assert "samples miss" in verdict(1000, 1.15).reason
    assert "samples miss" in verdict(32768, 1.15).reason


def test_where_the_program_maps_memory_by_itself_nobody_can_tell() -> None:
    verdict = _verdict({"allocated": _flat, "rss": _rising})
    assert verdict.answer is Answer.CANNOT_TELL
    assert verdict.reason.startswith("resident memory other than files grows by 240.0 MiB/day")


def _numbers(live: Callable[[float], float], mapped: Callable[[float], float]) -> Numbers:
    """Those of a process that maps memory beside malloc's, which has one block in 512 KiB sampled: of each, it counts
    four pages as resident, and one is."""
    return {
        "allocated": live,
        "resident": lambda hours: live(hours) * (1 + 16 / 512),
        "rss": lambda hours: live(hours) * (1 + 4 / 512) + mapped(hours),
    }


def _collected(hours: float) -> float:
    """What goes up and down with each collection of a runtime that has malloc hold its objects: 40 MiB in two hours."""
    return 100 + 20 * (hours % 2)


@pytest.mark.parametrize(("grows", "answer"), [(_rising, Answer.CANNOT_TELL), (_flat, Answer.NO_LEAK)])
def test_what_comes_and_goes_in_malloc_hides_no_growth_beside_it(
    grows: Callable[[float], float], answer: Answer
) -> None:
    """As of an extension of Node's with an allocator of its own, beside buffers that wait for the next collection."""
    verdict = _verdict(_numbers(_collected, lambda hours: grows(hours) / 5), _collected)
    assert verdict.answer is answer
    told = "resident memory other than files and malloc's grows by 48.0 MiB/day ± "
    assert verdict.reason.startswith(told) == (grows is _rising)
    assert ("left, which the program maps without malloc" in verdict.reason) == (grows is _rising)


def test_a_heap_that_shrinks_maps_nothing() -> None:
    def live(hours: float) -> float:
        return 4000 - 300 * hours

    assert _verdict(_numbers(live, _flat), live).answer is Answer.NO_LEAK
    untouched = {"allocated": live, "resident": live, "rss": _flat}
    assert _verdict(untouched, live).answer is Answer.NO_LEAK


def test_a_cache_that_huge_pages_hold_fills_up_all_the_same() -> None:
    """Where the kernel gives huge pages, more is resident than malloc knows."""
    fills = Verdict(Answer.FILLS_UP, "one code path fills up", growth=240.0 * MIB)
    watched = series.of_samples((time, profile({("cache", "main"): _rising(time / 3600) * MIB})) for time in TIMES)
    own = own_numbers(_captures(_numbers(_rising, lambda hours: 0.3 * _rising(hours))))
    verdict = with_own_numbers(fills, watched, own)
    assert verdict.answer is Answer.FILLS_UP and "other than files and malloc's grows by 72.0 MiB/day" in verdict.reason


@pytest.mark.parametrize("image", [PYTHON, "/usr/lib/x86_64-linux-gnu/libpython3.13.so.1.0"])
def test_what_python_maps_may_be_its_objects(image: str) -> None:
    told = "profiled_service_runtime_with: [objects] shows these"
    assert told in _verdict({"allocated": _flat, "rss": _rising}, image=image).reason
    assert told in _verdict({"allocated": _flat, "resident": _flat, "rss": _rising}, image=image).reason
    assert told not in _verdict({"allocated": _rising, "rss": _rising}, image=image).reason


def test_a_leak_that_is_not_all_of_the_growth_says_so_first() -> None:
    own = {"allocated": lambda hours: 100 + 20 * hours, "rss": lambda hours: 100 + 60 * hours}
    verdict = _verdict(own, lambda hours: 100 + 20 * hours)
    assert verdict.answer is Answer.LEAK and verdict.suspects
    assert verdict.reason.startswith("resident memory other than files grows by 1.4 GiB/day ± ")
    assert "which the program maps without malloc, or malloc keeps; one code path grows steadily" in verdict.reason


def test_files_and_a_heap_that_a_jvm_fills_are_no_growth() -> None:
    assert _verdict({"allocated": _flat, "rss": _rising, "rss_file": lambda hours: 10 * hours}).answer is Answer.NO_LEAK
    assert _verdict({"allocated": _flat, "rss": _rising}, image=JAVA).answer is Answer.NO_LEAK
    assert _verdict({"allocated": _rising, "rss": _rising}, image=JAVA).answer is Answer.CANNOT_TELL


def test_shared_memory_that_grows_is_no_all_clear() -> None:
    verdict = _verdict({"allocated": _flat, "rss": _rising, "rss_shmem": lambda hours: 10 * hours})
    assert (verdict.answer, round(verdict.unexplained / MIB)) == (Answer.CANNOT_TELL, 240)
    assert verdict.reason.startswith("shared memory grows by 240.0 MiB/day")


def test_memory_from_before_sampling_that_is_replaced_is_no_leak() -> None:
    verdict = _verdict({"allocated": _flat, "rss": _flat}, _rising)
    assert (verdict.answer, verdict.suspects) == (Answer.CANNOT_TELL, [])
    told = "not by all that the stacks do: 245.6 MiB/day of what was there before sampling began is freed"
    assert told in verdict.reason and "one code path grows steadily" in verdict.reason


def test_a_leak_says_how_long_what_is_left_lasts() -> None:
    own = {"allocated": _rising, "rss": lambda hours: 100 + 5 * hours, "left": lambda hours: 500 - 5 * hours}
    verdict = _verdict(own, _rising)
    assert verdict.answer is Answer.LEAK
    told = "resident memory grows by 120.0 MiB/day, and the 450.0 MiB that its limit or its host leaves last 3 d 18 h"
    assert verdict.reason.endswith(f"; {told}")
    late = _verdict({**own, "rss": lambda hours: 100 + 10 * max(hours - 5, 0)}, _rising).reason
    assert late.endswith(
        "; resident memory grows by 240.0 MiB/day, and the 450.0 MiB that its limit or its host leaves last 45 h"
    ), late
    assert "leaves last" not in _verdict({**own, "rss": _flat}, _rising).reason
    assert "leaves last" not in _verdict({"allocated": _rising, "rss": _rising}, _rising).reason


def test_a_leak_beside_some_memory_that_is_freed_is_one() -> None:
    verdict = _verdict({"allocated": lambda hours: 100 + 8 * hours}, _rising)
    assert verdict.answer is Answer.LEAK


def test_a_leak_that_the_stacks_show_stays_one() -> None:
    verdict = _verdict({"allocated": _rising, "rss": _rising}, _rising)
    assert (verdict.answer, verdict.unexplained) == (Answer.LEAK, 0.0)


@pytest.mark.parametrize("spread", [1.0, 20.0, 200.0])
def test_noise_is_no_growth(spread: float) -> None:
    found = 0
    for seed in range(100):
        random = Random(seed)
        numbers = [(1000 + random.gauss(0, spread)) * MIB for _time in TIMES]
        found += growth_beyond(TIMES, numbers, [900.0 * MIB] * len(TIMES), SAMPLING) is not None
    assert found == 0


def _breathing(rise: float, seconds: float, phase: float) -> tuple[list[float], list[float]]:
    """A heap of 100 MiB, looked at each 20 s, that rises by so many MiB in eight minutes, and with each collection, one
    in 90 s, comes down by 20 MiB."""
    times = [20.0 * look for look in range(round(seconds / 20) + 1)]
    return times, [(100 + rise * time / 480 + 20 * ((time / 90 + phase) % 1)) * MIB for time in times]


def test_growth_that_may_be_scatter_says_how_long_to_watch_and_that_holds() -> None:
    for number in range(100):
        times, numbers = _breathing(50, 480, number / 100)
        found = growth_beyond(times, numbers, [0.0] * len(times), SAMPLING)
        assert found is not None and 960 <= found[3] < 2400
        times, numbers = _breathing(50, found[3], number / 100)
        found = growth_beyond(times, numbers, [0.0] * len(times), SAMPLING)
        assert found is not None and found[3] == 0
        growth, error = (rate * 480 / 86400 / MIB for rate in found[:2])
        assert abs(growth - 50) <= error


@pytest.mark.parametrize("seconds", [480, 1440])
def test_what_breathes_does_not_grow(seconds: float) -> None:
    for number in range(100):
        times, numbers = _breathing(0, seconds, number / 100)
        assert growth_beyond(times, numbers, [0.0] * len(times), SAMPLING) is None


def test_where_growth_may_be_scatter_nobody_can_tell_yet() -> None:
    """48 MiB a day, and up and down by 8 MiB in two and a half hours."""

    def breathes(hours: float) -> float:
        return 50 + 2 * hours + 3.2 * (hours % 2.5)

    verdict = _verdict({"allocated": _flat, "rss": breathes})
    assert verdict.answer is Answer.CANNOT_TELL and verdict.counts and verdict.known_after >= 72000
    told = (
        "malloc, or malloc keeps; that may be scatter: 20 h of dumps will tell, and triage which memory it is; no code"
    )
    assert verdict.reason.startswith("resident memory other than files grows by 4") and told in verdict.reason
    assert _verdict({"allocated": breathes, "rss": _flat}).answer is Answer.NO_LEAK
    assert "may be scatter" not in _verdict({"allocated": _rising, "rss": breathes}, _rising).reason


def test_growth_that_ends_and_what_was_freed_are_no_growth() -> None:
    flat = [100.0 * MIB] * len(TIMES)
    filled = [min(time, TIMES[len(TIMES) // 2]) / 60 * MIB for time in TIMES]
    assert growth_beyond(TIMES, filled, flat, SAMPLING) is None
    freed = [(900 - time / 60) * MIB for time in TIMES]
    assert growth_beyond(TIMES, [1000.0 * MIB] * len(TIMES), freed, SAMPLING) is None


def test_growth_too_small_to_be_sampled_and_too_few_points_are_passed_over() -> None:
    flat = [100.0 * MIB] * len(TIMES)
    assert growth_beyond(TIMES, [(100 + time / 36000) * MIB for time in TIMES], flat, SAMPLING) is None
    assert growth_beyond(TIMES[:5], [time * MIB for time in TIMES[:5]], flat[:5], SAMPLING) is None


@pytest.mark.parametrize("strange", [None, "1", True, -1, 1 << 70, float("nan")])
def test_what_is_no_size_is_not_believed(strange: object) -> None:
    captures = [
        replace(capture, facts=replace(capture.facts, agent={"memory": {"allocated": strange}}))
        for capture in _captures({})
    ]
    watched = series.of_samples((time, profile({("table",): 1.0})) for time in TIMES)
    assert beyond_the_stacks(own_numbers(captures), watched) is None


def test_a_worker_that_grows_unexplained_decides_over_steady_ones_and_older_processes() -> None:
    def process(key: str, start: float, verdict: Verdict) -> Watched:
        return Watched("web.service", "app1", key, "", start, start + 100, replace(verdict, process=key))

    steady, growing = Verdict(Answer.NO_LEAK, "steady", span=900), Verdict(Answer.CANNOT_TELL, "grows", unexplained=1e9)
    leaking = Verdict(Answer.LEAK, "leaks", 1e9)
    assert verdict_on_host([process("1-a", 0, steady), process("2-b", 50, growing)]).process == "2-b"
    assert verdict_on_host([process("1-a", 0, steady), process("2-b", 500, growing)]).answer is Answer.CANNOT_TELL
    assert verdict_on_host([process("1-a", 0, leaking), process("2-b", 50, growing)]).answer is Answer.LEAK


@pytest.mark.parametrize(
    ("left", "answer", "told"),
    [
        (900, Answer.FILLS_UP, "; that fits the 900.0 MiB that its limit or its host leaves"),
        (500, Answer.FILLS_UP, "; that may or may not fit the 500.0 MiB"),
        (300, Answer.OVERFLOWS, "; that does not fit the 300.0 MiB"),
    ],
)
def test_what_fills_up_is_told_beside_what_is_left(left: int, answer: Answer, told: str) -> None:
    """500 ± 100 MiB are to come."""
    watched = series.of_samples((time, profile({("cache", "main"): 100 * MIB})) for time in TIMES)
    own = own_numbers(_captures({"allocated": _flat, "left": lambda _hours: float(left)}))
    fills = Verdict(Answer.FILLS_UP, "one code path fills up", to_come=(500.0 * MIB, 100.0 * MIB))
    verdict = with_own_numbers(fills, watched, own)
    assert verdict.answer is answer and told in verdict.reason


@pytest.mark.parametrize(
    ("live", "rss", "answer"),
    [
        (_flat, _flat, Answer.FILLS_UP),
        (_flat, _rising, Answer.CANNOT_TELL),
        (_rising, lambda hours: 1.8 * _rising(hours), Answer.FILLS_UP),
    ],
)
def test_what_fills_up_says_nothing_of_memory_that_grows_without_malloc(
    live: Callable[[float], float], rss: Callable[[float], float], answer: Answer
) -> None:
    """As of an extension of Node's with an allocator of its own: its leak is in no stack, and a cache beside it is."""
    watched = series.of_samples((time, profile({("cache", "main"): live(time / 3600) * MIB})) for time in TIMES)
    own = own_numbers(_captures({"allocated": live, "rss": rss, "left": lambda _hours: 900.0}))
    growth = (live(1) - live(0)) * 24 * MIB
    fills = Verdict(Answer.FILLS_UP, "one code path fills up", growth, to_come=(5.0 * MIB, 1.0 * MIB))
    verdict = with_own_numbers(fills, watched, own)
    assert verdict.answer is answer and verdict.reason.count("one code path fills up") == 1
    assert ("maps without malloc" in verdict.reason) == (rss is not _flat)
    assert round(verdict.unexplained / MIB) == (240 if answer is Answer.CANNOT_TELL else 0)
