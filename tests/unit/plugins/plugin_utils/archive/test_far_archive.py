# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""The archive at an address, in an S3 server that is spoken to by HTTP, and beside a directory that it has to equal."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import zstandard
from ansible.errors import AnsibleActionFail
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ansible_collections.offheap.profiler.plugins.action import (
    archive_prune,
    archive_sync,
    leak_assert,
    leak_push,
    leak_report,
)
from ansible_collections.offheap.profiler.plugins.module_utils.formats import limits
from ansible_collections.offheap.profiler.plugins.plugin_utils.archive import far_archive, image_files
from ansible_collections.offheap.profiler.plugins.plugin_utils.archive.archive import Archive, ArchiveError
from ansible_collections.offheap.profiler.plugins.plugin_utils.archive.capture import DUMP, FACTS, PERF_MAP
from ansible_collections.offheap.profiler.plugins.plugin_utils.archive.object_store import ObjectStore, StoreError
from ansible_collections.offheap.profiler.plugins.plugin_utils.archive.retention import Keep, prune
from ansible_collections.offheap.profiler.plugins.plugin_utils.base.errors import ControllerError
from ansible_collections.offheap.profiler.plugins.plugin_utils.columns.series_reader import reading
from ansible_collections.offheap.profiler.plugins.plugin_utils.fetch.collect import CollectError, Wanted, collect
from ansible_collections.offheap.profiler.plugins.plugin_utils.publish import pyroscope
from ansible_collections.offheap.profiler.plugins.plugin_utils.symbols.jit_symbols import MOST_MAPS
from ansible_collections.offheap.profiler.tests.unit.fakes import s3
from ansible_collections.offheap.profiler.tests.unit.fakes.actions import run_action
from ansible_collections.offheap.profiler.tests.unit.plugins.plugin_utils.archive import capture_samples
from ansible_collections.offheap.profiler.tests.unit.plugins.plugin_utils.fetch.test_collect import Host
from ansible_collections.offheap.profiler.tests.unit.strategies import leaky_archives

MANY = 40


def content_of(number: int) -> bytes:
    return f"dump {number} ".encode() * 50


def add(archive: Archive, scratch: Path, number: int, **of: Any) -> bool:
    scratch.mkdir(parents=True, exist_ok=True)
    (scratch / "dump").write_bytes(content_of(number))
    (scratch / "map").write_bytes(b"7f00 10 java.lang.Object.hashCode\n")
    facts = capture_samples.facts(content_of(number), sequence=number, **of)
    return archive.add_capture(facts, scratch / "dump", scratch / "map" if number % 2 else None)[1]


def there_once(address: str, numbers: Sequence[int]) -> None:
    """Each of these dumps is at the address once, whole, and nothing lies beside them; told by the server alone."""
    store = ObjectStore(address)
    files = [name for name in store.files() if name.startswith("captures/")]
    places = Counter(name.rpartition("/")[0] for name in files if name.endswith(f"/{FACTS}"))
    wanted = {content_of(number) for number in numbers}
    found = [zstandard.decompress(store.read(f"{place}/{DUMP}", 1 << 20) or b"") for place in places]
    assert sorted(found) == sorted(wanted)
    assert {name.rpartition("/")[0] for name in files} == set(places), "nothing half-done is left"


@pytest.fixture
def address(s3_store: s3.Server) -> str:
    return f"{s3_store.bucket()}/fleet"


def forget(tmp_path: Path) -> None:
    """The next controller has nothing in its cache."""
    shutil.rmtree(tmp_path / "cache")


def test_an_archive_in_a_bucket(address: str, s3_store: s3.Server, tmp_path: Path) -> None:
    with pytest.raises(ArchiveError, match=f"there is no archive at {address}: collect_profiles"):
        far_archive.opened(address)
    assert far_archive.created(address, check_mode=True).captures() == [] and ObjectStore(address).files() == {}
    archive = far_archive.created(address)
    assert [add(archive, tmp_path, number) for number in (0, 1, 1)] == [True, True, False]
    assert far_archive.created(address).captures() == archive.captures()
    forget(tmp_path)
    archive = far_archive.opened(f"{address}/")
    assert (archive.where, archive.units(), archive.hosts("frontend.service")) == (
        address,
        ["frontend.service"],
        ["app1"],
    )
    first, second = archive.captures("frontend.service", "app1")
    assert [leaky_archives.dump_of(capture) for capture in (first, second)] == [content_of(0), content_of(1)]
    assert first.perf_map is None and second.perf_map is not None
    s3_store.requests()
    assert leaky_archives.dump_of(first) == content_of(0) and second.perf_map is not None
    assert s3_store.requests() == [], "what was read is kept"
    there_once(address, [0, 1])


def test_what_is_there_is_known_without_bringing_it(address: str, s3_store: s3.Server, tmp_path: Path) -> None:
    archive = far_archive.created(address)
    for number in range(1, 60, 2):
        add(archive, tmp_path, number)
    forget(tmp_path)
    archive = far_archive.opened(address)
    captures = archive.captures()
    s3_store.requests()
    assert prune(archive, Keep(count=5), 1e9, check_mode=True)
    assert not any(PERF_MAP in line for line in s3_store.requests())
    with reading(archive, pytest.fail) as reader:
        reader.maps(captures)
    brought = [line for line in s3_store.requests() if line.startswith("GET ") and PERF_MAP in line]
    assert len(brought) == MOST_MAPS


def test_several_create_it_at_once(address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another controller creates it and adds to it after this one has seen that there is none."""
    exists = far_archive.FarArchive.exists

    def overtaken(self: far_archive.FarArchive) -> bool:
        found = exists(self)
        monkeypatch.setattr(far_archive.FarArchive, "exists", exists)
        assert add(far_archive.created(address), tmp_path, 0)
        return found

    monkeypatch.setattr(far_archive.FarArchive, "exists", overtaken)
    assert not add(far_archive.created(address), tmp_path, 0)
    there_once(address, [0])


def test_what_the_cache_has_is_checked(address: str, tmp_path: Path) -> None:
    archive = far_archive.created(address)
    add(archive, tmp_path, 0)
    (capture,) = archive.captures()
    for harm in (b"", b"harmed", zstandard.compress(b"another dump")):
        (capture.path / DUMP).write_bytes(harm)
        assert leaky_archives.dump_of(capture) == content_of(0)
    (capture.path / FACTS).write_text("{")
    with pytest.raises(ArchiveError, match=f"{address}/captures/frontend.service/.* is damaged"):
        archive.captures()
    assert archive.captures() == [capture], "it has been brought anew"


def test_images_are_there_once(
    address: str, s3_store: s3.Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build_id, image = leaky_archives.image().build_id, leaky_archives.libz()
    assert build_id is not None
    its = (build_id, leaky_archives.libz_sum())
    for _controller in range(2):
        archive = far_archive.created(address)
        assert archive.missing_images([its, its]) == ([its] if not _controller else [])
        archive.add_image(build_id, image.name, image)
        forget(tmp_path)
    archive = far_archive.opened(address)
    assert archive.images() == [f"{build_id}/{image.name}@{its[1]}"]
    found = archive.image(*its)
    assert found is not None and found.read_bytes() == image.read_bytes()
    s3_store.requests()
    assert archive.image(*its) == found and s3_store.requests() == []
    archive.add_image("ab" * 20, "other.so", image)
    forget(tmp_path)
    assert far_archive.opened(address).image("ab" * 20) is None, "it is another build"
    monkeypatch.setattr(limits, "LARGEST_IMAGE", 1000)
    assert far_archive.opened(address).image(*its) is None, "it is larger than any image"


def test_files_of_one_build_lie_side_by_side(address: str, tmp_path: Path) -> None:
    build_id, image = leaky_archives.image().build_id or "", leaky_archives.libz()
    forged = tmp_path / "forged"
    forged.write_bytes(image.read_bytes() + b"!")
    one, other = leaky_archives.libz_sum(), image_files.sha256_of(forged)
    archive = far_archive.created(address)
    archive.add_image(build_id, image.name, forged)
    assert archive.missing_images([(build_id, one), (build_id, other)]) == [(build_id, one)]
    archive.add_image(build_id, image.name, image)
    for _cached in range(2):
        found = [archive.image(build_id, each) for each in (one, other, "ab" * 32)]
        assert [path and path.read_bytes() for path in found] == [image.read_bytes(), forged.read_bytes(), None]
        forget(tmp_path)
        archive = far_archive.opened(address)
        assert archive.image(build_id, other) is not None
        assert archive.image(build_id) is None, "the address has two, whatever is here"
    ObjectStore(address).put(f"images/{build_id}/{image.name}@{one}", forged)
    assert archive.image(build_id, one) is None, "its name says another sum"


def test_a_damaged_capture_comes_back(address: str, tmp_path: Path) -> None:
    add(far_archive.created(address), tmp_path, 0)
    add(far_archive.created(address), tmp_path, 1)
    facts = capture_samples.facts(content_of(0), sequence=0)
    store = ObjectStore(address)
    place = next(name for name in store.files() if name.endswith(DUMP)).rpartition("/")[0]
    other = json.dumps(capture_samples.facts(b"other").to_json()).encode()
    for file, content in ((DUMP, None), (FACTS, b"{"), (FACTS, b"[" * 500_000), (FACTS, other)):
        if content is None:
            store.remove([f"{place}/{file}"])
        else:
            store.put(f"{place}/{file}", content)
        forget(tmp_path)
        archive = far_archive.opened(address)
        assert not archive.has(facts) and f"{address}/{place}" in str(archive.damage(facts))
        if file == FACTS:
            warnings: list[str] = []
            assert [capture.sequence for capture in archive.captures(warn=warnings.append)] == [1]
            assert [warning.split(" is damaged")[0] for warning in warnings] == [f"{address}/{place}"]
        assert add(archive, tmp_path, 0)
        assert archive.has(facts) and archive.damage(facts) is None
        there_once(address, [0, 1])


@pytest.mark.parametrize("file", [FACTS, DUMP])
def test_a_file_of_an_impossible_size_leaves_out_only_its_capture(
    address: str, file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = far_archive.created(address)
    add(archive, tmp_path, 0)
    add(archive, tmp_path, 1)
    first, _second = archive.captures()
    place = first.path.relative_to(archive.root).as_posix()
    monkeypatch.setitem(far_archive._LIMITS, file, 1 << 20)
    ObjectStore(address).put(f"{place}/{file}", b" " * ((1 << 20) + 1))
    forget(tmp_path)
    warnings: list[str] = []
    (left,) = far_archive.opened(address).captures(warn=warnings.append)
    assert leaky_archives.dump_of(left) == content_of(1)
    assert [warning.partition(f" is damaged: its {file} is larger")[0] for warning in warnings] == [
        f"{address}/{place}"
    ]


def test_what_is_confirmed_is_looked_at_again(address: str, tmp_path: Path) -> None:
    archive = far_archive.created(address)
    add(archive, tmp_path, 0)
    facts = [capture.facts for capture in archive.captures()]
    archive.confirm(facts)
    store = ObjectStore(address)
    store.remove([name for name in store.files() if name.endswith(DUMP)])
    with pytest.raises(ArchiveError, match="has just gone; run again"):
        archive.confirm(facts)


@pytest.mark.parametrize("kept", range(3))
def test_hosts_keep_what_was_not_acknowledged(
    address: str, kept: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store refuses one of the files of the last dump, the one that makes it a capture among them."""
    archive, host, written = far_archive.created(address), Host(), list[str]()

    def refuse(method: str) -> None:
        real = getattr(ObjectStore, method)

        def write(self: ObjectStore, name: str, content: Any) -> Any:
            written.append(name)
            if len(written) == 2 * kept + 2:
                raise StoreError(f"{name}: no space")
            return real(self, name, content)

        monkeypatch.setattr(ObjectStore, method, write)

    refuse("put")
    refuse("create")
    with pytest.raises(CollectError, match="no space"):
        collect(host, archive, Wanted("app1", max_batch=1))
    assert [call for call in host.calls if call.startswith("mark")] == ["mark 1"] * kept


@given(st.data())
@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_it_has_what_a_directory_would_have(monkeypatch: pytest.MonkeyPatch, data: st.DataObject) -> None:
    """Whatever is added, removed and noted, by controllers of which each has a cache or has lost it."""
    with tempfile.TemporaryDirectory() as directory:
        monkeypatch.setenv("XDG_CACHE_HOME", f"{directory}/cache")
        scratch = Path(directory) / "scratch"
        address = f"memory://{uuid.uuid4()}/fleet"
        near, far = Archive.create(Path(directory) / "near"), far_archive.created(address)
        for _step in range(data.draw(st.integers(1, 12))):
            what = data.draw(st.sampled_from(["add", "add", "remove", "note", "forget"]))
            if what == "add":
                number, host = data.draw(st.integers(0, 4)), data.draw(st.sampled_from(["a", "%b c", "ä"]))
                assert add(near, scratch, number, host=host) == add(far, scratch, number, host=host)
            elif what == "forget":
                shutil.rmtree(f"{directory}/cache")
                far = far_archive.opened(address)
            elif captures := near.captures():
                at = data.draw(st.integers(0, len(captures) - 1))
                pair = ((near, captures[at]), (far, far.captures()[at]))
                for archive, capture in pair:
                    if what == "remove":
                        archive.remove_capture(capture)
                    else:
                        archive.note(capture, "pushed/somewhere")
            assert [one.facts for one in near.captures()] == [one.facts for one in far.captures()]
            assert (near.units(), near.hosts("frontend.service")) == (far.units(), far.hosts("frontend.service"))
            for one, other in zip(near.captures(), far.captures(), strict=True):
                assert leaky_archives.dump_of(one) == leaky_archives.dump_of(other)
                assert near.name_of(one) == far.name_of(other)
                assert near.noted(one, "pushed/somewhere") == far.noted(other, "pushed/somewhere")
                assert (one.perf_map is None) == (other.perf_map is None)
            for number in range(5):
                facts = capture_samples.facts(content_of(number), sequence=number, host="a")
                assert near.has(facts) == far.has(facts)


# Each line is one writer, forked so that it writes at once, which brings what is not there yet.
WRITERS = """
import os, sys
sys.path.insert(0, sys.argv[1])
import s3fs
from ansible_collections.offheap.profiler.tests.unit.plugins.plugin_utils.archive import test_far_archive
for line in sys.stdin:
    child = os.fork()
    if child == 0:
        test_far_archive.write(*line.split())
        os._exit(0)
    os.waitpid(child, 0)
    os.write(1, b"dead\\n")
"""


def write(address: str, cache: str) -> None:
    """Bring all dumps. Say on standard output when it begins, which dump was new, and that all are there."""
    os.environ["XDG_CACHE_HOME"] = cache
    archive = far_archive.created(address)
    os.write(1, f"{os.getpid()}\n".encode())
    for number in range(MANY):
        if add(archive, Path(cache) / str(os.getpid()), number):
            os.write(1, f"new {number}\n".encode())
    os.write(1, b"all\n")


def writers() -> subprocess.Popen[str]:
    collections = next(path for path in sys.path if path.endswith("collections"))
    command = [sys.executable, "-c", WRITERS, collections]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


@pytest.mark.slow
@pytest.mark.parametrize("times", [30, pytest.param(100, marks=pytest.mark.soak_only)])
def test_writers_killed_at_any_moment(address: str, s3_store: s3.Server, tmp_path: Path, times: int) -> None:
    moments, half_done, told_new, store = random.Random(18), 0, list[str](), ObjectStore(address)
    with writers() as parent:
        assert parent.stdin is not None and parent.stdout is not None
        for attempt in range(times):
            # Every third controller is a new one, with nothing in its cache.
            print(
                address,
                tmp_path / "cache" / (str(attempt) if attempt % 3 == 0 else "kept"),
                file=parent.stdin,
                flush=True,
            )
            s3_store.requests()
            writer = int(parent.stdout.readline())
            # Requests, not seconds: a busy machine is slower, and the moments shall be as many in each step.
            seen, wanted = 0, moments.randrange(9)
            while seen < wanted:
                time.sleep(0.003)
                seen += len(s3_store.requests())
            time.sleep(moments.uniform(0, 0.01))
            os.kill(writer, signal.SIGKILL)
            told_new += iter(parent.stdout.readline, "dead\n")
            names = store.files()
            places = {name.rpartition("/")[0] for name in names if name.endswith(f"/{DUMP}")}
            half_done += any(f"{place}/{FACTS}" not in names for place in places)
        print(address, tmp_path / "cache" / "last", file=parent.stdin, flush=True)
        told_new += iter(parent.stdout.readline, "dead\n")
        parent.stdin.close()
    there_once(address, range(MANY))
    new = Counter(line for line in told_new if line.startswith("new"))
    assert max(new.values()) == 1, "nobody is told of a dump as new that somebody was told of before"
    assert told_new[-1] == "all\n"
    assert half_done > times / 10, "some were killed between a dump and its facts"


@pytest.mark.slow
def test_two_writers_at_once(address: str, tmp_path: Path) -> None:
    with writers() as first, writers() as second:
        for parent, cache in ((first, "one"), (second, "other")):
            assert parent.stdin is not None
            print(address, tmp_path / cache, file=parent.stdin, flush=True)
            parent.stdin.close()
        told = [parent.stdout.read().splitlines() for parent in (first, second) if parent.stdout is not None]
    assert [lines[-2:] for lines in told] == [["all", "dead"]] * 2
    there_once(address, range(MANY))
    new = Counter(line for lines in told for line in lines if line.startswith("new"))
    assert len(new) == MANY and set(new.values()) == {1}, "of two that bring the same, one brought it"


@pytest.mark.slow
def test_a_store_that_is_busy_and_tells_wrong_times(address: str, s3_store: s3.Server, tmp_path: Path) -> None:
    s3_store.be_strange(refused=0.2, wrong_clock=True)
    archive = far_archive.created(address)
    assert [add(archive, tmp_path, number) for number in range(6)] == [True] * 6
    forget(tmp_path)
    found = far_archive.opened(address).captures()
    assert [leaky_archives.dump_of(capture) for capture in found] == [content_of(number) for number in range(6)]
    s3_store.be_strange()
    there_once(address, range(6))


def test_what_cannot_be_brought_is_not_left_out(address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A report must not leave out what it could not read."""
    leaky_archives.fill(tmp_path / "near", tmp_path / "scratch", dumps=3)
    run_action(archive_sync, archive=str(tmp_path / "near"), url=address, direction="push")

    def unheard(self: ObjectStore, name: str, _target: Path, _limit: int) -> bool:
        raise StoreError(f"{self.address}/{name}: no answer")

    monkeypatch.setattr(ObjectStore, "get", unheard)
    with pytest.raises(AnsibleActionFail, match=f"{address}/captures/.*: no answer"):
        run_action(leak_report, archive=address, dest=str(tmp_path / "report"), show=False)


@pytest.mark.slow
def test_all_that_reads_archives_reads_it_there(
    address: str, s3_store: s3.Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To the byte what it makes of the directory; though the store tells random times."""
    monkeypatch.chdir(tmp_path)
    near = leaky_archives.fill(Path("near"), Path("scratch"))
    far = far_archive.created(address)
    s3_store.be_strange(wrong_clock=True)
    build_id = leaky_archives.image().build_id
    assert build_id is not None
    far.add_image(build_id, leaky_archives.libz().name, leaky_archives.libz())
    for capture in near.captures():
        Path("dump").write_bytes(leaky_archives.dump_of(capture))
        far.add_capture(capture.facts, Path("dump"))
    forget(tmp_path)
    told: dict[str, Any] = {}
    sent: list[tuple[str, float, bytes]] = []
    monkeypatch.setattr(
        pyroscope, "push", lambda _server, capture, pprof: sent.append((capture.host, capture.time, pprof))
    )
    for name in ("near", address):
        sent.clear()
        report = run_action(leak_report, archive=name, dest="report", show=False)
        files = {path: path.read_bytes() for path in Path("report").rglob("*") if path.is_file()}
        shutil.rmtree("report")
        failed = run_action(leak_assert, archive=name)
        run_action(leak_push, archive=name, pyroscope_url="http://127.0.0.1:1")
        assert len(sent) == 24
        profiles = list(sent)
        run_action(leak_push, archive=name, pyroscope_url="http://127.0.0.1:1")
        assert len(sent) == 24, "a server gets each once, whoever sends it"
        told[name] = (report, files, failed, profiles)
    assert told["near"][0]["reports"][0]["verdict"] == "leak"
    assert told["near"] == told[address]


@pytest.mark.slow
def test_copying_and_pruning(address: str, s3_store: s3.Server, tmp_path: Path) -> None:
    near = leaky_archives.fill(tmp_path / "near", tmp_path / "scratch", dumps=4)
    far_archive.created(address)
    third = f"{s3_store.bucket()}/copy"
    for archive, url, direction in (
        (str(near.root), address, "push"),
        (address, third, "push"),
        (f"{s3_store.bucket()}/pulled", third, "pull"),
        (str(tmp_path / "back"), third, "pull"),
    ):
        done = run_action(archive_sync, archive=archive, url=url, direction=direction)
        assert (done["captures"], done["images"], done.get("warnings")) == (8, 1, None)
        assert not run_action(archive_sync, archive=archive, url=url, direction=direction)["changed"]
    back = Archive.open(tmp_path / "back")
    assert [capture.facts for capture in back.captures()] == [capture.facts for capture in near.captures()]
    foretold = run_action(archive_prune, True, archive=address, keep_captures=2)
    pruned = run_action(archive_prune, archive=address, keep_captures=2)
    assert foretold == pruned and len(pruned["removed"]) == 4
    far = far_archive.opened(address)
    assert [capture.sequence for capture in far.captures()] == [0, 3, 0, 3]
    assert all(far.has(capture.facts) for capture in near.captures()), "what was removed is not collected again"
    again = run_action(archive_sync, archive=str(near.root), url=address, direction="push", check=True)
    assert (again["captures"], again["images"]) == (0, 0), "nor is it pushed again"


def test_addresses_that_do_not_do(s3_store: s3.Server, tmp_path: Path) -> None:
    for address, why in (
        ("s3://key:hidden@bucket/fleet", "an address must hold no password"),
        ("s3://nowhere/fleet", "s3://nowhere/fleet/archive.json: The specified bucket does not exist"),
        (f"file://{tmp_path}", "cannot create a file only where there is none"),
        ("nothing://there", "Protocol not known: nothing"),
    ):
        with pytest.raises(ControllerError, match=why) as caught:
            far_archive.created(address)
        assert "hidden" not in str(caught.value)
    address = s3_store.bucket()
    ObjectStore(address).put("notes.txt", b"mine")
    for check_mode in (False, True):
        with pytest.raises(ArchiveError, match=f"{address} is not an archive, and not empty"):
            far_archive.created(address, check_mode)
    for content, why in ((b'{"format": 99}', "is not in format 3"), (b"[" * 60_000, "archive.json is damaged")):
        ObjectStore(address).put("archive.json", content)
        with pytest.raises(ArchiveError, match=why):
            far_archive.opened(address)


def test_a_library_that_an_address_needs_is_named_in_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gcsfs", None)
    with pytest.raises(StoreError, match=r" -m pip install gcsfs$"):
        ObjectStore("gs://bucket/offheap")
