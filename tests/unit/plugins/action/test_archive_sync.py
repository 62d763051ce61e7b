# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
from __future__ import annotations

import json
import os
import uuid
from pathlib import Path
from typing import Any

import duckdb
import fsspec
import pytest
import zstandard
from ansible.errors import AnsibleActionFail

from ansible_collections.offheap.profiler.plugins.action import archive_sync
from ansible_collections.offheap.profiler.plugins.plugin_utils.archive.archive import Archive
from ansible_collections.offheap.profiler.plugins.plugin_utils.archive.object_store import ObjectStore, StoreError
from ansible_collections.offheap.profiler.plugins.plugin_utils.columns.parquet import NAME
from ansible_collections.offheap.profiler.tests.unit.fakes.actions import run_action
from ansible_collections.offheap.profiler.tests.unit.plugins.plugin_utils.archive import capture_samples
from ansible_collections.offheap.profiler.tests.unit.strategies import leaky_archives


def interrupted(*_arguments: object) -> None:
    raise KeyboardInterrupt


@pytest.fixture
def archive(tmp_path: Path) -> Archive:
    found = leaky_archives.fill(tmp_path / "archive", tmp_path / "scratch", dumps=3)
    (tmp_path / "scratch" / "dump").write_bytes(b"dump")
    (tmp_path / "scratch" / "map").write_bytes(b"7f00 10 java.lang.Object.hashCode\n")
    found.add_capture(capture_samples.facts(), tmp_path / "scratch" / "dump", tmp_path / "scratch" / "map")
    return found


@pytest.fixture(params=["memory", "file"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return f"memory://{uuid.uuid4()}/offheap" if request.param == "memory" else f"file://{tmp_path}/far/offheap"


def _run(root: Path, url: str, direction: str, check: bool = False) -> dict[str, Any]:
    return run_action(archive_sync, check, archive=str(root), url=url, direction=direction)


def _content(root: Path) -> dict[str, bytes]:
    """Everything but files that can be derived again."""
    paths = [path for path in root.rglob("*") if path.is_file() and not {"symcaches", NAME} & set(path.parts)]
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in paths}


def test_there_and_back_again(archive: Archive, url: str, tmp_path: Path) -> None:
    assert _run(archive.root, url, "push", check=True)["captures"] == 7
    pushed = _run(archive.root, url, "push")
    assert (pushed["changed"], pushed["captures"], pushed["images"]) == (True, 7, 1)
    assert not _run(archive.root, url, "push")["changed"]
    foreseen = _run(tmp_path / "other", url, "pull", check=True)
    assert not (tmp_path / "other").exists()
    pulled = _run(tmp_path / "other", url, "pull")
    assert (pulled["captures"], pulled["images"], pulled.get("warnings")) == (7, 1, None)
    assert pulled == foreseen
    assert not _run(tmp_path / "other", url, "pull")["changed"]
    assert _content(tmp_path / "other") == _content(archive.root), "to the byte"


def test_two_controllers_share_one(archive: Archive, url: str, tmp_path: Path) -> None:
    second = Archive.create(tmp_path / "second")
    content = leaky_archives.dump_text(9, 9)
    leaky_archives.add(second, tmp_path / "scratch", content, host="app9", sequence=0, time=leaky_archives.START)
    removed = archive.captures()[0]
    for root, direction in ((archive.root, "push"), (second.root, "push")):
        _run(root, url, direction)
    archive.remove_capture(removed)
    assert _run(archive.root, url, "pull")["captures"] == 1, "what was removed does not come back"
    assert _run(second.root, url, "pull")["captures"] == 7
    assert {capture.host for capture in archive.captures()} == {"app1", "app2", "app9"}


@pytest.mark.parametrize("writable", [True, False])
def test_what_is_pushed_is_read_in_place(
    archive: Archive, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, writable: bool
) -> None:
    monkeypatch.setattr(os, "access", lambda _path, _mode: writable)
    _run(archive.root, f"file://{tmp_path}/far", "push")
    with duckdb.connect() as connection:
        query = f"SELECT count(DISTINCT (host, sequence)) FROM '{tmp_path}/far/captures/*/*/*/*/samples.parquet'"
        assert connection.sql(query).fetchall() == [(6,)]
    assert len(list(archive.root.rglob(NAME))) == (6 if writable else 0), "made on the way"


@pytest.mark.parametrize(
    "part", ["capture.json", "the depth of capture.json", "dump.heap.zst", "perf.map.gz", "image", "the image's end"]
)
def test_what_is_not_sound_is_left(archive: Archive, url: str, tmp_path: Path, part: str) -> None:
    _run(archive.root, url, "push")
    files, root = fsspec.core.url_to_fs(url)
    wanted = "images/" if "image" in part else part.rpartition(" ")[2]
    path = next(path for path in sorted(files.find(root)) if wanted in path)
    content = files.cat_file(path)
    if part == "capture.json":
        content = json.dumps({**json.loads(content), "host": "../../etc"}).encode()
    elif "depth" in part:
        content = b"[" * 500_000
    elif part == "dump.heap.zst":
        content = zstandard.compress(b"x" + zstandard.decompress(content)[1:])
    elif part == "perf.map.gz":
        content = content[:-9]
    else:
        content = Path("/bin/true").read_bytes() if part == "image" else content + b"!"
    files.pipe_file(path, content)
    pulled = _run(tmp_path / "other", url, "pull")
    assert (pulled["captures"], pulled["images"]) == ((7, 0) if "image" in part else (6, 1))
    (warning,) = pulled["warnings"]
    assert "was skipped" in warning
    assert len(Archive.open(tmp_path / "other").captures()) == pulled["captures"]
    assert list((tmp_path / "other" / ".incoming").iterdir()) == []


def test_other_places_are_refused(archive: Archive, tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "thesis.txt").write_text("")
    with pytest.raises(AnsibleActionFail, match="not an archive, and not empty"):
        _run(archive.root, f"file://{tmp_path}/home", "push")
    (tmp_path / "home" / "archive.json").write_text('{"format": 1}')
    with pytest.raises(AnsibleActionFail, match="is not in format 3 or 2"):
        _run(archive.root, f"file://{tmp_path}/home", "pull")
    (tmp_path / "home" / "archive.json").write_text("[" * 60_000)
    with pytest.raises(AnsibleActionFail, match="is not JSON"):
        _run(archive.root, f"file://{tmp_path}/home", "pull")
    with pytest.raises(AnsibleActionFail, match="nosuch://place: Protocol not known"):
        _run(archive.root, "nosuch://place", "push")


def test_a_store_that_goes_away_fails_the_task(
    archive: Archive, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _run(archive.root, url, "push")

    def gone(*_arguments: object) -> bool:
        raise StoreError("no answer")

    monkeypatch.setattr(ObjectStore, "get", gone)
    with pytest.raises(AnsibleActionFail, match="no answer"):
        _run(tmp_path / "other", url, "pull")


def test_a_pull_brings_the_images_that_a_killed_one_has_left(
    archive: Archive, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _run(archive.root, url, "push")
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(Archive, "put_image", interrupted)
        _run(tmp_path / "other", url, "pull")
    assert len(Archive.open(tmp_path / "other").captures()) == 7
    foreseen = _run(tmp_path / "other", url, "pull", check=True)
    pulled = _run(tmp_path / "other", url, "pull")
    assert pulled == foreseen and (pulled["changed"], pulled["captures"], pulled["images"]) == (True, 0, 1)
    assert not _run(tmp_path / "other", url, "pull")["changed"]
    assert _content(tmp_path / "other") == _content(archive.root)


def test_what_is_damaged_is_not_pushed_until_it_is_mended(archive: Archive, url: str) -> None:
    dump = archive.captures()[0].dump
    content = dump.read_bytes()
    dump.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    pushed = _run(archive.root, url, "push")
    assert pushed["captures"] == 6 and "was skipped" in pushed["warnings"][0]
    dump.write_bytes(content)
    assert _run(archive.root, url, "push")["captures"] == 1
