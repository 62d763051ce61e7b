# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""The loop that collects, with a few files on this machine as the host."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.offheap.profiler.plugins.module_utils.formats.capture_facts import CaptureFacts
from ansible_collections.offheap.profiler.plugins.plugin_utils.archive.archive import Archive
from ansible_collections.offheap.profiler.plugins.plugin_utils.archive.capture import Arrived
from ansible_collections.offheap.profiler.plugins.plugin_utils.fetch import unpack_tar
from ansible_collections.offheap.profiler.plugins.plugin_utils.fetch.collect import CollectError, Wanted, collect
from ansible_collections.offheap.profiler.plugins.plugin_utils.fetch.host_session import HostError
from ansible_collections.offheap.profiler.plugins.plugin_utils.fetch.ingest import Ingested, Packed
from ansible_collections.offheap.profiler.plugins.plugin_utils.fetch.plan import Batch, Found
from ansible_collections.offheap.profiler.tests.unit.plugins.plugin_utils.archive import capture_samples

CONTENTS = (b"one", b"second", b"third")


class Gone(Exception):
    """An exception that only the transport knows."""


class Host:
    """A transport that stores dumps without a transfer. The call of ``bring`` with that number raises ``fails``."""

    def __init__(self, contents: Sequence[bytes] = CONTENTS, fails: tuple[int, Exception] | None = None) -> None:
        self.listing = capture_samples.listing(*contents)
        self.contents = {hashlib.sha256(content).hexdigest(): content for content in contents}
        self.answer: dict[str, Any] = {"problems": []}
        self.calls: list[str] = []
        self._fails = fails

    def find(self) -> dict[str, Any]:
        self.calls.append("find")
        return self.listing

    def bring(self, archive: Archive, batch: Batch) -> tuple[Packed, Ingested]:
        self.calls.append(f"bring {' '.join(found.facts.dump.name for found in batch.dumps.values())}".rstrip())
        if self._fails is not None and sum(call.startswith("bring") for call in self.calls) == self._fails[0]:
            raise self._fails[1]
        with archive.incoming() as aside:
            arrived = []
            for found in batch.dumps.values():
                path = aside / found.facts.dump.name
                path.write_bytes(self.contents[found.facts.dump.sha256])
                arrived.append(Arrived(found.facts, path))
            safe = list(batch.dumps.values())
            brought = Ingested(archive.add_captures(arrived, aside), list(batch.images), ["a problem"], safe)
        return Packed(10, "", batch.sizes(), {}), brought

    def mark(self, safe: Sequence[Found]) -> dict[str, Any]:
        self.calls.append(f"mark {len(safe)}")
        return {"collected": len(safe), **self.answer}


@pytest.fixture
def archive(tmp_path: Path) -> Archive:
    return Archive.create(tmp_path / "archive")


def test_what_is_new_is_brought_and_marked(archive: Archive) -> None:
    host, said = Host(), list[str]()
    done = collect(host, archive, Wanted("app1", max_batch=109), say=said.append)
    first, second, third = (f"jeprof.12.{number}.i{number}.heap" for number in range(3))
    assert host.calls == ["find", f"bring {first} {second}", "mark 2", f"bring {third}", "mark 1"]
    assert said == ["transfer 1 of 2, 109 B", "transfer 2 of 2, 5 B"]
    assert [facts.dump.name for facts in done.captures] == [first, second, third]
    assert (done.bytes, done.transferred, done.marked, done.changed) == (114, 20, 3, True)
    assert done.warnings[1:] == ["a problem"] * 2
    assert [capture.facts for capture in archive.captures()] == done.captures


def test_a_batch_fits_where_the_host_packs_it(archive: Archive) -> None:
    host = Host()
    host.listing["free"] = (32 << 20) + 109
    assert len(collect(host, archive, Wanted("app1")).captures) == 3
    assert [call.split()[0] for call in host.calls] == ["find", "bring", "mark", "bring", "mark"]


@pytest.mark.parametrize("place", ["archive", "host"])
def test_an_image_without_room_stays_and_all_dumps_come(
    archive: Archive, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    host = Host()
    small, _gone = host.listing["images"]
    host.listing["images"].append(dict(small, path="/opt/large.so", build_id="ab" * 20, size=1 << 30))
    host.listing["captures"][0]["images"].append(2)
    if place == "host":
        host.listing["free"] = 1 << 30
    else:
        monkeypatch.setattr(unpack_tar, "room", lambda _directory: 1 << 30)
    foretold = collect(host, archive, Wanted("app1"), check_mode=True)
    done = collect(host, archive, Wanted("app1"))
    assert len(done.captures) == 3 and len(done.images) == len(foretold.images) == 1
    (warning,) = [text for text in done.warnings if text.startswith("images stay on the host, 1 of them, the largest")]
    assert "/opt/large.so with 1.0 GiB" in warning and warning in foretold.warnings


def test_images_leave_the_room_that_dumps_take(archive: Archive, monkeypatch: pytest.MonkeyPatch) -> None:
    """The dumps have 14 bytes, the image 100, and each is there twice for a moment."""
    for free, images in ((227, 0), (228, 1)):
        monkeypatch.setattr(unpack_tar, "room", lambda _directory, free=free: free)
        assert len(collect(Host(), archive, Wanted("app1"), check_mode=True).images) == images


def test_what_is_there_already_is_only_marked(archive: Archive, monkeypatch: pytest.MonkeyPatch) -> None:
    collect(Host(), archive, Wanted("app1"))
    host = Host()
    confirm = archive.confirm

    def confirmed(known: Iterable[CaptureFacts]) -> None:
        confirm(known)
        host.calls.append("confirm")

    monkeypatch.setattr(archive, "confirm", confirmed)
    host.listing["images"][0].update(build_id=None, size=None, reason="gone")
    done = collect(host, archive, Wanted("app1"))
    assert host.calls == ["find", "confirm", "mark 3"], "the disk has it before the host gives it away"
    assert (done.captures, done.marked, done.changed) == ([], 3, True)
    assert not collect(Host([]), archive, Wanted("app1")).changed


def test_a_host_keeps_its_dump_until_the_archive_s_is_whole(archive: Archive) -> None:
    collect(Host(), archive, Wanted("app1"))
    damaged = archive.captures()[1]
    damaged.dump.write_bytes(b"")
    host = Host()
    done = collect(host, archive, Wanted("app1"))
    assert host.calls == ["find", f"bring {damaged.facts.dump.name}", "mark 1", "mark 2"]
    assert [warning for warning in done.warnings if str(damaged.path) in warning and "takes its place" in warning]
    assert all(archive.has(capture.facts) for capture in archive.captures())


@pytest.mark.parametrize("there", [True, False])
def test_check_mode_foretells_and_touches_nothing(archive: Archive, there: bool) -> None:
    host = Host()
    done = collect(host, archive if there else None, Wanted("app1"), check_mode=True)
    assert host.calls == ["find"]
    assert (len(done.captures), done.images, done.bytes, done.marked) == (3, [capture_samples.BUILD_ID], 114, 3)
    assert done.changed and archive.captures() == []


def test_a_failure_says_what_had_been_brought(archive: Archive) -> None:
    host = Host(fails=(2, HostError("the disk is full")))
    with pytest.raises(CollectError, match=r"^the disk is full \(2 captures were collected before that\)$") as raised:
        collect(host, archive, Wanted("app1", max_batch=109))
    assert [facts.dump.name for facts in raised.value.so_far.captures] == [
        "jeprof.12.0.i0.heap",
        "jeprof.12.1.i1.heap",
    ]
    assert host.calls[-1].startswith("bring"), "nothing is marked that is not safe"


def test_what_the_transport_alone_knows_comes_through(archive: Archive) -> None:
    with pytest.raises(Gone):
        collect(Host(fails=(1, Gone())), archive, Wanted("app1"))


def test_what_a_listing_warns_of(archive: Archive) -> None:
    host = Host([])
    host.listing.update(absent=["x.service"], problems=["a spool of somebody's"], left=4)
    cut = {"unit": "x.service", "name": "d", "size": 1, "reason": "it is cut off"}
    host.listing["others"]["incomplete"] = [cut]
    host.listing["counts"]["incomplete"] = 7
    assert collect(host, archive, Wanted("app1")).warnings == [
        "a spool of somebody's",
        "x.service has no spool: it was never profiled",
        "7 dumps are incomplete and stay on the host, the first because it is cut off",
        "4 dumps exceed max_captures and stay on the host; run again",
    ]
    assert (
        "1 files of ended processes were replaced or removed, the first is /opt/gone.so"
        in (collect(Host([b"x"]), archive, Wanted("app1")).warnings[0])
    )


@pytest.mark.parametrize("answer", [{"problems": "none"}, {"collected": "3"}, {"collected": -1}, {"problems": [1]}])
def test_a_host_that_answers_junk_to_marking(archive: Archive, answer: dict[str, Any]) -> None:
    host = Host()
    host.answer.update(answer)
    with pytest.raises(CollectError, match="did not say what it marked"):
        collect(host, archive, Wanted("app1"))


def test_a_dump_that_could_not_be_marked_is_told(archive: Archive) -> None:
    host = Host()
    host.answer["problems"] = ["it is\x1b immutable"]
    assert "it is\ufffd immutable" in collect(host, archive, Wanted("app1")).warnings
