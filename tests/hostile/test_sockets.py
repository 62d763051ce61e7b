# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""What a service's user puts in the place of its agent's socket: other agents, other users, other processes."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from ansible_collections.offheap.profiler.plugins.module_utils.agent import client, commands
from ansible_collections.offheap.profiler.plugins.module_utils.host import cgroup, places

ANSWER = b'{"protocol": 1, "ok": true, "active": true}\n'
STATUS = {"command": "status", "pid": None, "timeout": 5, "perf_map": False}


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(places, "SOCKETS", str(tmp_path))
    monkeypatch.setattr(client.find, "__defaults__", (str(tmp_path),))
    for unit in ("theirs.service", "liar.service"):
        (tmp_path / unit).mkdir()
    return tmp_path


@pytest.fixture
def agent(run: Path) -> Iterator[Path]:
    """The agent of ``theirs.service``, which is this process."""
    path = run / "theirs.service" / f"{os.getpid()}.sock"
    got: list[bytes] = []
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()

        def serve() -> None:
            while True:
                try:
                    connection, _address = listener.accept()
                except OSError:
                    return
                with connection:
                    for line in connection.makefile("rb"):
                        got.append(line)
                        connection.sendall(ANSWER)

        thread = threading.Thread(target=serve)
        thread.start()
        yield path
        listener.shutdown(socket.SHUT_RDWR)
        thread.join(10)


@pytest.fixture
def of_unit(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process counts as one of ``theirs.service`` alone."""
    monkeypatch.setattr(cgroup, "belongs_to", lambda _pid, unit: unit == "theirs.service")


@pytest.mark.usefixtures("of_unit")
def test_a_link_to_the_agent_of_another_unit(run: Path, agent: Path) -> None:
    (run / "liar.service" / agent.name).symlink_to(agent)
    with pytest.raises(client.AgentError, match="is a link"):
        commands.control(STATUS, "liar.service", False)
    assert commands.control(STATUS, "theirs.service", False)["processes"][0]["answer"]["active"], "the next"


@pytest.mark.usefixtures("of_unit")
def test_a_second_name_of_the_socket_of_another_unit(run: Path, agent: Path) -> None:
    os.link(agent, run / "liar.service" / agent.name)
    with pytest.raises(client.AgentError, match=r"is not of liar\.service"):
        commands.control(STATUS, "liar.service", False)
    assert commands.control(STATUS, "theirs.service", False)["processes"]


@pytest.mark.skipif(os.geteuid() != 0, reason="starts a process of another user")
def test_a_listener_of_a_third_user(run: Path) -> None:
    code = """
import os, socket, sys
os.setuid(12345)
place = socket.socket(socket.AF_UNIX)
place.bind(f"{sys.argv[1]}/{os.getpid()}.sock")
place.listen()
print("ready", flush=True)
sys.stdin.read()
"""
    directory = run / "liar.service"
    directory.chmod(0o777)
    for parent in directory.parents[:3]:
        parent.chmod(parent.stat().st_mode | 0o055)
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", code, str(directory)], stdin=pipe, stdout=pipe) as process:
        assert process.stdout is not None and process.stdout.readline() == b"ready\n"
        with pytest.raises(client.AgentError, match="user 12345 listens"):
            client.Connection(client.find("liar.service")[0])
        os.chown(directory, 12345, 12345)
        with client.Connection(client.find("liar.service")[0]) as connection:
            assert connection.peer == process.pid
        process.communicate(b"")


@pytest.mark.parametrize(
    ("group", "belongs"),
    [
        ("0::/system.slice/web.service", True),
        ("0::/system.slice/web.service/workers", True),
        ("4:memory:/\n1:name=systemd:/system.slice/web.service", True),
        ("0::/system.slice/_web.service", True),
        ("0::/system.slice/other.service", False),
        ("0::/system.slice/xweb.service", False),
        ("0::/system.slice/web.service.d", False),
        ("0::/user.slice/web.serviceX/web", False),
        ("", False),
    ],
)
def test_whose_process_it_is(tmp_path: Path, group: str, belongs: bool) -> None:
    (tmp_path / "12").mkdir()
    (tmp_path / "12" / "cgroup").write_text(group + "\n")
    assert cgroup.belongs_to(12, "web.service", str(tmp_path)) is belongs
    assert not cgroup.belongs_to(13, "web.service", str(tmp_path))
