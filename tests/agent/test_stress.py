# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Load: threads, forks, garbage collection, garbage on the socket and dumps at 20 a second, all at once."""

from __future__ import annotations

import contextlib
import random
import shutil
import socket
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ansible_collections.offheap.profiler.plugins.module_utils.agent import client
from ansible_collections.offheap.profiler.plugins.plugin_utils.readers import heap_v2
from ansible_collections.offheap.profiler.tests.agent.service import Service

Start = Callable[..., Service]
pytestmark = pytest.mark.soak
# Each of them may keep eight.
SERVICES = 4
KEEP = 8 * SERVICES


GARBAGE = (
    *(b"status", b"dump", b"stats", b"reset", b"schedule dump=", b"offheap/1 "),
    *(b" ", b"\n", b"\r\n", b"=", b"\0"),
)


def keep_dumping(service: Service, seconds: float) -> int:
    """A dump each 50 ms; they must be whole and the spool within its budget. Returns how many there were."""
    service.wait_until_active(60)
    deadline, dumps = time.monotonic() + seconds, 0
    while time.monotonic() < deadline:
        # The agent serves eight clients; who comes then takes the place of the one that has said nothing for longest.
        with contextlib.suppress(client.AgentGone), service.connected(60) as connection:
            while time.monotonic() < deadline:
                began = time.monotonic()
                dump = connection.dump(str(service.spool))
                dumps += 1
                assert len(service.dumps()) <= KEEP + SERVICES  # they share it, and each may be writing one
                if dumps % 20 == 1:
                    with contextlib.suppress(
                        FileNotFoundError
                    ):  # another one was newer, and this one in the budget's way
                        heap_v2.parse(Path(dump.path).read_bytes(), dump.path)
                    assert connection.request("status")["problem"] is None
                time.sleep(max(0.0, 0.05 - (time.monotonic() - began)))
    return dumps


def keep_annoying(service: Service, seconds: float) -> None:
    """Up to a dozen clients that send garbage, read or do not, and hang up whenever they like."""
    dice = random.Random(service.pid)
    deadline = time.monotonic() + seconds
    connections: list[socket.socket] = []
    path = service.agent(timeout=60).path
    while time.monotonic() < deadline:
        if len(connections) < 12 and dice.random() < 0.3:
            connections.append(socket.socket(socket.AF_UNIX))
            connections[-1].setblocking(False)
            with contextlib.suppress(BlockingIOError):  # the agent is behind
                connections[-1].connect(path)
        if connections:
            connection = dice.choice(connections)
            with contextlib.suppress(OSError):
                connection.send(b"".join(dice.choice(GARBAGE) for _number in range(dice.randrange(1, 30))))
            if dice.random() < 0.5:
                with contextlib.suppress(OSError):
                    connection.recv(65536)
            if dice.random() < 0.2:
                connections.remove(connection)
                connection.close()
        time.sleep(0.002)
    for connection in connections:
        connection.close()


def test_all_at_once(start: Start, workload: Path, java_classes: Path, stress_seconds: float) -> None:
    """200 threads that come and go, a storm of forks, odd stacks, and a JVM that collects and unloads classes; each of
    them is dumped 20 times a second and sent garbage."""
    settings = {"conf": "lg_prof_sample:14", "keep_files": KEEP, "stats_seconds": 1}
    native = [start(workload, mode, str(stress_seconds + 600), **settings) for mode in ("threads", "forks", "stacks")]
    java = Path(shutil.which("java") or "java").resolve()
    options = ("-XX:+PreserveFramePointer", "-Xmx48m", "-XX:ReservedCodeCacheSize=8m")
    jvm = start(java, *options, "-cp", str(java_classes), "ClassChurn", **settings)
    services = [*native, jvm]
    assert len(services) == SERVICES
    with ThreadPoolExecutor(2 * SERVICES) as pool:
        annoying = [pool.submit(keep_annoying, service, stress_seconds) for service in services]
        dumping = [pool.submit(keep_dumping, service, stress_seconds) for service in services]
        for annoyed in annoying:
            annoyed.result()
        dumps = [dumped.result() for dumped in dumping]
    print(f"dumps in {stress_seconds:.0f} s: {dumps}")
    assert min(dumps) > stress_seconds
    assert all(service.ask("status")["ok"] and service.process.poll() is None for service in services)
    assert jvm.ask("status")["unwinder"]["continued"] > 0
    assert len(jvm.dumps()) <= KEEP + SERVICES
    for service in native:
        service.process.terminate()  # it finishes what it is at
        status, output = service.result(90)
        assert status == 0 and int(output.split()[1]) > 0, output
    assert {line for line in jvm.stderr().splitlines() if line.startswith("offheap")} == set()


def test_children_that_have_agents_of_their_own(start: Start, workload: Path, soak_seconds: float) -> None:
    service = start(workload, "forks", str(soak_seconds), conf="lg_prof_sample:14", children=1, start_delay=0)
    status, output = service.result(soak_seconds + 60)
    assert status == 0 and int(output.split()[1]) > 0, output


def test_switching_on_and_off(start: Start, workload: Path, soak_seconds: float) -> None:
    service = start(workload, "threads", str(soak_seconds + 1), conf="lg_prof_sample:12")
    deadline = time.monotonic() + soak_seconds
    with contextlib.suppress(client.AgentGone), service.connected() as connection:
        while time.monotonic() < deadline:
            for command in ("activate", "deactivate", "activate", "reset", "stats"):
                connection.request(command)
    assert service.result(90)[0] == 0
