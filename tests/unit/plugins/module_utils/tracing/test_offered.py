# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""The profiles that a unit offers come into its spool, as dumps of the process that offered them."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.offheap.profiler.plugins.module_utils.host import places, trusted_path
from ansible_collections.offheap.profiler.plugins.module_utils.spool import directory as spool
from ansible_collections.offheap.profiler.plugins.module_utils.spool import listing, provenance
from ansible_collections.offheap.profiler.plugins.module_utils.tracing import offered, profile_files
from ansible_collections.offheap.profiler.plugins.module_utils.unit import rollback
from ansible_collections.offheap.profiler.plugins.module_utils.unit.changes import Changes
from ansible_collections.offheap.profiler.plugins.module_utils.unit.service import load
from ansible_collections.offheap.profiler.plugins.modules import take_profile
from ansible_collections.offheap.profiler.tests.unit.fakes import profile_server
from ansible_collections.offheap.profiler.tests.unit.fakes.module_run import run_module
from ansible_collections.offheap.profiler.tests.unit.fakes.units import Systemctl, shown
from ansible_collections.offheap.profiler.tests.unit.strategies import offers

Run = Callable[..., dict[str, Any]]


@pytest.fixture
def spools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    directory = tmp_path / "spools"
    monkeypatch.setattr(places, "SPOOLS", str(directory))
    root = spool.Root
    monkeypatch.setattr(spool, "Root", lambda path=str(directory): root(path))
    return directory


@pytest.fixture
def run(systemctl: Systemctl, spools: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs the module for a unit with these processes."""

    def go(pids: list[int], check: bool = False, **arguments: Any) -> dict[str, Any]:
        systemctl.states(shown("/srv/app", Id="web.service", ActiveState="active", ControlGroup="/web.service"))
        systemctl.processes("/web.service", *pids)
        return run_module(take_profile.main, monkeypatch, capsys, check, unit="web", **arguments)

    return go


@pytest.fixture
def systemd_run(tmp_path: Path, systemctl: Systemctl, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What systemd-run was asked for, by line."""
    monkeypatch.setattr(places, "TAKING", f"{places.SOCKETS}/taking")
    asked = tmp_path / "asked"
    program = tmp_path / "bin" / "systemd-run"
    program.write_text(f'#!/bin/sh\necho "$*" >> {asked}\n')
    program.chmod(0o755)
    return asked


@pytest.fixture
def profile(tmp_path: Path) -> Path:
    path = tmp_path / "answer"
    path.write_bytes(offers.packed(1000))
    return path


@pytest.fixture
def dumped(tmp_path: Path) -> Path:
    path = tmp_path.resolve() / "dumped"
    path.mkdir()
    return path


def listed(spools: Path) -> listing.Listing:
    return listing.find(str(spools), [], 1 << 28, 100, provenance.Examiner())


@pytest.mark.parametrize("target", ["profile", "until-closed", "chunked"])
def test_over_tcp(run: Run, spools: Path, profile: Path, target: str) -> None:
    with profile_server.running(profile=profile) as service:
        url = f"http://127.0.0.1:{service.port}/{target}"
        results = [run([os.getpid(), service.pid], url=url) for _time in range(2)]
        found = listed(spools)
    assert [result["pid"] for result in results] == [service.pid] * 2
    names = [result["dumps"][0] for result in results]
    assert sorted(capture.name for capture in found.captures) == sorted(names) and len(set(names)) == 2
    for name in names:
        assert (spools / "web.service" / name).read_bytes() == offers.pprof(1000), "it is unpacked"
    (process,) = found.processes
    assert process.pid == service.pid and process.start_time == pytest.approx(time.time(), abs=60)
    assert process.cmdline is not None and "profile_server.py" in process.cmdline[1]


def test_over_a_unix_socket(run: Run, spools: Path, profile: Path, tmp_path: Path) -> None:
    path = tmp_path / "s"
    with profile_server.running(path, profile) as service:
        result = run([service.pid], url="http://localhost/profile", socket=str(path))
    assert result["pid"] == service.pid and len(listed(spools).captures) == 1


def test_with_a_token(run: Run, spools: Path, profile: Path, tmp_path: Path, trusting: None) -> None:
    token = tmp_path / "token"
    token.write_text("s3cret\n")
    with profile_server.running(profile=profile) as service:
        asked = {"pids": [service.pid], "url": f"http://127.0.0.1:{service.port}/guarded"}
        assert run(**asked, token_file=str(token))["pid"] == service.pid
        assert len(listed(spools).captures) == 1
        assert "401" in run(**asked)["msg"] and "(token_file)" in run(**asked)["msg"]
        for content in (b"", b"two words", b"a\r\nX: b", b"x" * 9000, b"\xff"):
            token.write_bytes(content)
            assert "holds no token" in run(**asked, token_file=str(token))["msg"]


def test_a_token_of_others_is_sent_nowhere(run: Run, profile: Path, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("s3cret\n")
    (tmp_path / "token").chmod(0o666)
    with profile_server.running(profile=profile) as service:
        url = f"http://127.0.0.1:{service.port}/guarded"
        result = run([service.pid], url=url, token_file=str(tmp_path / "token"))
    assert result["failed"] and "Only root may write there" in result["msg"]
    assert "cannot read the token" in run([os.getpid()], url=url, token_file="/nowhere")["msg"]


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    """One that signs itself, and its key."""
    path = tmp_path / "certificate.pem"
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=router".split()
    subprocess.run([*command, "-keyout", path, "-out", tmp_path / "public.pem"], check=True, capture_output=True)
    path.write_bytes(path.read_bytes() + (tmp_path / "public.pem").read_bytes())
    return path


def test_with_a_certificate(run: Run, spools: Path, profile: Path, certificate: Path, trusting: None) -> None:
    with profile_server.running(profile=profile, certificate=certificate) as service:
        asked = {"pids": [service.pid], "url": f"https://127.0.0.1:{service.port}/profile"}
        assert run(**asked, certificate_file=str(certificate))["pid"] == service.pid
        assert len(listed(spools).captures) == 1
        assert "If it wants to know who asks" in run(**asked)["msg"]
        plain = {**asked, "url": f"http://127.0.0.1:{service.port}/profile"}
        assert "goes with a url of https://" in run(**plain, certificate_file=str(certificate))["msg"]
        assert run(**plain)["failed"]
        locked = certificate.with_name("locked.pem")
        command = f"openssl ec -in {certificate} -aes256 -passout pass:secret -out {locked}".split()
        subprocess.run(command, check=True, capture_output=True)
        for path in (locked, profile):
            assert "holds no certificate and its key" in run(**asked, certificate_file=str(path))["msg"]


def test_a_certificate_of_others_is_shown_to_nobody(run: Run, profile: Path, certificate: Path) -> None:
    certificate.chmod(0o666)
    with profile_server.running(profile=profile, certificate=certificate) as service:
        url = f"https://127.0.0.1:{service.port}/profile"
        result = run([service.pid], url=url, certificate_file=str(certificate))
    assert "the certificate in" in result["msg"] and "Only root may write there" in result["msg"]


def test_https_that_is_none(run: Run, profile: Path) -> None:
    with profile_server.running(profile=profile) as service:
        result = run([service.pid], url=f"https://127.0.0.1:{service.port}/profile")
    assert "does not answer as HTTPS has it" in result["msg"]


def test_check_mode_asks_and_keeps_nothing(run: Run, spools: Path, profile: Path) -> None:
    with profile_server.running(profile=profile) as service:
        result = run([service.pid], check=True, url=f"http://localhost:{service.port}/profile")
    assert result["changed"] and len(result["dumps"]) == 1
    assert not spools.exists()


def test_from_a_directory_nothing_comes_twice(
    run: Run, spools: Path, dumped: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (dumped / "of an earlier process").write_bytes(offers.packed(1))
    os.utime(dumped / "of an earlier process", (1, 1))
    with profile_server.running() as service:
        for number in range(3):
            (dumped / f"heap.{number}").write_bytes(offers.packed(number + 1))
        result = run([service.pid], directory=str(dumped))
        assert result["dumps"] == [] and result["left"]["heap.0"] == "it is being written"
        monkeypatch.setattr(profile_files, "_QUIET", 0.0)
        (dumped / "notes.txt").write_bytes(b"no profile")
        first = run([service.pid], directory=str(dumped))
        (dumped / "heap.3").write_bytes(offers.packed(4))
        for name in first["dumps"][:2]:  # what is collected is not taken again
            (spools / "web.service" / "collected").mkdir(exist_ok=True)
            (spools / "web.service" / name).rename(spools / "web.service" / "collected" / name)
        second = run([service.pid], directory=str(dumped))
        found = listed(spools)
    assert (len(first["dumps"]), len(second["dumps"])) == (3, 1)
    assert list(first["left"]) == ["notes.txt"] and "it is neither" in first["left"]["notes.txt"]
    assert [capture.name for capture in found.captures] == [first["dumps"][2], second["dumps"][0]]
    assert [capture.time for capture in found.captures] == [
        pytest.approx((dumped / name).stat().st_mtime) for name in ("heap.2", "heap.3")
    ]
    assert len(found.processes) == 1


def test_a_file_that_is_renamed_meanwhile_keeps_nobody_from_the_others(
    run: Run, dumped: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A service may write each under another name first, and a timer would lose what there was."""
    names = profile_files._names
    monkeypatch.setattr(profile_files, "_names", lambda *of: [*names(*of), ".heap.1.tmp"])
    monkeypatch.setattr(profile_files, "_QUIET", 0.0)
    with profile_server.running() as service:
        (dumped / "heap.1").write_bytes(offers.packed(1))
        result = run([service.pid], directory=str(dumped))
    assert (len(result["dumps"]), result["left"]) == (1, {})


def test_a_file_from_before_the_clock_was_set_back_is_not_being_written(run: Run, dumped: Path) -> None:
    (dumped / "heap").write_bytes(offers.packed(1))
    os.utime(dumped / "heap", (4e9, 4e9))
    with profile_server.running() as service:
        result = run([service.pid], directory=str(dumped))
    assert (len(result["dumps"]), result["left"]) == (1, {})


def test_what_a_process_of_the_unit_writes_is_left(run: Run, dumped: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profile_files, "_QUIET", 0.0)
    with (dumped / "heap").open("wb") as file:
        file.write(offers.packed(1))
        file.flush()
        assert run([os.getpid()], directory=str(dumped))["left"] == {"heap": "it is being written"}
    assert len(run([os.getpid()], directory=str(dumped))["dumps"]) == 1


def test_a_timer_takes_more(
    run: Run, spools: Path, profile: Path, trusting: None, systemctl: Systemctl, systemd_run: Path, tmp_path: Path
) -> None:
    with profile_server.running(profile=profile) as service:
        given: dict[str, Any] = {"url": f"http://localhost:{service.port}/profile", "every": 60, "count": 2}
        foretold = run([service.pid], check=True, **given)
        assert foretold["goes_on"] and not systemd_run.exists() and not Path(places.TAKING).exists()
        assert run([service.pid], **given)["goes_on"]
        asked = systemd_run.read_text()
        assert "--on-unit-inactive=60s" in asked and "--unit=offheap-take-web" in asked
        assert not run([service.pid], **given)["goes_on"], "it is left alone"
        assert systemd_run.read_text() == asked
        assert run([service.pid], **{**given, "every": 90})["goes_on"], "it is replaced"
    stopped = [call for call in systemctl.calls if "stop" in call]
    assert stopped == [f"--no-pager stop -- offheap-take-web.{kind}" for kind in ("timer", "service")]
    program = Path(places.TAKING) / "web.service" / "program.pyz"
    command = [sys.executable, "-I", str(program), "web.service"]
    assert systemd_run.read_text().splitlines()[-1].partition(" -- ")[2] == " ".join(command)
    # The zip file is all that it needs. It looks for its task in the real place.
    done = subprocess.run(command, cwd=tmp_path, text=True, capture_output=True, check=True)
    assert done.stdout.startswith("nothing was taken of web.service: /run/offheap/taking/web.service is not whole")


def test_a_timer_ends_after_so_many_times(
    run: Run,
    spools: Path,
    profile: Path,
    trusting: None,
    systemctl: Systemctl,
    systemd_run: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with profile_server.running(profile=profile) as service:
        run([service.pid], url=f"http://localhost:{service.port}/profile", every=60, count=2)
        for _time in range(2):
            assert Path(places.TAKING, "web.service").exists()
            offered.again("web.service")
        assert not Path(places.TAKING, "web.service").exists()
        stopped = [call for call in systemctl.calls if "stop" in call]
        assert stopped == ["--no-pager stop -- offheap-take-web.timer"], "it must not end itself"
        offered.again("web.service")
    first, second, third = capsys.readouterr().out.splitlines()
    assert first.startswith("took pprof.") and second.startswith("took pprof.")
    assert third.startswith("nothing was taken of web.service")
    assert len(listed(spools).captures) == 3


def test_a_rollback_stops_the_timer(run: Run, profile: Path, trusting: None, systemd_run: Path) -> None:
    with profile_server.running(profile=profile) as service:
        run([service.pid], url=f"http://localhost:{service.port}/profile", every=60)
    assert rollback.units() == ["web.service"]
    changes = Changes(check_mode=False)
    rollback.take_out(changes, load("web.service"))
    assert changes.any and not Path(places.TAKING, "web.service").exists()


def test_a_python_that_others_may_replace_runs_by_no_timer(
    run: Run, spools: Path, profile: Path, systemd_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trusted_path, "fault", lambda path: f"{path} belongs to the user deploy")
    with profile_server.running(profile=profile) as service:
        result = run([service.pid], url=f"http://localhost:{service.port}/profile", every=60)
    assert result["failed"] and "Set ansible_python_interpreter" in result["msg"]
    assert not systemd_run.exists() and not Path(places.TAKING).exists()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"url": "http://example.org/debug/pprof/heap"}, "only taken from services of the host itself"),
        ({"url": "https://localhost/heap"}, "port 443 of web.service does not answer: Connection refused"),
        ({"url": "http://127.0.0.1:99999/heap"}, "only taken from services of the host itself"),
        ({"url": "http://127.0.0.1/a b"}, "only taken from services of the host itself"),
        ({"url": "http://127.0.0.1:1/heap"}, "port 1 of web.service does not answer: Connection refused"),
        ({"url": "http://localhost/", "socket": "/nowhere"}, "/nowhere of web.service does not answer"),
        ({"directory": "/nowhere/at/all"}, "cannot open /nowhere: No such file"),
        ({"directory": "/tmp/../etc"}, "holds '..'"),
        ({"directory": "tmp"}, "does not begin with /"),
        ({"url": "http://127.0.0.1/", "every": 1}, "every has to be between 5 seconds and a day"),
        ({"url": "http://127.0.0.1/", "every": 60, "count": 0}, "count between 1 and 10000"),
    ],
)
def test_what_cannot_be(run: Run, arguments: dict[str, Any], says: str) -> None:
    result = run([os.getpid()], **arguments)
    assert result["failed"] and says in result["msg"], result["msg"]


def test_a_unit_that_does_not_run(run: Run) -> None:
    result = run([], url="http://127.0.0.1/heap")
    assert result["failed"] and "web.service has no process" in result["msg"]
