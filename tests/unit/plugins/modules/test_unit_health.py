# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""What is healthy and what is not, with real processes and a systemctl that reports one state after the other."""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.offheap.profiler.plugins.module_utils.agent import client, first_dump
from ansible_collections.offheap.profiler.plugins.module_utils.host import places
from ansible_collections.offheap.profiler.plugins.module_utils.unit import health
from ansible_collections.offheap.profiler.plugins.modules import unit_health
from ansible_collections.offheap.profiler.tests.unit.fakes import programs
from ansible_collections.offheap.profiler.tests.unit.fakes.module_run import run_module
from ansible_collections.offheap.profiler.tests.unit.fakes.units import Systemctl, shown

Run = Callable[..., dict[str, Any]]
CONF = "prof:true,prof_prefix:/var/lib/offheap/web.service/jeprof"


@pytest.fixture(scope="module")
def library(directory: Path) -> str:
    return str(programs.library(directory, "libours.so"))


@pytest.fixture(scope="module")
def program(directory: Path) -> Path:
    return programs.compiled(directory, "web")


@pytest.fixture(scope="module")
def plain(program: Path) -> Iterator[int]:
    with programs.running(program) as pid:
        yield pid


@pytest.fixture(scope="module")
def profiled(program: Path, library: str) -> Iterator[int]:
    with programs.running(program, env={"LD_PRELOAD": library, "MALLOC_CONF": CONF}) as pid:
        yield pid


@pytest.fixture
def run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], systemctl: Systemctl, tmp_path: Path
) -> Run:
    """Runs the module with a journal of two lines, polling as fast as it can."""
    programs.script(tmp_path / "bin", "journalctl", '#!/bin/sh\necho "journal: $*"\necho boom\n')
    monkeypatch.setattr(health, "_POLL_SECONDS", 0.01)

    def run(**arguments: Any) -> dict[str, Any]:
        given = {"seconds": 0, "timeout": 0, "unit": "web", **arguments}
        return run_module(unit_health.main, monkeypatch, capsys, **given)

    return run


def state(active: str, pid: int = 0, invocation: str = "1", restarts: int = 0, sub: str = "running") -> str:
    return shown(
        Id="web.service",
        ActiveState=active,
        SubState=sub,
        Result="exit-code" if active == "failed" else "success",
        MainPID=str(pid),
        ControlGroup="/web",
        InvocationID=invocation,
        NRestarts=str(restarts),
    )


def test_a_unit_that_stays_up(systemctl: Systemctl, run: Run, plain: int) -> None:
    systemctl.processes("/web", plain)
    systemctl.states(state("active", plain))
    started = time.monotonic()
    result = run(seconds=1)
    assert time.monotonic() - started >= 1, "it was really watched"
    assert (result["failed"], result["changed"], result["watched"]) == (False, False, 1)
    assert (result["unit"], result["pids"]) == ("web.service", [plain])


def test_a_unit_that_somebody_reloads_stays_up(systemctl: Systemctl, run: Run, plain: int) -> None:
    """Its processes go on."""
    systemctl.processes("/web", plain)
    systemctl.states(state("active", plain), state("reloading", plain, sub="reload"), state("active", plain))
    assert not run(seconds=1)["failed"]


def test_a_unit_that_takes_its_time(systemctl: Systemctl, run: Run, plain: int, profiled: int, library: str) -> None:
    """First it is starting, then it is a shell that has not started the program yet."""
    systemctl.processes("/web", profiled)
    systemctl.states(state("activating"), state("activating"), state("active", plain), state("active", profiled))
    assert not run(mapped=library, timeout=30)["failed"]


def test_a_unit_that_never_comes_up(systemctl: Systemctl, run: Run) -> None:
    systemctl.states(state("activating", sub="start"))
    failed = run(timeout=0)
    assert failed["failed"] and failed["unit"] == "web.service"
    first, *journal = failed["msg"].splitlines()
    assert "after 0 s: it is activating (start, result success)" in first
    assert journal == ["journal: --no-pager --output=short-iso --lines 15 --unit web.service", "boom"]


def test_what_a_jvm_says_of_its_variables_is_not_shown(systemctl: Systemctl, run: Run, tmp_path: Path) -> None:
    line = "app java[12]: NOTE: Picked up JDK_JAVA_OPTIONS: -Da=geheim"
    programs.script(tmp_path / "bin", "journalctl", f"#!/bin/sh\necho '{line}'\necho next\n")
    systemctl.states(state("failed"))
    *_first, shown_line, following = run()["msg"].splitlines()
    assert (shown_line, following) == ("app java[12]: NOTE: Picked up JDK_JAVA_OPTIONS: ***", "next")


@pytest.mark.parametrize("end", ["failed", "inactive"])
def test_a_unit_that_has_ended_is_not_waited_for(systemctl: Systemctl, run: Run, end: str) -> None:
    systemctl.states(state("activating"), state(end, sub="dead"))
    started = time.monotonic()
    failed = run(timeout=60)
    assert f"did not come up: it is {end}" in failed["msg"]
    assert time.monotonic() - started < 10


def test_a_unit_that_systemd_starts_again_before_it_is_up(systemctl: Systemctl, run: Run) -> None:
    systemctl.states(state("activating"), state("activating", restarts=1, sub="auto-restart"))
    assert "did not come up: it is activating (auto-restart" in run(timeout=60)["msg"]


@pytest.mark.parametrize(
    ("then", "words"),
    [
        (state("failed", sub="failed"), "did not stay up for 60 s: it is failed (failed, result exit-code)"),
        (state("activating", sub="auto-restart"), "did not stay up for 60 s: it is activating (auto-restart"),
        (state("active", invocation="2"), "was restarted while it was watched"),
        (state("active", restarts=1), "was restarted while it was watched"),
    ],
)
def test_a_unit_that_does_not_stay_up(systemctl: Systemctl, run: Run, then: str, words: str) -> None:
    systemctl.states(state("active"), state("active"), then)
    failed = run(seconds=60)
    assert failed["failed"] and words in failed["msg"] and failed["msg"].endswith("boom")


def test_a_library_that_is_not_mapped(systemctl: Systemctl, run: Run, plain: int, profiled: int, library: str) -> None:
    systemctl.states(state("active", plain))
    assert f"{library} is not mapped in its process {plain}" in run(mapped=library)["msg"]
    systemctl.states(state("active", 1 << 30))
    assert f"not mapped in its process {1 << 30}" in run(mapped=library)["msg"], "it is gone"
    systemctl.states(state("active"))
    assert "(there is none)" in run(mapped=library)["msg"]
    systemctl.processes("/web", profiled, plain)
    assert f"its process {plain}" in run(mapped=library)["msg"], "without a main process each one counts"
    systemctl.states(state("active", profiled))
    assert not run(mapped=library)["failed"], "with one, its children do not"


def test_a_unit_that_is_to_be_clean(
    systemctl: Systemctl,
    run: Run,
    plain: int,
    profiled: int,
    program: Path,
    library: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    systemctl.states(state("active", plain))
    systemctl.processes("/web", plain)
    assert not run(clean=True)["failed"]
    systemctl.processes("/web", plain, profiled)
    assert f"its process {profiled} still runs under the profiler" in run(clean=True)["msg"]
    with programs.running(program, env={"LD_PRELOAD": library}) as mapped:
        systemctl.processes("/web", plain, mapped)
        monkeypatch.setattr(places, "INSTALLED", library)
        assert f"its process {mapped} still" in run(clean=True)["msg"]


@pytest.fixture
def agent(systemctl: Systemctl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """Starts an agent that claims to have written a dump of that content; this process is the unit's."""
    name = "jeprof.1f3a9c20-7.1.0.m0.heap"
    spool, sockets = tmp_path / "spools" / "web.service", tmp_path / "sockets" / "web.service"
    for directory in (spool, sockets):
        directory.mkdir(parents=True)
    monkeypatch.setattr(places, "SPOOLS", str(spool.parent))
    monkeypatch.setattr(client.find, "__defaults__", (str(sockets.parent),))
    monkeypatch.setattr(places, "spool_of", lambda _unit: str(spool))
    monkeypatch.setattr(first_dump, "_PATIENCE", 0.0)
    systemctl.states(state("active", os.getpid()))
    listener = socket.socket(socket.AF_UNIX)
    threads = []

    def start(content: str) -> None:
        listener.bind(str(sockets / f"{os.getpid()}.sock"))
        listener.listen()

        def serve() -> None:
            connection, _address = listener.accept()
            with connection:
                connection.makefile("rb").readline()
                if content == "dies":
                    return
                (spool / name).write_text(content)
                answer = {"protocol": 1, "ok": True, "path": str(spool / name), "size": len(content)}
                if content == "refuses":
                    answer = {"protocol": 1, "ok": False, "error": "the spool is full"}
                connection.sendall(json.dumps(answer).encode() + b"\n")

        threads.append(threading.Thread(target=serve))
        threads[-1].start()

    yield start
    listener.close()
    for thread in threads:
        thread.join(10)


WHOLE = "heap_v2/524288\n  t*: 0: 0 [0: 0]\n\nMAPPED_LIBRARIES:\n7ffc000-7ffe000 r-xp 00000000 00:00 0 [vdso]\n"


def test_a_dump_that_is_seen(run: Run, agent: Callable[[str], None], tmp_path: Path) -> None:
    agent(WHOLE)
    seen = run(dump=True)
    assert not seen["failed"] and seen["unseen"] == ""
    assert seen["dumps"] == [str(tmp_path / "spools/web.service/jeprof.1f3a9c20-7.1.0.m0.heap")]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "none of its processes has an agent that answers"),
        ("dies", "ended while it wrote a dump"),
        ("refuses", "the spool is full"),
        (WHOLE[:-20], "ends in the middle of the list of mappings"),
    ],
)
def test_a_dump_that_is_not_seen(
    run: Run, agent: Callable[[str], None], tmp_path: Path, content: str | None, words: str
) -> None:
    programs.script(tmp_path / "bin", "journalctl", '#!/bin/sh\necho "h web[1]: offheap: no thread for the agent"\n')
    if content is not None:
        agent(content)
    failed = run(dump=True)
    assert failed["failed"]
    said = failed["msg"].splitlines()[0]
    assert said.startswith("process " if content == "dies" else "no dump of web.service can be had: ") and words in said
    assert content == "dies" or "Its agent says: no thread for the agent" in said


def test_a_unit_that_a_dump_ends_does_not_stay(run: Run, agent: Callable[[str], None]) -> None:
    agent("dies")
    failed = run(dump=True, best_effort=True)
    assert failed["failed"] and "ended while it wrote a dump" in failed["msg"]


def test_agents_that_keep_us_waiting_do_not_take_for_ever(
    run: Run, agent: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "find", lambda _unit: [client.AgentSocket(1, "/run/none/1.sock")])
    monkeypatch.setattr(first_dump, "_ALL", -1.0)
    assert "not all of its agents have answered" in run(dump=True)["msg"]


def test_a_unit_of_which_no_dump_can_be_had_may_stay(run: Run, agent: Callable[[str], None]) -> None:
    left = run(dump=True, best_effort=True)
    assert not left["failed"] and left["dumps"] == []
    assert left["unseen"].startswith("none of its processes has an agent that answers")


def test_a_main_process_that_another_has_started(
    run: Run, agent: Callable[[str], None], systemctl: Systemctl, program: Path, plain: int
) -> None:
    """It hands over by MAINPID=, and is a child, which has no agent unless that is asked for."""
    variables = {"OFFHEAP_EXECUTABLE": str(program)}
    with programs.running(program, env=variables) as pid:
        systemctl.states(state("active", pid))
        assert "set children: true in profiled_service_agent_settings" in run(dump=True)["msg"]
    with programs.running(program, env={**variables, "OFFHEAP_CHILDREN": "1"}) as pid:
        systemctl.states(state("active", pid))
        assert "children" not in run(dump=True)["msg"]
    systemctl.states(state("active", plain))
    assert "children" not in run(dump=True)["msg"]


def test_one_process_that_cannot_dump_keeps_no_other_from_it(
    run: Run, agent: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    agent("refuses")
    one_of = client.find("web.service")
    monkeypatch.setattr(client, "find", lambda _unit: [client.AgentSocket(1, "/run/none/1.sock"), *one_of])
    dumps = {1: ["/spool/dump"]}
    of_agent = first_dump._dump_of
    monkeypatch.setattr(first_dump, "_dump_of", lambda one, unit: dumps.get(one.pid) or of_agent(one, unit))
    seen = run(dump=True)
    assert not seen["failed"] and seen["dumps"] == ["/spool/dump"]
    assert "the spool is full" in seen["unseen"] and f"process {os.getpid()}" in seen["unseen"]
    assert "web.service is profiled, but for processes of which no dump can be had" in first_dump.sentence(
        "web.service", seen["dumps"], seen["unseen"]
    )


def test_what_a_dump_breaks_is_noticed(systemctl: Systemctl, run: Run, agent: Callable[[str], None]) -> None:
    systemctl.states(state("active", os.getpid()), state("failed", sub="failed"))
    assert "did not stay up" in run(dump=True, best_effort=True)["msg"]


def test_that_the_unit_has_ended_says_more_than_that_there_is_no_dump(
    systemctl: Systemctl, run: Run, agent: Callable[[str], None]
) -> None:
    systemctl.states(state("active", os.getpid()), state("failed", sub="failed"))
    assert "did not stay up" in run(dump=True)["msg"]


def test_it_changes_nothing_in_check_mode_either(systemctl: Systemctl, run: Run, plain: int) -> None:
    systemctl.states(state("active", plain))
    assert not run(check=True)["changed"]
    assert run(check=True, restart=True)["changed"]
    assert systemctl.calls == []


def test_a_restart_first(systemctl: Systemctl, run: Run, plain: int) -> None:
    systemctl.states(state("active", plain))
    assert run(restart=True, timeout=30)["changed"]
    # With StartLimitBurst=1 the restart would be a stop.
    assert systemctl.calls == ["--no-pager reset-failed -- web.service", "--no-pager restart -- web.service"]
    systemctl.restart("echo it has no ExecStart >&2; exit 1")
    failed = run(restart=True, timeout=30)["msg"]
    assert "web.service did not start: " in failed and "it has no ExecStart" in failed and failed.endswith("boom")


def test_a_restart_that_never_ends(systemctl: Systemctl, run: Run) -> None:
    systemctl.states(state("activating", sub="start"))
    systemctl.restart("exec sleep 600")
    started = time.monotonic()
    failed = run(restart=True, timeout=1)
    assert "has not come up 1 s after its restart: it is activating (start)" in failed["msg"]
    assert time.monotonic() - started < 60


def test_bad_arguments(run: Run) -> None:
    assert "seconds" in run(seconds="long")["msg"]
    assert "unsupported" in run(second=1)["msg"].lower()
    failed = run(unit="a/b")
    assert failed["failed"] and "not the name of a service unit" in failed["msg"] and failed["unit"] == "a/b"


def test_no_systemd(run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    assert "Is this a systemd host?" in run()["msg"]


def test_no_journal(systemctl: Systemctl, run: Run, tmp_path: Path) -> None:
    programs.script(tmp_path / "bin", "journalctl", "#!/nowhere/sh\n")
    systemctl.states(state("failed"))
    failed = run()
    assert failed["failed"] and "did not come up" in failed["msg"]
