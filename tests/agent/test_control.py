# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""The control socket: what it answers, whom it answers, and who cannot harm it."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import socket
import stat
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from ansible_collections.offheap.profiler.plugins.module_utils.agent import client
from ansible_collections.offheap.profiler.plugins.module_utils.formats import elf
from ansible_collections.offheap.profiler.plugins.module_utils.host import procfs
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


_LIBC = ctypes.CDLL(None, use_errno=True)
_CLONE_NEWNS, _CLONE_NEWUSER, _PR_SET_DUMPABLE, _STRANGER = 0x20000, 0x10000000, 4, 4000000


def _unshare(what: int) -> None:
    if _LIBC.unshare(what):
        raise OSError(ctypes.get_errno(), "unshare")


def _as_another_user() -> None:
    os.setresuid(_STRANGER, _STRANGER, _STRANGER)


def _in_another_mount_namespace() -> None:
    _unshare(_CLONE_NEWNS)
    _as_another_user()


def _as_root_of_a_user_namespace() -> None:
    _as_another_user()
    _LIBC.prctl(_PR_SET_DUMPABLE, 1, 0, 0, 0)  # else it may not write its own map
    _unshare(_CLONE_NEWUSER)
    Path("/proc/self/uid_map").write_text(f"0 {_STRANGER} 1")


def _as_nobody_of_a_user_namespace() -> None:
    """Everybody but root is nobody there."""
    _unshare(_CLONE_NEWUSER)
    Path("/proc/self/uid_map").write_text("65534 0 1")


def _is_served(path: str, become: Callable[[], None]) -> bool:
    """Whether a process that has become another one gets an answer. Its user may not go the whole way to the socket."""
    child = os.fork()
    if child == 0:
        status = 2
        with contextlib.suppress(BaseException):
            os.chdir(os.path.dirname(path))
            become()
            stranger = socket.socket(socket.AF_UNIX)
            stranger.connect(os.path.basename(path))
            stranger.settimeout(5)
            status = 1
            with contextlib.suppress(ConnectionError):
                stranger.sendall(b"status\n")
                status = 0 if stranger.recv(100) else 1
        os._exit(status)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status in (0, 1), "it could not even try"
    return status == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes other users")
@pytest.mark.parametrize(
    "become",
    [_as_another_user, _in_another_mount_namespace, _as_root_of_a_user_namespace],
    ids=lambda way: way.__name__,
)
def test_nobody_else_is_served(start: Start, workload: Path, become: Callable[[], None]) -> None:
    service = start(workload, "leak", "30")
    connect(service).close()
    path = service.agent().path
    os.chmod(path, 0o666)
    assert _is_served(path, lambda: None)
    assert _is_served(path, lambda: _unshare(_CLONE_NEWNS)), "root, wherever it has mounted what"
    assert not _is_served(path, become)
    assert service.ask("status")["ok"]


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes other users")
def test_nobody_is_not_everybody(start: Start, workload: Path) -> None:
    """In a user namespace, users without a number there have that of nobody, as the service itself."""
    service = start(workload, "leak", "30", popen={"preexec_fn": _as_nobody_of_a_user_namespace})
    path = service.agent().path
    os.chmod(path, 0o666)
    assert not _is_served(path, _as_another_user)


def test_after_a_reset_dumps_tell_of_what_came_since(start: Start, workload: Path) -> None:
    """What they had before is no part of a series with what they have now."""
    service = start(workload, "leak", "30")
    service.wait_until_active()

    def active_since() -> float:
        return float(json.loads(Path(f"{service.ask('dump')['path']}.json").read_text())["active_since"])

    before = active_since()
    assert active_since() == before
    asked = time.time()
    assert service.ask("reset")["ok"] and before < asked <= active_since() + 0.001


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
            with pytest.raises(client.AgentError, match="its agent is of an older release"):
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
    assert sidecar["pid_namespace"] == procfs.pid_namespace(service.pid)
    assert sidecar["cmdline"] == [str(workload), "leak", "30", "an argument", "\udcff"]
    assert abs(sidecar["time"] - path.stat().st_mtime) < 0.01 and abs(sidecar["start_time"] - time.time()) < 20
    assert sidecar["boot_id"] == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    assert sidecar["unit"] == "tried.service" and sidecar["unwinder"] == "hybrid" and sidecar["reason"] == "command"
    assert sidecar["jemalloc"]["malloc_conf"] == service.environment["MALLOC_CONF"]
    assert sidecar["memory"]["rss"] > 0 and sidecar["memory"]["allocated"] > 0
    images = {image["path"]: image["build_id"] for image in sidecar["images"]}
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
