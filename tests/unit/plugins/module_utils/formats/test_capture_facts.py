# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""The facts of a capture: what is accepted, what is refused and why, and what is written."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.offheap.profiler.plugins.module_utils.formats.capture_facts import (
    CaptureFacts,
    CaptureFactsError,
    SamplingFacts,
    UnknownImage,
    sampling_of,
)
from ansible_collections.offheap.profiler.tests.unit.plugins.plugin_utils.archive import capture_samples

BUILD_ID = capture_samples.BUILD_ID
SAID = {"format": 2, "source": "perf", "measure": "grown", "sampling": {"scheme": "systematic", "interval": 4096}}


def said(**changed: Any) -> dict[str, Any]:
    """Facts of format 2."""
    return {**capture_samples.written(), **SAID, **changed}


def without(part: str, field: str) -> dict[str, Any]:
    facts = capture_samples.written()
    del facts[part][field]
    return facts


def changed(part: str, field: str, value: object) -> dict[str, Any]:
    facts = capture_samples.written()
    facts[part][field] = value
    return facts


@pytest.mark.parametrize(
    "facts",
    [
        None,
        [],
        {},
        {**capture_samples.written(), "format": 3},
        {**capture_samples.written(), "host": ""},
        {**capture_samples.written(), "host": "\udcff"},
        {**capture_samples.written(), "label": ["2.1"]},
        {**capture_samples.written(), "unit": "../x.service"},
        {**capture_samples.written(), "unit": "frontend"},
        {**capture_samples.written(), "dump": "x"},
        {**capture_samples.written(), "images": {}},
        {**capture_samples.written(), "images": [{"path": "/x", "build_id": "../..", "size": 1}]},
        {**capture_samples.written(), "images": [{"path": "/x", "build_id": BUILD_ID, "size": None}]},
        {**capture_samples.written(), "images": [{"path": "/x", "build_id": None, "size": None}]},
        *(
            {**capture_samples.written(), "images": [{"path": "/x", "build_id": BUILD_ID, "size": 1, "sha256": junk}]}
            for junk in ("", "../x", "AB" * 32, "ab" * 31, 1, ["ab" * 32])
        ),
        without("dump", "sha256"),
        without("process", "key"),
        changed("dump", "name", "../../../etc/passwd"),
        changed("dump", "name", "jeprof.13.0.i0.heap"),
        changed("dump", "size", -1),
        changed("dump", "size", True),
        changed("dump", "size", "1"),
        changed("dump", "sha256", "../" + "0" * 61),
        changed("dump", "time", float("nan")),
        changed("process", "key", "../../x"),
        changed("process", "key", "13-1a2b3c4d"),
        changed("process", "boot_id", "../.."),
        changed("process", "cmdline", "java"),
        changed("process", "cmdline", [1]),
        changed("process", "exe", "x" * 20000),
    ],
)
def test_facts_that_are_not_sound(facts: Any) -> None:
    with pytest.raises(CaptureFactsError):
        CaptureFacts.from_json(facts)


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"source": "../perf"}, "source"),
        ({"source": None}, "source"),
        ({"measure": ["live"]}, "measure"),
        ({"measure": "most"}, "measure"),
        ({"sampling": None}, "sampling is not a mapping"),
        ({"sampling": {"scheme": "poisson"}}, "sampling.interval"),
        ({"sampling": {"scheme": "poisson", "interval": None}}, "sampling.interval"),
        ({"sampling": {"scheme": "poisson", "interval": 0}}, "sampling.interval"),
        ({"sampling": {"scheme": "exact", "interval": 5}}, "sampling.interval"),
        ({"sampling": {"scheme": "by chance", "interval": 5}}, "sampling.scheme"),
        ({"dump": {**capture_samples.written()["dump"], "size": -1}}, "dump.size .*-1"),
        ({"agent": "much"}, "agent is not a mapping"),
    ],
)
def test_the_first_wrong_field_is_named(changed: dict[str, Any], named: str) -> None:
    with pytest.raises(CaptureFactsError, match=named):
        CaptureFacts.from_json(said(**changed))


def _ways(value: Any, way: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [way, *(found for key, child in children for found in _ways(child, (*way, key)))]


@pytest.mark.slow
@given(st.sampled_from(_ways(said())), st.none() | st.booleans() | st.integers() | st.text(max_size=9) | st.just([{}]))
def test_junk_anywhere_raises_one_kind_of_error_or_is_kept(way: tuple[Any, ...], junk: Any) -> None:
    found: Any = json.loads(json.dumps(said()))
    place, parent = found, None
    for key in way:
        parent, place = place, place[key]
    if parent is None:
        found = junk
    else:
        parent[way[-1]] = junk
    with contextlib.suppress(CaptureFactsError):
        CaptureFacts.from_json(found).to_json()


def test_what_a_later_version_adds_is_kept() -> None:
    facts = said(colour="red")
    facts["dump"]["perf_map"] = True
    facts["process"]["threads"] = 3
    assert CaptureFacts.from_json(facts).to_json() == facts


def test_format_1_is_jemallocs_and_stays_what_it_was() -> None:
    facts = CaptureFacts.from_json(capture_samples.written())
    assert (facts.source, facts.measure, facts.sampling) == ("jemalloc", "live", None)
    assert facts.to_json() == capture_samples.written()
    assert facts.images[1] == UnknownImage("/opt/gone.so", "replaced")
    assert facts.build_ids == {"/usr/lib/libz.so.1.2.13": BUILD_ID}


def test_an_image_says_its_sum_or_none() -> None:
    facts = said()
    assert CaptureFacts.from_json(facts).sums == {BUILD_ID: capture_samples.SHA256}
    del facts["images"][0]["sha256"]
    old = CaptureFacts.from_json(facts)
    assert (old.sums, old.to_json()) == ({}, facts), "what is there never changes"


@pytest.mark.parametrize(
    ("head", "sampling"),
    [
        (b"heap_v2/524288\n  t*: 1: 2", SamplingFacts("poisson", 524288)),
        (b"heap_v2/1\n", SamplingFacts("poisson", 1)),
        (b"heap_v2/0\n", SamplingFacts("unknown", None)),
        (b"heap_v2/" + b"9" * 19 + b"\n", SamplingFacts("unknown", None)),
        (b"heap_v2/524288", SamplingFacts("unknown", None)),
        (b"heap profile:", SamplingFacts("unknown", None)),
        (b"", SamplingFacts("unknown", None)),
    ],
)
def test_a_dump_says_how_it_was_sampled(head: bytes, sampling: SamplingFacts) -> None:
    assert sampling_of(head) == sampling
