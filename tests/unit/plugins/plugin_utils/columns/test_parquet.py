# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import duckdb
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.offheap.profiler.plugins.module_utils.formats.capture_facts import CaptureFacts, KnownImage
from ansible_collections.offheap.profiler.plugins.plugin_utils.columns import parquet, sample_cache
from ansible_collections.offheap.profiler.plugins.plugin_utils.columns.parquet import SamplesError
from ansible_collections.offheap.profiler.plugins.plugin_utils.model.frame import Frame, Kind
from ansible_collections.offheap.profiler.plugins.plugin_utils.model.location import Location, Locations
from ansible_collections.offheap.profiler.plugins.plugin_utils.model.samples import BYTES, Located, located
from ansible_collections.offheap.profiler.plugins.plugin_utils.model.sampling import Measure, Sampling, Scheme, unbias
from ansible_collections.offheap.profiler.plugins.plugin_utils.readers import heap_v2
from ansible_collections.offheap.profiler.tests.unit.strategies import heap_dumps, leaky_archives
from ansible_collections.offheap.profiler.tests.unit.strategies.heap_dumps import (
    DescribedDump,
    DescribedMapping,
    DescribedStack,
)

LIB, JIT, INTERVAL = 0x7F0000000000, 0x7E0000000000, 1 << 19


def _facts(**more: Any) -> CaptureFacts:
    return replace(leaky_archives.facts(b"", host="app1", sequence=3, time=1761234567.25), **more)


_BUILD_ID = _facts().build_ids[str(leaky_archives.libz())]


def _profile(base: int = LIB, facts: CaptureFacts | None = None) -> Located:
    stacks = [
        DescribedStack([base + 0x1001, JIT + 65], (3, 12288, 5, 20480), [(0, (1, 4096, 0, 0)), (7, (2, 8192, 0, 0))]),
        DescribedStack([base + 0x2001], (1, 1 << 20, 0, 0), []),
        DescribedStack([], (1, 100, 0, 0), []),
    ]
    mappings = [
        DescribedMapping(JIT, 1 << 16, "rwxp", 0, "", False),
        DescribedMapping(base, 1 << 20, "r-xp", 0x1000, str(leaky_archives.libz()), False),
    ]
    records = heap_v2.parse(DescribedDump(INTERVAL, stacks=stacks, mappings=mappings).text(), "dump")
    return located(records, (facts or _facts()).build_ids)


def test_duckdb_reads_an_archive_in_place(tmp_path: Path) -> None:
    archive = leaky_archives.fill(tmp_path / "archive", tmp_path / "scratch", dumps=4)
    for capture in archive.captures():
        sample_cache.of(archive, capture)
    glob = archive.root / "captures/*/*/*/*/samples.parquet"
    with duckdb.connect() as connection:
        rows = connection.sql(
            f"SELECT unit, host, process, sequence, epoch(time), sum(bytes) FROM '{glob}' GROUP BY ALL ORDER BY ALL"
        ).fetchall()
        (module, build_id), *_rest = connection.sql(
            f"SELECT DISTINCT frames[1].module, frames[1].build_id FROM '{glob}'"
        ).fetchall()
    assert [row[:4] for row in rows] == [
        ("frontend.service", host, "12-1a2b3c4d", number) for host in ("app1", "app2") for number in range(4)
    ]
    assert [row[4] for row in rows[:4]] == [leaky_archives.START + 300 * number for number in range(4)]
    for capture, row in zip(archive.captures(), rows, strict=True):
        dump = heap_v2.parse(leaky_archives.dump_of(capture), "dump")
        assert row[5] == pytest.approx(located(dump, {}).values[BYTES].sum())
    assert module == str(leaky_archives.libz())
    assert build_id == _BUILD_ID


def test_every_column(tmp_path: Path) -> None:
    parquet.write(tmp_path / "s.parquet", _profile(), _facts(label="2.1"), 3)
    with duckdb.connect() as connection:
        found = connection.sql(f"SELECT * FROM '{tmp_path / 's.parquet'}'")
        rows = [dict(zip(found.columns, row, strict=True)) for row in found.fetchall()]
    first = rows[0]
    assert (first["label"], first["sequence"], first["sample_interval"]) == ("2.1", 3, INTERVAL)
    assert first["frames"] == [
        {"module": str(leaky_archives.libz()), "build_id": _BUILD_ID, "offset": 0x2000},
        {"module": "[jit]", "build_id": "", "offset": JIT + 64},
    ]
    assert (first["objects"], first["bytes"]) == unbias(3, 12288, INTERVAL)
    assert (first["accum_objects"], first["accum_bytes"]) == unbias(5, 20480, INTERVAL)
    objects, size = unbias(2, 8192, INTERVAL)
    assert first["threads"][1] == {"thread": 7, "name": None, "objects": objects, "bytes": size}
    assert (rows[2]["frames"], rows[2]["threads"]) == ([], [])
    assert len({row["stack"] for row in rows}) == 3


def test_a_stack_has_its_number_wherever_it_was_loaded(tmp_path: Path) -> None:
    numbers = []
    for base in (LIB, 0x7F5550000000):
        parquet.write(tmp_path / "s.parquet", _profile(base), _facts(), 3)
        moment = parquet.read_moment(tmp_path / "s.parquet", 5.0)
        numbers.append(moment.stacks.tolist())
        assert (len(moment.objects), moment.bytes[1]) == (3, unbias(1, 1 << 20, INTERVAL)[1])
        assert moment[:3] == (5.0, Measure.LIVE, Sampling(Scheme.POISSON, INTERVAL))
    assert numbers[0] == numbers[1]
    nameless = _facts(images=())
    parquet.write(tmp_path / "s.parquet", _profile(facts=nameless), nameless, 3)
    other = parquet.read_moment(tmp_path / "s.parquet", 5.0).stacks.tolist()
    assert set(other) & set(numbers[0]) == {numbers[0][2]}, "what has no build-id is known by its path"


def test_a_number_stands_for_all_that_names_come_from(tmp_path: Path) -> None:
    """Of one build, a host could have another file, or the same one by the allocator's name."""
    path, build_id, size = str(leaky_archives.libz()), _BUILD_ID, 1
    numbers = []
    for image in (
        KnownImage(path, build_id, size),
        KnownImage(path, build_id, size, leaky_archives.libz_sum()),
        KnownImage(path, build_id, size, "ab" * 32),
    ):
        facts = _facts(images=(image,))
        parquet.write(tmp_path / "s.parquet", _profile(facts=facts), facts, 3)
        numbers.append(set(parquet.read_moment(tmp_path / "s.parquet", 5.0).stacks.tolist()))
    renamed = _profile()
    places = replace(renamed.locations, images=[("/x/libjemalloc.so", its) for _path, its in renamed.locations.images])
    parquet.write(tmp_path / "s.parquet", replace(renamed, locations=places), _facts(), 3)
    numbers.append(set(parquet.read_moment(tmp_path / "s.parquet", 5.0).stacks.tolist()))
    (of_no_frames,) = set.intersection(*numbers)
    assert len(set().union(*numbers)) == 4 * 2 + 1, of_no_frames


def test_reading_stacks(tmp_path: Path) -> None:
    parquet.write(tmp_path / "s.parquet", _profile(), _facts(), 3)
    found = parquet.read_stacks(tmp_path / "s.parquet", _facts())
    build_id, libz = _BUILD_ID, str(leaky_archives.libz())
    locations = list(found.locations)
    read = [[locations[at] for at in found.places[a:b]] for a, b in pairwise(found.bounds)]
    in_code = Location("[jit]", "", JIT + 64, JIT + 64)
    in_libz = [Location(libz, build_id, at, at, leaky_archives.libz_sum()) for at in (0x2000, 0x3000)]
    assert read == [[in_libz[0], in_code], [in_libz[1]], []]
    assert len(found.numbers) == 3


def test_a_file_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "s.parquet").write_bytes(b"PAR1")
    with pytest.raises(SamplesError, match=r"s\.parquet: "):
        parquet.read_moment(tmp_path / "s.parquet", 0.0)
    with pytest.raises(SamplesError, match=r"absent"):
        parquet.read_stacks(tmp_path / "absent", _facts())


@given(st.data())
def test_any_dump_can_be_stored(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    described = data.draw(heap_dumps.dumps())
    profile = located(heap_v2.parse(described.text(), "dump"), {})
    path = tmp_path_factory.getbasetemp() / "any.parquet"
    parquet.write(path, profile, _facts(), 3)
    found = parquet.read(path, _facts())
    assert (found.measure, found.bounds.tolist()) == (profile.measure, profile.bounds.tolist())
    assert found.values.tolist() == profile.values.tolist()
    before, after = list(profile.locations), list(found.locations)
    assert [before[at][:2] for at in profile.stacks] == [after[at][:2] for at in found.stacks]
    assert [before[at].offset % (1 << 63) for at in profile.stacks] == [after[at].offset for at in found.stacks]
    assert found.thread_stack.tolist() == profile.thread_stack.tolist()
    assert found.thread_uid.tolist() == profile.thread_uid.tolist()
    assert found.thread_values[BYTES].tolist() == profile.thread_values[BYTES].tolist()


def _with_names(*names: Frame) -> Located:
    """The profile, with names in the place of its last locations."""
    profile = _profile()
    places = profile.locations
    kept = len(places) - len(names)
    fewer = Locations(places.images, places.image[:kept], places.offset[:kept], places.address[:kept])
    return replace(profile, locations=fewer, names=names)


def test_names_of_a_source_stand_beside_places(tmp_path: Path) -> None:
    names = (Frame("serve", "app", Kind.NATIVE, 0, "app.go", 7), Frame("Main.run", "[java]", Kind.JAVA, 0, "", 0, "V"))
    profile = _with_names(*names)
    parquet.write(tmp_path / "s.parquet", profile, _facts(), 3)
    found = parquet.read(tmp_path / "s.parquet", _facts())

    def stacks(of: Located) -> list[list[object]]:
        places = [*((place.key) for place in of.locations), *of.names]
        return [[places[at] for at in of.stacks[start:end]] for start, end in pairwise(of.bounds.tolist())]

    assert set(found.names) == set(names)
    assert stacks(found) == stacks(profile)
    assert parquet.read_stacks(tmp_path / "s.parquet", _facts()).places.tolist() == found.stacks.tolist()
    with duckdb.connect() as connection:
        said = connection.sql(f"SELECT DISTINCT n.function, n.line FROM '{tmp_path / 's.parquet'}', UNNEST(names) t(n)")
        assert {row for row in said.fetchall() if row[0]} == {("serve", 7), ("Main.run", 0)}


def test_a_stack_has_its_number_by_its_names(tmp_path: Path) -> None:
    numbers = []
    for name in (Frame("a", "app"), Frame("b", "app"), Frame("a", "app", line=3), Frame("a", "app")):
        parquet.write(tmp_path / "s.parquet", _with_names(name), _facts(), 3)
        numbers.append(parquet.read_stacks(tmp_path / "s.parquet", _facts()).numbers.tolist())
    assert numbers[0] == numbers[3]
    assert len({tuple(each) for each in numbers}) == 3


def test_damage_is_never_read_as_data(tmp_path: Path) -> None:
    """A bit of a column has changed on the disk: at most of what says how the file was written."""
    path, damaged = tmp_path / "samples.parquet", tmp_path / "damaged.parquet"
    parquet.write(path, _profile(), _facts(), 3)
    good, whole = parquet.read_moment(path, 0.0), path.read_bytes()
    of_group = pq.read_metadata(path).row_group(0)
    columns = {of_group.column(at).path_in_schema: of_group.column(at) for at in range(of_group.num_columns)}
    told = 0
    for name in ("stack", "objects", "bytes"):
        column = columns[name]
        first = column.dictionary_page_offset or column.data_page_offset
        for at in range(first, first + column.total_compressed_size):
            damaged.write_bytes(whole[:at] + bytes([whole[at] ^ 16]) + whole[at + 1 :])
            try:
                found = parquet.read_moment(damaged, 0.0)
            except SamplesError:
                told += 1
                continue
            for one, other in ((found.stacks, good.stacks), (found.objects, good.objects), (found.bytes, good.bytes)):
                assert one.tolist() == other.tolist(), f"byte {at}, of {name}"
    assert told > 100


def test_a_file_that_is_damaged_anywhere_is_made_anew_or_told(tmp_path: Path) -> None:
    """Some bits of what says which columns there are ended a whole report by an error of another kind."""
    path, damaged = tmp_path / "samples.parquet", tmp_path / "damaged.parquet"
    parquet.write(path, _profile(), _facts(), 3)
    whole, told = path.read_bytes(), set()
    for at in range(1, len(whole), 3):
        damaged.write_bytes(whole[:at] + bytes([whole[at] ^ 128]) + whole[at + 1 :])
        if parquet.is_current(damaged):
            for read in (lambda: parquet.read_moment(damaged, 0.0), lambda: parquet.read(damaged, _facts())):
                try:
                    read()
                except SamplesError as error:
                    told.add("delete it, and it is made anew" in str(error))
    assert told == {True}
