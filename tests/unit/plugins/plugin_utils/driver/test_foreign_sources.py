# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Every output format on dumps of sources that are not jemalloc, and what it says of numbers that are not live."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import jsonschema
import pytest

from ansible_collections.offheap.profiler.plugins.module_utils.formats.errors import OffheapError
from ansible_collections.offheap.profiler.plugins.plugin_utils.driver.analyze import analyze, analyze_dump
from ansible_collections.offheap.profiler.plugins.plugin_utils.driver.compare_dumps import CompareRequest, compare_dumps
from ansible_collections.offheap.profiler.plugins.plugin_utils.driver.formats import FORMATS, Request
from ansible_collections.offheap.profiler.plugins.plugin_utils.driver.sources import DumpReader, Images, Places, Source
from ansible_collections.offheap.profiler.plugins.plugin_utils.driver.told_options import told_in_short
from ansible_collections.offheap.profiler.plugins.plugin_utils.model.raw import Told
from ansible_collections.offheap.profiler.plugins.plugin_utils.model.sampling import Measure
from ansible_collections.offheap.profiler.plugins.plugin_utils.views import table

ROOT = Path(__file__).resolve().parents[5]
STACKS = "main;serve;inflate 65536\nmain;idle 4096\n"
JEMALLOC = "heap_v2/1\n  t*: 1: 4096 [9: 9999]\n@ 0x1\n  t*: 1: 4096 [9: 9999]\n\nMAPPED_LIBRARIES:\n"
# Pictures need Graphviz, and these stacks have neither lines nor images; all show the same table.
SHOWN = [kind for kind in FORMATS if kind not in ("svg", "pdf", "png", "gif", "ps", "list", "disasm")]


def read(told: Told, directory: Path, stacks: str = STACKS) -> Source:
    path = directory / "x.folded"
    path.write_text(stacks)
    return DumpReader(Images(), directory, told).read(path)


@pytest.mark.parametrize("kind", SHOWN)
@pytest.mark.parametrize("measure", Measure)
def test_every_format_shows_every_measure(kind: str, measure: Measure, tmp_path: Path) -> None:
    source = read(Told(measure, "bytes"), tmp_path)
    analysis = analyze(Request(kind=kind, function="inflate"), source, None, Images())
    content = analysis.content
    assert content
    assert analysis.data(Request().look)["total_error"] is None, "nobody knows how these were sampled"
    if kind not in ("pprof", "collapsed", "json", "firefox"):
        # The page's own code knows the name, for what it saves.
        own = content.replace(b'"inuse_space"', b"") if kind == "flamegraph" else content
        assert (b"inuse_space" in own) == (measure in (Measure.LIVE, Measure.LARGEST))
    if kind in ("text", "tree", "peek", "traces", "flamegraph"):
        assert (b"not what is live" in content) == (measure in (Measure.ALLOCATED, Measure.GROWN))
        assert (b"there may be more" in content) == (measure is Measure.LARGEST)
    if kind == "json":
        document = json.loads(content, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
        jsonschema.validate(document, json.loads((ROOT / "docs" / "profile.schema.json").read_text()))
        assert document["measure"] == measure.value


def test_what_a_source_does_not_count_is_not_shown(tmp_path: Path) -> None:
    source = read(Told(Measure.ALLOCATED, "bytes"), tmp_path)
    with pytest.raises(OffheapError, match="stand for its own numbers, allocated since the source began to count"):
        analyze(Request(measure=table.Measure.ALLOC_SPACE), source, None, Images())


@pytest.mark.parametrize(
    ("counted", "asked", "words"),
    [
        ("bytes", "inuse_objects", "counts bytes and no objects: set measure to inuse_space"),
        ("objects", "inuse_space", "counts objects and no bytes: set measure to inuse_objects"),
        ("bytes", "alloc_space", "has no accumulated counts"),
    ],
)
def test_what_one_of_two_does_not_count_is_not_taken_for_0(
    counted: str, asked: str, words: str, tmp_path: Path
) -> None:
    places = Places(symcaches=tmp_path / "symcaches", told=Told(Measure.LIVE, counted, 1))
    foreign = tmp_path / "x.folded"
    foreign.write_text(STACKS)
    (tmp_path / "y.heap").write_text(JEMALLOC)
    request = CompareRequest(table.Measure(asked))
    for before, after in (foreign, tmp_path / "y.heap"), (tmp_path / "y.heap", foreign):
        with pytest.raises(OffheapError, match=words):
            compare_dumps(request, before, after, places)
        with pytest.raises(OffheapError, match=words):
            analyze_dump(Request(measure=request.measure), after, before, places, print)


def test_what_is_empty_is_0_of_all(tmp_path: Path) -> None:
    (tmp_path / "x.heap").write_text("heap_v2/1\n  t*: 0: 0 [0: 0]\n\nMAPPED_LIBRARIES:\n")
    (tmp_path / "y.heap").write_text(JEMALLOC)
    request = CompareRequest(table.Measure.ALLOC_OBJECTS)
    found = compare_dumps(request, tmp_path / "x.heap", tmp_path / "y.heap", Places(symcaches=tmp_path / "symcaches"))
    assert (round(found.found.total.before), round(found.found.total.after)) == (0, 9)


def test_an_exact_source_has_no_errors(tmp_path: Path) -> None:
    source = read(told_in_short("live:bytes:1"), tmp_path)
    answer = analyze(Request(), source, None, Images())
    assert answer.data(Request().look)["total_error"] == 0
    assert b"every allocation" in answer.content


@pytest.mark.parametrize("text", ["living:bytes", "live:pages", "live:bytes:x", "live:bytes:1:2"])
def test_what_cannot_be_understood_is_refused(text: str) -> None:
    with pytest.raises(OffheapError, match="is not"):
        told_in_short(text)


def test_the_same_measure_is_compared_and_no_other(tmp_path: Path) -> None:
    before, after = tmp_path / "a", tmp_path / "b"
    before.write_text(STACKS)
    after.write_text(STACKS.replace("65536", "131072"))
    places = Places(binary_path=[tmp_path], symcaches=tmp_path, told=told_in_short("grown:bytes:1"))
    compared = compare_dumps(CompareRequest(), before, after, places)
    data = compared.data(0)
    assert data["measure"] == "grown_space" and data["total"]["difference"] == 65536
    assert [one["path"] for one in data["differences"]] == [["inflate", "serve", "main"]]
    assert any("not what is live" in warning for warning in compared.warnings)
    unknown = compare_dumps(CompareRequest(), before, after, replace(places, told=told_in_short("live:bytes")))
    assert unknown.data(0)["differences"] == [] and unknown.data(0)["total"]["error"] is None
    after.write_text("heap profile: 1: 8 [1: 8] @ heapprofile\n1: 8 [1: 8] @ 0x10\n\nMAPPED_LIBRARIES:\n")
    with pytest.raises(OffheapError, match="grown and live memory cannot be added or compared"):
        compare_dumps(CompareRequest(), before, after, places)


def test_intervals_that_differ_are_told_by_what_they_are(tmp_path: Path) -> None:
    before, after = tmp_path / "x.folded", tmp_path / "y.heap"
    before.write_text(STACKS)
    after.write_text(JEMALLOC.replace("heap_v2/1\n", "heap_v2/524288\n"))
    places = Places(symcaches=tmp_path / "symcaches", told=told_in_short("live:bytes:1"))
    [warning] = compare_dumps(CompareRequest(), before, after, places).warnings
    assert "intervals differ (every allocation and 512.0 KiB)" in warning
    unknown = replace(places, told=told_in_short("live:bytes"))
    [warning] = compare_dumps(CompareRequest(), before, after, unknown).warnings
    assert "it is unknown how the profiles were sampled" in warning
