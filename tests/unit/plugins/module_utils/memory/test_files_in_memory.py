# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Whose files in memory grow, by real processes with real files."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.offheap.profiler.plugins.module_utils.memory import files_in_memory

MIB = 1 << 20
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root may be another user, and mount")
LONELY = 54321  # a user that nobody is

Program = Callable[..., int]


@pytest.fixture
def running() -> Iterator[Program]:
    """Runs a program of Python until the end of the test, and returns its pid once it has done its work."""
    begun = []

    def run(code: str, *before: str) -> int:
        process = subprocess.Popen(
            [*before, sys.executable, "-Sc", f"import os, mmap\n{code}\nprint(flush=True)\nos.read(0, 1)"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        begun.append(process)
        assert process.stdout and process.stdout.readline() == b"\n"
        return process.pid

    yield run
    for process in begun:
        process.communicate(b"x")


@pytest.fixture
def shared() -> Iterator[Path]:
    """A directory of anybody's in /dev/shm."""
    directory = Path("/dev/shm") / f"offheap-{secrets.token_hex(4)}"
    directory.mkdir()
    directory.chmod(0o1777)
    yield directory
    for path in directory.iterdir():
        path.unlink()
    directory.rmdir()


def of(*pids: int) -> list[dict[str, Any]]:
    return files_in_memory.FilesInMemory().of(pids)


def written(path: Path, mib: int, keep: str = "") -> str:
    return f"f = open({str(path)!r}, 'wb'); f.write(b'x' * ({mib} << 20)); f.flush(); {keep or 'f.close()'}"


def test_what_it_has_open_by_any_name_or_none(running: Program, shared: Path) -> None:
    pid = running(
        "m = os.memfd_create('cache'); os.ftruncate(m, 9 << 20); os.write(m, b'x' * (3 << 20))\n"
        f"{written(shared / 'gone', 2, 'os.unlink(f.name)')}"
    )
    # What is only reserved takes nothing.
    assert of(pid) == [
        {"path": "/memfd:cache", "size": 3 * MIB, "files": 1},
        {"path": str(shared / "gone"), "size": 2 * MIB, "files": 1},
    ]


@needs_root
def test_what_its_user_has_written_since_it_was_started(running: Program, shared: Path) -> None:
    (shared / "older").write_bytes(b"x" * 2 * MIB)
    os.chown(shared / "older", LONELY, LONELY)
    os.utime(shared / "older", (time.time() - 3600, time.time() - 3600))
    (shared / "others").write_bytes(b"x" * 2 * MIB)
    pid = running(f"os.setuid({LONELY})\n{written(shared / 'closed', 3)}")
    assert of(pid) == [{"path": str(shared / "closed"), "size": 3 * MIB, "files": 1}]


@needs_root
def test_what_another_service_of_its_user_may_have_written_is_not_its_own(running: Program, shared: Path) -> None:
    pid = running(f"os.setuid({LONELY})\n{written(shared / 'closed', 3)}")
    other = running(f"os.setuid({LONELY})")
    assert of(pid) == of(other) == []
    assert len(of(pid, other)) == 1, "which are one unit's"


def test_many_small_files_are_told_by_their_directory(running: Program, shared: Path) -> None:
    pid = running("\n".join(written(shared / str(number), 1, f"f{number} = f") for number in range(3)))
    assert of(pid) == [{"path": str(shared), "size": 3 * MIB, "files": 3}]


@needs_root
def test_a_tmpfs_of_its_own(running: Program) -> None:
    pid = running(
        written(Path("/mnt/cache"), 2), "unshare", "--mount", "sh", "-c", 'mount -t tmpfs t /mnt; exec "$@"', "-"
    )
    assert {"path": "/mnt/cache", "size": 2 * MIB, "files": 1} in of(pid)


def test_directories_as_deep_as_a_service_makes_them_hide_no_others(running: Program, shared: Path) -> None:
    deep = f"here = os.getcwd(); os.chdir({str(shared)!r})\nfor _one in range(3000): os.mkdir('d'); os.chdir('d')"
    pid = running(f"{deep}\n{written(Path('large'), 2)}\nos.chdir(here)\n{written(shared / 'closed', 3, 'g = f')}")
    try:
        assert of(pid) == [{"path": str(shared / "closed"), "size": 3 * MIB, "files": 1}]
    finally:
        subprocess.run(["rm", "-rf", shared / "d"], check=True)


def test_no_more_names_are_looked_at_than_that(running: Program, shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pid = running("\n".join(written(shared / str(number), 1, f"f{number} = f") for number in range(9)))
    host = files_in_memory.FilesInMemory()
    monkeypatch.setattr(files_in_memory, "_MOST_IN_ALL", 0)
    assert len(host.of([pid])) == 1 and host._names < 1000
    monkeypatch.undo()
    assert files_in_memory.FilesInMemory().of([pid])[0]["files"] == 9


def test_each_unit_has_its_own(running: Program) -> None:
    memfd = "m = os.memfd_create('{0}'); os.write(m, b'x' * (2 << 20))"
    one, other = running(memfd.format("one")), running(memfd.format("other"))
    host = files_in_memory.FilesInMemory()
    assert [[file["path"] for file in host.of(pids)] for pids in ([one], [other], [])] == [
        ["/memfd:one"],
        ["/memfd:other"],
        [],
    ]


def test_system_v(running: Program) -> None:
    pid = running(
        "import ctypes\nc = ctypes.CDLL(None); c.shmat.restype = ctypes.c_void_p\n"
        "n = c.shmget(0, 2 << 20, 0o1600); a = c.shmat(n, None, 0); ctypes.memset(a, 1, 2 << 20); c.shmctl(n, 0, None)"
    )
    assert of(pid) == [{"path": "segments of System V", "size": 2 * MIB, "files": 1}]


def test_a_process_that_has_ended() -> None:
    with subprocess.Popen(["/bin/true"]) as process:
        pass
    assert of(process.pid) == []
