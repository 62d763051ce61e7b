# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""pprof's format: what the file contains, and what Go's own pprof reads from it.

Without Go the second half fails: nobody shall believe in silence that the file opens.
"""

from __future__ import annotations

import gzip
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.offheap.profiler.plugins.plugin_utils.base import profile_proto
from ansible_collections.offheap.profiler.plugins.plugin_utils.export import pprof
from ansible_collections.offheap.profiler.plugins.plugin_utils.model.samples import combine
from ansible_collections.offheap.profiler.plugins.plugin_utils.views.selection import Selection
from ansible_collections.offheap.profiler.tests.unit.strategies import go_program
from ansible_collections.offheap.profiler.tests.unit.strategies.profiles import profile
from ansible_collections.offheap.profiler.tests.unit.strategies.samples import BUILD_ID, DUMP, samples_of

ABOUT = pprof.About(time=1761234567.25, executable="/srv/app", comments=["host app1"])


def read(content: bytes) -> Any:
    return profile_proto.profile_class().FromString(gzip.decompress(content))


def test_all_numbers_are_there_and_threads_sum_to_stacks() -> None:
    samples = samples_of()
    profile = read(pprof.render(samples, ABOUT))
    text = profile.string_table
    assert [(text[kind.type], text[kind.unit]) for kind in profile.sample_type] == [
        ("inuse_objects", "count"),
        ("inuse_space", "bytes"),
        ("alloc_objects", "count"),
        ("alloc_space", "bytes"),
    ]
    for row in range(4):
        total = sum(sample.value[row] for sample in profile.sample)
        assert total == pytest.approx(samples.total(row), abs=len(profile.sample))
    labels = {(text[label.key], text[label.str]) for sample in profile.sample for label in sample.label}
    assert labels == {("thread_id", "0"), ("thread_id", "1"), ("thread", "main"), ("thread", "worker <1>")}
    assert text[profile.default_sample_type] == "inuse_space"
    assert profile.period == 524288 and profile.time_nanos == 1761234567250000000
    assert [text[comment] for comment in profile.comment] == ["host app1"]


def test_threads_that_stand_for_more_than_their_stack_leave_it_no_negative_rest() -> None:
    samples = samples_of()
    more = replace(samples, thread_values=samples.thread_values * 1.7)
    written = read(pprof.render(more, ABOUT))
    for row in range(4):
        values = [sample.value[row] for sample in written.sample]
        assert min(values) >= 0 and sum(values) == pytest.approx(samples.total(row), abs=len(values))


def test_mappings_have_build_ids_and_locations_lie_in_them() -> None:
    profile = read(pprof.render(samples_of(), ABOUT))
    text = profile.string_table
    mappings = {mapping.id: mapping for mapping in profile.mapping}
    assert (text[profile.mapping[0].filename], text[profile.mapping[0].build_id]) == ("/srv/app", BUILD_ID)
    for location in profile.location:
        mapping = mappings.get(location.mapping_id)
        assert mapping is None or mapping.memory_start <= location.address < mapping.memory_limit
    by_address = {location.address: location for location in profile.location}
    names = {function.id: text[function.name] for function in profile.function}
    inlined = by_address[0x401010]
    assert [(names[line.function_id], line.line) for line in inlined.line] == [("allocate;it", 7), ("grow", 40)]
    assert by_address[0x7F0000001030].mapping_id == 2 and not mappings[2].has_functions
    assert by_address[0x900000].mapping_id == 0


def test_calls_without_addresses_are_locations_of_their_own() -> None:
    both = profile({("inflate", "unzip", "main"): 4096.0, ("deflate", "main"): 4096.0})
    written = read(pprof.render(combine([(both, 1.0), (both, 1.0)])))
    name = {function.id: written.string_table[function.name] for function in written.function}
    calls = {location.id: [name[line.function_id] for line in location.line] for location in written.location}
    assert [[calls[at] for at in sample.location_id] for sample in written.sample] == [
        [["inflate"], ["unzip"], ["main"]],
        [["deflate"], ["main"]],
    ]


def test_an_inlined_call_that_is_left_out_is_in_no_location() -> None:
    samples = samples_of()
    shown = Selection(exclude="^allocate;it$").apply(samples)
    names = [set(read(pprof.render(one)).string_table) for one in (samples, shown)]
    assert names[0] - names[1] == {"allocate;it"} and "grow" in names[1]


def test_every_number_in_a_message_points_somewhere() -> None:
    profile = read(pprof.render(samples_of()))
    functions = {function.id for function in profile.function}
    locations = {location.id for location in profile.location}
    assert all(set(sample.location_id) <= locations for sample in profile.sample)
    assert all(line.function_id in functions for location in profile.location for line in location.line)
    assert profile.string_table[0] == "" and len(set(profile.string_table)) == len(profile.string_table)


def test_the_same_samples_give_the_same_bytes() -> None:
    assert pprof.render(samples_of(), ABOUT) == pprof.render(samples_of(), ABOUT)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["inuse_objects", "inuse_space", "alloc_objects", "alloc_space"])
def test_go_reads_it(tmp_path: Path, kind: str) -> None:
    samples = samples_of(DUMP)
    (tmp_path / "x.pb.gz").write_bytes(pprof.render(samples, ABOUT))
    row = ["inuse_objects", "inuse_space", "alloc_objects", "alloc_space"].index(kind)
    options = ("-top", "-symbolize=none", "-unit=B" if "space" in kind else "-unit=count", f"-sample_index={kind}")
    printed = go_program.go(tmp_path, "tool", "pprof", *options, "x.pb.gz")
    assert f"Build ID: {BUILD_ID}" in printed and "host app1" in printed and "File: app" in printed
    total = re.search(r"of ([0-9.]+)(?:B)? total", printed)
    assert total and float(total[1]) == pytest.approx(samples.total(row), rel=1e-3, abs=5), printed
    assert re.search(r" 100%\s+\S+\s+100%  allocate;it \(inline\)", printed), printed


@pytest.mark.slow
def test_go_cuts_nothing_out_of_names(tmp_path: Path) -> None:
    """It demangles what looks as if it were mangled, and two functions would have one name."""
    cpp = ("Cache<int>::get", "Cache<long>::get", "Shop::operator()", "(anonymous namespace)::keep")
    names = [*cpp, "<alloc::vec::Vec<T> as core::clone::Clone>::clone", "<shop::Cart as core::clone::Clone>::clone"]
    (tmp_path / "x.pb.gz").write_bytes(pprof.render(profile({(name, "main"): 1e9 for name in names})))
    printed = go_program.go(tmp_path, "tool", "pprof", "-top", "x.pb.gz")
    assert [name for name in names if not re.search(rf"%  {re.escape(name)}$", printed, re.MULTILINE)] == []
