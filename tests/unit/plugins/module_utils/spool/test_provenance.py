# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Facts of captures, from real processes whose files are replaced while they run."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.offheap.profiler.plugins.module_utils.formats import dump_name, elf, jfr_header, limits, maps
from ansible_collections.offheap.profiler.plugins.module_utils.host import process_key, procfs
from ansible_collections.offheap.profiler.plugins.module_utils.spool import dump, listing, provenance
from ansible_collections.offheap.profiler.tests.unit.fakes import programs
from ansible_collections.offheap.profiler.tests.unit.plugins.module_utils.malloc import jemalloc_process
from ansible_collections.offheap.profiler.tests.unit.strategies import offers

GIB = 1 << 30


@pytest.fixture
def root(tmp_path: Path) -> Path:
    directory = tmp_path / "offheap"
    directory.mkdir(mode=0o755)
    return directory


@pytest.fixture
def spool(root: Path) -> Path:
    directory = root / "probe.service"
    directory.mkdir(mode=0o700)
    return directory


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """A copy of Python that the test may replace."""
    path = tmp_path / "python"
    shutil.copy("/usr/bin/python3", path)
    return path


@pytest.fixture
def process(spool: Path, program: Path) -> Iterator[subprocess.Popen[bytes]]:
    with jemalloc_process.running(spool, str(program)) as running:
        yield running


def examined(path: Path) -> tuple[int, list[maps.Mapping], int]:
    """Pid, mappings and mtime of a dump."""
    name = dump_name.parse(path.name)
    assert name is not None
    with path.open("rb") as stream:
        content = dump.read(stream.fileno(), path.stat().st_size)
    return name.pid, content.mappings, path.stat().st_mtime_ns


def image(images: list[provenance.FoundImage], path: Path) -> provenance.FoundImage:
    return next(found for found in images if found.path == str(path))


def test_facts_of_a_living_process(process: subprocess.Popen[bytes], spool: Path, program: Path) -> None:
    pid, mappings, _written = examined(jemalloc_process.dumps(spool)[0])
    facts = provenance.Examiner().process(pid, mappings, jemalloc_process.dumps(spool)[0].stat().st_mtime)
    assert facts.pid == process.pid
    assert facts.key == process_key.key(process.pid, procfs.mappings(process.pid))
    assert facts.boot_id == procfs.boot_id()
    assert facts.start_time == procfs.start_time(process.pid)
    assert facts.exe == str(program)
    assert (facts.cmdline or [])[:2] == [str(program), "-c"]


def test_an_image_of_one_whose_main_thread_has_ended_is_the_one_that_is_mapped(tmp_path: Path) -> None:
    program = programs.compiled(tmp_path, "program", programs.GOES_ON_WITHOUT_MAIN, "-pthread")
    with programs.running(program, state="Z") as pid:
        mappings = procfs.mappings(pid)
        program.rename(tmp_path / "before")
        found = image(provenance.Examiner().images(pid, mappings, time.time_ns()), program)
    assert found.build_id and found.source and "map_files" in found.source


def test_facts_after_its_end(process: subprocess.Popen[bytes], spool: Path) -> None:
    path = jemalloc_process.dumps(spool)[0]
    pid, mappings, _written = examined(path)
    process.kill()
    process.wait()
    facts = provenance.Examiner().process(pid, mappings, path.stat().st_mtime)
    assert facts.key == process_key.key(pid, mappings)
    assert facts.boot_id == procfs.boot_id(), "it was written after the boot, so in this one"
    assert (facts.start_time, facts.exe, facts.cmdline) == (None, None, None)
    assert provenance.Examiner().process(pid, mappings, procfs.boot_time() - 1).boot_id is None


def test_another_process_with_the_same_number(process: subprocess.Popen[bytes], spool: Path) -> None:
    _pid, mappings, _written = examined(jemalloc_process.dumps(spool)[0])
    facts = provenance.Examiner().process(os.getpid(), mappings, 0)
    assert (facts.start_time, facts.exe, facts.cmdline) == (None, None, None)


@pytest.mark.parametrize("how", ["renamed over", "renamed away"])
def test_images_of_a_living_process_are_the_mapped_files(
    process: subprocess.Popen[bytes], spool: Path, program: Path, how: str
) -> None:
    build_id = elf.read(program).build_id
    pid, mappings, written = examined(jemalloc_process.dumps(spool)[0])
    if how == "renamed over":
        shutil.copy("/bin/ls", program.with_name("new"))
        program.with_name("new").rename(program)
    elif how == "renamed away":
        program.rename(program.with_name("old"))
        shutil.copy("/bin/ls", program)
        program.with_name("old").unlink()
    found = image(provenance.Examiner().images(pid, mappings, written), program)
    assert found.build_id == build_id != elf.read(program).build_id
    assert found.source is not None and "map_files" in found.source
    fd = provenance.open_regular(found.source)
    assert elf.read(fd).build_id == build_id
    os.close(fd)


def test_images_after_its_end_come_from_unchanged_paths_only(
    process: subprocess.Popen[bytes], spool: Path, program: Path
) -> None:
    pid, mappings, written = examined(jemalloc_process.dumps(spool)[0])
    process.kill()
    process.wait()
    images = provenance.Examiner().images(pid, mappings, written)
    assert all(found.build_id for found in images)
    assert image(images, program).source == str(program)
    assert len({found.path for found in images}) == len(images)
    shutil.copy("/bin/ls", program)
    found = image(provenance.Examiner().images(pid, mappings, written), program)
    assert (found.build_id, found.reason) == (None, "replaced")
    program.unlink()
    found = image(provenance.Examiner().images(pid, mappings, written), program)
    assert (found.build_id, found.reason) == (None, "gone")


def test_an_image_has_the_sum_of_its_file_which_is_read_once(
    process: subprocess.Popen[bytes], spool: Path, program: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For all processes that map it, and all their dumps; until it changes."""
    pid, mappings, written = examined(jemalloc_process.dumps(spool)[0])
    read: list[int] = []
    sha256 = dump.sha256

    def counted(fd: int, size: int) -> str:
        read.append(os.fstat(fd).st_ino)
        return sha256(fd, size)

    monkeypatch.setattr(provenance, "sha256", counted)
    examiner = provenance.Examiner()
    for _dump in range(3):
        found = image(examiner.images(pid, mappings, written), program)
        assert found.sha256 == hashlib.sha256(program.read_bytes()).hexdigest()
    by_path = image(examiner.images(1 << 30, mappings, 1 << 62), program)
    assert by_path.source != found.source and by_path.sha256 == found.sha256
    assert program.stat().st_ino in read and len(set(read)) == len(read)
    process.kill()
    process.wait()
    with program.open("ab") as stream:
        stream.write(b"!")
    changed = image(examiner.images(1 << 30, mappings, 1 << 62), program)
    assert changed.sha256 == found.sha256, "one listing says one thing"
    changed = image(provenance.Examiner().images(1 << 30, mappings, 1 << 62), program)
    assert (changed.build_id, changed.size) == (found.build_id, program.stat().st_size)
    assert changed.sha256 == hashlib.sha256(program.read_bytes()).hexdigest() != found.sha256


@pytest.mark.parametrize("limit", ["provenance._MOST_SUMMED", "provenance.limits.LARGEST_IMAGE"])
def test_images_that_are_too_large_to_be_read(
    process: subprocess.Popen[bytes], spool: Path, program: Path, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    """A service may map files with holes of any size, as many as it likes."""
    monkeypatch.setattr(f"{provenance.__name__.rpartition('.')[0]}.{limit}", program.stat().st_size - 1)
    pid, mappings, written = examined(jemalloc_process.dumps(spool)[0])
    images = provenance.Examiner().images(pid, mappings, written)
    found = image(images, program)
    assert (found.build_id, found.size, found.sha256) == (None, None, None)
    assert found.reason == "its checksum cannot be had: it is too large"
    assert [one.path for one in images if one.sha256], "smaller ones are read all the same"


def test_images_that_a_forged_dump_names() -> None:
    """A service can write anything into its dumps, and we read them as root."""
    now = 1 << 62
    names = (
        b"/etc/passwd",
        b"/dev/zero",
        b"/proc/kmsg",
        b"/sys/kernel/notes",
        b"/etc",
        b"/nowhere",
        b"/bin/ls (deleted)",
    )
    lines = b"".join(b"%x-%x r-xp 00000000 00:00 1 %s\n" % (n, n + 1, name) for n, name in enumerate(names, 1))
    images = provenance.Examiner().images(1 << 30, maps.parse(lines), now)
    assert {found.path: found.reason for found in images} == {
        "/etc/passwd": "not an ELF file",
        "/etc": "gone",
        "/nowhere": "gone",
        "/bin/ls": "replaced",
    }
    assert {found.build_id for found in images} == {None}


def test_opening_files() -> None:
    for path in ("/dev/zero", "/etc", "/nowhere"):
        with pytest.raises(OSError):
            provenance.open_regular(path)


def find(root: Path, *units: str, max_dump: int = GIB, limit: int = 100) -> dict[str, Any]:
    return listing.find(str(root), list(units), max_dump, limit, provenance.Examiner()).to_json()


def test_listing_a_host(process: subprocess.Popen[bytes], root: Path, spool: Path) -> None:
    names = [path.name for path in jemalloc_process.dumps(spool)]
    found = find(root)
    captures = found["captures"]
    assert isinstance(captures, list)
    assert [entry["name"] for entry in captures] == names
    assert {entry["process"] for entry in captures} == {0}
    assert find(root, "probe")["captures"] == captures
    assert find(root, "other")["absent"] == ["other.service"]
    assert find(root / "nowhere", "other")["absent"] == ["other.service"]


def test_listing_no_more_than_the_limit(process: subprocess.Popen[bytes], root: Path, spool: Path) -> None:
    count = len(jemalloc_process.dumps(spool))
    found = find(root, limit=1)
    assert isinstance(found["captures"], list)
    assert [entry["name"].split(".")[2] for entry in found["captures"]] == ["0"], "the oldest"
    assert found["left"] == count - 1


def others(found: dict[str, object], kind: str) -> dict[str, str]:
    listed = found["others"]
    assert isinstance(listed, dict)
    return {entry["name"]: entry["reason"] for entry in listed[kind]}


def test_what_is_not_ready(process: subprocess.Popen[bytes], root: Path, spool: Path) -> None:
    whole = jemalloc_process.dumps(spool)[0].read_bytes()
    for path in jemalloc_process.dumps(spool):
        path.unlink()
    (spool / "jeprof.999999.0.i0.heap").write_bytes(whole[: len(whole) // 2])
    (spool / "jeprof.999999.1.i1.heap").write_bytes(whole.replace(b"heap_v2", b"heap_v3", 1))
    (spool / "jeprof.999999.2.i2.heap").symlink_to("/etc/passwd")
    (spool / "jeprof.999999.3.i3.heap").write_bytes(whole + whole)
    (spool / f"jeprof.{os.getpid()}.4.i4.heap").write_bytes(whole)
    with (spool / f"jeprof.{os.getpid()}.4.i4.heap").open("ab"):
        found = find(root, max_dump=len(whole))
    assert found["captures"] == []
    assert others(found, "incomplete") == {"jeprof.999999.0.i0.heap": "it ends before the list of mappings"}
    assert set(others(found, "unreadable")) == {f"jeprof.999999.{n}.i{n}.heap" for n in (1, 2, 3)}
    assert "heap_v3" in others(found, "unreadable")["jeprof.999999.1.i1.heap"]
    assert "max_dump" in others(found, "unreadable")["jeprof.999999.3.i3.heap"]
    assert set(others(found, "writing")) == {f"jeprof.{os.getpid()}.4.i4.heap"}
    found = find(root, max_dump=len(whole))
    assert isinstance(found["captures"], list)
    assert [entry["name"] for entry in found["captures"]] == [f"jeprof.{os.getpid()}.4.i4.heap"], (
        "written to its end now"
    )


def test_what_nobody_could_read_is_not_brought(root: Path, spool: Path) -> None:
    """Whatever max_dump allows."""
    path = spool / "jeprof.999999.0.i0.heap"
    path.touch()
    os.truncate(path, limits.LARGEST_DUMP + 1)
    found = find(root, max_dump=GIB)
    assert "larger than any dump that can be read" in others(found, "unreadable")[path.name]


def test_a_spool_that_cannot_be_entered_does_not_hide_the_others(
    process: subprocess.Popen[bytes], root: Path, spool: Path
) -> None:
    (root / "linked.service").symlink_to("/etc")
    found = find(root)
    assert found["captures"]
    assert isinstance(found["problems"], list)
    assert "linked.service" in found["problems"][0]


def test_each_trace_is_a_series_of_its_own() -> None:
    examiner = provenance.Examiner()
    boot, now = procfs.boot_id().replace("-", ""), int(time.clock_gettime(time.CLOCK_BOOTTIME) * 1000)
    first, second, before = (
        examiner.named_process(_traced(boot, started), time.time()) for started in (now, now + 1, 0)
    )
    assert first.key != second.key and {first.pid, second.pid} == {os.getpid()}
    assert first.exe == second.exe == os.path.realpath("/proc/self/exe")
    assert before.exe is None, "another process had the pid then"
    other = examiner.named_process(_traced("00000000", now), time.time())
    assert other.exe is None, "that was before a reboot"


def test_a_profile_without_names_comes_with_the_images_of_its_process(
    process: subprocess.Popen[bytes], root: Path, spool: Path, program: Path
) -> None:
    (spool / "kept").mkdir()
    for path in jemalloc_process.dumps(spool):
        path.rename(spool / "kept" / path.name)
    build_id = elf.read(program).build_id or ""
    boot, started = (
        procfs.boot_id().replace("-", ""),
        procfs.start_ticks(process.pid) * 1000 // os.sysconf("SC_CLK_TCK"),
    )
    for number, data in enumerate((offers.nameless(9, str(program), build_id, 4096), offers.pprof(9))):
        (spool / dump_name.of_offer(dump_name.PPROF, boot, started, process.pid, number, number)).write_bytes(data)
    found = find(root)
    nameless, named = sorted(found["captures"], key=lambda capture: str(capture["name"]))
    paths = {found["images"][index]["path"]: found["images"][index]["build_id"] for index in nameless["images"]}
    assert paths[str(program)] == build_id
    assert named["images"] == []
    process.kill()
    process.wait()
    assert [capture["images"] for capture in find(root)["captures"]] == [[], []]


def _traced(boot: str, started: int) -> dump_name.DumpName:
    found = dump_name.parse(dump_name.of_trace(dump_name.TRACED, boot, started, os.getpid(), 0))
    assert found is not None and found.prefix == dump_name.TRACED
    return found


def test_a_recording_is_listed_once_its_chunks_are_finished(root: Path, spool: Path) -> None:
    chunk = jfr_header.HEADER.pack(jfr_header.MAGIC, 2, 0, 100, 70, 68, 0, 0, 0, 1, 1) + bytes(32)
    begun = jfr_header.HEADER.pack(jfr_header.MAGIC, 2, 0, 1 << 30, 0, 0, 0, 0, 0, 1, 1)
    for number, content in enumerate((chunk, 2 * chunk, chunk + begun, b"heap_v2/1\n")):
        path = spool / dump_name.of_trace(dump_name.TRACED, "1f3a9c20", 7, 1, number)
        path.write_bytes(content)
        os.utime(path, (1, 1))
    found = listing.find(str(root), [], GIB, 100, provenance.Examiner())
    assert [capture.name.split(".")[3] for capture in found.captures] == ["0", "1"]
    assert all(not capture.images and not capture.jit for capture in found.captures)
    assert (found.counts["incomplete"], found.counts["unreadable"]) == (2, 0)
    waiting = listing.remaining(str(root), "probe.service")
    assert len(waiting.waiting) == len(waiting.lost) == 2


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_a_process_in_a_container_is_found_by_its_own_pid_and_its_files_are_gone_with_it() -> None:
    """What has the same path here is another file."""
    with subprocess.Popen(["unshare", "--pid", "--fork", "--kill-child", "sleep", "60"]) as unshare:
        own = [pid for pid in _children(unshare.pid) if procfs.exe(pid) == os.path.realpath("/bin/sleep")]
        namespace, mappings = procfs.pid_namespace(own[0]), procfs.mappings(own[0])
        examiner = provenance.Examiner()
        assert namespace != procfs.pid_namespace(os.getpid())
        assert examiner.pid_here(1, namespace) == own[0]
        assert (examiner.pid_here(7, namespace), examiner.pid_here(7, 0)) == (0, 7)
        found = examiner.process(own[0], mappings, time.time(), own_pid=1)
        assert (found.pid, found.exe) == (1, os.path.realpath("/bin/sleep"))
        assert found.key == process_key.key(1, mappings)
        living = examiner.images(own[0], mappings, time.time_ns(), elsewhere=True)
        assert living and all(image.build_id for image in living)
        unshare.kill()
    gone = provenance.Examiner().images(0, mappings, time.time_ns(), elsewhere=True)
    assert [image.path for image in gone] == [image.path for image in living]
    assert {(image.build_id, image.source, image.reason) for image in gone} == {(None, None, "gone")}


def _children(pid: int) -> list[int]:
    """Those of a process, as soon as they run their own program."""
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
        found = [int(word) for word in text.split()]
        if found and procfs.exe(found[0]) != procfs.exe(pid):
            return found
        time.sleep(0.01)
    raise AssertionError("it has started nothing")
