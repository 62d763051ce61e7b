# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Profiles of Go against Go's own pprof, and those of other writers from their definitions."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.offheap.profiler.plugins.module_utils.formats.errors import OffheapError
from ansible_collections.offheap.profiler.plugins.plugin_utils.base import profile_proto, unpack
from ansible_collections.offheap.profiler.plugins.plugin_utils.export import pprof
from ansible_collections.offheap.profiler.plugins.plugin_utils.model.location import LINKED
from ansible_collections.offheap.profiler.plugins.plugin_utils.model.raw import Counts, Told
from ansible_collections.offheap.profiler.plugins.plugin_utils.model.samples import BYTES, located
from ansible_collections.offheap.profiler.plugins.plugin_utils.model.sampling import EXACT, Measure, Sampling, Scheme
from ansible_collections.offheap.profiler.plugins.plugin_utils.readers import detect, pprof_profile, protobuf_pieces
from ansible_collections.offheap.profiler.plugins.plugin_utils.readers.format_error import FormatError, UnusableError
from ansible_collections.offheap.profiler.tests.hostile.bounds import costs_at_most
from ansible_collections.offheap.profiler.tests.unit.strategies import go_program
from ansible_collections.offheap.profiler.tests.unit.strategies.samples import samples_of

LEAKED = 5000


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return go_program.built(tmp_path_factory.mktemp("go"))


@pytest.fixture(params=[1, 4096], ids=["every allocation", "one in 4 KiB"])
def of_go(request: pytest.FixtureRequest, program: Path, tmp_path: Path) -> tuple[Path, int]:
    """A heap profile that a Go program wrote of itself, and its rate."""
    go_program.write_profile(program, tmp_path / "heap.pb.gz", request.param, LEAKED)
    return tmp_path / "heap.pb.gz", request.param


def test_a_profile_of_go_has_the_numbers_of_its_own_tool(of_go: tuple[Path, int]) -> None:
    path, rate = of_go
    data = unpack.read(path, 1 << 20)
    assert detect.source_of(data, "x") == "pprof"
    records = detect.parse(data, "x", Told())
    assert (records.measure, records.sampling) == (Measure.LIVE, Sampling(Scheme.POISSON, rate))
    assert located(records, {}).values[BYTES].sum() == records.total.bytes, "scaled values are not scaled again"
    for index, ours in (("inuse_space", records.total.bytes), ("alloc_space", records.total.accum_bytes)):
        asked = (f"-sample_index={index}", "-unit=B", "-nodefraction=0", "-top", path.name)
        shown = go_program.go(path.parent, "tool", "pprof", *asked)
        assert re.search(rf"of {ours}B total", shown), shown
    assert records.time > 1.7e9
    flat: Counter[str] = Counter()
    for stack, size in zip(records.stacks(), records.counts.bytes, strict=True):
        flat[records.names[stack[0]].function] += size
    assert (
        flat["main.leak"] == LEAKED * go_program.SIZE if rate == 1 else flat["main.leak"] == pytest.approx(5e6, rel=0.2)
    )


def profile(
    types: list[tuple[str, str]], values: list[list[int]], period: tuple[str, int] = ("bytes", 0), default: str = ""
) -> Any:
    """A profile with one stack, alloc < main, for each list of values."""
    made = profile_proto.profile_class()()
    texts = ["", "alloc", "main", "/srv/app", period[0], *(text for kind in types for text in kind)]
    made.string_table.extend(texts)
    made.default_sample_type = texts.index(default) if default else 0
    made.period_type.type, made.period_type.unit, made.period = 4, 4, period[1]
    for kind, unit in types:
        made.sample_type.add(type=texts.index(kind), unit=texts.index(unit))
    made.mapping.add(id=1, memory_start=0x1000, memory_limit=0x9000, filename=3)
    for number in (1, 2):
        made.function.add(id=number, name=number)
        made.location.add(id=number, mapping_id=1, address=0x2000 * number).line.add(function_id=number, line=7)
    for one in values:
        made.sample.add(location_id=[1, 2], value=one)
    return made


def read(made: Any, told: Told | None = None) -> Any:
    return pprof_profile.parse(made.SerializeToString(), "x", told or Told())


DDPROF = [("alloc-samples", "count"), ("alloc-space", "bytes"), ("inuse-objects", "count"), ("inuse-space", "bytes")]
DATADOG = [
    ("cpu-time", "nanoseconds"),
    ("alloc-space", "bytes"),
    ("heap-space", "bytes"),
    ("heap-live-samples", "count"),
]
TCMALLOC = [("objects", "count"), ("space", "bytes")]


def test_ddprof_writes_dashes_and_labels() -> None:
    records = read(profile(DDPROF, [[3, 300, 2, 200]], ("bytes", 524288)))
    assert (records.measure, records.sampling) == (Measure.LIVE, Sampling(Scheme.POISSON, 524288))
    assert records.total == Counts(2, 200, 3, 300)
    (stack,) = records.stacks()
    assert [records.names[place].function for place in stack] == ["alloc", "main"]
    assert {frame.module for frame in records.names} == {"app"}


def test_dd_trace_s_live_heap_comes_before_what_was_allocated() -> None:
    records = read(profile(DATADOG, [[1, 300, 200, 2]], ("nanoseconds", 1)))
    assert (records.measure, records.sampling.scheme) == (Measure.LIVE, Scheme.UNKNOWN)
    assert records.total == Counts(2, 200, 0, 300)


def test_fields_come_in_any_order() -> None:
    """libdatadog writes samples first, and Go's CPU profiles begin with their time."""
    made = profile(DDPROF, [[3, 300, 2, 200]] * 99, ("bytes", 524288))
    fields = [
        type(made).FromString(made.SerializeToString())
        for _field in made.DESCRIPTOR.fields
        if _field.has_presence is False or made.HasField(_field.name)
    ]
    for kept, one in zip([field.name for field in made.DESCRIPTOR.fields], fields, strict=False):
        for field in made.DESCRIPTOR.fields:
            if field.name != kept:
                one.ClearField(field.name)
    pieces = [one.SerializeToString() for one in fields]
    for order in (pieces, pieces[::-1], pieces[1:] + pieces[:1]):
        data = b"".join(order)
        assert detect.source_of(data, "x") == "pprof"
        assert detect.parse(data, "x", Told()).total == Counts(198, 19800, 297, 29700)


@pytest.mark.parametrize("text", [b"2nd;main 12\n", b"main;work 4096\n" * 99, b"\n\x0a\x04main 3", b"j\x01 2\n"])
def test_a_text_is_no_profile(text: bytes) -> None:
    assert not pprof_profile.recognizes(text)


def test_a_name_that_is_not_utf_8_costs_only_itself() -> None:
    made = profile(DDPROF, [[3, 300, 2, 200]], ("bytes", 524288))
    data = made.SerializeToString().replace(b"alloc", b"all\xff\xfe", 1)
    assert [frame.function for frame in pprof_profile.parse(data, "x", Told()).names] == ["all\ufffd\ufffd", "main"]


def test_a_mapping_without_a_directory_keeps_its_name() -> None:
    made = profile(DDPROF, [[1, 8, 1, 8]], ("bytes", 1))
    made.string_table[3] = "./dylib/libc.so.6"
    for location in made.location:
        del location.line[:]
    places = located(read(made), {}).locations
    assert {one.path for one in places} == {"libc.so.6"}


def test_what_was_only_allocated_is_not_live() -> None:
    records = read(profile(DDPROF[:2], [[3, 300]], ("bytes", 524288)))
    assert (records.measure, records.total.objects, records.total.bytes) == (Measure.ALLOCATED, 3, 300)


@pytest.mark.parametrize(
    ("types", "default", "told", "measure"),
    [
        ([*TCMALLOC, ("resident_space", "bytes")], "space", None, Measure.LIVE),
        (TCMALLOC, "objects", None, Measure.ALLOCATED),
        (TCMALLOC, "space", Measure.GROWN, Measure.GROWN),
    ],
)
def test_tcmalloc_names_all_of_its_profiles_alike(
    types: list[tuple[str, str]], default: str, told: Measure | None, measure: Measure
) -> None:
    records = read(profile(types, [[3, 300, 400][: len(types)]], default=default), Told(told))
    assert (records.measure, records.sampling.scheme) == (measure, Scheme.UNKNOWN)
    assert (records.total.objects, records.total.bytes) == (3, 300)


@pytest.mark.parametrize(
    ("types", "why"),
    [
        (TCMALLOC, "set source_measure"),
        ([("samples", "count"), ("cpu", "nanoseconds")], "none of it is known to be memory: it counts time"),
        ([("alloc_in_new_tlab_bytes", "bytes")], "--source live::1"),
        ([], "nothing"),
    ],
)
def test_numbers_of_unknown_meaning_are_refused(types: list[tuple[str, str]], why: str) -> None:
    with pytest.raises(UnusableError, match=why):
        read(profile(types, []))


def test_addresses_keep_their_place_in_the_image() -> None:
    made = profile(DDPROF, [[1, 8, 1, 8]], ("bytes", 1))
    made.string_table.append("ab" * 20)
    del made.location[0].line[:]
    made.mapping[0].build_id, made.mapping[0].file_offset = len(made.string_table) - 1, 0x100
    places = located(read(made), {}).locations
    assert [(one.path, one.offset) for one in places] == [("/srv/app", 0x2000 - 0x1000 + 0x100)]
    assert read(made).build_ids == {"/srv/app": "ab" * 20}


def test_linked_addresses_lead_to_the_image() -> None:
    """jemalloc_pprof: every image begins at 0, with a mapping for each of its segments."""
    made = profile(DDPROF, [[1, 8, 1, 8]], ("bytes", 1))
    made.string_table.append("ab" * 20)
    for location in made.location:
        del location.line[:]
    made.mapping[0].build_id = len(made.string_table) - 1
    made.mapping[0].memory_start = made.mapping[0].memory_limit = 0
    made.mapping.add(id=2, filename=3, build_id=made.mapping[0].build_id)
    made.location[1].mapping_id = 2
    records = read(made)
    places = located(records, records.build_ids).locations
    assert [(one.path, one.build_id, one.shown, one.offset & LINKED) for one in places] == [
        ("/srv/app", "ab" * 20, 0x2000, LINKED),
        ("/srv/app", "ab" * 20, 0x4000, LINKED),
    ]
    # Without a build-id nothing leads to the image.
    made.mapping[0].build_id = made.mapping[1].build_id = 0
    records = read(made)
    assert not records.addresses and not records.mappings
    assert [frame.label for frame in records.names] == ["app+0x2000", "app+0x4000"]


def test_a_mapping_of_a_whole_image_has_linked_addresses() -> None:
    """mimalloc-pprof: what lies in the image's second segment has another offset in the file than from its begin."""
    made = profile(DDPROF, [[1, 8, 1, 8]], ("bytes", 1))
    for location in made.location:
        del location.line[:]
    made.string_table.append("dropped_samples=0 stack_table_overflows=0")
    made.comment.append(len(made.string_table) - 1)
    places = located(read(made), {}).locations
    assert [(one.path, one.shown, one.offset & LINKED) for one in places] == [
        ("/srv/app", 0x1000, LINKED),
        ("/srv/app", 0x3000, LINKED),
    ]
    made.mapping[0].file_offset = 0x1000  # one of a segment says so
    assert all(not one.offset & LINKED for one in located(read(made), {}).locations)


def test_a_build_id_is_no_path() -> None:
    made = profile(DDPROF, [])
    made.string_table.append("../../etc/passwd")
    made.mapping[0].build_id = len(made.string_table) - 1
    assert read(made).build_ids == {}


def test_our_own_export_is_read_back() -> None:
    samples = samples_of()
    records = detect.parse(unpack.unpack(pprof.render(samples), "x", 1 << 20), "x", Told())
    assert records.sampling == samples.sampling
    assert records.total.bytes == pytest.approx(samples.total(BYTES), abs=len(samples) * 3)


@pytest.mark.parametrize("measure", Measure)
def test_our_own_export_keeps_its_measure_and_its_sampling(measure: Measure) -> None:
    samples = replace(samples_of(), measure=measure, sampling=EXACT)
    records = detect.parse(unpack.unpack(pprof.render(samples), "x", 1 << 20), "x", Told())
    assert (records.measure, records.sampling.scatter) == (measure, 0)


def test_threads_never_hold_more_than_their_stack() -> None:
    samples = samples_of()
    samples.thread_values[:] *= 3
    records = detect.parse(unpack.unpack(pprof.render(samples), "x", 1 << 20), "x", Told())
    assert records.total.bytes == pytest.approx(samples.total(BYTES), abs=len(samples) * 3)


def test_a_piece_may_end_anywhere_between_fields(monkeypatch: pytest.MonkeyPatch) -> None:
    made = profile(DDPROF, [[number, 8 * number, 1, 8] for number in range(50)], ("bytes", 1))
    whole = read(made)
    monkeypatch.setattr(protobuf_pieces, "_PIECE", 1)
    again = read(made)
    assert again.counts.bytes == whole.counts.bytes
    assert (again.stack_places, again.names, again.total) == (whole.stack_places, whole.names, whole.total)


def damaged(change: Any) -> bytes:
    made = profile(DDPROF, [[1, 8, 1, 8]], ("bytes", 1))
    change(made)
    return bytes(made.SerializeToString())


@pytest.mark.parametrize(
    "data",
    [
        damaged(lambda made: made.sample[0].value.append(1)),
        damaged(lambda made: made.sample[0].location_id.append(9)),
        damaged(lambda made: made.sample[0].location_id.append(0)),
        damaged(lambda made: made.location[0].line.add(function_id=9)),
        damaged(lambda made: made.string_table.__delitem__(slice(5, None))),
        damaged(lambda made: [made.location[0].line.add(function_id=1) for _number in range(300)]),
        damaged(lambda made: made.sample[0].value.__setitem__(1, -8)),
        damaged(lambda made: made.sample[0].location_id.extend([1] * 5000)),
        damaged(lambda made: made.string_table.append("x" * (2 << 20))),
        damaged(lambda made: made.period_type.MergeFromString(b"\x10\x40")),
        damaged(lambda _made: None)[:-3],
        b"\x0a\x04\x08\x01\x10\x02" + b"\xff" * 30,
        b"\x0a\x04\x08\x01\x10\x02" + b"\x12\x00" * 100000,
    ],
    ids="values location zero function text lines negative deep long period cut number empty".split(),
)
def test_a_damaged_profile_is_refused(data: bytes) -> None:
    with costs_at_most(20, 64), pytest.raises((FormatError, UnusableError)) as caught:
        pprof_profile.parse(data, "x", Told())
    assert str(caught.value).isprintable()


@given(st.binary(max_size=300), st.integers(0, 200))
def test_rubbish_gives_our_error(rubbish: bytes, at: int) -> None:
    sound = damaged(lambda _made: None)
    for data in (rubbish, sound[:at] + rubbish + sound[at:]):
        try:
            pprof_profile.parse(data, "x", Told())
        except OffheapError as error:
            assert str(error).isprintable()
