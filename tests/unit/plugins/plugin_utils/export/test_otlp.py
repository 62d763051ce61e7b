# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""What is sent by OTLP says the same as pprof's format, and our reader takes it back."""

from __future__ import annotations

import pytest

from ansible_collections.offheap.profiler.plugins.plugin_utils.base import profile_proto
from ansible_collections.offheap.profiler.plugins.plugin_utils.export import otlp
from ansible_collections.offheap.profiler.plugins.plugin_utils.export.pprof import About
from ansible_collections.offheap.profiler.plugins.plugin_utils.model.raw import Told
from ansible_collections.offheap.profiler.plugins.plugin_utils.readers import otlp_profile
from ansible_collections.offheap.profiler.tests.unit.strategies.samples import BUILD_ID, samples_of

RESOURCE = {"service.name": "shop", "host.name": "app1"}
ABOUT = About(time=1761234567.25, executable="/srv/app")
SENT = otlp.render(samples_of(), ABOUT, RESOURCE, "app1 abc")


def test_each_number_is_a_profile_with_the_total_of_its_own() -> None:
    request = profile_proto.message_class("OtlpRequest", "string").FromString(SENT)
    texts, (of_resource,) = request.dictionary.string_table, request.resource_profiles
    assert {one.key: one.value.text for one in of_resource.resource.attributes} == RESOURCE
    profiles = of_resource.scope_profiles[0].profiles
    kinds = [(texts[one.sample_type.type], texts[one.sample_type.unit]) for one in profiles]
    assert kinds == [
        ("inuse_objects", "count"),
        ("inuse_space", "bytes"),
        ("alloc_objects", "count"),
        ("alloc_space", "bytes"),
    ]
    for row, one in enumerate(profiles):
        total = sum(value for sample in one.samples for value in sample.values)
        assert total == pytest.approx(samples_of().total(row), abs=len(one.samples))
        assert one.time_unix_nano == 1761234567250000000
    ids = [one.profile_id for one in profiles]
    assert len(set(ids)) == 4 and {len(one) for one in ids} == {16}
    again = otlp.render(samples_of(), ABOUT, RESOURCE, "app1 abc")
    assert again == SENT and otlp.render(samples_of(), ABOUT, RESOURCE, "app1 abd") != SENT


def test_tables_begin_with_nothing_and_every_number_points_somewhere() -> None:
    request = profile_proto.message_class("OtlpRequest", "string").FromString(SENT)
    tables = request.dictionary
    assert tables.string_table[0] == "" and not tables.stack_table[0].locations
    for table in (tables.mapping_table, tables.location_table, tables.function_table, tables.attribute_table):
        assert table[0].SerializeToString() == b""
    for stack in tables.stack_table[1:]:
        assert stack.locations and all(0 < place < len(tables.location_table) for place in stack.locations)
    for location in tables.location_table[1:]:
        assert 0 <= location.mapping < len(tables.mapping_table)
        assert all(0 < line.function < len(tables.function_table) for line in location.lines)
    told = [(tables.string_table[one.key], one.value.text) for one in tables.attribute_table[1:]]
    assert ("process.executable.build_id.gnu", BUILD_ID) in told
    assert {key for key, _text in told} == {"process.executable.build_id.gnu", "thread.id", "thread.name"}


def test_our_reader_takes_it_back() -> None:
    assert otlp_profile.recognizes(SENT)
    records = otlp_profile.parse(SENT, "sent", Told())
    assert records.total.bytes == pytest.approx(samples_of().total(1), abs=20)
    assert records.total.objects == pytest.approx(samples_of().total(0), abs=20)
