# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""The archive: what goes in, what comes out, and what killed and parallel writers leave."""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import zstandard

from ansible_collections.offheap.profiler.plugins.plugin_utils.archive import archive as archive_module
from ansible_collections.offheap.profiler.plugins.plugin_utils.archive import capture as capture_module
from ansible_collections.offheap.profiler.plugins.plugin_utils.archive import image_files
from ansible_collections.offheap.profiler.plugins.plugin_utils.archive.archive import Archive, ArchiveError
from ansible_collections.offheap.profiler.plugins.plugin_utils.archive.capture import Arrived
from ansible_collections.offheap.profiler.plugins.plugin_utils.base import durable
from ansible_collections.offheap.profiler.plugins.plugin_utils.base.errors import ControllerError
from ansible_collections.offheap.profiler.plugins.plugin_utils.columns import parquet, sample_cache
from ansible_collections.offheap.profiler.tests.unit.plugins.plugin_utils.archive import capture_samples
from ansible_collections.offheap.profiler.tests.unit.strategies import heap_dumps

BUILD_ID = capture_samples.BUILD_ID


@pytest.fixture
def archive(tmp_path: Path) -> Archive:
    return Archive.create(tmp_path / "archive")


def dump_file(directory: Path, content: bytes = b"dump") -> Path:
    path = directory / "some.heap"
    path.write_bytes(content)
    return path


def files(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())


def test_layout(archive: Archive, tmp_path: Path) -> None:
    facts = capture_samples.facts()
    capture, added = archive.add_capture(facts, dump_file(tmp_path))
    assert added
    archive.add_image(BUILD_ID, "libz.so.1.2.13", dump_file(tmp_path, b"image"))
    assert archive.symcaches.is_dir()
    place = f"captures/frontend.service/app1/12-1a2b3c4d/000000-{facts.dump.sha256[:12]}"
    assert files(archive.root) == [
        "archive.json",
        f"{place}/capture.json",
        f"{place}/dump.heap.zst",
        f"images/{BUILD_ID}/libz.so.1.2.13@{capture_samples.SHA256}",
    ]
    assert json.loads((archive.root / "archive.json").read_text()) == {"format": 3}
    assert json.loads((archive.root / place / "capture.json").read_text()) == capture_samples.written()
    assert zstandard.decompress(capture.dump.read_bytes()) == b"dump"
    assert dump_file(tmp_path).exists(), "a file from outside is copied"


def test_reading(archive: Archive, tmp_path: Path) -> None:
    for host, pid, sequence in (("b", 12, 1), ("a", 12, 10), ("a", 12, 9), ("a", 7, 0)):
        content = f"{host} {pid} {sequence}".encode()
        archive.add_capture(
            capture_samples.facts(content, host=host, pid=pid, sequence=sequence), dump_file(tmp_path, content)
        )
    archive.add_capture(capture_samples.facts(unit="z.service"), dump_file(tmp_path))
    seen = [(found.unit, found.host, found.process, found.sequence) for found in archive.captures()]
    assert seen == [
        ("frontend.service", "a", "12-1a2b3c4d", 9),
        ("frontend.service", "a", "12-1a2b3c4d", 10),
        ("frontend.service", "a", "7-1a2b3c4d", 0),
        ("frontend.service", "b", "12-1a2b3c4d", 1),
        ("z.service", "app1", "12-1a2b3c4d", 0),
    ]
    assert [found.host for found in archive.captures(unit="frontend.service", host="b")] == ["b"]
    assert len(archive.captures(unit="z.service")) == 1
    assert archive.units() == ["frontend.service", "z.service"]
    assert (archive.hosts("frontend.service"), archive.hosts("nobody.service")) == (["a", "b"], [])
    assert archive.captures(host="nobody") == []
    first = archive.captures()[0]
    assert first.time == 1761234567.25 + 9
    assert [(image.path, image.build_id, image.size) for image in first.images] == [
        ("/usr/lib/libz.so.1.2.13", BUILD_ID, 100)
    ]


def test_what_is_kept_beside_captures(archive: Archive, tmp_path: Path) -> None:
    for host, unit in (("fe80::1", "a@1.service"), ("b", "z.service")):
        archive.add_capture(capture_samples.facts(host=host, unit=unit), dump_file(tmp_path))
    first = archive.captures()[0]
    assert archive.units() == ["a@1.service", "z.service"] and archive.hosts("a@1.service") == ["fe80::1"]
    name = archive.name_of(first)
    assert archive.root / name == first.path
    assert not archive.noted(first, "pushed/there")
    archive.note(first, "pushed/there")
    assert archive.noted(first, "pushed/there") and not archive.noted(first, "pushed/elsewhere")
    assert (archive.root / name.replace("captures/", "pushed/there/", 1)).is_file()


def test_adding_twice(archive: Archive, tmp_path: Path) -> None:
    first, added = archive.add_capture(capture_samples.facts(), dump_file(tmp_path))
    again, added_again = archive.add_capture(capture_samples.facts(), dump_file(tmp_path))
    assert (added, added_again) == (True, False)
    assert first == again
    assert archive.has(capture_samples.facts())
    assert not archive.has(capture_samples.facts(b"other"))
    other, added = archive.add_capture(capture_samples.facts(b"other"), dump_file(tmp_path, b"other"))
    assert added and other.path != first.path, "a process that got the number again is told by its content"


def test_adding_many(archive: Archive, tmp_path: Path) -> None:
    arrived = []
    for host, sequence in (("a", 0), ("a", 1), ("b", 0), ("a", 1)):
        content = f"{host} {sequence}".encode()
        (tmp_path / f"{host}{sequence}").write_bytes(content)
        arrived.append(
            Arrived(capture_samples.facts(content, host=host, sequence=sequence), tmp_path / f"{host}{sequence}")
        )
    (removed, _added), *_rest = [archive.add_capture(one.facts, one.dump) for one in arrived[:2]]
    archive.remove_capture(removed)
    with archive.incoming() as aside:
        found = archive.add_captures(arrived, aside)
    assert [added for _capture, added in found] == [True, False, True, False]
    assert found[1][0] == found[3][0]
    assert [capture for capture, _added in found[:3]] == archive.captures(), "what was removed has come back"


@pytest.mark.parametrize("harm", ["cut off", "other bytes", "no dump", "no facts", "facts cut off", "others' facts"])
def test_what_is_damaged_is_no_safe_copy_and_comes_back(archive: Archive, tmp_path: Path, harm: str) -> None:
    facts = capture_samples.facts(b"dump" * 100)
    capture, _added = archive.add_capture(facts, dump_file(tmp_path, b"dump" * 100))
    assert archive.has(facts) and archive.damage(facts) is None
    written = capture.path / "capture.json"
    ways: dict[str, Callable[[], object]] = {
        "cut off": lambda: os.truncate(capture.dump, 10),
        "other bytes": lambda: capture.dump.write_bytes(zstandard.compress(b"mud" * 100)),
        "no dump": capture.dump.unlink,
        "no facts": written.unlink,
        "facts cut off": lambda: os.truncate(written, 100),
        "others' facts": lambda: written.write_text(json.dumps(capture_samples.written(b"other"))),
    }
    ways[harm]()
    assert not archive.has(facts)
    assert str(capture.path) in str(archive.damage(facts))
    assert archive.add_capture(facts, dump_file(tmp_path, b"dump" * 100)) == (capture, True)
    assert archive.has(facts)
    assert archive_module.read_dump(capture.dump, facts.dump.sha256) == b"dump" * 100


def test_what_is_confirmed_has_reached_the_disk(
    archive: Archive, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[str] = []
    rename = durable.rename_directory

    def renamed(source: Path, target: Path) -> bool:
        steps.append("rename")
        return rename(source, target)

    for module in (archive_module, capture_module, durable):
        monkeypatch.setattr(module, "sync", lambda path: steps.append(path.name))
    monkeypatch.setattr(archive_module, "rename_directory", renamed)
    arrived = [Arrived(capture_samples.facts(sequence=sequence), dump_file(tmp_path)) for sequence in range(2)]
    with archive.incoming() as aside:
        archive.add_captures(arrived, aside)
    whole = ["dump.heap.zst", "capture.json"]
    way = [archive.root.name, "captures", "frontend.service", "app1"]
    assert steps == [*whole, "capture-0", *whole, "capture-1", *way, "rename", "rename", "12-1a2b3c4d"]
    del steps[:]
    assert archive.has(arrived[0].facts)
    assert steps == [], "a question has no effect"
    archive.confirm([one.facts for one in arrived])
    assert steps == ["12-1a2b3c4d"], "another may have been killed before"


def test_images(archive: Archive, tmp_path: Path) -> None:
    its, other = (BUILD_ID, capture_samples.SHA256), ("abcd" * 5, capture_samples.SHA256)
    assert archive.missing_images([its, its, other]) == [its, other]
    path = archive.add_image(BUILD_ID, "libz.so", dump_file(tmp_path, b"image"))
    assert archive.add_image(BUILD_ID, "libz.so.1", dump_file(tmp_path, b"image")) == path
    assert archive.image(*its) == path
    assert archive.missing_images([its, other]) == [other]


def test_files_of_one_build_lie_side_by_side(archive: Archive, tmp_path: Path) -> None:
    sums = [hashlib.sha256(content).hexdigest() for content in (b"first", b"second", b"third")]
    first = archive.add_image(BUILD_ID, "libz.so", dump_file(tmp_path, b"first"))
    assert archive.image(BUILD_ID) == first, "a capture of an older version says no sum, and it is the only one"
    assert archive.missing_images([(BUILD_ID, sums[1])]) == [(BUILD_ID, sums[1])]
    second = archive.add_image(BUILD_ID, "libz.so", dump_file(tmp_path, b"second"))
    assert [archive.image(BUILD_ID, one) for one in sums] == [first, second, None]
    assert [path.read_bytes() for path in (first, second)] == [b"first", b"second"]
    assert archive.image(BUILD_ID) is None, "which of them it would be is a guess"
    old = first.with_name("libz.so")
    old.write_bytes(b"old")
    assert archive.image(BUILD_ID) == old, "what an older version brought stays what its captures get"
    assert archive.image(BUILD_ID, hashlib.sha256(b"old").hexdigest()) is None, "nobody has looked at it"


@pytest.mark.parametrize(
    "name", ["libstdc++.so.6", "ä b", "../x@" + "a" * 64, "x" * 240, "%41", "名" * 60, "é" * 100, " " * 90]
)
def test_a_name_of_an_image_is_a_file_s_and_comes_back(name: str) -> None:
    written = image_files.name_of(name, "0f" * 32)
    assert len(written) <= 255 and "/" not in written and image_files.said(written) == "0f" * 32
    assert image_files.as_written(written) == written


def test_a_dump_of_threads_that_do_the_same_is_read_however_well_it_packs(archive: Archive, tmp_path: Path) -> None:
    content = b"@ 0x1\n  t*: 1: 100 [0: 0]\n" * 400_000
    path = tmp_path / "dump.heap.zst"
    path.write_bytes(zstandard.compress(content))
    assert path.stat().st_size * 1000 < len(content)
    assert archive_module.read_dump(path, hashlib.sha256(content).hexdigest()) == content


@pytest.mark.parametrize("build_id", ["", "..", "../../etc", "abc", "ABCDEF0123", "zz" * 20, "ab" * 65])
def test_what_is_no_build_id(archive: Archive, tmp_path: Path, build_id: str) -> None:
    with pytest.raises(ArchiveError, match="not a build-id"):
        archive.add_image(build_id, "x", dump_file(tmp_path))


def test_opening(tmp_path: Path) -> None:
    with pytest.raises(ArchiveError, match="there is no archive"):
        Archive.open(tmp_path)
    (tmp_path / "archive.json").write_text('{"format": 1}')
    with pytest.raises(ArchiveError, match=r"format 3 or 2.*collect into a new directory"):
        Archive.open(tmp_path)
    with pytest.raises(ArchiveError, match="format 3 or 2"):
        Archive.create(tmp_path)
    for damaged in ("{", "[" * 500_000):
        (tmp_path / "archive.json").write_text(damaged)
        with pytest.raises(ArchiveError, match="is damaged"):
            Archive.open(tmp_path)


def test_creating(tmp_path: Path) -> None:
    root = tmp_path / "a" / "b"
    Archive.create(root)
    assert root.stat().st_mode & 0o777 == 0o700
    Archive.create(root)
    assert Archive.create(root, check_mode=True).captures() == []


@pytest.mark.parametrize("check_mode", [False, True])
def test_where_nothing_can_be_created(tmp_path: Path, check_mode: bool) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "thesis.txt").write_text("")
    (tmp_path / "file").write_text("")
    before = sorted(tmp_path.rglob("*"))
    for name, why in (
        ("home", r"not an archive, and not empty \(it holds thesis.txt\)"),
        ("file", "cannot create .*there is a file of that name"),
        ("file/below", "cannot create .*Not a directory"),
    ):
        with pytest.raises(ArchiveError, match=why):
            Archive.create(tmp_path / name, check_mode)
    assert sorted(tmp_path.rglob("*")) == before


def test_check_mode_creates_nothing(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for name in ("none", "empty"):
        assert Archive.create(tmp_path / name, check_mode=True).captures() == []
    assert list(tmp_path.rglob("*")) == [tmp_path / "empty"]


def test_a_damaged_capture_is_named(archive: Archive, tmp_path: Path) -> None:
    capture, _added = archive.add_capture(capture_samples.facts(), dump_file(tmp_path))
    for damaged in ("{", "[" * 500_000):
        (capture.path / "capture.json").write_text(damaged)
        with pytest.raises(ArchiveError, match="is damaged"):
            archive.captures()


def test_what_cannot_be_read_is_told_and_not_taken_for_empty(archive: Archive, tmp_path: Path) -> None:
    """As directories of another user, here one that root cannot read either; their hosts were missing in silence."""
    archive.add_capture(capture_samples.facts(), dump_file(tmp_path))
    endless = archive.root / "captures" / "frontend.service" / "app2"
    endless.symlink_to(endless)
    said: list[str] = []
    assert [capture.host for capture in archive.captures(warn=said.append)] == ["app1"]
    (told,) = said
    assert told.startswith(f"cannot read {endless}: ")
    with pytest.raises(ControllerError, match="cannot read"):
        archive.captures("frontend.service", "app2")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read all")
def test_a_capture_of_another_user_is_told_and_not_called_damaged(archive: Archive, tmp_path: Path) -> None:
    capture, _added = archive.add_capture(capture_samples.facts(), dump_file(tmp_path))
    capture.path.chmod(0)
    said: list[str] = []
    assert archive.captures(warn=said.append) == []
    capture.path.chmod(0o700)
    (told,) = said
    assert told.startswith(f"cannot read {capture.path}") and "remove" not in told


def test_incoming_is_cleared_when_its_owner_is_gone(archive: Archive) -> None:
    with archive.incoming() as mine, archive.incoming() as other:
        (mine / "file").write_bytes(b"")
        assert mine.is_dir() and other.is_dir(), "each leaves the other's"
    stale = archive.root / ".incoming" / "killed"
    stale.mkdir()
    (stale / "half").write_bytes(b"half")
    with archive.incoming():
        assert not stale.exists()
    assert list((archive.root / ".incoming").iterdir()) == []


def test_what_was_removed_is_neither_there_nor_brought_again(archive: Archive, tmp_path: Path) -> None:
    capture, _added = archive.add_capture(capture_samples.facts(), dump_file(tmp_path))
    other, _added = archive.add_capture(capture_samples.facts(b"other"), dump_file(tmp_path, b"other"))
    archive.remove_capture(capture)
    archive.remove_capture(capture)
    assert archive.captures() == [other]
    assert files(capture.path) == ["removed"]
    assert archive.has(capture_samples.facts()), "so that its host is not asked for it"
    assert archive.add_capture(capture_samples.facts(), dump_file(tmp_path)) == (capture, True)
    assert len(archive.captures()) == 2
    assert list((archive.root / ".incoming").iterdir()) == []


def test_two_archives_are_merged_by_copying(archive: Archive, tmp_path: Path) -> None:
    second = Archive.create(tmp_path / "second")
    for sequence, target in ((0, archive), (1, archive), (1, second), (2, second)):
        content = f"{sequence}".encode()
        target.add_capture(capture_samples.facts(content, sequence=sequence), dump_file(tmp_path, content))
    archive.add_capture(capture_samples.facts(host="app2"), dump_file(tmp_path))
    second.add_image(BUILD_ID, "libz.so", dump_file(tmp_path, b"image"))
    removed = second.captures()[0]
    second.remove_capture(removed)
    subprocess.run(["cp", "-a", f"{second.root}/.", str(archive.root)], check=True)
    found = archive.captures()
    assert [(capture.host, capture.sequence) for capture in found] == [
        ("app1", 0),
        ("app1", 1),
        ("app1", 2),
        ("app2", 0),
    ]
    assert zstandard.decompress(found[1].dump.read_bytes()) == b"1", "one side's removal does not take the other's"
    assert archive.image(BUILD_ID) is not None


def test_a_capture_that_is_removed_while_it_is_read(archive: Archive, tmp_path: Path) -> None:
    capture, _added = archive.add_capture(capture_samples.facts(), dump_file(tmp_path))
    read: Callable[[Path], Any] = archive._read_capture

    def removed_first(path: Path) -> Any:
        archive.remove_capture(capture)
        return read(path)

    archive._read_capture = removed_first  # type: ignore[method-assign]
    assert archive.captures() == []


def _add_many(root: str, host: str, count: int) -> None:
    archive = Archive.create(Path(root))
    with archive.incoming() as aside:
        for number in range(count):
            content = f"{number}".encode() * 100
            source = aside / f"{number}.heap"
            source.write_bytes(content)
            archive.add_capture(capture_samples.facts(content, host=host, sequence=number), source)
            source.write_bytes(b"image")
            archive.add_image(BUILD_ID, f"lib-{host}.so", source)


def test_writers_at_once(tmp_path: Path) -> None:
    """Two bring the same and two something else, into an archive that does not exist yet."""
    root = str(tmp_path / "archive")
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=_add_many, args=(root, host, 40)) for host in ("a", "a", "b", "c")]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert [writer.exitcode for writer in writers] == [0, 0, 0, 0]
    archive = Archive.open(tmp_path / "archive")
    assert [(found.host, found.sequence) for found in archive.captures()] == [
        (host, number) for host in "abc" for number in range(40)
    ]
    assert archive.image(BUILD_ID, capture_samples.SHA256) is not None
    assert list((archive.root / ".incoming").iterdir()) == []


# A child that writes until it is killed; forked, so that it starts writing at once.
WRITER = """
import os, sys
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from ansible_collections.offheap.profiler.tests.unit.plugins.plugin_utils.archive import test_archive
number = 0
for _line in sys.stdin:
    number += 1000
    child = os.fork()
    if child == 0:
        os.write(1, f"{os.getpid()}\\n".encode())
        test_archive._add_dumps(Path(sys.argv[2]), number)
    os.waitpid(child, 0)
    os.write(1, b"dead\\n")
"""


def _add_dumps(root: Path, number: int) -> None:
    archive = Archive.create(root)
    with archive.incoming() as aside:
        while True:
            number += 1
            content = heap_dumps.DescribedDump(
                1 << 19, stacks=[heap_dumps.DescribedStack([number], (1, number, 0, 0), [])], mappings=[]
            ).text()
            (aside / "source").write_bytes(content)
            capture, _added = archive.add_capture(capture_samples.facts(content, sequence=number), aside / "source")
            os.write(1, f"{capture.path.name}\n".encode())
            sample_cache.of(archive, capture)


def test_a_writer_killed_at_any_moment(tmp_path: Path) -> None:
    """Whatever the writer has confirmed on its output is complete, and nothing else is visible."""
    root = tmp_path / "archive"
    collections = next(path for path in sys.path if path.endswith("collections"))
    moments = random.Random(7)
    confirmed: set[str] = set()
    seen: set[str] = set()
    with subprocess.Popen(
        [sys.executable, "-c", WRITER, collections, str(root)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdin is not None and parent.stdout is not None
        for attempt in range(50):
            print("go", file=parent.stdin, flush=True)
            writer = int(parent.stdout.readline())
            if attempt % 2:
                confirmed.add(parent.stdout.readline().strip())
            time.sleep(moments.uniform(0, 0.1))
            os.kill(writer, signal.SIGKILL)
            while (line := parent.stdout.readline().strip()) != "dead":
                confirmed.add(line)
            if not (root / "archive.json").exists():
                assert not confirmed
                continue
            found = Archive.open(root).captures()
            assert {capture.path.name for capture in found} >= confirmed
            new = [capture for capture in found if capture.path.name not in seen]
            seen.update(capture.path.name for capture in new)
            for capture in new:
                content = zstandard.decompress(capture.dump.read_bytes())
                assert hashlib.sha256(content).hexdigest() == capture.facts.dump.sha256
                assert len(parquet.read_moment(sample_cache.of(Archive.open(root), capture), capture.time).stacks) == 1
        parent.stdin.close()
    assert len(confirmed) >= 25, "there was something to lose"
    with Archive.open(root).incoming():
        assert len(os.listdir(root / ".incoming")) == 1, "the killed writers' remains are gone"
