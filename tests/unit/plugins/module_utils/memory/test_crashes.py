# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
from __future__ import annotations

import os
from pathlib import Path

import pytest

from ansible_collections.offheap.profiler.plugins.module_utils.memory import crashes

# As HotSpot writes it (vmError.cpp), shortened.
OUT_OF_MEMORY = """#
# There is insufficient memory for the Java Runtime Environment to continue.
# Native memory allocation (mmap) failed to map 16384 bytes for committing reserved memory.
# Possible reasons:
---------------  S Y S T E M  ---------------
Memory: 4k page, physical 24585400k(204800k free), swap 0k(0k free)
Resident Set Size: 62500K (peak: 70000K anon: 40000K)
"""
SEGFAULT = (
    "#\n# A fatal error has been detected by the Java Runtime Environment:\n#\n#  SIGSEGV (0xb) at pc=0x7f, pid=1\n"
)
KILL = (
    "1700000000.123456 app1 kernel: oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,"
    "oom_memcg={group},task_memcg={group},task=java,pid={pid},uid=990\n"
    "1700000000.223456 app1 kernel: Memory cgroup out of memory: Killed process {pid} (java) total-vm:9999kB, "
    "anon-rss:2048kB, file-rss:4kB, shmem-rss:8kB, UID:990 pgtables:1kB oom_score_adj:0\n"
)


@pytest.fixture
def proc(tmp_path: Path) -> tuple[str, Path]:
    """A procfs with one process, whose working directory is returned."""
    work = tmp_path / "work"
    (tmp_path / "proc/50/root/tmp").mkdir(parents=True)
    work.mkdir()
    (tmp_path / "proc/50/cwd").symlink_to(work)
    return str(tmp_path / "proc"), work


def test_error_files_of_hotspot(proc: tuple[str, Path]) -> None:
    root, work = proc
    (work / "hs_err_pid7.log").write_text(OUT_OF_MEMORY)
    os.utime(work / "hs_err_pid7.log", (1000, 1000))
    (Path(root) / "50/root/tmp/hs_err_pid8.log").write_text(SEGFAULT)
    (work / "hs_err_pid9.log").symlink_to("/etc/passwd")
    newer, older = crashes.error_files(50, root)
    assert (newer["path"], newer["reason"], newer["failed"]) == ("/tmp/hs_err_pid8.log", "SIGSEGV", None)
    assert older == {
        "path": f"{work}/hs_err_pid7.log",
        "time": 1000,
        "reason": "out-of-memory",
        "failed": 16384,
        "physical": 24585400 * 1024,
        "physical_free": 204800 * 1024,
        "resident": 62500 * 1024,
    }


def test_a_pipe_in_the_place_of_a_file_holds_nobody_up(proc: tuple[str, Path]) -> None:
    root, work = proc
    os.mkfifo(work / "hs_err_pid7.log")
    os.mkfifo(work / "core")
    assert crashes.error_files(50, root) == []
    assert crashes.core_dumps(50, "java", root) == []


def test_core_dumps(proc: tuple[str, Path]) -> None:
    root, work = proc
    (work / "core").write_bytes(b"x" * 100)
    (work / "core.1234").write_bytes(b"x" * 200)
    (work / "core.java.txt").write_bytes(b"x")
    found = {Path(dump["path"]).name: dump["size"] for dump in crashes.core_dumps(50, "java", root)}
    assert found == {"core": 100, "core.1234": 200}


def test_kills_belong_to_the_control_group_that_the_kernel_names() -> None:
    text = KILL.format(group="/system.slice/a.service", pid=7) + KILL.format(group="/system.slice/b.service", pid=8)
    (kill,) = crashes.oom_kills(text, "/system.slice/b.service", {"java"})
    assert kill == {"time": 1700000000, "pid": 8, "name": "java", "anon": 2 << 20, "file": 4096, "shmem": 8192}
    assert crashes.oom_kills(text, "/system.slice/c.service", {"java"}) == []


def test_a_kernel_that_names_none() -> None:
    line = "1700000000.1 app1 kernel: Killed process 7 (java) total-vm:9kB, anon-rss:1kB, file-rss:2kB\n"
    assert [kill["shmem"] for kill in crashes.oom_kills(line, "/system.slice/a.service", {"java"})] == [0]
    assert crashes.oom_kills(line, "/system.slice/a.service", {"nginx"}) == []
