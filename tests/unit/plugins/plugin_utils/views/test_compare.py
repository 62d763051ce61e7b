# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Comparisons find differences and, above all, find none where there are none."""

from __future__ import annotations

import json
import math
import random
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from ansible_collections.offheap.profiler.plugins.plugin_utils.driver.sources import DumpReader, Images
from ansible_collections.offheap.profiler.plugins.plugin_utils.export import comparison
from ansible_collections.offheap.profiler.plugins.plugin_utils.model.frame import Frame
from ansible_collections.offheap.profiler.plugins.plugin_utils.model.location import Location
from ansible_collections.offheap.profiler.plugins.plugin_utils.model.samples import (
    BYTES,
    Samples,
    combine,
    located,
    named,
    variances,
)
from ansible_collections.offheap.profiler.plugins.plugin_utils.model.sampling import Measure as Measured
from ansible_collections.offheap.profiler.plugins.plugin_utils.model.sampling import MeasureError, Sampling, Scheme
from ansible_collections.offheap.profiler.plugins.plugin_utils.readers import heap_v2
from ansible_collections.offheap.profiler.plugins.plugin_utils.views.compare import By, Change, Side, compare
from ansible_collections.offheap.profiler.plugins.plugin_utils.views.table import Measure
from ansible_collections.offheap.profiler.tests.unit.plugins.plugin_utils.readers.test_jeprof import _libjemalloc
from ansible_collections.offheap.profiler.tests.unit.plugins.plugin_utils.views import profiled_programs

INTERVAL = 4096
RUNS = 100
# Twenty functions that hold between one or two sampled allocations and hundreds of them.
PROGRAM = """\
#include <stdlib.h>
#define HOLD(n) __attribute__((noinline)) static void *hold##n(int i) \\
    { void *p = malloc(24 + (i * 37 + n * 11) % (100 * n)); __asm__ volatile(""); return p; }
HOLD(1) HOLD(2) HOLD(3) HOLD(4) HOLD(5) HOLD(6) HOLD(7) HOLD(8) HOLD(9) HOLD(10)
HOLD(11) HOLD(12) HOLD(13) HOLD(14) HOLD(15) HOLD(16) HOLD(17) HOLD(18) HOLD(19) HOLD(20)
static void *(*const all[])(int) = {hold1, hold2, hold3, hold4, hold5, hold6, hold7, hold8, hold9, hold10,
    hold11, hold12, hold13, hold14, hold15, hold16, hold17, hold18, hold19, hold20};
static void *keep[20][1000];
int main(void) {
    for (int n = 0; n < 20; n++)
        for (int i = 0; i < 20 + 45 * n; i++) keep[n][i] = all[n](i);
    return 0;
}
"""


def text(stacks: dict[str, tuple[int, int]], interval: int = INTERVAL, base: int = 0x400000) -> bytes:
    """A dump; stacks are space-separated offsets in one program, with their objects and bytes."""
    lines = [f"heap_v2/{interval}", "  t*: 0: 0 [0: 0]"]
    for stack, (objects, size) in stacks.items():
        addresses = " ".join(f"{base + int(offset, 16):#x}" for offset in stack.split())
        lines += [f"@ {addresses}", f"  t*: {objects}: {size} [0: 0]"]
    lines += ["", "MAPPED_LIBRARIES:", f"{base:x}-{base + 0x10000:x} r-xp 00000000 fe:00 1 /srv/app"]
    return ("\n".join(lines) + "\n").encode()


def side(
    stacks: dict[str, tuple[int, int]], build: str = "aa" * 20, interval: int = INTERVAL, base: int = 0x400000
) -> Side:
    def resolve(locations: Sequence[Location]) -> list[list[Frame]]:
        offsets = [location.address - base for location in locations]
        return [[Frame(f"f{at:x}" if at < 0x8000 else "", "app", offset=at)] for at in offsets]

    samples = named(located(heap_v2.parse(text(stacks, interval, base), "x"), {"/srv/app": build}), resolve)
    return Side(samples, ("/srv/app", build), {"dump": "x"})


def test_grown_shrunk_new_and_gone() -> None:
    before = side({"1 9": (9000, 9 << 20), "2 9": (9000, 9 << 20), "3 9": (9000, 9 << 20), "5 9": (10, 4096)})
    after = side(
        {"1 9": (19000, 19 << 20), "2 9": (999, 1 << 20), "4 9": (9000, 9 << 20), "5 9": (11, 4200)}, base=0x7F0000
    )
    found = {item.path: item for item in compare(before, after).differences}
    assert {path[0]: item.change for path, item in found.items()} == {
        "f1": Change.GROWN,
        "f2": Change.SHRUNK,
        "f3": Change.GONE,
        "f4": Change.NEW,
        "f5": Change.NOT_SIGNIFICANT,
    }
    grown = found["f1", "f9"]
    assert grown.before < grown.after
    assert 0 < grown.error < grown.difference
    by_function = compare(before, after, by=By.FUNCTIONS)
    assert {item.path for item in by_function.differences} == {("f1",), ("f2",), ("f3",), ("f4",), ("f5",), ("f9",)}


def test_offsets_are_compared_within_one_build_only() -> None:
    stacks = {"9000": (9000, 9 << 20), "9100": (9000, 9 << 20)}
    assert {item.path for item in compare(side(stacks), side(stacks, base=0x10000000)).differences} == {
        ("app+0x9000",),
        ("app+0x9100",),
    }
    found = compare(side(stacks), side({"9040": (18000, 18 << 20)}, build="bb" * 20))
    assert [(item.path, item.change) for item in found.differences] == [(("app",), Change.NOT_SIGNIFICANT)]
    assert "another build" in found.warnings[0]


def test_what_cannot_be_compared_warns_in_the_output() -> None:
    stacks = {"1": (9000, 9 << 20)}
    other = Side(side(stacks, interval=8192).samples, ("/srv/other", "cc" * 20), {"dump": "y", "host": "app2"})
    found = compare(side(stacks), other)
    assert len(found.warnings) == 2
    shown = comparison.text(found, side(stacks), other)
    assert "sample intervals differ" in shown
    assert "different programs" in shown
    assert "host app2" in shown
    document = json.loads(comparison.as_json(found, side(stacks), other))
    assert document["warnings"] == found.warnings
    assert document["after"] == {"dump": "y", "host": "app2"}


def test_a_difference_of_objects_has_an_error_too() -> None:
    before, after = side({"1": (90, 9000)}), side({"1": (93, 9300)})
    found = compare(before, after, Measure.INUSE_OBJECTS).differences[0]
    assert found.change is Change.NOT_SIGNIFICANT
    assert found.error > 3


def test_without_sampling_every_difference_counts() -> None:
    found = compare(side({"1": (90, 9000)}, interval=1), side({"1": (91, 9100)}, interval=1)).differences[0]
    assert (found.change, found.error) == (Change.GROWN, 0.0)


def test_memory_that_lives_is_not_compared_with_memory_that_came() -> None:
    live = side({"1": (90, 9000)})
    came = replace(live, samples=replace(live.samples, measure=Measured.ALLOCATED))
    with pytest.raises(MeasureError, match="allocated and live memory"):
        compare(live, came)
    assert compare(came, came).total.difference == 0


def test_where_nobody_says_how_it_was_sampled_no_difference_counts() -> None:
    one, other = side({"1": (9000, 9 << 20)}), side({"1": (90000, 90 << 20)})
    assert compare(one, other).differences[0].change is Change.GROWN
    unknown = Sampling(Scheme.UNKNOWN)
    samples = replace(one.samples, sampling=unknown, variance=variances(one.samples.values, unknown))
    found = compare(replace(one, samples=samples), other).differences[0]
    assert (found.change, found.error) == (Change.NOT_SIGNIFICANT, math.inf)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Samples]:
    """Many runs of the same program, each at other addresses and with other samples."""
    directory = tmp_path_factory.mktemp("aslr")
    program = profiled_programs._compile(directory, "same.c", PROGRAM, "-g")
    images = Images([Path("/")])
    reader = DumpReader(images, directory / "symcaches")
    found = []
    starts = set()
    for number in range(RUNS):
        settings = f"prof:true,lg_prof_sample:12,prof_final:true,prof_prefix:{directory}/{number}"
        environment = {"LD_PRELOAD": _libjemalloc(), "MALLOC_CONF": settings}
        subprocess.run([program], env=environment, check=True, capture_output=True, timeout=60)
        source = reader.read(next(directory.glob(f"{number}.*.heap")))
        starts.add(min(at.address for at in source.samples.locations if at.path == program))
        found.append(source.samples)
    assert len(starts) > RUNS / 2, "address space layout randomization is off here"
    return found


def test_no_difference_where_there_is_none(runs: list[Samples]) -> None:
    """At most 5 % of the stacks of two runs of one program may be flagged at 95 %."""
    flagged = compared = 0
    for before, after in zip(runs[::2], runs[1::2], strict=True):
        found = compare(Side(before), Side(after)).differences
        compared += len(found)
        flagged += sum(item.change is not Change.NOT_SIGNIFICANT for item in found)
    assert compared > 15 * RUNS / 2
    assert flagged <= 0.05 * compared


def test_the_same_runs_are_no_one_sided_coin(runs: list[Samples]) -> None:
    """The errors are no wider than they must be: (nearly) every pair of runs shows a stack that doubles."""
    seen = 0
    for before, after in zip(runs[::2], runs[1::2], strict=True):
        doubled = combine([(after, 2.0)])
        largest = compare(Side(before), Side(doubled), by=By.FUNCTIONS).of(Change.GROWN)
        seen += any(item.path == ("hold20",) for item in largest)
    assert seen >= 0.95 * RUNS / 2


def test_the_order_of_runs_does_not_matter(runs: list[Samples]) -> None:
    chosen = random.Random(7).sample(runs, 2)
    one = compare(Side(chosen[0]), Side(chosen[1]))
    other = compare(Side(chosen[1]), Side(chosen[0]))
    assert {(item.path, round(item.difference)) for item in one.differences} == {
        (item.path, -round(item.difference)) for item in other.differences
    }
    assert one.total.difference == pytest.approx(-other.total.difference)
    assert combine([(chosen[0], 1.0), (chosen[0], -1.0)]).total(BYTES) == pytest.approx(0)
