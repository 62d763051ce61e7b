# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Which dump a name means, as somebody in a hurry types it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ansible_collections.offheap.profiler.console import offline
from ansible_collections.offheap.profiler.plugins.module_utils.formats.errors import OffheapError
from ansible_collections.offheap.profiler.plugins.plugin_utils.archive.archive import Archive, ArchiveError
from ansible_collections.offheap.profiler.plugins.plugin_utils.base.progress import Progress
from ansible_collections.offheap.profiler.plugins.plugin_utils.driver.formats import Request
from ansible_collections.offheap.profiler.plugins.plugin_utils.driver.imports import Origin
from ansible_collections.offheap.profiler.plugins.plugin_utils.driver.told_options import told_in_short
from ansible_collections.offheap.profiler.tests.unit.strategies import leaky_archives


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("captures")
    return leaky_archives.fill(directory / "archive", directory / "scratch").root


def test_a_unit_on_a_host_is_its_newest_capture(archive: Path) -> None:
    newest = max(Archive.open(archive).captures(host="app2"), key=lambda capture: capture.time)
    for name in ("frontend@app2", "frontend.service@app2"):
        assert offline.dump_named(name, archive) == newest.path
    assert offline.dump_named(offline.name_of(newest), archive) == newest.path


def test_what_a_clock_that_was_ahead_has_dated_is_not_the_newest(tmp_path: Path) -> None:
    store = leaky_archives.fill(tmp_path / "archive", tmp_path / "scratch", dumps=2)
    content = leaky_archives.dump_text(1, 1)
    leaky_archives.add(store, tmp_path / "scratch", content, host="app2", sequence=0, time=4e9, pid=99)
    named = offline.dump_named("frontend@app2", store.root)
    assert named == max(store.captures(host="app2"), key=lambda capture: (capture.time < 4e9, capture.time)).path


def test_an_instance_of_a_template_keeps_its_own_at(archive: Path) -> None:
    with pytest.raises(ArchiveError, match="web@blue@app1 is neither a file nor a unit and host with captures"):
        offline.dump_named("web@blue@app1", archive)


def test_files_and_captures_are_themselves(archive: Path, tmp_path: Path) -> None:
    capture = Archive.open(archive).captures()[0]
    assert offline.dump_named(str(capture.path), archive) == capture.path
    odd = tmp_path / "frontend@app1"
    odd.write_text("a file of that name")
    assert offline.dump_named(str(odd), archive) == odd
    with pytest.raises(ArchiveError, match=r"there is no file missing\.heap: name a dump's file, or UNIT@HOST"):
        offline.dump_named("missing.heap", archive)


def test_a_name_that_is_not_there_is_told_with_those_that_are(archive: Path, tmp_path: Path) -> None:
    with pytest.raises(ArchiveError, match="it has frontend@app1, frontend@app2"):
        offline.dump_named("fronted@app1", archive)
    Archive.create(tmp_path / "empty")
    with pytest.raises(ArchiveError, match="empty is empty: collect_profiles and fab collect bring captures"):
        offline.dump_named("frontend@app1", tmp_path / "empty")


def test_a_capture_without_holders_tells_none(archive: Path) -> None:
    store = Archive.open(archive)
    assert offline.held(store, store.captures()[0].facts, 5, pytest.fail) == []


def test_an_archive_is_not_a_dump(archive: Path) -> None:
    with pytest.raises(ArchiveError, match="is an archive: name one of its captures, which `fab captures` lists"):
        offline.dump_named(str(archive), archive)


def test_captures_are_sorted_by_unit_host_and_time(archive: Path) -> None:
    found = offline.captures(archive)
    assert [(each.unit, each.host, each.time) for each in found] == sorted(
        (each.unit, each.host, each.time) for each in found
    )
    assert {each.host for each in offline.captures(archive, ["frontend"])} == {"app1", "app2"}
    with pytest.raises(ArchiveError, match=r"no captures of the unit backend\.service: it has frontend\.service"):
        offline.captures(archive, ["backend"])


def test_a_service_named_twice_has_its_captures_once_and_one_without_any_is_told(archive: Path) -> None:
    told: list[str] = []
    found = offline.captures(archive, ["frontend", "frontend.service", "backend"], told.append)
    assert [each.path for each in found] == [each.path for each in offline.captures(archive, ["frontend"])]
    assert len(told) == 1 and "no captures of the unit backend.service" in told[0]


def test_a_line_that_is_no_header_is_refused_and_not_shown(tmp_path: Path) -> None:
    (tmp_path / "headers").write_text("X-Scope-OrgID: platform\n\nsEcret\n")
    with (
        pytest.raises(OffheapError, match="a header has no name") as told,
        offline.profiles("http://127.0.0.1:1", "memory:x", "", tmp_path / "headers", Progress()),
    ):
        pass
    assert "sEcret" not in str(told.value)


def test_files_directories_and_patterns_are_imported(tmp_path: Path) -> None:
    for name in ("b.folded", "a.folded", "a.folded.map", "a.folded.json", "other.txt", "other.json"):
        (tmp_path / "in" / name).parent.mkdir(exist_ok=True)
        (tmp_path / "in" / name).write_text(f"main;{name} 4096\n")
        os.utime(tmp_path / "in" / name, (1e9, 2e9 if name.startswith("a") else 1e9))
    origin = Origin("web", "app1", told=told_in_short("live:bytes:1"))

    def imported(pattern: str) -> list[str]:
        return [one.file.name for one in offline.imported(str(tmp_path / pattern), origin, tmp_path / "archive", [])]

    assert imported("in/*.folded") == ["b.folded", "a.folded"], "the oldest first"
    assert imported("in/a.folded") == ["a.folded"]
    assert set(imported("in")) == {"a.folded", "b.folded", "other.txt", "other.json"}, "what lies beside one is none"
    with pytest.raises(ArchiveError, match=r"there is no file .*/in/\*\.pb"):
        imported("in/*.pb")


def test_a_measure_shows_what_a_profile_of_objects_counts(tmp_path: Path) -> None:
    (tmp_path / "a.folded").write_text("main;work 7\n")
    told = offline.places([], "live:objects:1")

    def shown(measure: str) -> bytes:
        request = Request(measure=offline.measure(measure))
        return offline.analyzed(request, tmp_path / "a.folded", told, pytest.fail)

    assert b"Total: 7 \xc2\xb1 0 objects (inuse_objects, by functions)" in shown("inuse_objects")
    with pytest.raises(OffheapError, match="objects and no bytes: set measure to inuse_objects"):
        shown("")
    with pytest.raises(OffheapError, match="'rss', which is not one of inuse_space, inuse_objects"):
        shown("rss")
