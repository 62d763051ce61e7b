# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""The control socket: what it answers, whom it answers, and who cannot harm it."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import stat
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from ansible_collections.offheap.profiler.plugins.module_utils.agent import client
from ansible_collections.offheap.profiler.tests.agent.conftest import EMULATED
from ansible_collections.offheap.profiler.tests.agent.service import Service

Start = Callable[..., Service]


def connect(service: Service, timeout: float = 10.0) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(timeout)
    try:
        connection.connect(service.agent().path)
    except BaseException:
        connection.close()
        raise
    return connection


def test_the_socket_is_private(start: Start, workload: Path) -> None:
    service = start(workload, "leak", "30")
    mode = os.lstat(service.agent().path).st_mode
    assert stat.S_ISSOCK(mode) and stat.S_IMODE(mode) == 0o600


def test_nobody_else_is_served(start: Start, workload: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root")
    service = start(workload, "leak", "30")
    connection = connect(service)
    connection.close()
    path = service.agent().path
    os.chmod(path, 0o666)
    child = os.fork()
    if child == 0:
        os.chdir(os.path.dirname(path))
        os.setresuid(4000000, 4000000, 4000000)
        status = 1
        with contextlib.suppress(BaseException):
            stranger = socket.socket(socket.AF_UNIX)
            stranger.connect(os.path.basename(path))
            stranger.settimeout(5)
            with contextlib.suppress(ConnectionError):
                stranger.sendall(b"status\n")
                status = 0 if stranger.recv(100) == b"" else 2
            status = 0 if status == 1 else status
        os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    assert service.ask("status")["ok"]


def test_commands(start: Start, workload: Path) -> None:
    service = start(workload, "leak", "30", start="dormant")
    with service.connected() as connection:
        status = connection.request("status")
        assert (status["active"], status["wanted"], status["unit"]) == (False, False, "tried.service")
        assert status["jemalloc"]["version"].startswith("5.")
        assert status["jemalloc"]["options"]["lg_prof_sample"] == 12
        assert connection.request("activate")["active"] is True
        time.sleep(0.3)
        assert connection.request("status")["unwinder"]["walks"] > 0
        dump = connection.dump(str(service.spool))
        assert dump.sample_interval == 4096 and dump.objects and dump.bytes
        assert os.stat(dump.path).st_size == dump.size
        assert connection.request("deactivate")["active"] is False
        assert connection.request("reset")["ok"]
        assert connection.request("status")["lg_sample"] == 12
        assert connection.dump(str(service.spool)).objects == 0
        memory = connection.request("stats")["memory"]
        assert memory["resident"] >= memory["active"] >= memory["allocated"] > 0 and memory["rss"] > 0
        schedule = connection.request("schedule", dump=3600, keep_files=5)["schedule"]
        assert (schedule["dump"], schedule["stats"], schedule["keep_files"]) == (3600, 0, 5)
        for bad in ({"dump": -1}, {"frequency": 3}, {"keep_files": 0}):
            with pytest.raises(client.AgentError, match="usage"):
                connection.request("schedule", **bad)
        for bad_command in ("", "quit", "dump now", "status x", "reset lg_sample=14", "\x01"):
            with pytest.raises(client.AgentError, match="commands:"):
                connection.request(bad_command)


def test_sampling_waits_for_the_start_delay(start: Start, workload: Path) -> None:
    service = start(workload, "leak", "30", start_delay=2, start="dormant")
    answer = service.ask("activate")
    assert answer["active"] is False and answer["wanted"] is True and 0 < answer["begins_in"] <= 2
    service.wait_until_active()
    assert service.ask("status")["uptime"] >= 2


@pytest.mark.skipif(EMULATED, reason="the emulator's own files are mapped, too")
def test_the_sidecar(start: Start, workload: Path) -> None:
    service = start(workload, "leak", "30", "an argument", "\udcff")
    service.wait_until_active()
    time.sleep(0.3)
    path = Path(service.ask("dump")["path"])
    sidecar = json.loads(path.with_name(path.name + ".json").read_text())
    assert sidecar["dump"] == path.name and sidecar["size"] == path.stat().st_size
    assert sidecar["pid"] == service.pid and sidecar["exe"] == str(workload)
    assert sidecar["cmdline"] == [str(workload), "leak", "30", "an argument", "\udcff"]
    assert abs(sidecar["time"] - path.stat().st_mtime) < 0.01 and abs(sidecar["start_time"] - time.time()) < 20
    assert sidecar["boot_id"] == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    assert sidecar["unit"] == "tried.service" and sidecar["unwinder"] == "hybrid" and sidecar["reason"] == "command"
    assert sidecar["jemalloc"]["malloc_conf"] == service.environment["MALLOC_CONF"]
    assert sidecar["memory"]["rss"] > 0 and sidecar["memory"]["allocated"] > 0
    images = {image["path"]: image["build_id"] for image in sidecar["images"]}
    from ansible_collections.offheap.profiler.plugins.module_utils.formats import elf
    from ansible_collections.offheap.profiler.plugins.module_utils.host import procfs

    files = [name for name, maps in procfs.mapped_files(service.pid).items() if any(m.executable for m in maps)]
    assert images == {name: elf.read(name).build_id for name in files}
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert not list(service.spool.glob("*.part"))


def test_pipelined_commands_are_all_answered(start: Start, workload: Path) -> None:
    connection = connect(start(workload, "leak", "30"))
    connection.sendall(b"stats\r\nnonsense\noffheap/1 stats\noffheap/9 stats\n")
    lines = connection.makefile("rb")
    answers = [json.loads(lines.readline()) for _number in range(4)]
    assert [answer["ok"] for answer in answers] == [True, False, True, False]
    connection.close()


@pytest.mark.parametrize("sent", [b"x" * 300, b"dump\0\n", b"\xff" * 1000, b"\0" * 256])
def test_garbage_ends_only_its_own_connection(start: Start, workload: Path, sent: bytes) -> None:
    service = start(workload, "leak", "30")
    connection = connect(service)
    connection.sendall(sent)
    with contextlib.suppress(ConnectionError):
        assert connection.recv(100) == b""
    connection.close()
    assert service.ask("status")["ok"]


def test_clients_that_hang_or_flood(start: Start, workload: Path) -> None:
    service = start(workload, "leak", "30")
    hanging = [connect(service) for _number in range(30)]
    assert service.ask("status")["ok"]
    half = connect(service)
    half.sendall(b"stat")
    flooding = connect(service)
    flooding.setblocking(False)
    with contextlib.suppress(BlockingIOError, ConnectionError):
        while True:
            flooding.send(b"status\n" * 1000)  # and never reads
    began = time.monotonic()
    assert service.ask("status")["ok"]
    assert time.monotonic() - began < 5
    for connection in (*hanging, half, flooding):
        connection.close()
