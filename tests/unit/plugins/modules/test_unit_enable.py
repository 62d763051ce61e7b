# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""What the module makes of its options, and what it asks of a service besides systemd."""

from __future__ import annotations

import http.server
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.offheap.profiler.plugins.module_utils.unit import health, rollout
from ansible_collections.offheap.profiler.plugins.modules import unit_enable
from ansible_collections.offheap.profiler.tests.unit.fakes.module_run import run_module

Run = Callable[..., dict[str, Any]]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[rollout.Enabled]:
    """The units that reach the rollout, instead of it."""
    seen: list[rollout.Enabled] = []
    monkeypatch.setattr(rollout, "enable", lambda wanted, _watchers, _check_mode: seen.extend(wanted))
    return seen


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    def run(**arguments: Any) -> dict[str, Any]:
        return run_module(unit_enable.main, monkeypatch, capsys, **{"library": "/opt/lib.so", **arguments})

    return run


def test_what_a_unit_says_itself_comes_before_what_is_said_for_all(run: Run, asked: list[rollout.Enabled]) -> None:
    own = {
        "name": "orders",
        "malloc_conf": {"lg_prof_sample": 16},
        "healthy_seconds": 5,
        "start": "dormant",
        "agent_settings": {"keep_files": 7},
    }
    run(
        units=["frontend", own],
        malloc_conf={"lg_prof_sample": 19},
        agent_settings={"dump_seconds": 600, "keep_files": 100},
        runtime="auto",
    )
    frontend, orders = (one.parameters for one in asked)
    assert [one.unit for one in asked] == ["frontend", "orders"]
    assert (frontend["malloc_conf"], frontend["healthy_seconds"]) == ({"lg_prof_sample": 19}, 30)
    assert (orders["malloc_conf"], orders["healthy_seconds"]) == ({"lg_prof_sample": 16}, 5)
    assert frontend["runtime"] == orders["runtime"] == "auto"
    settings = {name: orders["agent_settings"][name] for name in ("start", "dump_seconds", "keep_files")}
    assert settings == {"start": "dormant", "dump_seconds": 600, "keep_files": 7}
    assert frontend["agent_settings"]["start"] == "sampling"


def test_units_that_were_refused_before_are_left_out(run: Run, asked: list[rollout.Enabled]) -> None:
    run(units=["a", {"name": "b"}, "c"], leave_out=["b", "c"])
    assert [one.unit for one in asked] == ["a"]


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ({"nam": "frontend"}, "missing required arguments: name"),
        ({"name": "frontend", "malloc_cnf": {}}, "malloc_cnf"),
        ({"name": "frontend", "healthy_seconds": "long"}, "healthy_seconds"),
        ({"name": "frontend", "runtime": "cobol"}, "cobol"),
    ],
)
def test_a_wrong_entry_is_told_by_its_number(
    run: Run, asked: list[rollout.Enabled], entry: dict[str, Any], words: str
) -> None:
    failed = run(units=["first", entry])
    assert failed["failed"] and failed["msg"].startswith("Entry 2 of units is wrong: ") and words in failed["msg"]
    assert not asked


def test_without_a_library_there_is_nothing_to_preload(run: Run, asked: list[rollout.Enabled]) -> None:
    assert "web: library is required" in run(units=["web"], library="")["msg"]
    run(units=["web"], library="", mode="swap", arena_max=2)
    assert asked[0].mapped is None


def test_a_preflight_reports_refusals_and_no_change(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def enable(wanted: list[rollout.Enabled], _watchers: object, check_mode: bool) -> None:
        assert check_mode
        wanted[0].refusal, wanted[0].problem = "static-binary", "web.service is unchanged: it is static"
        wanted[0].unit = "web.service"
        wanted[1].changes.any = wanted[1].restarted = True

    monkeypatch.setattr(rollout, "enable", enable)
    told = run(units=["web", "other"], preflight=True)
    assert (told["changed"], told["diff"]) == (False, [])
    assert (told["refused"], told["refusals"]) == (["web"], ["web.service is unchanged: it is static"])
    assert told["problems"] == []


class FakeModule:
    """Runs commands as AnsibleModule does; that needs no arguments."""

    check_mode = False

    def run_command(self, command: str, **_options: Any) -> tuple[int, str, str]:
        return {"true": (0, "", ""), "grumble": (3, "", "no\nthe queue is stuck\n")}[command]


@pytest.fixture
def url() -> Iterator[str]:
    """A service that answers 200 at /well, 204 at /empty, and 503 elsewhere, the first time at /second-time too."""
    tries: list[str] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            tries.append(self.path)
            well = self.path == "/well" or (self.path == "/second-time" and len(tries) > 1)
            self.send_response(200 if well else 204 if self.path == "/empty" else 503)
            self.end_headers()

        def log_message(self, *_arguments: Any) -> None:
            pass

    server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unit_enable, "_PAUSE", 0.0)


def check(command: str = "", url: str = "") -> None:
    unit_enable.check(FakeModule(), {"health_command": command, "health_url": url})  # type: ignore[arg-type]


def test_a_service_that_works_for_its_users(url: str) -> None:
    check()
    check("true", f"{url}/well")
    check(url=f"{url}/second-time")


@pytest.mark.parametrize(
    ("path", "words"), [("/empty", "answered 204"), ("/broken", "HTTP Error 503"), ("x", "did not answer")]
)
def test_a_url_that_does_not_answer_200(url: str, path: str, words: str) -> None:
    with pytest.raises(health.Unhealthy, match=words):
        check(url=url + path)


def test_a_command_that_fails() -> None:
    with pytest.raises(health.Unhealthy, match="'grumble' ended with 3: the queue is stuck"):
        check("grumble")


def test_in_check_mode_no_command_is_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FakeModule, "check_mode", True)
    check("grumble")


def test_what_a_command_says_in_another_encoding_does_not_lose_the_result(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def enable(wanted: list[rollout.Enabled], watchers: rollout.Watchers, _check_mode: bool) -> None:
        with pytest.raises(health.Unhealthy) as unhealthy:
            watchers.check(wanted[0].parameters)
        wanted[0].problem = str(unhealthy.value)

    monkeypatch.setattr(rollout, "enable", enable)
    script = tmp_path / "script"
    script.write_bytes(b"echo 'caf\xe9 closed'; exit 3")
    told = run(units=["web"], health_command=f"sh {script}")
    assert told["problems"][0].endswith("ended with 3: caf\ufffd closed")


def test_whether_somebody_waits_for_the_outcome(monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = os.pipe()
    monkeypatch.setattr(unit_enable, "_OUTPUT", writer)
    assert unit_enable.somebody_waits()
    os.close(reader)
    assert not unit_enable.somebody_waits()
    os.close(writer)
