# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Units from systemctl's answers, and which of some real processes run under the injection."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import pytest

from ansible_collections.offheap.profiler.plugins.module_utils.host import places, procfs
from ansible_collections.offheap.profiler.plugins.module_utils.unit import service
from ansible_collections.offheap.profiler.tests.unit.fakes import programs
from ansible_collections.offheap.profiler.tests.unit.fakes.units import Systemctl, shown, unit

CONF = "prof:true,prof_prefix:/var/lib/offheap/x.service/jeprof"

# Overwrites its environment with a title, as nginx and PostgreSQL do, and reports when it has.
TITLED = """
#include <string.h>
#include <unistd.h>
extern char **environ;
int main(void) {
    char **last = environ;
    while (last[1]) last++;
    memset(environ[0], 'x', *last + strlen(*last) - environ[0]);
    sleep(60);
    return 0;
}
"""


@pytest.fixture(scope="module")
def sleeper(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return programs.compiled(tmp_path_factory.mktemp("programs"), "sleeper")


@pytest.fixture(scope="module")
def preloaded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return programs.library(tmp_path_factory.mktemp("library"), "libours.so")


def test_what_is_not_there_to_start_it_again(tmp_path: Path, sleeper: Path) -> None:
    directory = tmp_path / "state"
    assert unit(sleeper, "/bin/sh", "python3").start_obstacle == ""
    assert (
        unit("/bin/sh", tmp_path / "a").start_obstacle == f"{tmp_path}/a, its ExecStart=, is missing or not executable"
    )
    in_it = {"WorkingDirectory": str(directory)}
    assert unit("/bin/sh", text=in_it).start_obstacle == "", "systemd may make it"
    running = {**in_it, "MainPID": str(os.getpid())}
    assert unit("/bin/sh", text=running).start_obstacle == f"{directory}, its WorkingDirectory=, is missing"
    assert unit("/bin/sh", text={**running, "WorkingDirectory": f"!{directory}"}).start_obstacle == ""
    directory.mkdir()
    assert unit("/bin/sh", text=running).start_obstacle == ""


def test_load(systemctl: Systemctl) -> None:
    systemctl.states(
        shown(
            "/bin/sh -c x",
            "/opt/app/run --fast",
            lists={
                "DropInPaths": ["/a/10-a.conf", "/a/90-offheap.conf", '"/a/95 z.conf"'],
                "StateDirectory": ["a", "b"],
            },
            Id="real.service",
            FragmentPath="/lib/real.service",
            MainPID="12",
            NRestarts="3",
            ControlGroup="/system.slice/real.service",
        )
    )
    systemctl.processes("/system.slice/real.service", 12, 34)
    found = service.load("alias")
    assert found.name == "real.service", "the canonical name"
    assert found.commands == ["/bin/sh", "/opt/app/run"]
    assert found.arguments == ["/bin/sh -c x", "/opt/app/run --fast"]
    assert found.drop_ins == ["/a/10-a.conf", "/a/90-offheap.conf", "/a/95 z.conf"]
    assert found.own_files == ["/lib/real.service", "/a/10-a.conf", "/a/95 z.conf"]
    assert found.lists["StateDirectory"] == ["a", "b"]
    assert (found.main_pid, found.restarts, found.pids()) == (12, 3, [12, 34])


def test_commands_with_blanks_line_breaks_and_no_directory(systemctl: Systemctl) -> None:
    parts = " ; ignore_errors=no ; status=0/0 }\n"
    systemctl.states(
        "Id=x.service\n"
        f"ExecStart={{ path=/opt/my app/run ; argv[]=/opt/my app/run 1{parts}"
        f"ExecStart={{ path=sh ; argv[]=sh -c a\nMainPID=77{parts}"
        f"ExecStart={{ path=no-such-program ; argv[]=no-such-program{parts}"
        "MainPID=0\n"
    )
    found = service.load("x")
    assert found.commands[0] == "/opt/my app/run"
    assert found.commands[1].endswith("/bin/sh")
    assert found.commands[2] == "no-such-program"
    assert found.arguments[1] == "sh -c a\nMainPID=77"
    assert found.main_pid == 0


def test_a_unit_that_does_not_exist(systemctl: Systemctl) -> None:
    systemctl.states("Id=x.service\nLoadState=not-found\nMainPID=\nNRestarts=\n")
    found = service.load("x")
    assert (found.name, found.main_pid, found.restarts, found.pids(), found.own_files) == ("x.service", 0, 0, [], [])
    assert not found.is_running


@pytest.mark.parametrize(
    ("state", "runs"),
    [("active", True), ("reloading", True), ("activating", True), ("deactivating", True), ("inactive", False)],
)
def test_is_running(state: str, runs: bool) -> None:
    assert unit(ActiveState=state).is_running is runs


def test_which_processes_map_a_file(sleeper: Path, preloaded: Path, tmp_path: Path) -> None:
    link = tmp_path / "link.so"
    link.symlink_to(preloaded)
    preload = {"LD_PRELOAD": str(link)}
    with programs.running(sleeper, env=preload) as with_it, programs.running(sleeper) as without:
        assert service.maps_file(with_it, str(link)), "the link is resolved"
        assert not service.maps_file(without, str(preloaded))
        for prefix in (str(preloaded), str(preloaded.parent), f"{preloaded.parent}/"):
            assert service.pids_mapping(prefix, [with_it, without, 1 << 30]) == [with_it]
            assert with_it in service.pids_mapping(prefix)
        assert service.pids_mapping(str(preloaded)[:-1], [with_it]) == [], "half a name is no directory"
        moved = tmp_path / "moved"
        moved.symlink_to(preloaded.parent)
        assert service.pids_mapping(str(moved), [with_it, without]) == [with_it], "as where /opt is a link"


def test_carries(sleeper: Path, preloaded: Path) -> None:
    ours = {"LD_PRELOAD": f"{preloaded}:/nowhere/a.so", "MALLOC_CONF": CONF}
    with programs.running(sleeper, env=ours) as pid:
        assert service.carries(pid, ours)
        assert not service.carries(pid, {**ours, "MALLOC_CONF": CONF + ",narenas:1"})
        assert not service.carries(pid, {**ours, "LD_PRELOAD": f"/other.so:{preloaded}"})
    with programs.running(sleeper, env={**ours, "LD_PRELOAD": f"/its.so {ours['LD_PRELOAD']}"}) as pid:
        assert service.carries(pid, ours), "a start script put its own before ours"
    aided = {**ours, "JAVA_TOOL_OPTIONS": "-XX:+PreserveFramePointer", "OFFHEAP_UNIT": "x.service"}
    with programs.running(sleeper, env={**aided, "JAVA_TOOL_OPTIONS": "-Da=b -XX:+PreserveFramePointer"}) as pid:
        assert service.carries(pid, aided), "a start script added an option"
        assert not service.carries(pid, {**aided, "OFFHEAP_UNIT": "y.service"})
        assert not service.carries(pid, {**aided, "PYTHONPERFSUPPORT": "1"})
    with programs.running(sleeper, env={"MALLOC_CONF": CONF}) as pid:
        assert not service.carries(pid, ours)
    with programs.running(sleeper, env={"LD_PRELOAD": ours["LD_PRELOAD"]}) as pid:
        assert not service.carries(pid, ours)
    with programs.running(sleeper, env={}) as pid:
        assert not service.carries(pid, ours)
    with pytest.raises(procfs.ProcessGone):
        service.carries(1 << 30, ours)


def test_a_percent_sign_is_compared_like_any_other(sleeper: Path) -> None:
    ours = {"LD_PRELOAD": "/ours.so:/theirs%20.so", "MALLOC_CONF": CONF}
    with programs.running(sleeper, env=ours) as pid:
        assert service.carries(pid, ours)
        assert not service.carries(pid, {**ours, "LD_PRELOAD": "/ours.so:/theirs%21.so"})


def test_a_process_that_overwrites_its_environment(preloaded: Path, tmp_path: Path) -> None:
    """What it has mapped shows it when its environment no longer does."""
    titled = programs.compiled(tmp_path, "titled", TITLED)
    ours = {"LD_PRELOAD": str(preloaded), "MALLOC_CONF": CONF}
    with programs.running(titled, env=ours) as pid, programs.running(titled, env={"A": "1"}) as other:
        assert "LD_PRELOAD" not in procfs.environ(pid)
        assert service.carries(pid, ours)
        assert not service.carries(other, ours)
        assert service.pids_under_us([pid, other], "x.service", str(preloaded)) == [pid]
        assert service.pids_under_us([pid, other], "x.service") == [], "nobody knows the library any more"


def test_which_processes_run_under_us(
    sleeper: Path, preloaded: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    link = tmp_path / "link.so"
    link.symlink_to(preloaded)
    environments: tuple[dict[str, str], ...] = (
        {"MALLOC_CONF": CONF + ",narenas:1"},
        {"LD_PRELOAD": str(preloaded)},
        {"MALLOC_CONF": CONF.replace("x.service", "y.service")},
        {},
    )
    with contextlib.ExitStack() as stack:
        pids = [stack.enter_context(programs.running(sleeper, env=env)) for env in environments]
        by_environment, by_mapping, _of_another_unit, _plain = pids
        everybody = [*pids, 1 << 30]
        assert service.pids_under_us(everybody, "x.service") == [by_environment]
        assert service.pids_under_us(everybody, "x.service", str(link)) == sorted([by_environment, by_mapping])
        monkeypatch.setattr(places, "INSTALLED", str(preloaded.parent))
        assert service.pids_under_us(everybody, "x.service") == sorted([by_environment, by_mapping])
        for name in ("TRACER", "AGENT"):
            with monkeypatch.context() as changed:
                changed.setattr(places, name, str(preloaded.parent))
                assert service.pids_under_us(everybody, "x.service") == [by_environment], "what traced is no preload"
