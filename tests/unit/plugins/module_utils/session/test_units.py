# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""What the console asks a session to tell the agents of a unit."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any

import pytest

from ansible_collections.offheap.profiler.plugins.module_utils.agent import client
from ansible_collections.offheap.profiler.plugins.module_utils.formats import wire
from ansible_collections.offheap.profiler.plugins.module_utils.host import cgroup
from ansible_collections.offheap.profiler.plugins.module_utils.host.systemd import SystemdError
from ansible_collections.offheap.profiler.plugins.module_utils.session import running_units, units
from ansible_collections.offheap.profiler.plugins.module_utils.tracing import into_spool, windows
from ansible_collections.offheap.profiler.plugins.module_utils.tracing.running_trace import Window
from ansible_collections.offheap.profiler.tests.unit.fakes.units import Systemctl, shown

ASKED: list[tuple[str, dict[str, Any]]] = []


class Agent:
    """A connection to an agent that samples, and writes dumps every minute."""

    peer = 7

    def __init__(self, _socket: client.AgentSocket, _timeout: float) -> None:
        pass

    def __enter__(self) -> Agent:
        return self

    def __exit__(self, _type: type | None, _error: BaseException | None, _traceback: TracebackType | None) -> None:
        pass

    def request(self, command: str, **settings: Any) -> dict[str, Any]:
        ASKED.append((command, settings))
        return {"wanted": True, "schedule": {"dump": 60}, "memory": {"allocated": 5000, "active": 9000}}

    def dump(self, spool: str, command: str) -> client.WrittenDump:
        ASKED.append((command, {}))
        return client.WrittenDump(f"{spool}/jeprof.7.1.m1.heap", 10, 1.5, 4096, 1, None)


@pytest.fixture(autouse=True)
def agent(monkeypatch: pytest.MonkeyPatch) -> None:
    ASKED.clear()
    monkeypatch.setattr(client, "find", lambda _unit: [client.AgentSocket(7, "/run/offheap/web.service/7.sock")])
    monkeypatch.setattr(client, "Connection", Agent)
    monkeypatch.setattr(cgroup, "belongs_to", lambda _pid, _unit: True)


def control(**parameters: Any) -> dict[str, Any]:
    request = {"unit": "web", "parameters": {"perf_map": False, **parameters}}
    return units.ANSWERS["control"](request, lambda _block: None)


@pytest.mark.parametrize(
    ("command", "changed", "told"),
    [
        ("status", False, "status"),
        ("dump", True, "dump"),
        ("holders", True, "holders"),
        ("trim", True, "trim"),
        ("deactivate", True, "deactivate"),
        ("activate", False, "status"),
    ],
)
def test_a_command_needs_no_settings_of_another(command: str, changed: bool, told: str) -> None:
    assert control(command=command)["changed"] is changed
    assert ASKED[-1] == (told, {})


def test_a_schedule_is_told_only_what_changes() -> None:
    given = {"command": "schedule", "stats_seconds": None, "keep_files": None, "keep_bytes": None}
    assert not control(**given, dump_seconds=60)["changed"]
    assert control(**given, dump_seconds=30)["changed"]
    assert ASKED[-1] == ("schedule", {"dump": 30})


def test_an_answer_of_another_shape_is_no_bug_of_ours(systemctl: Systemctl, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Agent, "request", lambda *_words, **_settings: {"wanted": True, "schedule": 5, "memory": [1]})
    given = {"command": "schedule", "stats_seconds": None, "keep_files": None, "keep_bytes": None}
    assert control(**given, dump_seconds=60)["changed"]
    systemctl.states(shown(ActiveState="active"))
    assert "allocated" not in units.ANSWERS["sample"]({"unit": "web"}, lambda _block: None)


@pytest.mark.parametrize("ask", ["sample", "control", "trace"])
def test_a_unit_that_is_not_there_is_said_first(
    ask: str, systemctl: Systemctl, monkeypatch: pytest.MonkeyPatch
) -> None:
    systemctl.states(shown(LoadState="not-found"))
    monkeypatch.setattr(running_units, "names", lambda: ["ssh.service", "frontend.service"])
    wanted = {"unit": "fronted", "library": "", "seconds": 5, "count": 1, "interval": 1 << 19, "largest": 1 << 20}
    request = {"unit": "fronted", "parameters": {"command": "dump"}, "wanted": wanted}
    with pytest.raises(SystemdError, match=r"there is no unit fronted\.service on this host \(did you mean frontend\?"):
        units.ANSWERS[ask](request, lambda _block: None)
    monkeypatch.setattr(running_units, "names", lambda: ["ssh.service"])
    with pytest.raises(SystemdError, match=r"there is no unit fronted\.service on this host; `fab units` lists"):
        units.ANSWERS[ask](request, lambda _block: None)
    assert ASKED == []


def test_a_sample_has_the_units_state_and_what_is_allocated(systemctl: Systemctl) -> None:
    systemctl.states(shown(ActiveState="active"))
    found = units.ANSWERS["sample"]({"unit": "web"}, lambda _block: None)
    assert (found["active"], found["allocated"]) == ("active", 5000), "jemalloc calls another number active"


class Tracer:
    """So many windows of a process, each of which leaves a dump; it notes what happens."""

    prefix, pid, release, held, owner = "jvm", 7, 17, 0.0, (0, 0)

    def __init__(self, happened: list[Any], count: int) -> None:
        self._happened = happened
        self._count = count

    @contextmanager
    def windows(self) -> Iterator[Iterator[Window]]:
        self._happened.append("prepared")
        yield self._windows()

    def _windows(self) -> Iterator[Window]:
        for number in range(self._count):
            self._happened.append(number)
            yield Window(-1, 0, 0, f"dump{number}")


@pytest.mark.parametrize("count", [0, 2])
def test_a_trace_says_when_its_first_window_begins_and_leaves_nothing_without_a_dump(
    count: int, systemctl: Systemctl, monkeypatch: pytest.MonkeyPatch
) -> None:
    systemctl.states(shown(Id="web.service", LoadState="loaded"))
    happened: list[Any] = []
    monkeypatch.setattr(windows, "_tracer", lambda _unit, _wanted: ("jvm", Tracer(happened, count)))
    monkeypatch.setattr(into_spool, "have", lambda _unit, _owner: True)
    monkeypatch.setattr(into_spool, "remove_empty", happened.append)
    wanted = {"unit": "web", "library": "", "seconds": 5, "count": 2, "interval": 1 << 19, "largest": 1 << 20}
    answer = units.ANSWERS["trace"]({"wanted": wanted}, happened.append)
    assert answer["dumps"] == [f"dump{number}" for number in range(count)]
    prepared, block, *rest = happened
    assert (prepared, wire.read(io.BytesIO(block).read, 0)) == ("prepared", (None, b"begun"))
    assert rest == ([0, 1] if count else ["web.service"])


def test_a_restart_that_somebody_asked_for_is_seen_in_a_sample(systemctl: Systemctl) -> None:
    """systemd counts only its own (NRestarts)."""
    systemctl.states(shown(NRestarts="0", InvocationID="1b"), shown(NRestarts="0", InvocationID="2c"))
    starts = {running_units.sample("web")["start"] for _look in range(2)}
    assert len(starts) == 2
