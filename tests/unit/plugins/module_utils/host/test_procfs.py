# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Procfs: real processes, and lines that only a hostile or an unusual process has."""

from __future__ import annotations

import contextlib
import mmap
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.offheap.profiler.plugins.module_utils.host import procfs, regions
from ansible_collections.offheap.profiler.tests.unit.fakes import programs


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(
        ["/bin/sleep", "100"], env={"PLAIN": "a=b", "ODD": "\udcff", "EMPTY": ""}, stdin=subprocess.DEVNULL
    )
    programs.settled(process, "/bin/sleep")
    yield process
    process.kill()
    process.wait()


def test_a_process(sleeper: subprocess.Popen[bytes]) -> None:
    pid = sleeper.pid
    assert pid in procfs.pids()
    assert procfs.cmdline(pid) == ["/bin/sleep", "100"]
    assert procfs.environ(pid) == {"PLAIN": "a=b", "ODD": "\udcff", "EMPTY": ""}
    assert abs(procfs.start_time(pid) - time.time()) < 5
    assert procfs.start_ticks(pid) > procfs.start_ticks(1)
    program = os.path.realpath("/bin/sleep")
    mappings = procfs.mapped_files(pid)[program]
    assert any(mapping.executable for mapping in mappings)
    for mapping in mappings:
        assert os.path.samefile(f"/proc/{pid}/map_files/{mapping.range_name}", program)
    assert all(path.startswith("/") for path in procfs.mapped_files(pid))


def test_zombie_and_gone(sleeper: subprocess.Popen[bytes]) -> None:
    started = procfs.start_ticks(sleeper.pid)
    assert procfs.runs(sleeper.pid, started) and not procfs.runs(sleeper.pid, started + 1)
    sleeper.kill()
    os.waitid(os.P_PID, sleeper.pid, os.WEXITED | os.WNOWAIT)
    assert not procfs.runs(sleeper.pid, started)
    assert procfs.mappings(sleeper.pid) == []
    assert procfs.cmdline(sleeper.pid) == []
    assert procfs.exe(sleeper.pid) is None
    sleeper.wait()
    assert not procfs.runs(sleeper.pid, started)
    for question in (
        procfs.mappings,
        procfs.environ,
        procfs.cmdline,
        procfs.exe,
        procfs.start_ticks,
        procfs.open_files,
    ):
        with pytest.raises(procfs.ProcessGone):
            question(sleeper.pid)


def test_a_process_whose_main_thread_has_ended_goes_on_until_its_last_one(tmp_path: Path) -> None:
    program = str(programs.compiled(tmp_path, "program", programs.GOES_ON_WITHOUT_MAIN, "-pthread"))
    with programs.running(program, "argument", env={"PLAIN": "a=b"}, state="Z") as pid:
        started = procfs.start_ticks(pid)
        assert procfs.runs(pid, started)
        assert procfs.cmdline(pid) == [program, "argument"]
        assert procfs.environ(pid) == {"PLAIN": "a=b"}
        assert procfs.exe(pid) == program
        assert procfs.mapped_files(pid)[program] and procfs.mappings(pid)
        assert not procfs.is_secure(pid)
        assert procfs.pid_namespace(pid) == procfs.pid_namespace(os.getpid())
        assert procfs.resident(pid) > 0
        assert 0 in [one.fd for one in procfs.open_files(pid)]
        assert procfs.own_pids(pid)[-1:] == [int(procfs.status(pid)["Pid"])] == [pid]
        assert any(region.path == program for region in regions.read(pid))
        os.kill(pid, signal.SIGKILL)
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        assert not procfs.runs(pid, started)
        assert not procfs.mappings(pid) and not procfs.cmdline(pid)
        assert procfs.exe(pid) is None
        assert procfs.resident(pid) == 0
    with pytest.raises(procfs.ProcessGone):
        procfs.status(pid)


def test_open_files(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with path.open("w") as writer, path.open() as reader:
        found = {entry.fd: entry for entry in procfs.open_files(os.getpid())}
        status = os.stat(path)
        assert found[writer.fileno()] == procfs.OpenFile(writer.fileno(), status.st_dev, status.st_ino, True)
        assert found[reader.fileno()] == procfs.OpenFile(reader.fileno(), status.st_dev, status.st_ino, False)


@pytest.mark.parametrize(
    "name", ["with space.so", " leading", "trailing ", "new\nline", "back\\slash", "\udcff\udcfe", "ümläut"]
)
def test_names_of_mapped_files(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(bytes(mmap.PAGESIZE))
    with path.open("rb") as stream, mmap.mmap(stream.fileno(), 0, prot=mmap.PROT_READ):
        mapping = procfs.mapped_files(os.getpid())[str(path)][0]
        assert not mapping.deleted
        assert mapping.inode == path.stat().st_ino
        path.unlink()
        mapping = procfs.mapped_files(os.getpid())[str(path)][0]
        assert mapping.deleted


def test_program_name_with_parentheses(tmp_path: Path) -> None:
    (tmp_path / "7").mkdir()
    fields = " ".join(str(number) for number in range(3, 53))
    (tmp_path / "7" / "stat").write_text(f"7 (a) R (b 1 2) {fields}\n")
    (tmp_path / "stat").write_text("cpu 1 2\nbtime 1700000000\n")
    assert procfs.start_ticks(7, str(tmp_path)) == 22
    assert procfs.start_time(7, str(tmp_path)) == pytest.approx(1700000000 + 22 / os.sysconf("SC_CLK_TCK"))


def test_boot() -> None:
    assert len(procfs.boot_id()) == 36
    assert procfs.boot_time() < time.time()


@given(st.binary(max_size=120))
def test_other_lines_than_the_kernels_raise_procfs_error(line: bytes) -> None:
    with tempfile.TemporaryDirectory() as proc:
        Path(proc, "7").mkdir()
        Path(proc, "7", "maps").write_bytes(line)
        for question in (procfs.mappings, procfs.mapped_files):
            with contextlib.suppress(procfs.ProcfsError):
                question(7, proc)


@pytest.mark.parametrize("text", [b"", b"btime \n", b"btime soon\n", b"btime 1e9\n"])
def test_a_host_without_a_start(tmp_path: Path, text: bytes) -> None:
    (tmp_path / "stat").write_bytes(text)
    with pytest.raises(procfs.ProcfsError, match="no btime"):
        procfs.boot_time(str(tmp_path))


@pytest.mark.parametrize("text", [b"", b"flags:\n", b"flags:\t019\n", b"flags:\tx\n"])
def test_a_descriptor_whose_flags_are_none_is_not_written_to(tmp_path: Path, text: bytes) -> None:
    for directory in ("fd", "fdinfo"):
        (tmp_path / "7" / directory).mkdir(parents=True)
        (tmp_path / "7" / directory / "3").write_bytes(text)
    assert [found.writable for found in procfs.open_files(7, str(tmp_path))] == [False]


def test_memory_that_is_blank(tmp_path: Path) -> None:
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "status").write_text("VmRSS:\n")
    assert procfs.resident(7, str(tmp_path)) == 0
