# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Units are rolled back each on its own, with real processes and files and a fake systemctl that knows one unit."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.offheap.profiler.plugins.module_utils.host import places
from ansible_collections.offheap.profiler.plugins.module_utils.unit import drop_in_files, health, rollback
from ansible_collections.offheap.profiler.plugins.module_utils.unit.changes import Changes
from ansible_collections.offheap.profiler.plugins.modules import unit_rollback
from ansible_collections.offheap.profiler.tests.unit.fakes import programs
from ansible_collections.offheap.profiler.tests.unit.fakes.module_run import run_module
from ansible_collections.offheap.profiler.tests.unit.fakes.units import Systemctl, shown

Run = Callable[..., dict[str, Any]]
pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="trusts a directory of root's only")
JUST_NOW = str(10**15)  # in microseconds, and not over while a test runs
RESTART = "--no-pager restart -- web.service"


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("programs")


@pytest.fixture(scope="module")
def program(directory: Path) -> Path:
    return programs.compiled(directory, "web")


@pytest.fixture(scope="module")
def plain(program: Path) -> Iterator[int]:
    with programs.running(program) as pid:
        yield pid


@pytest.fixture(scope="module")
def profiled(program: Path) -> Iterator[int]:
    with programs.running(program, env={"OFFHEAP_UNIT": "web.service"}) as pid:
        yield pid


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, attribute in (("etc", "PERSISTENT"), ("run", "UNTIL_REBOOT"), ("lib", "SPOOLS"), ("sockets", "SOCKETS")):
        (tmp_path / name).mkdir()
        monkeypatch.setattr(places, attribute, str(tmp_path / name))
    monkeypatch.setattr(places, "INSTALLED", str(tmp_path / "opt"))
    monkeypatch.setattr(places, "PRIVATE_SPOOLS", str(tmp_path / "private"))
    return tmp_path


@pytest.fixture
def run(host: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    monkeypatch.setattr(health, "_POLL_SECONDS", 0.01)
    monkeypatch.setattr(rollback, "_POLL_SECONDS", 0.01)

    def run(**arguments: Any) -> dict[str, Any]:
        result = run_module(unit_rollback.main, monkeypatch, capsys, **{"seconds": 0, "timeout": 1, **arguments})
        assert not result["failed"]
        return result

    return run


def put_drop_in(host: Path, unit: str = "web.service") -> Path:
    place = host / "etc" / f"{unit}.d"
    place.mkdir()
    (place / "90-offheap.conf").write_text('# offheap: {"made_directory": true}\n[Service]\n')
    return place


def state(program: Path, pid: int, **single: str) -> str:
    found = {"ActiveState": "active", "SubState": "running", "MainPID": str(pid), "ControlGroup": "/web", **single}
    return shown(str(program), Id="web.service", text=found)


def test_a_drop_in_of_garbage(run: Run, host: Path, systemctl: Systemctl, program: Path, plain: int) -> None:
    """Ansible refuses a result with bytes that are no UTF-8, and with it what was done for all other units."""
    (put_drop_in(host) / "90-offheap.conf").write_bytes(b"\xff\xfe\n")
    systemctl.states(state(program, plain))
    result = run()
    assert not (host / "etc/web.service.d/90-offheap.conf").exists()
    assert json.dumps(result, ensure_ascii=False).encode()
    assert "\ufffd" in result["diff"][0]["before"]


def test_a_file_where_the_sockets_directory_was(
    run: Run, host: Path, systemctl: Systemctl, program: Path, profiled: int, plain: int
) -> None:
    put_drop_in(host)
    (host / "sockets" / "web.service").touch()
    systemctl.processes("/web", profiled)
    systemctl.restart(f"echo {plain} > {systemctl.cgroups}/web/cgroup.procs")
    systemctl.states(state(program, profiled), state(program, profiled), state(program, plain))
    result = run()
    assert result["problems"] == [] and RESTART in systemctl.calls
    assert not (host / "sockets" / "web.service").exists()


def test_nothing_of_ours(run: Run, systemctl: Systemctl) -> None:
    result = run()
    assert (result["changed"], result["units"], result["problems"]) == (False, [], [])
    assert systemctl.calls == []


def test_a_unit_is_taken_out_and_restarted(
    run: Run, host: Path, systemctl: Systemctl, program: Path, profiled: int, plain: int
) -> None:
    place = put_drop_in(host)
    (host / "sockets" / "web.service").mkdir()
    systemctl.states(state(program, profiled))
    systemctl.processes("/web", profiled)
    predicted = run(check=True)
    assert place.exists() and systemctl.calls == []
    systemctl.restart(
        f"echo {plain} > {systemctl.cgroups}/web/cgroup.procs; sed -i s/^MainPID=.*/MainPID={plain}/ $here/states/*"
    )
    done = run()
    assert done["changed"] and predicted["changed"] and done["diff"] == predicted["diff"]
    assert done["units"] == predicted["units"]
    assert done["units"][0]["summary"] == "web.service is rolled back, and was restarted without the profiler"
    assert RESTART in systemctl.calls and not place.exists() and not (host / "sockets" / "web.service").exists()
    assert not run()["changed"]


def test_a_unit_that_cannot_be_rolled_back_does_not_keep_the_next_one(
    run: Run, host: Path, systemctl: Systemctl
) -> None:
    systemctl.states(shown(Id="web.service"))
    broken = put_drop_in(host, "a@.service")
    place = put_drop_in(host)
    result = run()
    assert [one["unit"] for one in result["units"]] == ["a@.service", "web.service"]
    assert "a@.service is not rolled back: a@.service is a template" in result["problems"][0]
    assert len(result["problems"]) == 1 and broken.exists() and not place.exists()


def test_a_unit_whose_file_is_gone_is_not_stopped(
    run: Run, host: Path, systemctl: Systemctl, program: Path, profiled: int
) -> None:
    place = put_drop_in(host)
    systemctl.states(state(program, profiled, LoadState="not-found"))
    systemctl.processes("/web", profiled)
    problem = run()["problems"][0]
    assert f"(its unit file is not-found). Its processes {profiled} go on under the profiler" in problem
    assert not place.exists() and RESTART not in systemctl.calls


def test_a_unit_whose_program_is_gone_is_not_stopped(run: Run, host: Path, systemctl: Systemctl, profiled: int) -> None:
    systemctl.states(state(Path("/nowhere/web"), profiled))
    systemctl.processes("/web", profiled)
    put_drop_in(host)
    for _run in ("the first", "the next, which finds no drop-in any more"):
        assert "/nowhere/web, its ExecStart=, is missing or not executable" in run()["problems"][0]
    assert RESTART not in systemctl.calls
    systemctl.processes("/web")
    systemctl.states(state(Path("/nowhere/web"), 0, ActiveState="inactive"))
    assert run()["problems"] == [] and rollback.units() == []


def test_a_program_without_a_directory_may_be_where_only_systemd_looks(
    run: Run, host: Path, systemctl: Systemctl, profiled: int, plain: int
) -> None:
    """As ExecSearchPath= says."""
    put_drop_in(host)
    systemctl.states(state(Path("web"), profiled), state(Path("web"), profiled), state(Path("web"), plain))
    systemctl.processes("/web", profiled)
    systemctl.restart(f"echo {plain} > {systemctl.cgroups}/web/cgroup.procs")
    assert run()["problems"] == [] and RESTART in systemctl.calls


def test_what_did_not_come_up_is_started_by_the_next_run(
    run: Run, host: Path, systemctl: Systemctl, program: Path, profiled: int, plain: int
) -> None:
    put_drop_in(host)
    (host / "lib" / "web.service").mkdir()
    failed = state(program, 0, ActiveState="failed", Result="exit-code")
    systemctl.states(state(program, profiled))
    systemctl.processes("/web", profiled)
    systemctl.restart(f": > {systemctl.cgroups}/web/cgroup.procs; echo no such user >&2; exit 1")
    assert "did not start: " in run()["problems"][0]
    systemctl.states(failed)
    assert "no such user" in run()["problems"][0], "still broken"
    systemctl.states(failed, failed, state(program, plain))
    systemctl.restart(f"echo {plain} > {systemctl.cgroups}/web/cgroup.procs")
    assert run()["units"][0]["restarted"]
    assert not (host / "sockets" / "web.service").exists()
    systemctl.states(failed)
    assert not run()["units"][0]["restarted"], "it was up, so whoever stopped it meant it"


def test_of_a_unit_that_had_failed_it_is_told_that_it_is_down(
    run: Run, host: Path, systemctl: Systemctl, program: Path
) -> None:
    """Perhaps under the profiler."""
    put_drop_in(host)
    systemctl.states(state(program, 0, ActiveState="failed", ControlGroup=""))
    (unit,) = run()["units"]
    assert (unit["restarted"], unit["problem"]) == (False, "")
    assert unit["summary"].endswith(
        "needed no restart; it had failed before: look at 'systemctl status web.service', and start it"
    )


def test_what_an_administrator_stopped_stays_stopped(run: Run, host: Path, systemctl: Systemctl) -> None:
    """Its user may write into the directory of its sockets, but does not decide what root starts."""
    sockets = host / "sockets" / "web.service"
    sockets.mkdir()
    (sockets / "restarting").touch()
    os.chown(sockets, 65534, 65534)
    systemctl.states(shown(Id="web.service"))
    assert not run()["units"][0]["restarted"]
    assert not sockets.exists()


def test_a_restart_is_bounded(run: Run, host: Path, systemctl: Systemctl, program: Path, profiled: int) -> None:
    put_drop_in(host)
    systemctl.states(state(program, profiled), state(program, profiled), state(program, profiled, SubState="stop"))
    systemctl.processes("/web", profiled)
    systemctl.restart("exec sleep 600")
    assert "has not come up 1 s after its restart" in run()["problems"][0]


def test_processes_that_outlive_a_restart_are_told(
    run: Run, host: Path, systemctl: Systemctl, program: Path, profiled: int, plain: int
) -> None:
    put_drop_in(host)
    systemctl.states(state(program, plain, KillMode="process"))
    systemctl.processes("/web", profiled, plain)
    (unit,) = run()["units"]
    assert f"its processes {profiled} outlive every restart (KillMode=process)" in unit["problem"]
    assert not unit["restarted"]
    assert RESTART not in systemctl.calls, "the main process is not under the profiler"


def test_a_main_process_in_a_session_is_restarted_too(
    run: Run, host: Path, systemctl: Systemctl, program: Path, profiled: int, plain: int
) -> None:
    """pam_systemd(8) moves it into another control group, as with su in ExecStart=."""
    put_drop_in(host)
    systemctl.states(state(program, profiled), state(program, profiled), state(program, plain))
    systemctl.restart(":")
    (unit,) = run()["units"]
    assert (unit["restarted"], unit["problem"]) == (True, "") and RESTART in systemctl.calls


def test_processes_in_a_session_that_go_on_are_told(
    run: Run, host: Path, systemctl: Systemctl, program: Path, plain: int
) -> None:
    put_drop_in(host)
    systemctl.processes("/web", plain)
    systemctl.states(state(program, plain))
    library = programs.library(host, "libours.so")
    variables = {"OFFHEAP_UNIT": "web.service", "LD_PRELOAD": str(library)}
    with programs.running(program, env=variables) as pid:
        for _run in ("the first", "the next, which finds no drop-in any more"):
            assert f"its processes {pid} have left its control group" in run()["problems"][0]
    assert run()["problems"] == [] and rollback.units() == []


def test_a_job_is_never_broken_off(run: Run, host: Path, systemctl: Systemctl, program: Path, profiled: int) -> None:
    put_drop_in(host)
    systemctl.states(state(program, profiled, Type="oneshot", ActiveState="activating"))
    systemctl.processes("/web", profiled)
    assert not run(check=True)["units"][0]["restarted"]
    assert "Run this again when it has ended" in run()["problems"][0]
    going_on = state(program, profiled, Type="oneshot", ActiveState="activating")
    systemctl.states(going_on, going_on, state(program, 0, Type="oneshot", ActiveState="inactive", ControlGroup=""))
    (unit,) = run()["units"]
    assert (unit["restarted"], unit["summary"]) == (False, "web.service is rolled back, and needed no restart")
    assert RESTART not in systemctl.calls


def test_a_unit_is_restarted_in_any_case_if_asked(run: Run, systemctl: Systemctl, program: Path, plain: int) -> None:
    systemctl.states(
        state(program, 0, ActiveState="failed"), state(program, 0, ActiveState="failed"), state(program, plain)
    )
    systemctl.processes("/web", plain)
    assert run(units=["web"], always_restart=True)["units"][0]["restarted"]
    assert systemctl.calls[-2:] == ["--no-pager reset-failed -- web.service", RESTART]


@pytest.mark.parametrize("left", ["", "# emptied\n", None])
def test_no_directory_of_ours_is_left_whatever_was_done_to_the_drop_in(
    run: Run, host: Path, systemctl: Systemctl, left: str | None
) -> None:
    systemctl.states(shown(Id="web.service"))
    (host / "lib" / "web.service").mkdir()
    place = put_drop_in(host)
    (place / "90-offheap.conf").unlink()
    if left is not None:
        (place / "90-offheap.conf").write_text(left)
    run()
    assert not place.exists()


def test_a_drop_in_that_was_only_begun_is_found(run: Run, host: Path, systemctl: Systemctl) -> None:
    systemctl.states(shown(Id="web.service"))
    place = host / "run" / "web.service.d"
    place.mkdir()
    (place / ".90-offheap-x1y2").touch()
    assert run()["changed"]
    assert not place.exists()


def test_an_administrators_empty_directory_stays(run: Run, host: Path, systemctl: Systemctl) -> None:
    systemctl.states(shown(Id="web.service"))
    place = host / "etc" / "web.service.d"
    place.mkdir()
    (place / "90-offheap.conf").write_text('# offheap: {"made_directory": false}\n')
    run()
    assert place.is_dir() and list(place.iterdir()) == []
    drop_in_files.remove(Changes(check_mode=False), "other.service")


def test_names_that_are_no_services_break_nothing(run: Run, host: Path, systemctl: Systemctl) -> None:
    (host / "lib" / "t@a b.service").mkdir()
    (host / "sockets" / "tracing").mkdir()
    assert run()["units"] == []


def test_a_unit_that_ended_again_and_again_before_is_judged_by_that(
    run: Run, host: Path, systemctl: Systemctl, program: Path, profiled: int, plain: int
) -> None:
    put_drop_in(host)
    systemctl.processes("/web", profiled)
    loop = [
        state(program, profiled, NRestarts=str(number), ActiveEnterTimestampMonotonic=JUST_NOW) for number in (7, 7, 7)
    ]
    after = [state(program, plain, NRestarts=str(number), ControlGroup="/new") for number in (8, 8, 9)]
    systemctl.processes("/new", plain)
    systemctl.states(*loop, *after)
    unit = run()["units"][0]
    assert unit["problem"] == "" and unit["summary"].endswith(
        "; it ends and is started again and again, as it did before"
    )


def test_a_unit_that_is_out_but_does_not_stay_up_is_not_said_to_be_profiled(
    run: Run, host: Path, systemctl: Systemctl, program: Path, profiled: int, plain: int
) -> None:
    put_drop_in(host)
    systemctl.processes("/web", profiled)
    systemctl.processes("/new", plain)
    before = state(program, profiled)
    after = state(program, plain, ControlGroup="/new")
    systemctl.states(before, before, before, after, state(program, plain, NRestarts="1", ControlGroup="/new"))
    summary = run(seconds=1)["units"][0]["summary"]
    assert summary.startswith("web.service is rolled back, but web.service was restarted while it was watched")


def test_it_says_what_stays(run: Run, host: Path, systemctl: Systemctl) -> None:
    assert run(units=[])["stays"] == []
    spool = host / "lib" / "web.service"
    spool.mkdir()
    (spool / "jeprof.1.2.m3.heap").write_bytes(bytes(5000))
    (spool / "jeprof.1.2.m3.heap.json").write_bytes(b"{}")
    (spool / "elsewhere").symlink_to("/etc")
    deep = spool.joinpath(*"abcdefgh")
    deep.mkdir(parents=True)
    (deep / "not ours").write_bytes(bytes(5000))
    (host / "opt" / "jemalloc").mkdir(parents=True)
    (host / "opt" / "jemalloc" / "liboffheap.so").write_bytes(bytes(5000))
    assert run(units=[])["stays"] == [
        {"path": str(host / "opt"), "files": 1, "dumps": 0, "size": 8192},
        {"path": str(host / "lib"), "files": 2, "dumps": 1, "size": 12288},
    ]
