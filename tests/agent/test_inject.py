# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""A thread of a running process opens a library and calls it, and nothing else in the process notices."""

from __future__ import annotations

import platform
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ansible_collections.offheap.profiler.plugins.module_utils.tracing import inject
from ansible_collections.offheap.profiler.plugins.module_utils.tracing.inject import InjectError, have_library
from ansible_collections.offheap.profiler.plugins.module_utils.tracing.running_trace import TraceError
from ansible_collections.offheap.profiler.tests.agent.conftest import PROGRAMS, compiled

pytestmark = pytest.mark.skipif(platform.machine() != "x86_64", reason="the programs here are for x86_64")

Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture(scope="session")
def attached() -> str:
    return str(compiled("attached.so", [PROGRAMS / "attached.c"], "-O2", "-shared", "-fPIC"))


@pytest.fixture
def run() -> Iterator[Start]:
    """Starts a program that says a line when it has begun; it is killed at the end."""
    started: list[subprocess.Popen[str]] = []

    def go(*command: str | Path) -> subprocess.Popen[str]:
        process = subprocess.Popen([str(one) for one in command], stdout=subprocess.PIPE, text=True)
        started.append(process)
        assert process.stdout and process.stdout.readline()
        return process

    yield go
    for process in started:
        process.kill()
        process.wait()
        if process.stdout:
            process.stdout.close()


def program(name: str) -> Path:
    return compiled(name, [PROGRAMS / f"{name}.c"], "-O2")


def rest(process: subprocess.Popen[str]) -> str:
    """What it has said until now, at its end."""
    process.kill()
    return process.stdout.read() if process.stdout else ""


def have(process: subprocess.Popen[str], library: str, out: Path, words: str = "", **limits: float) -> inject.Injected:
    return have_library(process.pid, library, "offheap_attach", f"{out} {words}".encode(), **limits)


# Of these, the kernel knows how long they have waited; of the other two, only that they were interrupted.
@pytest.mark.parametrize(
    ("number", "name", "longest"),
    [(0, "epoll_wait", 9), (1, "poll", 0.4), (2, "pselect6", 0.4), (3, "clock_nanosleep", 0.4), (4, "recvfrom", 9),
     (5, "futex", 0.4)],
)  # fmt: skip
def test_a_wait_goes_on_for_as_long_as_was_left(
    number: int, name: str, longest: float, run: Start, attached: str, tmp_path: Path
) -> None:
    process = run(program("waits"), str(number), str(longest))
    for _time in range(5):
        time.sleep(0.17)
        found = have(process, attached, tmp_path / "out")
        assert (found.result, found.wait) == (42, name)
    time.sleep(0.5)
    assert rest(process) == ""
    said = (tmp_path / "out").read_text().splitlines()
    assert len(said) == 5 and {line.split()[0] for line in said} == {str(process.pid)}


def test_no_register_changes(run: Start, attached: str, tmp_path: Path) -> None:
    process = run(program("registers"))
    for _time in range(20):
        assert have(process, attached, tmp_path / "out").result == 42
        time.sleep(0.03)
    assert process.poll() is None, rest(process)


def test_a_thread_that_is_let_go_finds_its_way_back(run: Start, attached: str, tmp_path: Path) -> None:
    """The call is not back in time; it goes on by itself, and all registers are what they were."""
    process = run(program("registers"))
    began = time.monotonic()
    with pytest.raises(TraceError, match="it was let go, and finishes by itself"):
        have(process, attached, tmp_path / "out", "1", held=0.3)
    assert time.monotonic() - began < 1
    assert not (tmp_path / "out").exists()
    time.sleep(1)
    assert (tmp_path / "out").exists(), "the call has gone on"
    assert have(process, attached, tmp_path / "out").result == 42, "and the thread waits again"
    assert process.poll() is None, rest(process)


def test_a_call_that_faults_leaves_the_process_alive(run: Start, attached: str, tmp_path: Path) -> None:
    process = run(program("registers"))
    with pytest.raises(InjectError, match="failed with signal 11"):
        have(process, attached, tmp_path / "out", "0 fault")
    assert have(process, attached, tmp_path / "out").result == 42
    assert process.poll() is None, rest(process)
