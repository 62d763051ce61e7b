# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""The module from its arguments to its result, on real directories, programs and processes, with a fake systemctl."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.offheap.profiler.plugins.module_utils.host import places, procfs, trusted_path
from ansible_collections.offheap.profiler.plugins.module_utils.malloc import proof
from ansible_collections.offheap.profiler.plugins.module_utils.unit import service
from ansible_collections.offheap.profiler.plugins.modules import profiled_unit
from ansible_collections.offheap.profiler.tests.unit.fakes import programs
from ansible_collections.offheap.profiler.tests.unit.fakes.module_run import run_module
from ansible_collections.offheap.profiler.tests.unit.fakes.units import Systemctl, shown

Run = Callable[..., dict[str, Any]]
pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="gives directories to users, which only root can"),
    pytest.mark.usefixtures("trusting"),
]
OURS = "web.service.d/90-offheap.conf"


@pytest.fixture(scope="module")
def program(directory: Path) -> Path:
    return programs.compiled(directory, "web")


FAKE = Path(programs.__file__).with_name("broken_jemalloc.c").read_text()


@pytest.fixture(scope="module")
def jemalloc(public_directory: Path) -> str:
    return str(programs.library(public_directory, "libjemalloc.so.2", FAKE))


@pytest.fixture(scope="module")
def unsound_jemalloc(public_directory: Path) -> str:
    return str(programs.library(public_directory, "libunsound.so.2", FAKE, '-DVERSION="5.3.1-0-g81034ce1f137"'))


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The places of a host that the module writes to."""
    for name in ("etc", "run", "lib", "opt"):
        (tmp_path / name).mkdir()
    monkeypatch.setattr(places, "PERSISTENT", str(tmp_path / "etc"))
    monkeypatch.setattr(places, "UNTIL_REBOOT", str(tmp_path / "run"))
    monkeypatch.setattr(places, "SPOOLS", str(tmp_path / "lib" / "offheap"))
    monkeypatch.setattr(places, "PRIVATE_SPOOLS", str(tmp_path / "lib" / "private" / "offheap"))
    monkeypatch.setattr(places, "INSTALLED", str(tmp_path / "opt"))
    return tmp_path


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    def run(**arguments: Any) -> dict[str, Any]:
        return run_module(profiled_unit.main, monkeypatch, capsys, unit="web", **arguments)

    return run


def listing(host: Path) -> dict[str, str]:
    """What is in those places, with owner, mode and text."""
    found = {}
    for root in ("etc", "run", "lib", "opt"):
        for path in sorted((host / root).rglob("*")):
            status = path.lstat()
            text = path.read_text() if path.is_file() else ""
            found[str(path.relative_to(host))] = f"{status.st_mode:o} {status.st_uid}:{status.st_gid} {text}"
    return found


def stopped(program: Path, **single: str) -> str:
    return shown(str(program), Id="web.service", User="nobody", text=single)


def running(program: Path, pid: int, **single: str) -> str:
    state = {"ActiveState": "active", "SubState": "running", "MainPID": str(pid), "ControlGroup": "/web", **single}
    return shown(str(program), Id="web.service", User="nobody", text=state)


# Enabling


def test_enabling_a_stopped_unit(host: Path, systemctl: Systemctl, run: Run, program: Path, jemalloc: str) -> None:
    systemctl.states(stopped(program))
    wanted = {"library": jemalloc, "malloc_conf": {"lg_prof_sample": 19}}
    before = listing(host)
    checked = run(check=True, **wanted)
    assert listing(host) == before and systemctl.calls == [], "a check touches nothing"

    done = run(**wanted)
    assert checked == done
    spool, boot = host / "lib/offheap/web.service", procfs.boot_id().replace("-", "")
    assert done["changed"] and not done["failed"]
    assert (done["unit"], done["active"], done["restart_needed"]) == ("web.service", False, False)
    assert done["drop_in"] == str(host / "etc" / OURS)
    assert done["spool"] == str(spool)
    assert done["environment"] == {
        "LD_PRELOAD": jemalloc,
        "MALLOC_CONF": f"prof:true,lg_prof_sample:19,prof_prefix:{spool}/jeprof.{boot}",
    }
    assert f'Environment="LD_PRELOAD={jemalloc}"' in (host / "etc" / OURS).read_text()
    assert (spool.stat().st_mode & 0o777, spool.stat().st_uid) == (0o700, 65534)
    assert systemctl.calls == ["--no-pager daemon-reload"]
    shown_to_the_user = {part["after_header"]: part["after"] for part in done["diff"]}
    assert shown_to_the_user[str(host / "etc" / OURS)] == (host / "etc" / OURS).read_text()

    again = run(**wanted)
    assert (again["changed"], again["diff"]) == (False, [])
    assert systemctl.calls == ["--no-pager daemon-reload"], "nothing to read again"


@pytest.mark.parametrize("arena_max", [0, 2])
def test_another_malloc_without_a_profiler(
    host: Path, systemctl: Systemctl, run: Run, program: Path, jemalloc: str, arena_max: int
) -> None:
    (host / "web.service").write_text("[Service]\nEnvironment=MALLOC_CONF=narenas:1\nEnvironment=LD_PRELOAD=/a.so\n")
    more = {"FragmentPath": str(host / "web.service"), "DynamicUser": "yes", "ProtectSystem": "strict"}
    systemctl.states(stopped(program, **more))
    swap = {"mode": "swap", "arena_max": arena_max, **({} if arena_max else {"library": jemalloc})}
    done = run(**swap)
    ours = {"MALLOC_ARENA_MAX": "2"} if arena_max else {"LD_PRELOAD": f"{jemalloc}:/a.so", "MALLOC_CONF": "narenas:1"}
    assert done["environment"] == {**ours, "OFFHEAP_UNIT": "web.service"}
    lines = (host / "etc" / OURS).read_text().splitlines()
    assert not [line for line in lines if line.startswith(("StateDirectory", "RuntimeDirectory", "ReadWritePaths"))]
    assert [path for path in listing(host) if path.startswith("lib")] == []
    with programs.running(program, env=done["environment"]) as pid:
        systemctl.states(running(program, pid, **more))
        systemctl.processes("/web", pid)
        assert not run(**swap)["restart_needed"]
        assert run(**{**swap, "mode": "swap", "arena_max": 3})["restart_needed"]
        assert run(state="absent")["restart_needed"]
    assert "library is required" in run(mode="swap")["msg"]
    assert [path for path in listing(host) if "90-offheap" in path] == []


def test_the_programs_own_jemalloc(
    host: Path, systemctl: Systemctl, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = ["_RJEM_MALLOC_CONF", "<jemalloc>: Run jeprof on dump output"]
    source = "".join(f'__attribute__((used)) static const char t{n}[] = "{text}";\n' for n, text in enumerate(texts))
    program = programs.compiled(tmp_path, "router", source + programs.SLEEPS)
    (host / "web.service").write_text('[Service]\nEnvironment="_RJEM_MALLOC_CONF=narenas:1,lg_prof_sample:20"\n')
    more = {"FragmentPath": str(host / "web.service")}
    systemctl.states(stopped(program, **more))
    wanted = {"mode": "own", "malloc_conf": {"lg_prof_interval": 28}}
    done = run(**wanted)
    spool, boot = host / "lib/offheap/web.service", procfs.boot_id().replace("-", "")
    conf = (
        f"prof:true,narenas:1,lg_prof_sample:19,prof_active:true,lg_prof_interval:28,prof_prefix:{spool}/jeprof.{boot}"
    )
    assert done["environment"] == {"_RJEM_MALLOC_CONF": conf, "OFFHEAP_UNIT": "web.service"}
    assert (spool.stat().st_mode & 0o777, spool.stat().st_uid) == (0o700, 65534)
    assert "LD_PRELOAD" not in (host / "etc" / OURS).read_text()
    with programs.running(program, env=done["environment"]) as pid:
        systemctl.states(running(program, pid, **more))
        systemctl.processes("/web", pid)
        assert not run(**wanted)["restart_needed"]
        assert run(mode="own")["restart_needed"]
        assert run(state="absent")["restart_needed"], "its process is known as ours"
    assert "prof_prefix" in run(mode="own", malloc_conf={"prof_prefix": "/tmp"})["msg"]


def test_until_reboot(host: Path, systemctl: Systemctl, run: Run, program: Path, jemalloc: str) -> None:
    systemctl.states(stopped(program))
    run(library=jemalloc)
    assert run(library=jemalloc, until_reboot=True)["drop_in"] == str(host / "run" / OURS)
    assert [path for path in listing(host) if path.endswith(".conf")] == [f"run/{OURS}"]


def test_what_the_unit_has_stays(host: Path, systemctl: Systemctl, run: Run, program: Path, jemalloc: str) -> None:
    (host / "web.service").write_text("[Service]\nEnvironment=LD_PRELOAD=/a.so\nUnsetEnvironment=MALLOC_CONF\n")
    (host / "95-z.conf").write_text("[Service]\nEnvironment=MALLOC_CONF=narenas:1\n")
    systemctl.manager("LD_PRELOAD=/manager.so\n")
    paths = {"DropInPaths": [str(host / "95-z.conf"), str(host / "etc" / OURS)]}
    systemctl.states(
        shown(
            str(program), Id="web.service", FragmentPath=str(host / "web.service"), lists=paths, ProtectSystem="strict"
        )
    )
    environment = run(library=jemalloc)["environment"]
    assert environment["LD_PRELOAD"] == f"{jemalloc}:/a.so"
    assert environment["MALLOC_CONF"].startswith(f"prof:true,prof_prefix:{host}/lib/offheap/web.service/jeprof.")
    lines = (host / "etc" / OURS).read_text().splitlines()
    assert f"ReadWritePaths=-{host}/lib/offheap/web.service" in lines


def test_what_an_environment_file_sets_stays_in_a_file_of_root(
    host: Path, systemctl: Systemctl, run: Run, program: Path, jemalloc: str
) -> None:
    secret = host / "secret.env"
    secret.write_text("LD_PRELOAD=/geheim.so\nMALLOC_CONF=narenas:1\nPASSWORD=geheim\n")
    secret.chmod(0o600)
    (host / "web.service").write_text(f"[Service]\nEnvironmentFile={secret}\n")
    systemctl.states(stopped(program, FragmentPath=str(host / "web.service")))
    ours = host / "etc/web.service.d"
    checked = run(check=True, library=jemalloc)
    told = [checked, run(library=jemalloc), run(library=jemalloc)]
    assert (ours / "90-offheap.env").stat().st_mode & 0o777 == 0o600
    assert f'LD_PRELOAD="{jemalloc}:/geheim.so"' in (ours / "90-offheap.env").read_text()
    assert told[0] == told[1] and not told[2]["changed"]
    secret.write_text("LD_PRELOAD=/geheimer.so\nMALLOC_CONF=narenas:1\n")
    told += [run(check=True, library=jemalloc), run(library=jemalloc), run(state="absent")]
    assert all(result["changed"] and str(ours / "90-offheap.env") in str(result["diff"]) for result in told[3:])
    assert "geheim" not in str(told) and not ours.exists()


def test_a_transient_user_s_spool_is_left_to_systemd(
    host: Path, systemctl: Systemctl, run: Run, program: Path, jemalloc: str
) -> None:
    systemctl.states(shown(str(program), Id="web.service", DynamicUser="yes"))
    assert run(library=jemalloc)["changed"]
    assert not (host / "lib/offheap").exists()


def test_whether_a_restart_is_needed(host: Path, systemctl: Systemctl, run: Run, program: Path, jemalloc: str) -> None:
    with programs.running(program) as pid:
        systemctl.processes("/web", pid)
        systemctl.states(running(program, pid))
        before = run(library=jemalloc)
        assert before["active"] and before["restart_needed"]
        assert run(library=jemalloc)["restart_needed"], "as long as it was not restarted"
    for other in ({}, {"LD_PRELOAD": f"{jemalloc}:/a.so"}):
        with programs.running(program, env={**before["environment"], **other}) as pid:
            systemctl.processes("/web", pid)
            systemctl.states(running(program, pid, DropInPaths=str(host / "etc" / OURS)))
            after = run(library=jemalloc)
            assert (after["changed"], after["restart_needed"]) == (False, False)
            assert run(library=jemalloc, malloc_conf={"narenas": 1})["restart_needed"]
            run(library=jemalloc)
    systemctl.states(running(program, 1 << 30))
    assert run(library=jemalloc)["restart_needed"], "the process that was looked at is gone"


def test_a_reload_that_an_earlier_run_missed(
    host: Path, systemctl: Systemctl, run: Run, program: Path, jemalloc: str
) -> None:
    paths = {"DropInPaths": [str(host / "etc" / OURS)]}
    systemctl.states(stopped(program))
    run(library=jemalloc)
    systemctl.states(shown(str(program), Id="web.service", User="nobody", NeedDaemonReload="yes", lists=paths))
    assert run(library=jemalloc)["changed"]
    assert systemctl.calls == ["--no-pager daemon-reload"] * 2
    systemctl.states(shown(str(program), Id="web.service", User="nobody", NeedDaemonReload="yes"))
    assert run(library=jemalloc)["changed"], "written by a run that was killed before systemd read it"
    systemctl.states(shown(str(program), Id="web.service", User="nobody", NeedDaemonReload="yes", lists=paths))
    run(state="absent")
    assert run(state="absent")["changed"], "removed, but systemd still has it in mind"
    assert systemctl.calls == ["--no-pager daemon-reload"] * 5


def test_the_agent(host: Path, systemctl: Systemctl, run: Run, program: Path, jemalloc: str) -> None:
    agent = host / "liboffheap.so"
    systemctl.states(stopped(program))
    refused = run(library=jemalloc, agent=str(agent))
    assert refused["refusal"] == "no-agent" and "installs it" in refused["msg"]
    assert not run(check=True, library=jemalloc, agent=str(agent))["failed"], "it may be installed in between"
    agent.write_text("")
    plain = run(library=jemalloc, agent=str(agent))["environment"]
    assert plain["LD_PRELOAD"] == f"{jemalloc}:{agent}"
    assert {name: value for name, value in plain.items() if name.startswith("OFFHEAP")} == {
        "OFFHEAP_UNIT": "web.service",
        "OFFHEAP_EXECUTABLE": str(program),
        "OFFHEAP_START": "sampling",
        "OFFHEAP_UNWINDER": "hybrid",
        "OFFHEAP_MAY_UNSHARE": "1",
        "OFFHEAP_UNSET": "1",
    }
    settings = {"executable": "/bin/x", "start": "dormant", "unwinder": "fp", "keep_files": 7, "start_delay": 0}
    given = run(library=jemalloc, agent=str(agent), agent_settings=settings)["environment"]
    assert {name: value for name, value in given.items() if name.startswith("OFFHEAP")} == {
        "OFFHEAP_UNIT": "web.service",
        "OFFHEAP_EXECUTABLE": "/bin/x",
        "OFFHEAP_START": "dormant",
        "OFFHEAP_UNWINDER": "fp",
        "OFFHEAP_MAY_UNSHARE": "1",
        "OFFHEAP_UNSET": "1",
        "OFFHEAP_KEEP_FILES": "7",
        "OFFHEAP_START_DELAY": "0",
    }
    assert "RuntimeDirectory=offheap/web.service" in (host / "etc" / OURS).read_text()
    systemctl.states(stopped(program, Type="forking"))
    assert run(library=jemalloc, agent=str(agent))["environment"]["OFFHEAP_CHILDREN"] == "1", "it is a child itself"


def test_the_agent_alone_where_the_allocator_stays(
    host: Path, systemctl: Systemctl, run: Run, program: Path, public_directory: Path
) -> None:
    agent = programs.library(public_directory, "liboffheap.so")
    (host / "web.service").write_text('[Service]\nEnvironment="MALLOC_CONF=narenas:1" LD_PRELOAD=/usr/lib/liba.so\n')
    systemctl.states(stopped(program, FragmentPath=str(host / "web.service")))
    wanted = {"allocator": "own", "agent": str(agent)}
    done = run(**wanted, malloc_conf={"lg_prof_sample": 17})
    assert done["environment"] == {
        "LD_PRELOAD": f"{agent}:/usr/lib/liba.so",
        "OFFHEAP_UNIT": "web.service",
        "OFFHEAP_EXECUTABLE": str(program),
        "OFFHEAP_START": "sampling",
        "OFFHEAP_UNWINDER": "hybrid",
        "OFFHEAP_MAY_UNSHARE": "1",
        "OFFHEAP_PREFIX": f"{host}/lib/offheap/web.service/jeprof",
        "OFFHEAP_LG_SAMPLE": "17",
    }
    systemctl.states(stopped(program))
    plain = run(**wanted)["environment"]
    assert (plain["OFFHEAP_LG_SAMPLE"], plain["OFFHEAP_UNSET"], plain["LD_PRELOAD"]) == ("19", "1", str(agent))
    assert "MALLOC_CONF" not in plain and "RuntimeDirectory=" in (host / "etc" / OURS).read_text()
    for options in ({"narenas": 1}, {"lg_prof_sample": 41}, {"lg_prof_sample": "many"}):
        refused = run(**wanted, malloc_conf=options)
        assert refused["refusal"] == "bad-option" and "lg_prof_sample (0 to 40)" in refused["msg"]
    assert "agent is required" in run(allocator="own", library="/l.so")["msg"]


def test_a_process_under_the_agent_alone_is_known(
    host: Path, systemctl: Systemctl, run: Run, program: Path, monkeypatch: pytest.MonkeyPatch, public_directory: Path
) -> None:
    """Also one that has written over its environment; but not one that was only attached to, with no drop-in."""
    agent = programs.library(public_directory, "liboffheap.so")
    monkeypatch.setattr(places, "AGENT", str(public_directory))
    systemctl.states(stopped(program))
    wanted = {"allocator": "own", "agent": str(agent)}
    ours = run(**wanted)["environment"]
    for environment in (ours, {"LD_PRELOAD": str(agent)}):
        with programs.running(program, env=environment) as pid:
            systemctl.processes("/web", pid)
            systemctl.states(stopped(program))
            run(**wanted)
            systemctl.states(running(program, pid))
            assert run(state="absent")["restart_needed"]
            assert run(state="absent")["restart_needed"] == (environment is ours)


def test_what_makes_a_runtime_s_frames_visible(
    host: Path, systemctl: Systemctl, run: Run, jemalloc: str, directory: Path
) -> None:
    java = programs.compiled(directory, "java")
    systemctl.states(stopped(java))
    assert "JAVA_TOOL_OPTIONS" not in run(library=jemalloc)["environment"]
    options = run(library=jemalloc, runtime="auto")["environment"]["JAVA_TOOL_OPTIONS"]
    assert options.split()[0] == "-XX:+PreserveFramePointer"
    less = run(library=jemalloc, runtime="jvm", runtime_without=["frame-pointers"])["environment"]["JAVA_TOOL_OPTIONS"]
    assert less.split() == options.split()[1:]
    with programs.running(java) as pid:
        systemctl.processes("/web", pid)
        systemctl.states(running(java, pid))
        assert run(library=jemalloc, runtime="auto")["environment"]["JAVA_TOOL_OPTIONS"] == options


# Refusing


@pytest.mark.parametrize(
    ("single", "reason"),
    [
        ({"LoadState": "not-found"}, "no-such-unit"),
        ({"LoadState": "masked"}, "masked"),
        ({"ActiveState": "failed"}, "already-failing"),
        ({"RootDirectory": "/srv"}, "own-root"),
        ({"User": "nosuchuser"}, "no-such-user"),
        ({"ActiveState": "active"}, "no-process"),
    ],
)
def test_a_refusal(
    host: Path, systemctl: Systemctl, run: Run, program: Path, jemalloc: str, single: dict[str, str], reason: str
) -> None:
    systemctl.states(stopped(program, **single) if "User" not in single else shown(str(program), text=single))
    before = listing(host)
    for check in (True, False):
        refused = run(check=check, library=jemalloc)
        assert refused["failed"] and refused["refusal"] == reason
        assert "is unchanged: " in refused["msg"]
    assert listing(host) == before and systemctl.calls == []


def test_refusals_of_programs_scripts_libraries_and_options(
    host: Path, systemctl: Systemctl, run: Run, program: Path, jemalloc: str
) -> None:
    static = programs.compiled(host, "static", programs.SLEEPS, "-static")
    wrapper = programs.script(host, "wrapper", "#!/bin/sh\nLD_PRELOAD=/a.so exec web\n")
    before = listing(host)
    for command, arguments, reason in (
        (static, {}, "static-binary"),
        (wrapper, {}, "wrapper-overwrites-preload"),
        (program, {"library": str(program)}, "library-does-not-load"),
        (program, {"library": "/nowhere/lib.so"}, "no-library"),
        (program, {"library": "relative.so"}, "bad-library-path"),
        (program, {"malloc_conf": {"prof": True}}, "bad-option"),
        (program, {"malloc_conf": {"narenas": "1,2"}}, "bad-option"),
        (program, {"malloc_conf": {"no_such": 1}, "version": "5.3.0"}, "bad-option"),
        (program, {"min_free_mib": 1 << 40}, "disk-full"),
    ):
        systemctl.states(stopped(command))
        refused = run(**{"library": jemalloc, **arguments})
        assert refused.get("refusal") == reason, refused
    assert listing(host) == before and systemctl.calls == []


@pytest.mark.parametrize("mode", ["profile", "swap"])
def test_a_release_that_crashes_services(
    host: Path, systemctl: Systemctl, run: Run, program: Path, unsound_jemalloc: str, mode: str
) -> None:
    systemctl.states(stopped(program))
    before = listing(host)
    for arguments in (
        {"library": unsound_jemalloc},
        {"library": unsound_jemalloc, "version": "5.3.0"},
        {"library": unsound_jemalloc, "check": True},
        {"library": "/opt/offheap/not/yet.so", "version": "5.3.1", "check": True},
    ):
        refused = run(mode=mode, **arguments)
        assert refused.get("refusal") == "library-unsound", refused
        assert "5.3.1 can crash a service" in refused["msg"] and "use 5.3.0" in refused["msg"]
    assert listing(host) == before and systemctl.calls == []


@pytest.mark.parametrize("mode", ["profile", "swap"])
def test_what_others_than_root_could_replace(
    host: Path,
    systemctl: Systemctl,
    run: Run,
    program: Path,
    jemalloc: str,
    mode: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A library, or an agent; a pipe in its place keeps nobody waiting."""
    fault = "/opt/app belongs to the user app"
    monkeypatch.setattr(trusted_path, "fault", lambda path: fault if path.startswith(str(host)) else None)
    pipe = host / "libjemalloc.so.2"
    os.mkfifo(pipe)
    systemctl.states(stopped(program))
    before = listing(host)
    given: list[dict[str, Any]] = [{"library": str(pipe)}, {"library": str(pipe), "check": True}]
    if mode == "profile":
        given.append({"library": jemalloc, "agent": str(pipe)})
    for arguments in given:
        refused = run(mode=mode, **arguments)
        assert refused.get("refusal") == "library-untrusted-path", refused
        assert f"others than root could replace it: {fault}" in refused["msg"]
    assert listing(host) == before and systemctl.calls == []


def test_a_library_that_is_to_be_installed_yet(host: Path, systemctl: Systemctl, run: Run, program: Path) -> None:
    systemctl.states(stopped(program))
    checked = run(check=True, library="/opt/offheap/not/yet.so", version="5.3.0", malloc_conf={"narenas": 1})
    assert not checked["failed"] and checked["changed"]
    bad = run(check=True, library="/opt/offheap/not/yet.so", version="5.3.0", malloc_conf={"no_such": 1})
    assert bad["refusal"] == "bad-option"


# Bad arguments and failures


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({}, "library"),
        ({"library": "/l.so", "state": "enabled"}, "state"),
        ({"library": "/l.so", "malloc_conf": "nonsense"}, "malloc_conf"),
        ({"library": "/l.so", "min_free_mib": "much"}, "min_free_mib"),
        ({"library": "/l.so", "mallocconf": {}}, "mallocconf"),
    ],
)
def test_bad_arguments(run: Run, arguments: dict[str, Any], words: str) -> None:
    failed = run(**arguments)
    assert failed["failed"] and words in failed["msg"]


@pytest.mark.parametrize("name", ["a/b", "web.timer", "web@"])
def test_what_is_no_unit(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], systemctl: Systemctl, name: str
) -> None:
    for state in ("present", "absent"):
        failed = run_module(profiled_unit.main, monkeypatch, capsys, unit=name, library="/l.so", state=state)
        assert failed["failed"] and failed["unit"] == name and "refusal" not in failed
    assert systemctl.calls == []


def test_failures_that_are_no_refusals(
    host: Path, systemctl: Systemctl, run: Run, program: Path, jemalloc: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    systemctl.states(stopped(program))
    systemctl.reload_fails(True)
    assert "systemctl daemon-reload failed" in run(library=jemalloc)["msg"]
    assert not (host / "etc" / OURS).exists(), "the next start would be under it, and nobody would look"
    systemctl.reload_fails(False)
    systemctl.states(shown(str(program), Id="web.service", FragmentPath="/nowhere/web.service"))
    assert "/nowhere/web.service cannot be read" in run(library=jemalloc)["msg"]
    (host / "late.d").mkdir()
    (host / "late.d/95-z.conf").write_text("[Service]\nUnsetEnvironment=LD_PRELOAD\n")
    late = {"DropInPaths": [str(host / "late.d/95-z.conf")]}
    systemctl.states(shown(str(program), Id="web.service", lists=late))
    assert "would undo the preload" in run(library=jemalloc)["msg"]
    (host / "lib/offheap/web.service").rmdir()
    (host / "lib/offheap/web.service").write_text("")
    systemctl.states(stopped(program))
    assert "is not a directory" in run(library=jemalloc)["msg"]


def test_without_become(host: Path, systemctl: Systemctl, run: Run, program: Path, jemalloc: str) -> None:
    """A message, not a traceback. A file in place of a directory stops even root."""
    systemctl.states(stopped(program))
    (host / "etc").rmdir()
    (host / "etc").write_text("")
    failed = run(library=jemalloc)
    assert failed["failed"] and str(host / "etc") in failed["msg"]


# Taking it out


def test_taking_it_out(host: Path, systemctl: Systemctl, run: Run, program: Path, jemalloc: str) -> None:
    systemctl.states(stopped(program))
    before = listing(host)
    run(library=jemalloc)
    enabled = listing(host)
    checked = run(check=True, state="absent")
    assert listing(host) == enabled
    done = run(state="absent")
    assert checked == done
    assert done["changed"] and done["drop_in"] == str(host / "etc" / OURS)
    assert [(part["before_header"], part["after"]) for part in done["diff"]] == [(str(host / "etc" / OURS), "")]
    assert sorted(set(listing(host)) - set(before)) == ["lib/offheap", "lib/offheap/web.service"], (
        "the dumps' place stays"
    )
    again = run(state="absent")
    assert (again["changed"], again["restart_needed"]) == (False, False)
    run(state="absent", purge_spool=True)
    assert listing(host) == before
    assert not run(state="absent", purge_spool=True)["changed"]


def test_taking_out_a_release_that_is_refused_by_now(
    host: Path,
    systemctl: Systemctl,
    run: Run,
    program: Path,
    unsound_jemalloc: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    systemctl.states(stopped(program))
    with monkeypatch.context() as earlier:
        earlier.setattr(proof, "UNSOUND", {})
        enabled = run(library=unsound_jemalloc)
    with programs.running(program, env=enabled["environment"]) as pid:
        systemctl.states(running(program, pid, DropInPaths=str(host / "etc" / OURS)))
        systemctl.processes("/web", pid)
        assert run(library=unsound_jemalloc)["refusal"] == "library-unsound"
        assert (host / "etc" / OURS).exists()
        done = run(state="absent")
        assert done["changed"] and done["restart_needed"]
    assert not (host / "etc" / OURS).exists()


@pytest.mark.parametrize("state", ["not-found", "masked", "loaded"])
def test_taking_it_out_of_a_unit_in_any_state(
    host: Path, systemctl: Systemctl, run: Run, program: Path, jemalloc: str, state: str
) -> None:
    systemctl.states(stopped(program))
    run(library=jemalloc)
    systemctl.states(stopped(program, LoadState=state, ActiveState="failed"))
    assert run(state="absent")["changed"]
    assert not (host / "etc" / OURS).exists()


def test_a_restart_is_needed_while_a_process_has_it(
    host: Path, systemctl: Systemctl, run: Run, program: Path, jemalloc: str
) -> None:
    """Even if its environment is overwritten: by the library that the drop-in names, then by our directory."""
    systemctl.states(stopped(program))
    ours = run(library=jemalloc)["environment"]
    for environment in (ours, {"LD_PRELOAD": jemalloc}):
        with programs.running(program, env=environment) as pid:
            systemctl.processes("/web", pid)
            systemctl.states(stopped(program))
            run(library=jemalloc)
            systemctl.states(running(program, pid))
            assert run(state="absent")["restart_needed"]
            assert run(state="absent")["restart_needed"] == (environment is ours)
    with programs.running(program) as pid:
        systemctl.processes("/web", pid)
        systemctl.states(stopped(program))
        run(library=jemalloc)
        systemctl.states(running(program, pid))
        assert not run(state="absent")["restart_needed"], "it was never restarted under ours"


def test_a_record_that_was_tampered_with(
    host: Path, systemctl: Systemctl, run: Run, program: Path, jemalloc: str
) -> None:
    systemctl.states(stopped(program))
    run(library=jemalloc)
    (host / "etc" / OURS).write_text('# offheap: {"library": 7, "made_directory": "x"}\n')
    assert run(state="absent")["changed"]
    assert not (host / "etc/web.service.d").exists()


def test_purging(host: Path, systemctl: Systemctl, run: Run, program: Path, jemalloc: str) -> None:
    systemctl.states(stopped(program))
    ours = run(library=jemalloc)["environment"]
    dump = host / "lib/offheap/web.service/jeprof.1.0.i0.heap"
    dump.write_text("heap_v2/524288\n\nMAPPED_LIBRARIES:\n" + Path("/proc/self/maps").read_text())
    cut_off = dump.with_name("jeprof.1.1.i1.heap")
    cut_off.write_text("heap_v2/524288\n  t*: 1: 2 ")
    kept = run(state="absent", purge_spool=True)
    assert kept["failed"] and "1 dumps in it are not collected" in kept["msg"] and dump.exists()
    with programs.running(program, env=ours) as pid:
        systemctl.processes("/web", pid)
        systemctl.states(running(program, pid))
        kept = run(state="absent", purge_spool=True, discard_dumps=True)
        assert kept["failed"] and "Restart it first" in kept["msg"] and dump.exists()
        checked = run(check=True, state="absent", purge_spool=True, discard_dumps=True)
        assert not checked["failed"], "a playbook restarts it in between"
    systemctl.states(stopped(program))
    dump.unlink()
    purged = run(state="absent", purge_spool=True)
    assert purged["changed"] and not (host / "lib/offheap").exists()
    assert "removed with 1 dumps that could never be collected, the first was jeprof.1.1" in str(purged["warnings"])


def test_discarding(host: Path, systemctl: Systemctl, run: Run, program: Path, jemalloc: str) -> None:
    systemctl.states(stopped(program))
    run(library=jemalloc)
    dump = host / "lib/offheap/web.service/jeprof.1.0.i0.heap"
    dump.write_text("heap_v2/524288\n\nMAPPED_LIBRARIES:\n" + Path("/proc/self/maps").read_text())
    assert run(state="absent", purge_spool=True, discard_dumps=True)["changed"]
    assert not (host / "lib/offheap").exists()


def test_a_job_is_not_broken_off(host: Path, systemctl: Systemctl, run: Run, program: Path, jemalloc: str) -> None:
    with programs.running(program) as pid:
        systemctl.processes("/web", pid)
        systemctl.states(running(program, pid, Type="oneshot", ActiveState="activating"))
        result = run(library=jemalloc)
        assert result["changed"] and not result["restart_needed"]


def test_a_library_that_is_gone_from_a_process_needs_a_restart(
    host: Path, systemctl: Systemctl, run: Run, program: Path, jemalloc: str
) -> None:
    """It was deleted when the service restarted by itself: the environment alone says nothing."""
    systemctl.states(stopped(program))
    ours = run(library=jemalloc)["environment"]
    moved = Path(jemalloc).rename(f"{jemalloc}.away")
    with programs.running(program, env=ours) as pid:
        moved.rename(jemalloc)
        systemctl.processes("/web", pid)
        state = {"ActiveState": "active", "MainPID": str(pid), "ControlGroup": "/web", "User": "nobody"}
        lists = {"DropInPaths": [str(host / "etc" / OURS)]}
        systemctl.states(shown(str(program), Id="web.service", text=state, lists=lists))
        assert run(library=jemalloc)["restart_needed"]


def test_workers_that_outlive_a_restart_are_told_before(
    host: Path, systemctl: Systemctl, run: Run, program: Path, jemalloc: str
) -> None:
    systemctl.states(stopped(program, KillMode="process"))
    assert "KillMode=process" in str(run(library=jemalloc)["warnings"])


@pytest.mark.parametrize("mode", ["profile", "swap"])
def test_workers_that_outlive_a_restart_need_a_word_of_consent(
    host: Path, systemctl: Systemctl, run: Run, program: Path, jemalloc: str, mode: str
) -> None:
    with programs.running(program) as pid:
        systemctl.processes("/web", pid)
        state = {"ActiveState": "active", "MainPID": str(pid), "ControlGroup": "/web", "User": "nobody"}
        systemctl.states(shown(str(program), Id="web.service", text={**state, "KillMode": "process"}))
        refused = run(library=jemalloc, mode=mode)
        assert refused["refusal"] == "outliving-processes"
        assert "profiled_service_outliving: true" in refused["msg"] and "KillMode=control-group" in refused["msg"]
        assert run(library=jemalloc, mode=mode, outliving=True)["restart_needed"]


def test_a_script_of_init_d_ends_what_it_started(
    host: Path, systemctl: Systemctl, run: Run, program: Path, jemalloc: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its unit has KillMode=process all the same, and no main process."""
    with programs.running(program) as pid:
        systemctl.processes("/web", pid)
        fragment = host / "generator.late" / "web.service"
        fragment.parent.mkdir()
        monkeypatch.setattr(service, "_OF_SCRIPTS", f"{fragment.parent}/")
        fragment.write_text("[Service]\nType=forking\n")
        state = {"ActiveState": "active", "ControlGroup": "/web", "User": "nobody", "FragmentPath": str(fragment)}
        systemctl.states(shown(str(program), Id="web.service", text={**state, "KillMode": "process"}))
        assert run(library=jemalloc)["restart_needed"]


def test_a_drop_in_under_the_name_that_is_an_alias_now_is_replaced(
    host: Path, systemctl: Systemctl, run: Run, program: Path, jemalloc: str
) -> None:
    """systemd reads one file of each name, whichever of the unit's names its directory has."""
    systemctl.states(stopped(program))
    run(library=jemalloc)
    names = {"Names": ["new.service", "web.service"]}
    systemctl.states(shown(str(program), Id="new.service", User="nobody", lists=names))
    assert run(library=jemalloc)["drop_in"] == str(host / "etc/new.service.d/90-offheap.conf")
    assert [path.name for path in (host / "etc").iterdir()] == ["new.service.d"]
    assert not run(library=jemalloc)["changed"]


def test_purging_what_lies_under_the_name_that_is_an_alias_now(
    host: Path, systemctl: Systemctl, run: Run, program: Path, jemalloc: str
) -> None:
    systemctl.states(stopped(program))
    run(library=jemalloc)
    names = {"Names": ["new.service", "web.service"]}
    systemctl.states(shown(str(program), Id="new.service", User="nobody", lists=names))
    assert run(state="absent", purge_spool=True)["changed"]
    assert not (host / "lib/offheap").exists() and not (host / "etc/web.service.d").exists()
