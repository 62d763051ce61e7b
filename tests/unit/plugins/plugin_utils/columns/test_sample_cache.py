# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""When and by whom the samples of a capture are made, and what happens if that goes wrong."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import time
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.offheap.profiler.plugins.module_utils.formats import limits
from ansible_collections.offheap.profiler.plugins.plugin_utils.archive.archive import Archive, ArchiveError
from ansible_collections.offheap.profiler.plugins.plugin_utils.archive.capture import Capture
from ansible_collections.offheap.profiler.plugins.plugin_utils.columns import parquet, sample_cache
from ansible_collections.offheap.profiler.plugins.plugin_utils.columns.parquet import NAME, SamplesError
from ansible_collections.offheap.profiler.plugins.plugin_utils.leaks import ranking
from ansible_collections.offheap.profiler.plugins.plugin_utils.leaks.scope import Scope
from ansible_collections.offheap.profiler.tests.unit.strategies import leaky_archives

_CAPTURE = ["capture.json", "dump.heap.zst"]


@pytest.fixture
def archive(tmp_path: Path) -> Archive:
    return leaky_archives.fill(tmp_path / "archive", tmp_path / "scratch", dumps=3)


@pytest.fixture
def capture(archive: Archive) -> Capture:
    return archive.captures()[0]


def _files(capture: Capture) -> list[str]:
    return sorted(os.listdir(capture.path))


def test_the_first_reader_makes_them_and_the_second_finds_them(archive: Archive, capture: Capture) -> None:
    assert _files(capture) == _CAPTURE, "a capture is brought without"
    path = sample_cache.of(archive, capture)
    assert path == capture.path / NAME
    assert _files(capture) == [*_CAPTURE, NAME]
    assert len(parquet.read_moment(path, 0.0).stacks) == 2
    made = path.stat()
    assert sample_cache.of(archive, capture) == path
    assert path.stat() == made
    assert list((archive.root / ".incoming").iterdir()) == []


@pytest.mark.parametrize("content", ["another format", "damaged"])
def test_what_cannot_be_read_is_made_anew(
    archive: Archive, capture: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str
) -> None:
    path = capture.path / NAME
    if content == "damaged":
        path.write_bytes(b"PAR1")
    else:
        with monkeypatch.context() as patched:
            patched.setattr(parquet, "FORMAT", parquet.FORMAT - 1)
            sample_cache.of(archive, capture)
    found = path.read_bytes()
    made = sample_cache.of(archive, capture, tmp_path)
    assert made.parent == tmp_path
    assert path.read_bytes() == found, "where nothing is to be kept, nothing is replaced"
    assert len(parquet.read_moment(sample_cache.of(archive, capture), 0.0).stacks) == 2
    assert path.read_bytes() != found
    assert list((archive.root / ".incoming").iterdir()) == []


def test_where_nothing_is_to_be_kept(archive: Archive, capture: Capture, tmp_path: Path) -> None:
    aside = tmp_path / "aside"
    aside.mkdir()
    assert sample_cache.of(archive, capture, aside).parent == aside
    assert _files(capture) == _CAPTURE
    warnings: list[str] = []
    found = ranking.rank(archive, warnings.append, Scope(), check_mode=True)
    assert [_files(one) for one in archive.captures()] == 6 * [_CAPTURE]
    assert not (archive.root / "symcaches").exists()
    assert found == ranking.rank(archive, warnings.append, Scope())
    assert [_files(one) for one in archive.captures()] == 6 * [[*_CAPTURE, NAME]]
    assert warnings == []


def test_of_several_each_is_made_in_turn_and_one_that_cannot_be_made_stops_no_other(
    archive: Archive, monkeypatch: pytest.MonkeyPatch
) -> None:
    captures = archive.captures()
    captures[1].dump.write_bytes(b"no dump")
    parsed: list[Capture] = []
    profile = sample_cache._profile

    def noted(capture: Capture) -> Any:
        parsed.append(capture)
        return profile(capture)

    monkeypatch.setattr(sample_cache, "_profile", noted)
    made = sample_cache.each(archive, captures)
    first = next(made)
    assert len(parsed) < len(captures), "not all profiles are in memory at once"
    found = [first, *made]
    assert [isinstance(one, SamplesError) for one in found] == [False, True, False, False, False, False]
    assert [one for one in found if isinstance(one, Path)] == [
        one.path / NAME for one in captures if one != captures[1]
    ]
    assert parsed == captures
    assert [one for one in sample_cache.each(archive, captures) if isinstance(one, Path)] == found[:1] + found[2:]
    assert parsed == [*captures, captures[1]], "what is there is not parsed again"


def test_of_large_dumps_no_two_profiles_are_in_memory(archive: Archive, monkeypatch: pytest.MonkeyPatch) -> None:
    captures = archive.captures()
    monkeypatch.setattr(sample_cache, "LARGE", captures[0].facts.dump.size)
    held = most = 0
    profile, write = sample_cache._profile, sample_cache._write

    def parsed(capture: Capture) -> Any:
        nonlocal held, most
        held += 1
        most = max(most, held)
        return profile(capture)

    def written(*arguments: Any) -> None:
        nonlocal held
        time.sleep(0.05)
        write(*arguments)
        held -= 1

    monkeypatch.setattr(sample_cache, "_profile", parsed)
    monkeypatch.setattr(sample_cache, "_write", written)
    assert len(list(sample_cache.each(archive, captures))) == len(captures)
    assert most == 1


def test_of_several_none_is_made_where_the_archive_cannot_be_written(
    archive: Archive, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_arguments: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(parquet, "write", full)
    with pytest.raises(ArchiveError, match="No space left on device"):
        list(sample_cache.each(archive, archive.captures()))


def _make_all(root: Path) -> None:
    archive = Archive.open(root)
    for capture in archive.captures():
        assert len(parquet.read_moment(sample_cache.of(archive, capture), 0.0).stacks) == 2


def test_many_at_once(archive: Archive) -> None:
    context = multiprocessing.get_context("fork")
    readers = [context.Process(target=_make_all, args=(archive.root,)) for _reader in range(4)]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()
    assert [reader.exitcode for reader in readers] == [0, 0, 0, 0]
    assert [_files(one) for one in archive.captures()] == 6 * [[*_CAPTURE, NAME]]


def test_a_capture_that_has_been_removed(archive: Archive, capture: Capture) -> None:
    archive.remove_capture(capture)
    with pytest.raises(SamplesError, match="has no samples"):
        sample_cache.of(archive, capture)
    assert _files(capture) == ["removed"]
    shutil.rmtree(capture.path)
    with pytest.raises(SamplesError, match="has no samples"):
        sample_cache.of(archive, capture)
    assert not capture.path.exists()


def test_a_capture_that_is_removed_while_its_samples_are_made(
    archive: Archive, capture: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = parquet.write

    def remove_and_write(*arguments: Any) -> None:
        archive.remove_capture(capture)
        write(*arguments)

    monkeypatch.setattr(parquet, "write", remove_and_write)
    with pytest.raises(SamplesError, match="it was removed"):
        sample_cache.of(archive, capture)
    assert _files(capture) == ["removed"]
    assert len(archive.captures()) == 5


def test_dumps_without_samples(
    archive: Archive, capture: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cut = leaky_archives.dump_text(1, 1)[:-10]
    place = leaky_archives.add(archive, tmp_path / "scratch", cut, host="app3", sequence=0, time=leaky_archives.START)
    with pytest.raises(SamplesError, match=rf"{place} has no samples: .*the dump is cut off here"):
        sample_cache.of(archive, archive.captures(host="app3")[0])
    monkeypatch.setattr(limits, "LARGEST_DUMP", 100)
    with pytest.raises(SamplesError, match=r"has no samples: .* is larger than 100"):
        sample_cache.of(archive, capture)
    assert _files(capture) == _CAPTURE
    assert list((archive.root / ".incoming").iterdir()) == []


def test_an_archive_that_cannot_be_written_to(
    archive: Archive, capture: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_arguments: Any, **_more: Any) -> None:
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as patched:
        patched.setattr(sample_cache, "sync", refused)
        with pytest.raises(ArchiveError, match=r"cannot keep .*denied; check mode needs no write access"):
            ranking.rank(archive, pytest.fail, Scope())
    shutil.rmtree(archive.root / ".incoming")
    (archive.root / ".incoming").touch()
    with pytest.raises(ArchiveError, match="cannot write to the archive"):
        sample_cache.of(archive, capture)
    assert _files(capture) == _CAPTURE
