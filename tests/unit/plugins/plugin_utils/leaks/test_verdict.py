# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import accumulate

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ansible_collections.offheap.profiler.plugins.plugin_utils.leaks.code_paths import Extent
from ansible_collections.offheap.profiler.plugins.plugin_utils.leaks.verdict import Answer, Verdict, judge
from ansible_collections.offheap.profiler.plugins.plugin_utils.leaks.watched import Watched, verdict_on_host
from ansible_collections.offheap.profiler.plugins.plugin_utils.model import series
from ansible_collections.offheap.profiler.plugins.plugin_utils.model.frame import Frame
from ansible_collections.offheap.profiler.plugins.plugin_utils.model.samples import Samples
from ansible_collections.offheap.profiler.plugins.plugin_utils.model.sampling import EXACT, Sampling, Scheme
from ansible_collections.offheap.profiler.plugins.plugin_utils.model.series import Series
from ansible_collections.offheap.profiler.tests.unit.strategies.profiles import profile

MIB = 1 << 20

Stacks = dict[tuple[str, ...], float]
Points = list[tuple[float, Samples]]
INFLATE = ("libz.so.1+0xbdc5", "inflate", "Java_java_util_zip_Inflater_inflateBytesBytes", "[jit]")


def _profile(stacks: Stacks) -> Samples:
    """Stacks (leaf first) with their live MiB."""
    return profile({stack: size * MIB for stack, size in stacks.items()})


def _frames(*names: str) -> list[Frame]:
    return [*next(profile({names: 1.0}).each_stack_of_frames())]


def _series(stacks: Callable[[float], Stacks], start: float = 0, seconds: float = 3600, points: int = 25) -> Points:
    step = seconds / (points - 1)
    return [(start + step * index, _profile(stacks(step * index))) for index in range(points)]


def _judge(processes: dict[str, Points]) -> Verdict:
    """The verdict on a host with these processes."""
    watched = []
    for key, points in processes.items():
        judged = series.of_samples(points)
        live = float(judged.bytes[:, -1].sum())
        watched.append(Watched("web.service", "app1", key, "", points[0][0], points[-1][0], judge(key, judged), live))
    return verdict_on_host(watched)


def _leaking(time: float) -> Stacks:
    return {INFLATE: 5 + 100 * time / 3600, ("G1Init", "main"): 40.0, ("cache", "main"): 20.0}


def _loaded(size: float, _time: float) -> Stacks:
    return {("load", "main"): size}


def _healthy(time: float) -> Stacks:
    return {("G1Init", "main"): 40.0, ("cache", "main"): 20 + time % 7}


def test_a_leak_is_named_with_its_rate() -> None:
    verdict = _judge({"7-aa": _series(_leaking)})
    assert verdict.answer is Answer.LEAK
    assert verdict.reason == "one code path grows steadily over 60 min and 25 dumps"
    assert (verdict.process, verdict.points, verdict.span) == ("7-aa", 25, 3600)
    assert abs(verdict.growth - 100 * MIB * 24) < verdict.error < 0.3 * verdict.growth
    (suspect,) = verdict.suspects
    assert tuple(frame.label for frame in suspect.path) == INFLATE
    assert (suspect.extent, suspect.stacks, suspect.live) == (Extent.KEY, 1, 105 * MIB)


def test_a_healthy_process_is_told_what_would_not_have_been_seen() -> None:
    verdict = _judge({"7-aa": _series(_healthy)})
    assert (verdict.answer, verdict.suspects) == (Answer.NO_LEAK, [])
    assert verdict.reason.startswith(
        "no code path grows beyond what sampling explains over 60 min and 25 dumps (a leak"
    )


NOW = ": wait for the next, or take one now with fab dump, or the playbook switch_profiling and -e state=dump"


@pytest.mark.parametrize(
    ("points", "seconds", "reason"),
    [
        (1, 0, f"only 1 dump of process 7-aa, at least 3 are needed{NOW}"),
        (2, 3600, f"only 2 dumps of process 7-aa, at least 3 are needed{NOW}"),
        (
            10,
            45,
            "the dumps of process 7-aa span only 45 s, at least 60 s are needed: one taken 15 s after the last will do",
        ),
    ],
)
def test_too_little_to_judge_by_is_said_so(points: int, seconds: float, reason: str) -> None:
    watched = [(0.0, _profile(_leaking(0)))] if points == 1 else _series(_leaking, 0, seconds, points)
    verdict = _judge({"7-aa": watched})
    assert (verdict.answer, verdict.reason) == (Answer.CANNOT_TELL, reason)


def test_dumps_in_two_bunches_cannot_be_judged() -> None:
    watched = [(time, _profile(_leaking(time))) for time in (0, 0.001, 0.002, 3600)]
    assert _judge({"7-aa": watched}).reason == "the dumps of process 7-aa lie too close together in time"


def test_no_captures_no_verdict() -> None:
    assert _judge({}).answer is Answer.CANNOT_TELL
    assert judge("1-a", series.of_samples([])).answer is Answer.CANNOT_TELL


def test_profiles_that_do_not_say_how_they_were_sampled_cannot_be_judged() -> None:
    watched = series.of_samples(_series(_leaking))
    verdict = judge("7-aa", replace(watched, sampling=Sampling(Scheme.UNKNOWN)))
    assert verdict.answer is Answer.CANNOT_TELL
    assert "it is unknown how the profiles of process 7-aa were sampled" in verdict.reason


def test_growth_of_what_was_counted_exactly_needs_no_margin_for_sampling() -> None:
    watched = series.of_samples(_series(lambda time: {("leak", "main"): 0.2 * time / 3600, ("cache", "main"): 20.0}))
    assert judge("7-aa", watched).answer is Answer.NO_LEAK
    assert judge("7-aa", replace(watched, sampling=EXACT)).answer is Answer.LEAK


def test_growth_that_slows_down_is_left_open() -> None:
    logarithm = _judge({"7-aa": _series(lambda time: {("table", "main"): 400 * math.log(1 + time)})})
    assert logarithm.answer is Answer.CANNOT_TELL
    slowing = _judge({"7-aa": _series(lambda time: {("table", "main"): 300 * (1 - 0.5 ** (time / 700))})})
    assert slowing.answer is Answer.CANNOT_TELL
    assert "ever slower" in slowing.reason


def test_slowing_growth_that_ends_no_higher_than_it_began_is_judged() -> None:
    def live(time: float) -> Stacks:
        # The first of the dumps that count, after the start of the program, finds a peak.
        return {("table", "main"): 3000.0 if time == 450 else min(time, 1000 + time / 3)}

    verdict = _judge({"7-aa": _series(live)})
    assert verdict.answer is Answer.CANNOT_TELL
    assert "ever slower" in verdict.reason


_sizes = st.just(0) | st.integers(0, 4000).map(lambda size: size * MIB) | st.integers(0, 1 << 40)


@st.composite
def _any_values(draw: st.DrawFn, count: int) -> list[int]:
    """Bytes at random, in order, or growing until a knee, with some out of place."""
    match draw(st.sampled_from(["random", "order", "knee"])):
        case "knee":
            knee, rate = draw(st.integers(0, count)), draw(st.integers(1, 100)) * MIB
            later = draw(st.integers(0, 10))
            values = [rate * 10 * min(at, knee) + rate * later * max(at - knee, 0) for at in range(count)]
        case shape:
            values = draw(st.lists(_sizes, min_size=count, max_size=count))
            values = sorted(values) if shape == "order" else values
    for _outlier in range(draw(st.integers(0, 2)) if values else 0):
        # Judging begins after a fifth of the time.
        values[min(draw(st.sampled_from([count // 5, count // 5 + 1, count])), count - 1)] = draw(
            _sizes | st.just(2 * max(values))
        )
    return values


@st.composite
def _any_series(draw: st.DrawFn) -> Series:
    count = draw(st.integers(0, 5) | st.integers(6, 24))
    steps = [draw(st.integers(1, 600))] * count if draw(st.booleans()) else [draw(st.integers(0, 5000))] * 2
    steps = (steps + draw(st.lists(st.integers(0, 600), min_size=count, max_size=count)))[:count]
    times = [float(time) for time in accumulate(steps)]
    names = st.sampled_from(["a", "b", "c", "java:D.d", "[jit]", "libz.so.1+0x10"])
    stacks = draw(st.lists(st.lists(names, max_size=4).map(tuple), max_size=4, unique=True))
    values = {stack: draw(_any_values(count)) for stack in stacks}
    points = [
        (time, profile({stack: float(sizes[at]) for stack, sizes in values.items()})) for at, time in enumerate(times)
    ]
    interval = draw(st.sampled_from([0, 1 << 12, 1 << 19]))
    return replace(series.of_samples(points), sampling=Sampling(Scheme.POISSON, interval))


@settings(max_examples=300, deadline=None)
@given(_any_series())
def test_whatever_the_series_there_is_a_verdict(watched: Series) -> None:
    verdict = judge("7-aa", watched)
    assert verdict.reason
    assert math.isfinite(verdict.growth) and math.isfinite(verdict.error)


def _by_day(start: float, time: float) -> Stacks:
    """Load that follows the time of day, in all paths but one."""
    load = 1 + 0.4 * math.sin(2 * math.pi * (start + time / 86400))
    return {**{(f"serve{path}", "main"): (20 + 5 * path) * load for path in range(20)}, ("table", "main"): 300.0}


@pytest.mark.parametrize("start", [0.75, 0.85, 0.95])
def test_load_that_rises_by_day_is_not_judged_by_part_of_it(start: float) -> None:
    verdict = _judge({"7-aa": _series(partial(_by_day, start), seconds=8 * 3600, points=60)})
    assert (verdict.answer, verdict.suspects, verdict.known_after) == (Answer.CANNOT_TELL, [], 86400.0)
    assert "in many paths alike, as load does by day" in verdict.reason
    assert verdict.reason.endswith("; 24 h of dumps will tell")
    whole = _judge({"7-aa": _series(partial(_by_day, start), seconds=25 * 3600, points=90)})
    assert whole.answer is not Answer.LEAK


def test_a_leak_beside_load_that_rises_by_day_is_one() -> None:
    def live(time: float) -> Stacks:
        return {**_by_day(0.8, time), ("inflate", "main"): 5 + 20 * time / 3600}

    verdict = _judge({"7-aa": _series(live, seconds=8 * 3600, points=60)})
    assert [suspect.path[0].label for suspect in verdict.suspects] == ["inflate"]


def test_a_deploy_that_many_paths_take_a_step_for_is_never_a_leak_and_stays_open() -> None:
    def live(time: float) -> Stacks:
        stepping: Stacks = {("new", f"load{path}", "main"): 40 + 40 * (time > 36 * path) for path in range(100)}
        return {**stepping, **{("new", f"keep{path}", "main"): 40.0 for path in range(150)}}

    verdict = _judge({"7-aa": _series(live, points=60)})
    assert (verdict.answer, verdict.suspects) == (Answer.CANNOT_TELL, [])


def _after(part: float) -> Callable[[float], float]:
    return lambda at: max(at - part, 0) / (1 - part)


# Leaks that no line fits, as a part of what they come to by a part of the time.
LEAKS: dict[str, Callable[[float], float]] = {
    "late": _after(0.7),
    "later": _after(0.8),
    "latest": _after(0.9),
    "pauses": lambda at: min(at, 1 / 3) + max(at - 2 / 3, 0),
    "stopped": lambda at: min(at, 0.6),
    "bursts": lambda at: sum(at > one for one in (0.15, 0.4, 0.65)) / 3,
    "many bursts": lambda at: sum(at > 0.05 + one / 8 for one in range(8)) / 8,
    "nights": lambda at: sum(min(max(at - night, 0), 0.1) for night in (0.2, 0.5, 0.8)) / 0.3,
}


@pytest.mark.parametrize("shape", LEAKS)
def test_what_has_grown_and_not_been_given_back_is_never_no_leak(shape: str) -> None:
    def live(time: float) -> Stacks:
        return {**_healthy(time), ("keep", "job", "main"): 90 * LEAKS[shape](time / 3600)}

    verdict = _judge({"7-aa": _series(live, points=60)})
    assert verdict.answer in (Answer.CANNOT_TELL, Answer.LEAK)
    assert "keep ← job" in verdict.reason or verdict.suspects[0].key[0] == "keep"


def test_growth_that_has_ended_says_how_long_it_stands_and_when_it_is_judged_again() -> None:
    def live(time: float) -> Stacks:
        return {**_healthy(time), ("cache", "load", "main"): 90 * min(time / 1440, 1)}

    verdict = _judge({"7-aa": _series(live, points=61)})
    assert verdict.answer is Answer.CANNOT_TELL
    assert verdict.reason.startswith("one code path grew by 67.5 MiB and has stood for 37 min since ")
    assert verdict.reason.endswith("of dumps") and 4 * 3600 > verdict.known_after > 3600
    later = _judge({"7-aa": _series(live, points=61, seconds=verdict.known_after * 1.1)})
    assert later.answer is Answer.NO_LEAK


def test_a_limit_is_never_less_than_what_was_seen_to_stay() -> None:
    def live(time: float) -> Stacks:
        return {("pool", "main"): 200 + 30 * time / 3600 + 100 * (time % 500) / 500}

    verdict = _judge({"7-aa": _series(live, points=60)})
    assert verdict.answer is not Answer.NO_LEAK or max(limit.rate for limit in verdict.limits) >= 24 * 30 * MIB


def test_no_leak_names_the_path_that_could_hide_the_fastest() -> None:
    def live(time: float) -> Stacks:
        return {**_healthy(time), ("pool", "main"): 200 * (time % 500) / 500}

    verdict = _judge({"7-aa": _series(live, points=60)})
    still, worst = verdict.limits
    assert (still.path, worst.path[0].label) == ((), "pool")
    assert worst.rate > 2 * still.rate
    assert "in pool" in verdict.reason


def test_stacks_that_differ_in_addresses_only_are_one_suspect() -> None:
    def live(time: float) -> Stacks:
        # The same functions with other offsets and one more frame of recursion, each alone too slow to be seen.
        stacks: Stacks = {(f"libz.so.1+{offset:#x}", "inflate", "main"): 4 * time / 3600 for offset in range(16, 26)}
        return {**stacks, ("libz.so.1+0x10", "inflate", "inflate", "main"): 4 * time / 3600, ("fixed",): 10.0}

    (suspect,) = _judge({"7-aa": _series(live)}).suspects
    assert suspect.key == ("libz.so.1", "inflate", "main")
    assert abs(suspect.growth - 44 * MIB * 24) < suspect.error


def test_a_leak_spread_over_many_callers_is_found_by_what_they_share() -> None:
    def live(time: float) -> Stacks:
        return {("strdup", "remember", "handle", f"request_{kind}", "main"): 1 + time / 3600 for kind in range(60)}

    verdict = _judge({"7-aa": _series(live)})
    (suspect,) = verdict.suspects
    assert [frame.label for frame in suspect.path] == ["strdup", "remember", "handle"][: len(suspect.path)]
    assert (suspect.extent, suspect.stacks) == (Extent.BEGINNING, 60)
    assert suspect.covers(_frames("strdup", "remember", "handle", "new", "main"))
    assert not suspect.covers(_frames("malloc_usable_size", "remember"))


def test_a_leak_spread_over_what_a_function_calls_is_found_by_that_function() -> None:
    def live(time: float) -> Stacks:
        leaked: Stacks = {
            (f"copy_{kind}", f"parse_{kind}", "handle_request", "serve", "main"): 1 + time / 900 for kind in range(40)
        }
        return {**leaked, ("table", "load", "main"): 30.0, ("index", "load", "main"): 20.0, ("pool", "start"): 9.0}

    verdict = _judge({"7-aa": _series(live)})
    assert verdict.answer is Answer.LEAK
    (suspect,) = verdict.suspects
    assert [frame.label for frame in suspect.path] == ["handle_request", "serve", "main"]
    assert (suspect.extent, suspect.names, suspect.stacks) == (Extent.FUNCTION, ("handle_request",), 40)
    assert abs(suspect.growth - 160 * 24 * MIB) < suspect.error
    assert suspect.covers(_frames("anything", "handle_request", "main"))
    assert not suspect.covers(_frames("table", "load", "main"))


def _java(time: float) -> Stacks:
    """A leak of 100 MiB/h whose Java frames change when they are compiled (at 20 minutes) and inlined (at 35)."""
    native, leaked = ("libz.so.1+0x10", "inflate", "Java_java_util_zip_Inflater_inflateBytesBytes"), time / 36
    stages = {
        ("[jit]",): min(leaked, 33),
        ("java:java.util.zip.Inflater.inflate", "java:Leak.serve", "JavaCalls::call_helper"): min(
            max(leaked - 33, 0), 25
        ),
        ("java:Leak.serve", "java:Leak.run", "JavaCalls::call_helper"): max(leaked - 58, 0.0),
    }
    return {("G1Init", "main"): 40.0, **{(*native, *managed): size for managed, size in stages.items()}}


def test_code_that_is_compiled_on_the_way_does_not_break_a_leak_into_pieces() -> None:
    verdict = _judge({"7-aa": _series(_java)})
    (suspect,) = verdict.suspects
    assert (suspect.extent, suspect.stacks) == (Extent.KEY, 3)
    assert abs(suspect.growth - 100 * MIB * 24) < suspect.error
    assert [frame.label for frame in suspect.path[2:5]] == [
        "Java_java_util_zip_Inflater_inflateBytesBytes",
        "Leak.serve",
        "Leak.run",
    ]


def test_callers_in_compiled_code_are_told_apart_when_each_leaks() -> None:
    def live(time: float) -> Stacks:
        native = ("Unsafe_AllocateMemory0",)
        return {
            (*native, "java:Bits.reserve", "java:Cache.put"): 100 * time / 3600,
            (*native, "java:Bits.reserve", "java:Index.add"): 60 * time / 3600,
            (*native, "java:Bits.reserve", "java:Pool.take"): 30.0,
        }

    verdict = _judge({"7-aa": _series(live)})
    assert [suspect.path[2].label for suspect in verdict.suspects] == ["Cache.put", "Index.add"]
    cache, index = verdict.suspects
    assert cache.covers(_frames("Unsafe_AllocateMemory0", "java:Bits.reserve", "java:Cache.put"))
    assert not index.covers(_frames("Unsafe_AllocateMemory0", "java:Bits.reserve", "java:Cache.put"))


def test_a_shared_part_is_shown_as_far_as_it_goes() -> None:
    def live(time: float) -> Stacks:
        # Growth moves from one caller to the next, so that no whole stack grows steadily.
        stacks: Stacks = {}
        for caller in range(12):
            leaked = min(max(time / 3600 * 120 - 10 * caller, 0), 10.0)
            stacks[("zalloc", "inflateInit", *(f"step{n}" for n in range(8)), "load", f"f{caller}", "main")] = leaked
        return stacks

    (suspect,) = _judge({"7-aa": _series(live)}).suspects
    assert [frame.label for frame in suspect.path] == ["zalloc", "inflateInit", *(f"step{n}" for n in range(8)), "load"]


def test_suspects_are_ranked_by_their_rate() -> None:
    def live(time: float) -> Stacks:
        hours = time / 3600
        return {("slow", "main"): 50 * hours, ("fast", "main"): 200 * hours, ("steady", "main"): 300.0}

    verdict = _judge({"7-aa": _series(live)})
    assert [suspect.path[0].label for suspect in verdict.suspects] == ["fast", "slow"]
    assert abs(verdict.growth - 250 * MIB * 24) < verdict.error
    assert "2 code paths grow" in verdict.reason


def test_processes_are_never_mixed() -> None:
    """Each process holds more than the one before, but none grows: restarts of a service with more to load."""
    processes = {f"{number}-aa": _series(partial(_loaded, 100.0 * number), 4000.0 * number) for number in range(1, 5)}
    assert _judge(processes).answer is Answer.NO_LEAK


def test_after_a_restart_the_newest_process_decides_and_the_old_leak_is_mentioned() -> None:
    verdict = _judge({"1-aa": _series(_leaking), "2-bb": _series(_healthy, 4000)})
    assert (verdict.answer, verdict.process) == (Answer.NO_LEAK, "2-bb")
    assert verdict.reason.endswith("; but an earlier process (newest: 1-aa) grew steadily, to more than is live now")


def test_a_cache_that_a_restart_cut_off_while_it_filled_is_not_called_a_leak() -> None:
    def filling(time: float) -> Stacks:
        return {("cache", "main"): 20 + 100 * time / 3600}

    verdict = _judge({"1-aa": _series(filling), "2-bb": _series(partial(_loaded, 160.0), 4000)})
    assert (verdict.answer, verdict.process) == (Answer.NO_LEAK, "2-bb")
    assert "earlier" not in verdict.reason


def test_a_new_process_too_young_to_judge_does_not_hide_the_old_one() -> None:
    verdict = _judge({"1-aa": _series(_leaking), "2-bb": _series(_healthy, 4000, 10, 3)})
    assert (verdict.answer, verdict.process) == (Answer.LEAK, "1-aa")


def test_workers_side_by_side_are_added_up() -> None:
    verdict = _judge({"1-aa": _series(_leaking), "2-bb": _series(_leaking, 60), "3-cc": _series(_healthy, 60)})
    assert verdict.answer is Answer.LEAK
    assert abs(verdict.growth - 200 * MIB * 24) < verdict.error
    assert "the worst of 2 that leak" in verdict.reason


@pytest.mark.parametrize("sweep", [9.0, 17.0, 23.0])
def test_a_leak_behind_a_collectors_sweeps_is_never_no_leak(sweep: float) -> None:
    """Every second upload is kept; the others lie there until they are swept, at least twice in the time."""

    def uploads(time: float) -> Stacks:
        return {("alloc", "receive", "main"): 0.64 * time + 0.64 * (time % sweep), ("cache", "main"): 20.0}

    assert judge("9", series.of_samples(_series(uploads, seconds=66, points=18))).answer is not Answer.NO_LEAK


@pytest.mark.parametrize("sweep", [9.0, 17.0, 23.0])
def test_garbage_that_is_swept_is_no_leak(sweep: float) -> None:
    def uploads(time: float) -> Stacks:
        return {("alloc", "receive", "main"): 0.64 * (time % sweep), ("cache", "main"): 20.0}

    assert judge("9", series.of_samples(_series(uploads, seconds=66, points=18))).answer is Answer.NO_LEAK
