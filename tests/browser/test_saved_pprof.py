# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""What is seen on the page, saved for pprof: what our own reader and Go's find in the file."""

from __future__ import annotations

import gzip
import random
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from ansible_collections.offheap.profiler.plugins.plugin_utils.export import flamegraph
from ansible_collections.offheap.profiler.plugins.plugin_utils.model.raw import Records, Told
from ansible_collections.offheap.profiler.plugins.plugin_utils.model.sampling import Measure
from ansible_collections.offheap.profiler.plugins.plugin_utils.readers import detect, pprof_profile
from ansible_collections.offheap.profiler.plugins.plugin_utils.readers.format_error import UnusableError
from ansible_collections.offheap.profiler.tests.browser import fleets
from ansible_collections.offheap.profiler.tests.browser.conftest import Open
from ansible_collections.offheap.profiler.tests.unit.strategies import go_program
from ansible_collections.offheap.profiler.tests.unit.strategies.profiles import profile

Pages = Callable[[str, Callable[[], dict[str, Any]]], Path]
Stacks = dict[str, int]
LIVE = "base=none"
CHANGED = Told(measure=Measure.GROWN)  # a difference says of itself that it is no heap


def _file(page: Page, button: str) -> tuple[str, bytes]:
    with page.expect_download() as download:
        page.locator(button).click()
    return download.value.suggested_filename, Path(download.value.path()).read_bytes()


def _folded(page: Page) -> Stacks:
    lines = _file(page, "#savefolded")[1].decode().splitlines()
    return {stack: int(size) for stack, _blank, size in (line.rpartition(" ") for line in lines)}


def _pprof(page: Page) -> bytes:
    name, content = _file(page, "#savepprof")
    assert name.endswith(".pb.gz")
    return gzip.decompress(content)


def _stacks(records: Records) -> Stacks:
    found: Counter[str] = Counter()
    for stack, size in zip(records.stacks(), records.counts.bytes, strict=True):
        found[";".join(records.names[place].function for place in reversed(stack)) or "[no stack]"] += int(size)
    return dict(found)


def test_it_is_a_profile_of_the_live_memory_that_is_shown(opened: Open) -> None:
    page = opened(at=LIVE)
    data = _pprof(page)
    assert detect.source_of(data, "x") == "pprof"
    records = detect.parse(data, "x", Told())
    assert records.measure is Measure.LIVE and records.sampling.interval > 1
    assert _stacks(records) == _folded(page)
    shown = re.search(r"([\d.]+) MiB", page.inner_text("#detail"))
    assert shown and sum(_stacks(records).values()) / fleets.MIB == pytest.approx(float(shown[1]), abs=0.06)
    assert records.time == pytest.approx(fleets.START + 23 * fleets.STEP, abs=1e-6), "of the newest of 24 dumps"
    modules = {frame.function: frame.module for frame in records.names}
    assert (modules["inflate"], modules["Frontend.serveAsset"]) == ("libz.so.1", "[java]")


@pytest.mark.parametrize(
    "at",
    [
        f"{LIVE}&from=leaf",
        f"{LIVE}&from=calls",
        f"{LIVE}&fold=1",
        f"{LIVE}&hide=Frontend.unpack",
        "thread=1",
        "what=grown",
        "what=shrunk",
        "what=grown&from=leaf&fold=1",
    ],
)
def test_every_view_is_saved_as_it_is_seen(opened: Open, at: str) -> None:
    page = opened(at=at)
    stacks = _folded(page)
    assert stacks and _stacks(pprof_profile.parse(_pprof(page), "x", CHANGED)) == stacks


def test_what_is_zoomed_to_and_what_a_function_calls_are_saved_alone(opened: Open) -> None:
    page = opened(at=f"{LIVE}&find=^Frontend.unpack$")
    page.locator("#next").click()
    zoomed = _stacks(pprof_profile.parse(_pprof(page), "x", Told()))
    assert zoomed == _folded(page) and all(";Frontend.unpack;" in stack for stack in zoomed)
    page.locator("#detail button", has_text="Callers and callees").click()
    expect(page.locator("#callers")).to_be_visible()
    callees = _stacks(pprof_profile.parse(_pprof(page), "x", Told()))
    assert callees == _folded(page) and all(stack.startswith("Frontend.unpack;") for stack in callees)


def test_growth_is_not_taken_for_what_is_live(opened: Open) -> None:
    data = _pprof(opened(at="what=grown"))
    with pytest.raises(UnusableError, match="a profile of inuse_space_grown/bytes"):
        detect.parse(data, "x", Told())


def test_a_page_of_allocations_saves_them_as_such(opened: Open, tmp_path: Path) -> None:
    samples = replace(profile(fleets.jvm(20, random.Random(3))), measure=Measure.ALLOCATED)
    path = tmp_path / "allocated.html"
    path.write_text(flamegraph.render(flamegraph.Page("a.heap", "app1", "", "Total", ""), samples))
    page = opened(path)
    expect(page.locator("#detail")).to_contain_text(re.compile(r"MiB ± .* allocated, 100\.0 %"))
    records = detect.parse(_pprof(page), "x", Told())
    assert (records.measure, records.time) == (Measure.ALLOCATED, 0), "the page does not know when it was taken"


def test_lines_of_source_are_in_it(opened: Open, pages: Pages) -> None:
    page = opened(pages("debuggable", fleets.debuggable), at=LIVE)
    records = detect.parse(_pprof(page), "x", Told())
    sites = {(frame.function, frame.file, frame.line) for frame in records.names}
    assert {("main", "/src/shop/main.c", 12), ("keep", "/src/shop/keep.c", 0)} <= sites, "of two lines none is told"


def test_names_that_try_to_be_something_else_stay_names(opened: Open, pages: Pages) -> None:
    page = opened(pages("hostile", fleets.hostile), at=LIVE)
    assert fleets.HOSTILE in {frame.function for frame in detect.parse(_pprof(page), "x", Told()).names}


@pytest.mark.parametrize(("at", "kind"), [(LIVE, "inuse_space"), ("what=grown", "inuse_space_grown")])
def test_go_reads_the_same_stacks(opened: Open, tmp_path: Path, at: str, kind: str) -> None:
    page = opened(at=at)
    (tmp_path / "x.pb.gz").write_bytes(gzip.compress(_pprof(page)))
    raw = go_program.go(tmp_path, "tool", "pprof", "-raw", "x.pb.gz")
    assert f"{kind}/bytes" in raw
    samples, locations = raw.partition("Samples:\n")[2].split("Locations\n")
    names = dict(re.findall(r"^ +(\d+): 0x0 (?:M=\d+ )?(.*) :0", locations, re.MULTILINE))
    found = {}
    for size, calls in re.findall(r"^ +(\d+): ([\d ]+)$", samples, re.MULTILINE):
        found[";".join(names[number] for number in reversed(calls.split()))] = int(size)
    assert found == _folded(page)
    top = go_program.go(tmp_path, "tool", "pprof", "-top", "x.pb.gz")
    assert top.startswith("File: java\nfrontend.service. Stacks on app") and ("grown from" in top) == (
        kind != "inuse_space"
    )
