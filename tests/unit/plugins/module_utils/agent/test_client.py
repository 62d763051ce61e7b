# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""The client of the control socket, against agents that lie, flood, hang or are missing."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from ansible_collections.offheap.profiler.plugins.module_utils.agent import client
from ansible_collections.offheap.profiler.tests.unit.plugins.module_utils.agent.conftest import Serve, line


def test_a_request(serve: Serve) -> None:
    with client.Connection(serve(line(active=True))) as connection:
        assert connection.peer == os.getpid()
        assert connection.request("activate")["active"] is True
        assert connection.request("schedule", dump=3)["ok"] is True


def test_a_dump(serve: Serve) -> None:
    path = "/spool/jeprof.1.2.m3.heap"
    answer = line(path=path, size=10, time=1.5, sample_interval=4096, objects=1, bytes=None)
    with client.Connection(serve(answer)) as connection:
        assert connection.dump("/spool") == client.WrittenDump(path, 10, 1.5, 4096, 1, None)


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        ({"memory": {"rss": 300}}, {"memory": {"rss": 200}}, (300, 200)),
        ({"memory": {"rss": -1}}, {"memory": [200]}, (None, None)),
        ("much", None, (None, None)),
    ],
)
def test_what_a_trim_gave_back(
    serve: Serve, before: object, after: object, told: tuple[int | None, int | None]
) -> None:
    with client.Connection(serve(line(path="/spool/jeprof.1.2.m3.heap", before=before, after=after))) as connection:
        dump = connection.dump("/spool", "trim")
    assert (dump.rss_before, dump.rss_after) == told


@pytest.mark.parametrize("time", [pytest.param(10**400, id="digits"), float("nan"), float("inf"), -1, True, "1"])
def test_a_time_that_no_calendar_has(serve: Serve, time: object) -> None:
    with client.Connection(serve(line(path="/spool/jeprof.1.2.m3.heap", time=time))) as connection:
        assert connection.dump("/spool").time == 0.0


@pytest.mark.parametrize(
    "path",
    ["/etc/shadow", "/spool/../etc/jeprof.1.2.m3.heap", "/spool/x", "jeprof.1.2.m3.heap", None, 5, "/spool/a\nb"],
)
def test_a_dump_that_lies_elsewhere(serve: Serve, path: object) -> None:
    answer = line(path=path)
    with client.Connection(serve(answer)) as connection, pytest.raises(client.AgentError, match="not in /spool"):
        connection.dump("/spool")


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (b"hello\n", "JSON"),
        (b"[" * 100000 + b"\n", "JSON"),
        (b"\xff\n", "JSON"),
        (b"[1]\n", "protocol"),
        (b'{"protocol": 2, "ok": true}\n', "protocol"),
        (line(ok=False, error="spool is full"), "spool is full"),
        (line(ok=False, error="commands: dump activate"), "status: its agent is of an older release: enable_profiling"),
        (line(ok=1), "refused"),
        (b"x" * (2 << 20), "more than any answer"),
    ],
)
def test_answers_that_are_none(serve: Serve, answer: bytes, message: str) -> None:
    with client.Connection(serve(answer)) as connection, pytest.raises(client.AgentError, match=message):
        connection.request("status")


def test_silence(serve: Serve) -> None:
    found = serve(None)
    silence = pytest.raises(client.AgentError, match=r"no answer .* 0\.3 s")
    with silence, client.Connection(found, timeout=0.3) as connection:
        connection.request("status")


def test_a_drip_does_not_extend_the_time(serve: Serve) -> None:
    with client.Connection(serve(b"x"), timeout=0.3) as connection, pytest.raises(client.AgentError, match="no answer"):
        connection.request("status")


def test_somebody_elses_socket(serve: Serve) -> None:
    with pytest.raises(client.AgentError, match="not the one with the pid in its name"):
        client.Connection(serve(line(), pid=1))


def test_a_process_in_a_pid_namespace(serve: Serve, tmp_path: Path) -> None:
    proc = tmp_path / "proc" / str(os.getpid())
    proc.mkdir(parents=True)
    (proc / "status").write_text(f"Name:\tx\nNSpid:\t{os.getpid()}\t7\n")
    with client.Connection(serve(line(), pid=7), proc=str(tmp_path / "proc")) as connection:
        assert connection.request("status")["ok"]


def test_a_long_name(serve: Serve) -> None:
    with client.Connection(serve(line(), unit="u" * 200 + ".service")) as connection:
        assert connection.request("status")["ok"]


def test_nobody_there(tmp_path: Path) -> None:
    assert client.find("u.service", str(tmp_path)) == []
    (tmp_path / "u.service").mkdir()
    for name in ("12.sock", "0.sock", "x.sock", "12.sock.bak", "99999999999.sock"):
        (tmp_path / "u.service" / name).touch()
    found = client.find("u.service", str(tmp_path))
    assert [each.pid for each in found] == [12]
    with pytest.raises(client.AgentGone):
        client.Connection(found[0])
    with pytest.raises(client.AgentGone):
        client.Connection(client.AgentSocket(12, str(tmp_path / "none")))


def test_an_agent_that_was_killed(tmp_path: Path) -> None:
    path = tmp_path / "u.service" / "12.sock"
    path.parent.mkdir()
    code = "import socket, sys; s = socket.socket(socket.AF_UNIX); s.bind(sys.argv[1]); s.listen()"
    subprocess.run(["python3", "-c", code, str(path)], check=True)
    with pytest.raises(client.AgentGone):
        client.Connection(client.AgentSocket(12, str(path)))


@pytest.mark.parametrize("unit", ["", ".", "..", "a/b", "/etc", "a\0b"])
def test_what_is_no_unit(unit: str) -> None:
    with pytest.raises(client.AgentError):
        client.directory_of(unit)
