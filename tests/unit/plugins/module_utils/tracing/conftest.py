# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""A JVM that leaks, async-profiler, and places of their own for what they leave."""

from __future__ import annotations

import contextlib
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ansible_collections.offheap.profiler.plugins.module_utils.formats.errors import OffheapError
from ansible_collections.offheap.profiler.plugins.module_utils.host import places
from ansible_collections.offheap.profiler.plugins.module_utils.runtimes import hotspot_attach
from ansible_collections.offheap.profiler.tests.unit.strategies import recordings

_TESTS = Path(__file__).resolve().parents[4]
_SOURCES = [_TESTS / "agent" / "programs" / "LeakingInflater.java", _TESTS / "bench" / "overhead" / "Deflaters.java"]


@pytest.fixture(scope="module")
def agent(directory: Path) -> str:
    return str(recordings.library(directory))


@pytest.fixture(scope="module")
def classes(directory: Path) -> Path:
    subprocess.run(["javac", "-d", directory, *_SOURCES], check=True)
    return directory


@contextlib.contextmanager
def running(classes: Path, *options: str, program: str = "LeakingInflater 50") -> Iterator[int]:
    """The pid of a JVM that handles SIGQUIT."""
    command = ["java", "-Xmx64m", "-XX:+UseSerialGC", *options, "-cp", str(classes), *program.split()]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        try:
            wait(lambda: is_jvm(process.pid), "the JVM handles SIGQUIT")
            yield process.pid
        finally:
            process.kill()


@pytest.fixture
def jvm(classes: Path, agent: str) -> Iterator[int]:
    with running(classes) as pid:
        wait(lambda: loads(pid, agent), "it loads agents")
        yield pid


def loads(pid: int, agent: str) -> bool:
    """For a moment, a JVM answers and loads no agent yet."""
    try:
        return hotspot_attach.load(hotspot_attach.look(pid), agent, "status,quiet,loglevel=none") == 0
    except OffheapError:
        return False


@pytest.fixture(autouse=True)
def tracing(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where the path of a socket is no longer than it may be (unix(7)), as below a test's own directory."""
    with tempfile.TemporaryDirectory(prefix="run-") as run:
        monkeypatch.setattr(places, "SOCKETS", run)
        monkeypatch.setattr(places, "TRACING", f"{run}/tracing")
        yield Path(run) / "tracing"


def is_jvm(pid: int) -> bool:
    try:
        return hotspot_attach.look(pid).catches
    except OffheapError:
        return False


def wait(fact: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 120
    while not fact():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)
