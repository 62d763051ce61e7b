# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Whatever is missing: the service runs as without an agent, and one line says why."""

from __future__ import annotations

import contextlib
import os
import resource
import select
import shutil
import stat
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ansible_collections.offheap.profiler.plugins.module_utils.agent import client, failed_dumps
from ansible_collections.offheap.profiler.plugins.module_utils.host import cgroup
from ansible_collections.offheap.profiler.tests.agent.hanging_disk import HangingDisk
from ansible_collections.offheap.profiler.tests.agent.service import UNIT, Service, wait_for

Start = Callable[..., Service]
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


def only_line(service: Service) -> str:
    lines = service.stderr().splitlines()
    assert len(lines) == 1 and lines[0].startswith("offheap: "), lines
    return lines[0]


def test_no_jemalloc(start: Start, workload: Path, library: Path) -> None:
    service = start(workload, "leak", "0.3", preload=[library])
    assert service.result() == (0, "")
    assert "no jemalloc" in only_line(service)
    assert service.agents() == []


def test_jemalloc_without_prof(start: Start, workload: Path, library: Path, fake_jemalloc: Path) -> None:
    service = start(workload, "leak", "0.3", preload=[fake_jemalloc, library], environment={"FAKE_PROF": "0"})
    assert service.result() == (0, "")
    assert "built without profiling" in only_line(service)


def test_prof_not_asked_for(start: Start, workload: Path) -> None:
    service = start(workload, "leak", "0.3", conf="prof:false")
    assert service.result() == (0, "")
    assert "prof:true" in only_line(service)


def test_jemalloc_before_the_hook(start: Start, workload: Path, library: Path, fake_jemalloc: Path) -> None:
    environment = {"FAKE_OLD": "1", "FAKE_PREFIX": "/tmp/none"}
    service = start(workload, "leak", "30", preload=[fake_jemalloc, library], environment=environment)
    service.wait_until_active()
    unwinder = service.ask("status")["unwinder"]
    assert (unwinder["wanted"], unwinder["used"]) == ("hybrid", "builtin")
    assert "5.3.0" in unwinder["why"]
    with pytest.raises(client.AgentError, match="jemalloc#2681"):
        service.ask("reset")


def test_no_place_for_the_socket(start: Start, workload: Path) -> None:
    service = start(workload, "leak", "1.5", socket_dir="/does/not/exist", dump_seconds=1, unit="")
    assert service.result() == (0, "")
    assert "no control socket" in only_line(service)
    assert len(service.dumps()) == 1  # all else works


def test_no_absolute_prefix(start: Start, workload: Path) -> None:
    service = start(workload, "leak", "30", conf="prof_prefix:jeprof", popen={"cwd": "/"})
    with pytest.raises(client.AgentError, match="absolute"):
        service.ask("dump")
    assert "prof_prefix" in only_line(service)


def test_spool_is_not_there(start: Start, workload: Path) -> None:
    service = start(workload, "leak", "30", conf="prof_prefix:/does/not/exist/jeprof", dump_seconds=1)
    with pytest.raises(client.AgentError, match="/does/not/exist"):
        service.ask("dump")
    wait_for("a scheduled attempt", lambda: service.ask("status")["spool"]["dumps_failed"] >= 2)
    assert "/does/not/exist" in service.ask("status")["problem"]
    assert "/does/not/exist" in only_line(service)


@contextlib.contextmanager
def small_volume(path: Path, size: int) -> Iterator[None]:
    path.mkdir(exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(path)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(path)], check=True)


@needs_root
def test_full_spool(start: Start, workload: Path, tmp_path: Path) -> None:
    with small_volume(tmp_path / "spool", 65536):
        service = start(workload, "leak", "30", stats_seconds=1)
        service.wait_until_active()
        filler = service.spool / "filler"
        with pytest.raises(OSError), filler.open("wb", buffering=0) as stream:
            while True:
                stream.write(b"x" * 4096)
        for _number in range(5):
            with pytest.raises(client.AgentError, match="has 0 bytes free"):
                service.ask("dump")
        assert service.dumps() == []  # no broken dumps are left
        time.sleep(1.2)
        for path in service.spool.glob("*.jsonl"):
            assert path.read_bytes() == b"" or path.read_bytes().endswith(b"}\n")
        filler.unlink()
        assert service.ask("dump")["ok"]
        assert len(service.dumps()) == 1
        assert service.process.poll() is None


@pytest.mark.parametrize("preloads_jemalloc", [True, False])
def test_a_limit_of_files(
    preloads_jemalloc: bool,
    start: Start,
    workload: Path,
    library: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cgroup, "belongs_to", lambda _pid, _unit: True)
    alone: dict[str, object] = (
        {} if preloads_jemalloc else {"preload": [library], "prefix": tmp_path / "spool" / "jeprof"}
    )
    service = start(workload, "leak", "30", **alone)
    service.wait_until_active()
    before = resource.prlimit(service.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(service.pid, resource.RLIMIT_FSIZE, (2048, before[1]))
    with pytest.raises(client.AgentError, match=r"could not write a dump into .*: File too large"):
        service.ask("dump")
    assert service.dumps() == []
    (said,) = failed_dumps.told([UNIT], str(service.run))
    assert said.endswith("File too large (1 of its dumps failed)")
    resource.prlimit(service.pid, resource.RLIMIT_FSIZE, before)
    assert service.ask("dump")["ok"]
    assert failed_dumps.told([UNIT], str(service.run)) == []


def test_a_dump_that_is_cut_at_the_end_of_a_line_is_none(start: Start, workload: Path) -> None:
    """jemalloc does not look how much of its last piece was written."""
    service = start(workload, "leak", "30", start="dormant")  # so that all its dumps are alike
    whole = Path(service.ask("dump")["path"]).read_bytes()
    limit = resource.prlimit(service.pid, resource.RLIMIT_FSIZE)
    for line in (b"heap_v2", b"t*:", b"MAPPED_LIBRARIES"):
        cut = whole.index(b"\n", whole.index(line)) + 1
        resource.prlimit(service.pid, resource.RLIMIT_FSIZE, (cut, limit[1]))
        with pytest.raises(client.AgentError, match="File too large"):
            service.ask("dump")
    assert len(service.dumps()) == 1
    resource.prlimit(service.pid, resource.RLIMIT_FSIZE, limit)
    again = service.ask("dump")
    assert Path(again["path"]).stat().st_size == again["size"]


@needs_root
def test_room_that_is_not_ours(start: Start, workload: Path, tmp_path: Path) -> None:
    with small_volume(tmp_path / "spool", 1 << 20):
        service = start(workload, "leak", "30", minimum_free=2 << 20)
        with pytest.raises(client.AgentError, match="must leave 2097152"):
            service.ask("dump")


@needs_root
def test_a_disk_that_hangs_does_not_hold_the_service(start: Start, workload: Path, tmp_path: Path) -> None:
    """Its threads start, fork and allocate while the dump waits for the disk."""
    (tmp_path / "spool").mkdir()
    disk = HangingDisk(tmp_path / "spool")
    try:
        service = start(workload, "rounds", "60")
        service.wait_until_active()
        assert service.ask("dump")["ok"]
        disk.hangs()
        with ThreadPoolExecutor() as pool:
            dump = pool.submit(service.ask, "dump")
            assert disk.waiting.wait(20)
            assert service.process.stdout
            output = service.process.stdout.fileno()
            os.read(output, 1 << 20)  # of the rounds until now
            rounds = b""
            while len(rounds) < 100:
                assert select.select([output], [], [], 20)[0], "the service stands still"
                rounds += os.read(output, 1 << 20)
            assert not dump.done()
            disk.let_go()
            content = disk.content(Path(dump.result()["path"]).name)
        assert content.startswith(b"heap_v2/") and len(content) == dump.result()["size"]
        service.kill()
    finally:
        disk.close()


@needs_root
def test_no_thread_to_be_had(start: Start, workload: Path, library: Path, jemalloc: Path, tmp_path: Path) -> None:
    def limit() -> None:
        os.setgid(65534)
        os.setuid(4000000)
        resource.setrlimit(resource.RLIMIT_NPROC, (1, 1))

    # Another user cannot read what lies in a home.
    preload = [Path(shutil.copy(path, tmp_path)) for path in (jemalloc, library)]
    tmp_path.chmod(0o755)
    for parent in tmp_path.parents:
        if parent.stat().st_uid == os.geteuid() and not parent.stat().st_mode & stat.S_IXOTH and str(parent) != "/":
            parent.chmod(0o755)
    service = start("/usr/bin/sleep", "0.3", preload=preload, popen={"preexec_fn": limit})
    assert service.result() == (0, "")
    assert "no thread" in only_line(service)


def test_few_descriptors(start: Start, workload: Path) -> None:
    service = start(
        workload, "leak", "30", popen={"preexec_fn": lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (8, 8))}
    )
    assert service.ask("dump")["ok"]


@pytest.mark.parametrize("closed", [(0,), (1, 2), (0, 1, 2)])
def test_without_standard_streams(start: Start, workload: Path, closed: tuple[int, ...]) -> None:
    closing = " ".join(f"{fd}>&-" for fd in closed)
    service = start("/bin/sh", "-c", f"exec {workload} leak 30 {closing}", executable=workload, stats_seconds=1)
    service.ask("dump")
    open_files = {int(path.name) for path in Path(f"/proc/{service.pid}/fd").iterdir()}
    assert not open_files & set(closed)  # ours are in a table of their own


@pytest.mark.parametrize("full", [False, True])
def test_a_standard_error_that_nobody_reads(start: Start, workload: Path, full: bool) -> None:
    """A line to it would end the service (SIGPIPE), or keep it from starting."""
    reading, writing = os.pipe()
    try:
        if full:
            os.set_blocking(writing, False)
            with contextlib.suppress(BlockingIOError):
                while os.write(writing, bytes(4096)):
                    pass
            os.set_blocking(writing, True)
        else:
            os.close(reading)
        popen = {"preexec_fn": lambda: os.dup2(writing, 2)}  # instead of the file that Service gives it
        service = start(workload, "leak", "0.3", conf="prof:false", popen=popen)
        assert service.result() == (0, "")
    finally:
        os.close(writing)
        if full:
            os.close(reading)


def test_its_descriptors_are_not_the_services(start: Start, workload: Path) -> None:
    service = start(workload, "closer", "1")
    assert service.ask("dump")["ok"]
    assert service.ask("status")["descriptors"] == "private"
    assert service.result() == (0, "stolen 0\n")


def test_a_table_shared_under_a_filter_of_system_calls(start: Start, workload: Path) -> None:
    service = start(workload, "filtered", str(workload), "closer", "2", start_delay=1)
    with contextlib.suppress(client.AgentError, AssertionError):
        assert service.ask("status")["descriptors"] == "shared"
    assert service.result() == (0, "stolen 0\n")


def test_the_socket_comes_back(start: Start, workload: Path) -> None:
    service = start(workload, "filtered", str(workload), "leak", "30")

    def is_filtered() -> bool:
        """Until the program replaces itself, the agent of the one before may answer, or none."""
        with contextlib.suppress(client.AgentGone):
            return bool(service.ask("status")["descriptors"] == "shared")
        return False

    wait_for("the filtered program", is_filtered)
    assert service.ask("dump")["ok"]


def test_settings_that_make_no_sense(start: Start, workload: Path) -> None:
    service = start(workload, "leak", "30", dump_seconds="often", keep_files="-3")
    status = service.ask("status")
    assert "OFFHEAP_DUMP_SECONDS" in status["ignored"]
    assert status["schedule"]["dump"] == 0 and status["schedule"]["keep_files"] == 64
    assert "OFFHEAP_DUMP_SECONDS" in only_line(service)
