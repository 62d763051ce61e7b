# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Each dump notes the memory of the control group's processes that nobody profiles."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.offheap.profiler.plugins.plugin_utils.archive.capture import Capture
from ansible_collections.offheap.profiler.plugins.plugin_utils.leaks.verdict import Answer, judge
from ansible_collections.offheap.profiler.plugins.plugin_utils.leaks.watched import Watched, verdict_on_host
from ansible_collections.offheap.profiler.plugins.plugin_utils.leaks.without_agent import beside
from ansible_collections.offheap.profiler.plugins.plugin_utils.model import series
from ansible_collections.offheap.profiler.tests.agent.service import UNIT, Service, wait_for
from ansible_collections.offheap.profiler.tests.unit.plugins.plugin_utils.archive import capture_samples
from ansible_collections.offheap.profiler.tests.unit.strategies.profiles import profile

Start = Callable[..., Service]
MIB = 1 << 20
PYTHON = os.path.realpath(sys.executable)
# A server with workers of these sizes, in MiB, and with another program. A worker grows by 4 MiB at each SIGUSR1.
SERVER = """
import os, signal, sys, time
for size in map(int, sys.argv[1:]):
    if os.fork() == 0:
        kept = [b"x" * (size << 20)]
        signal.signal(signal.SIGUSR1, lambda *_: kept.append(b"x" * (4 << 20)))
        print(os.getpid(), flush=True)
        time.sleep(60)
os.posix_spawn("/bin/sleep", ["sleep", "60"], {})
time.sleep(60)
"""


@pytest.fixture
def group() -> Iterator[Path]:
    """A control group of version 2."""
    unified = Path("/sys/fs/cgroup/unified")
    path = (unified if unified.is_dir() else unified.parent) / f"offheap-test-{os.getpid()}"
    path.mkdir()
    yield path
    (path / "cgroup.kill").write_text("1")
    wait_for("an empty group", lambda: "populated 0" in (path / "cgroup.events").read_text())
    path.rmdir()


def server(start: Start, group: Path, *sizes: int, **settings: Any) -> tuple[Service, list[int]]:
    """A server in the group, once it is complete, and the pids of its workers."""
    command = f'echo $$ >{group}/cgroup.procs && exec {PYTHON} -c "$0" "$@"'
    arguments = ("-c", command, SERVER, *map(str, sizes))
    service = start("/bin/sh", *arguments, executable=PYTHON, **settings)
    assert service.process.stdout
    pids = [int(service.process.stdout.readline()) for _size in sizes]
    wait_for("sleep", lambda: len((group / "cgroup.procs").read_text().split()) == len(sizes) + 2)
    return service, pids


def noted(service: Service) -> dict[str, Any]:
    """The note beside a new dump."""
    path = Path(service.ask("dump")["path"])
    found: dict[str, Any] = json.loads(path.with_name(path.name + ".json").read_text())
    return found


def resident(pid: int) -> int:
    """Bytes without files and shared memory."""
    _size, present, shared = map(int, Path(f"/proc/{pid}/statm").read_text().split()[:3])
    return (present - shared) * os.sysconf("SC_PAGESIZE")


def test_workers_without_a_profile_are_told_with_their_memory(start: Start, group: Path) -> None:
    service, pids = server(start, group, 20, 60, 40, 10)
    found = noted(service)["others"]
    assert found["processes"] == 5
    assert 130 * MIB < found["rss"] < 230 * MIB
    largest = found["largest"]
    assert len(largest) == 4 and {one["pid"] for one in largest} == set(pids)
    assert [one["rss"] for one in largest] == sorted((one["rss"] for one in largest), reverse=True)
    assert largest[0]["rss"] > 60 * MIB
    assert all(one["name"].startswith("python") for one in largest)


def test_workers_with_a_profile_of_their_own_do_not_count(start: Start, group: Path) -> None:
    service, _pids = server(start, group, 20, 60, children=1)
    found = noted(service)["others"]
    assert found["processes"] == 1
    assert found["largest"][0]["name"] == "sleep"


# A process of 40 MiB whose main thread has ended, while another thread goes on.
WITHOUT_MAIN = """
import ctypes, os, threading, time
if os.fork() == 0:
    kept = b"x" * (40 << 20)
    threading.Thread(target=time.sleep, args=[60]).start()
    print(os.getpid(), flush=True)
    ctypes.CDLL(None).syscall(60 if os.uname().machine == "x86_64" else 93, 0)  # exit, of this thread alone
time.sleep(60)
"""


def test_a_process_whose_main_thread_has_ended_counts(start: Start, group: Path) -> None:
    command = f'echo $$ >{group}/cgroup.procs && exec {PYTHON} -c "$0"'
    service = start("/bin/sh", "-c", command, WITHOUT_MAIN, executable=PYTHON)
    assert service.process.stdout
    pid = int(service.process.stdout.readline())
    try:
        wait_for("the main thread to end", lambda: "\nState:\tZ" in Path(f"/proc/{pid}/status").read_text())
        found = noted(service)["others"]
    finally:
        os.kill(pid, signal.SIGKILL)  # cgroup.kill leaves it out
    assert found["processes"] == 1 and found["rss"] > 40 * MIB
    assert [(one["pid"], one["exe"]) for one in found["largest"]] == [(pid, PYTHON)]


# Children that become other programs, by calls that we see and by one that we do not.
REPLACED = """
import os, sys, time
def become(path):
    if sys.argv[1] == "seen":
        os.execv(path, [path, "300"])
    os.execve(os.open(path, os.O_RDONLY), [path, "300"], os.environ)
for number in range(int(sys.argv[2])):
    pid = os.fork()
    if pid == 0:
        become("/bin/sleep" if number < 2 else "/bin/true")
    if number >= 2:
        os.waitpid(pid, 0)
print("done", flush=True)
time.sleep(60)
"""


def replaced(start: Start, group: Path, how: str, count: int = 40) -> Service:
    """A service with two children that sleep, and many that have ended, all of them other programs by now."""
    command = f'echo $$ >{group}/cgroup.procs && exec {PYTHON} -c "$0" "$@"'
    service = start("/bin/sh", "-c", command, REPLACED, how, str(count), executable=PYTHON, children=1)
    assert service.process.stdout
    assert service.process.stdout.readline() == b"done\n"
    return service


def sockets(service: Service) -> set[str]:
    return {path.name for path in (service.run / UNIT).iterdir()}


@pytest.mark.parametrize("count", [40, pytest.param(10_000, marks=pytest.mark.soak_only)])
def test_a_child_that_becomes_another_program_leaves_no_socket(start: Start, group: Path, count: int) -> None:
    service = replaced(start, group, "seen", count)
    assert sockets(service) == {f"{service.pid}.sock"}
    assert noted(service)["others"]["processes"] == 2
    assert {path.name.split(".")[-1] for path in service.spool.iterdir()} <= {"heap", "json", "lives"}


def test_a_socket_at_which_nobody_listens_is_removed_and_no_agent(start: Start, group: Path) -> None:
    service = replaced(start, group, "unseen")
    found = noted(service)["others"]
    assert (found["processes"], [one["name"] for one in found["largest"]]) == (2, ["sleep"] * 2)
    assert {one["exe"] for one in found["largest"]} == {os.path.realpath("/bin/sleep")}
    assert sockets(service) == {f"{service.pid}.sock"}


def test_the_socket_of_a_killed_worker_is_removed(start: Start, group: Path) -> None:
    service, (killed, _other) = server(start, group, 1, 1, children=1)
    wait_for("three sockets", lambda: len(sockets(service)) == 3)
    os.kill(killed, signal.SIGKILL)
    wait_for("one process less", lambda: len((group / "cgroup.procs").read_text().split()) == 3)
    noted(service)
    assert f"{killed}.sock" not in sockets(service) and len(sockets(service)) == 2


def test_a_leak_in_a_worker_that_nobody_profiles_is_no_all_clear(start: Start, group: Path) -> None:
    """The server itself holds always the same."""
    service, (worker, _other) = server(start, group, 20, 20)
    captures = []
    for minute in range(10):
        before = resident(worker)
        os.kill(worker, signal.SIGUSR1)
        wait_for("the worker to grow", lambda before=before: resident(worker) >= before + 4 * MIB)
        facts = replace(capture_samples.facts(), agent={"others": noted(service)["others"]})
        captures.append(Capture(Path(), "app1", "web.service", "7-aa", minute, 60.0 * minute, facts))
    watched = series.of_samples((capture.time, profile({("table", "main"): 100.0 * MIB})) for capture in captures)
    judged = judge("7-aa", watched)
    assert judged.answer is Answer.NO_LEAK
    of_process = Watched("web.service", "app1", "7-aa", "", 0.0, 540.0, judged, beside=beside(captures))
    verdict = verdict_on_host([of_process])
    assert verdict.answer is Answer.CANNOT_TELL
    assert verdict.unexplained / 1440 == pytest.approx(4 * MIB, rel=0.02)
    assert "most in python" in verdict.reason and f"pid {worker}" in verdict.reason
