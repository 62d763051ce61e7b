# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""What cannot be attached to is left alone, and whoever asked is told why and what to do."""

from __future__ import annotations

import os
import signal
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ansible_collections.offheap.profiler.plugins.module_utils.formats.errors import OffheapError
from ansible_collections.offheap.profiler.plugins.module_utils.host import procfs
from ansible_collections.offheap.profiler.plugins.module_utils.tracing import got_entries, held_thread, inject
from ansible_collections.offheap.profiler.tests.unit.fakes import programs
from ansible_collections.offheap.profiler.tests.unit.plugins.module_utils.tracing.conftest import wait

_PROGRAMS = Path(__file__).resolve().parents[4] / "agent" / "programs"
SYMBOL = "offheap_attach"

Change = Callable[[Path], None]


@pytest.fixture(scope="module")
def library(directory: Path) -> str:
    target = directory / "told.so"
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", target, _PROGRAMS / "told.c"], check=True)
    return str(target)


@pytest.fixture
def sleeper() -> Iterator[int]:
    with subprocess.Popen(["sleep", "100"]) as process:
        yield programs.settled(process, "sleep")
        process.kill()


@pytest.fixture
def proc(sleeper: int, tmp_path: Path) -> Path:
    """What the kernel says of a process, to be changed."""
    root = tmp_path / "proc"
    (root / str(sleeper)).mkdir(parents=True)
    for name in ("stat", "status", "maps", "uid_map", "auxv"):
        (root / str(sleeper) / name).write_bytes(Path(f"/proc/{sleeper}/{name}").read_bytes())
    for name in ("exe", "mem", "map_files"):
        (root / str(sleeper) / name).symlink_to(f"/proc/{sleeper}/{name}")
    (root / "sys" / "kernel" / "yama").mkdir(parents=True)
    (root / "sys" / "kernel" / "yama" / "ptrace_scope").write_text("2\n")
    return root


def test_one_that_can_be_attached_to(sleeper: int, proc: Path, library: str) -> None:
    found = inject.examine(sleeper, library, SYMBOL, str(proc))
    assert found == inject.examine(sleeper, library, SYMBOL)._replace(machine=found.machine)
    mapped = Path(f"/proc/{sleeper}/maps").read_text().splitlines()
    inside = [
        line for line in mapped if int(line.split("-")[0], 16) <= found.open < int(line.split()[0].split("-")[1], 16)
    ]
    assert "libc" in inside[0] and "x" in inside[0].split()[1]


def _status(name: str, value: str) -> Change:
    def change(own: Path) -> None:
        lines = (own / "status").read_text().splitlines()
        lines = [line for line in lines if not line.startswith(f"{name}:")] + [f"{name}:\t{value}"]
        (own / "status").write_text("\n".join(lines) + "\n")

    return change


def _maps(old: str, new: str) -> Change:
    def change(own: Path) -> None:
        text = (own / "maps").read_text()
        assert old in text
        (own / "maps").write_text(text.replace(old, new))

    return change


def _exe(content: bytes | None, **options: str) -> Change:
    def change(own: Path) -> None:
        (own / "exe").unlink()
        if content is not None:
            (own / "exe").write_bytes(content)

    return change


def _rootless(own: Path) -> None:
    (own / "uid_map").write_text("0 1000 1\n1 100000 65536\n")


def _yama(own: Path) -> None:
    (own.parent / "sys" / "kernel" / "yama" / "ptrace_scope").write_text("3\n")


def _elf(bits: int, machine: int) -> bytes:
    """The header of a program without segments."""
    ident = b"\x7fELF" + bytes([2 if bits == 64 else 1, 1, 1]) + bytes(9)
    layout, sizes = ("<HHIQQQIHHHHHH", (64, 56, 64)) if bits == 64 else ("<HHIIIIIHHHHHH", (52, 32, 40))
    return ident + struct.pack(layout, 2, machine, 1, 0, 0, 0, 0, sizes[0], sizes[1], 0, sizes[2], 0, 0)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (_status("State", "Z (zombie)"), "has ended, and its parent"),
        (_status("State", "T (stopped)"), "is stopped: let it go on first"),
        (_status("TracerPid", "77"), "is traced already, by process 77"),
        (_status("Seccomp", "1"), "seccomp's strict mode"),
        (_status("x86_Thread_features", "shstk wrss"), "has a shadow stack"),
        (_yama, "kernel.yama.ptrace_scope=3"),
        (_rootless, "user namespace in which we are nobody"),
        (_exe(_elf(32, 3)), "is a 32-bit program"),
        (_exe(_elf(64, 62)), "is a static program"),
        (_exe(_elf(64, 183)), "process .* is aarch64"),
        (_exe(_elf(64, 62)[:60]), "no program that can be read"),
        (_exe(None), "no program that can be read"),
        (_maps("libc.so.6", "libc.musl-x86_64.so.1"), "uses musl"),
        (_maps("libc.so.6", "libother.so"), "has no glibc mapped"),
        (_maps("r-xp", "r--p"), "no way back is known"),
        (lambda own: (own / "maps").write_text("nonsense\n/x\n"), "not a line of maps"),
    ],
)
def test_what_is_refused(change: Change, says: str, sleeper: int, proc: Path, library: str) -> None:
    change(proc / str(sleeper))
    with pytest.raises(OffheapError, match=says):
        inject.examine(sleeper, library, SYMBOL, str(proc))


def test_a_library_of_another_kind(sleeper: int, library: str, tmp_path: Path) -> None:
    with pytest.raises(OffheapError, match="has no function something_else"):
        inject.examine(sleeper, library, "something_else")
    (tmp_path / "text").write_text("text")
    with pytest.raises(OffheapError, match="not an ELF file"):
        inject.examine(sleeper, str(tmp_path / "text"), SYMBOL)


def test_a_c_library_that_lies(sleeper: int, proc: Path, library: str, tmp_path: Path) -> None:
    """Its file is the process's: symbols that are nowhere, tables that go on for ever, and a file that ends early."""
    own = proc / str(sleeper)
    (own / "map_files").unlink()
    (own / "map_files").mkdir()
    line = next(line for line in (own / "maps").read_text().splitlines() if "libc.so.6" in line)
    start, end = (int(word, 16) for word in line.split()[0].split("-"))
    good = Path(f"/proc/{sleeper}/map_files/{start:x}-{end:x}").read_bytes()
    where = own / "map_files" / f"{start:x}-{end:x}"
    for content in (b"", good[:64], good[: len(good) // 2], good[:40] + b"\xff" * 24 + good[64:]):
        where.write_bytes(content)
        with pytest.raises(OffheapError):
            inject.examine(sleeper, library, SYMBOL, str(proc))
    where.unlink()
    os.mkfifo(where)
    with pytest.raises(OffheapError, match="not a regular file"):
        inject.examine(sleeper, library, SYMBOL, str(proc))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may attach")
def test_real_ones_are_refused(library: str, sleeper: int) -> None:
    os.kill(sleeper, signal.SIGSTOP)
    os.waitpid(sleeper, os.WUNTRACED)
    with pytest.raises(OffheapError, match="is stopped"):
        inject.have_library(sleeper, library, SYMBOL, b"")
    with subprocess.Popen(["true"]) as ended:
        os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)
        with pytest.raises(OffheapError):
            inject.have_library(ended.pid, library, SYMBOL, b"")
    with pytest.raises(OffheapError, match="no longer exists"):
        inject.have_library(ended.pid, library, SYMBOL, b"")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may attach")
def test_one_whose_main_thread_has_ended(library: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = programs.compiled(tmp_path, "program", programs.GOES_ON_WITHOUT_MAIN, "-pthread")
    with programs.running(program, state="Z") as pid:
        settings = str(tmp_path / "out").encode()
        assert inject.have_library(pid, library, SYMBOL, settings).result == 42
        monkeypatch.setattr(held_thread, "_waiting", lambda *_unused: [])  # as if all were busy
        assert inject.have_library(pid, library, SYMBOL, settings).result == 42
        assert got_entries.into(pid, "told.so") == 0


_VFORKS = "import ctypes, time; ctypes.CDLL(None).vfork(); time.sleep(600)"


def test_a_thread_that_nothing_interrupts_is_let_alone() -> None:
    """As one that waits for a disk: here, for a child that has yet to begin its program (vfork(2))."""
    with subprocess.Popen([sys.executable, "-c", _VFORKS]) as process:
        wait(lambda: procfs.status(process.pid)["State"].startswith("D"), "it waits for its child")
        assert held_thread._is_spared(process.pid, process.pid)
        (child,) = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        process.kill()
        os.kill(int(child), signal.SIGKILL)
