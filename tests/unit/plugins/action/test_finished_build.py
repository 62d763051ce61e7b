# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Who builds a part of the role jemalloc, what is refused before, and that one builds for all who wait."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import shutil
import threading
import time
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from ansible.errors import AnsibleActionFail

from ansible_collections.offheap.profiler.plugins.action import finished_build
from ansible_collections.offheap.profiler.roles.jemalloc.files import cross_build, reproduce
from ansible_collections.offheap.profiler.tests.unit.fakes import wanted_builds
from ansible_collections.offheap.profiler.tests.unit.fakes.actions import action

CARRIED: dict[str, str] = json.loads(reproduce.CARRIED.read_text())
KEY = wanted_builds.HOST["key"]
LACKING: dict[str, Any] = {"platform": wanted_builds.HOST, "missing": ["/x/1"]}
OTHER: dict[str, Any] = {"platform": {**wanted_builds.HOST, "key": "glibc-riscv64-4096"}, "missing": []}


@pytest.fixture(autouse=True)
def tools(monkeypatch: pytest.MonkeyPatch) -> None:
    """The controller has what it builds with, and no host has anything."""
    monkeypatch.setattr(importlib.metadata, "version", lambda _name: "0.17.1")
    monkeypatch.setattr(shutil, "which", lambda tool: f"/usr/bin/{tool}")
    monkeypatch.setattr(finished_build.ActionModule, "_has_compiler", lambda _self: False)


def _run(part: str, directory: Path, check: bool = True, host: str = "app1", **more: Any) -> dict[str, Any]:
    asked = wanted_builds.options(part, directory, **more)
    result: dict[str, Any] = action(finished_build, check, **asked).run(task_vars={"inventory_hostname": host})
    return result


def _finish(tarball: str) -> None:
    Path(tarball).parent.mkdir(mode=0o700, exist_ok=True)
    Path(tarball).write_bytes(b"x")
    Path(f"{tarball}.json").write_text('{"sha256": "0"}')


@pytest.mark.parametrize(
    ("more", "who"),
    [
        ({}, "cross"),
        ({"build_host": "app1"}, "app1"),
        ({"platform": {**wanted_builds.HOST, "libc_version": [2, 12]}}, ""),
        ({"platform": {**wanted_builds.HOST, "key": "glibc-ppc64le-65536"}}, ""),
        ({"places": {"library": "/opt/offheap/jemalloc/5.3.0-01234567"}}, ""),
    ],
)
def test_what_has_a_checksum_the_controller_builds_and_anything_else_the_host(
    tmp_path: Path, more: dict[str, Any], who: str
) -> None:
    built = wanted_builds.build("library", tmp_path, method="auto", **more).tarball
    assert (built.name.removesuffix(".tar.gz").rpartition("-")[2] if built else "") == who


@pytest.mark.parametrize("method", ["auto", "build"])
def test_for_containers_with_musl_the_controller_builds_or_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    for_musl = {"agent-musl": f"{wanted_builds.place('agent', tmp_path)}-musl"}
    more: dict[str, Any] = {"places": for_musl, "method": method, "build_host": "app2"}
    told = _run("agent", tmp_path, **more)
    (found,) = [one for one in told["builds"] if one["path"] == for_musl["agent-musl"]]
    stem = reproduce.agent_stem()
    assert found["tarball"] == str(tmp_path / "cache" / f"{stem}-musl-x86_64-4096-cross.tar.gz")
    assert found["pinned"] == {"liboffheap.so": CARRIED[f"{stem}-musl-x86_64-4096"]}
    assert told["msg"] == ["the agent for containers with musl would be built on the controller, for app1, app2"]
    monkeypatch.setattr(importlib.metadata, "version", lambda _name: "0.16.0")
    assert for_musl["agent-musl"] not in [one["path"] for one in _run("agent", tmp_path, **more)["builds"]]


def test_without_the_compiler_the_host_builds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.metadata, "version", lambda _name: "0.16.0")
    assert wanted_builds.build("agent", tmp_path, method="auto").method == "build"


@pytest.mark.parametrize(
    ("part", "more", "said"),
    [
        ("library", {"platform": {**wanted_builds.HOST, "libc_version": [2, 12]}}, "with glibc 2.12. It can for"),
        (
            "agent",
            {"places": {"agent": "/x/000000000000"}},
            f"has no checksum of agent-000000000000-{KEY}, so the agent's",
        ),
        ("library", {"method": "build"}, "app1 has no compiler .* for itself.* library that is already on the hosts"),
        ("agent", {"method": "build", "build_host": "app1"}, "build the agent for app1, app2. .* do without the agent"),
        ("agent", {"method": "build", "build_host": "app3"}, "is app3, which is not among the hosts of this play"),
        (
            "agent",
            {
                "method": "build",
                "build_host": "app2",
                "places": {"agent": "/x/1"},
                "hosts": {"app1": LACKING, "app2": OTHER},
            },
            rf"app2, whose platform is not this host's \(glibc-riscv64-4096, {KEY}\), so it cannot build the agent for",
        ),
        ("library", {"method": "archive", "archive": "/nowhere.tar.gz"}, "There is no file /nowhere.tar.gz on the"),
        ("agent", {"method": "archive", "archive": "/no/where.tar.gz"}, rf"no file /no/agent-\w+-{KEY}-\*.tar.gz"),
        (
            "library",
            {"method": "archive", "archive": __file__},
            "of .*test_finished_build.py is not .*_archive_checksum",
        ),
    ],
)
@pytest.mark.parametrize("check", [True, False])
def test_what_cannot_be_built_is_refused_with_the_way_out(
    tmp_path: Path, check: bool, part: str, more: dict[str, Any], said: str
) -> None:
    with pytest.raises(AnsibleActionFail, match=said):
        _run(part, tmp_path, check, **more)
    assert list(tmp_path.iterdir()) == []


def test_a_controller_that_lacks_something_is_told_what(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda _tool: None)
    monkeypatch.setattr(importlib.metadata, "version", lambda _name: "0.16.0")
    with pytest.raises(
        AnsibleActionFail, match=r"it lacks make and patch and ziglang. Install what .* ziglang==0.17.1"
    ):
        _run("library", tmp_path)
    _finish(str(wanted_builds.build("library", tmp_path).tarball))
    assert not _run("library", tmp_path)["changed"], "what is built needs nothing"


def test_a_controller_that_lacks_something_is_no_matter_where_nobody_needs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the host that builds for all, where no unit runs in a container with musl."""
    monkeypatch.setattr(shutil, "which", lambda _tool: None)
    for_musl = f"{wanted_builds.place('agent', tmp_path)}-musl"
    more: dict[str, Any] = {"places": {"agent-musl": for_musl}, "method": "build", "build_host": "app1"}
    whole = {"platform": wanted_builds.HOST, "missing": []}
    assert not _run("agent", tmp_path, hosts={"app1": whole}, **more)["changed"]
    lacking = {"app1": {**whole, "missing": [for_musl]}}
    with pytest.raises(AnsibleActionFail, match=r"it lacks make and patch\. Install .*17\.1\)\.$"):
        _run("agent", tmp_path, hosts=lacking, **more)


def test_a_source_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(AnsibleActionFail, match=r"There is no file /nowhere/jemalloc\.tar\.bz2 on the controller"):
        _run("library", tmp_path, check=False)


def test_check_mode_says_who_would_build_and_leaves_nothing(tmp_path: Path) -> None:
    told = _run("agent", tmp_path, places={"library": wanted_builds.place("library", tmp_path)})
    assert told["changed"] and told["msg"] == [
        "the agent would be built on the controller, for app1, app2",
        "jemalloc 5.3.0 would be built on the controller, for app1, app2",
    ]
    assert list(tmp_path.iterdir()) == []


def test_what_somebody_has_removed_from_the_cache_is_built_anew(tmp_path: Path) -> None:
    (found,) = _run("agent", tmp_path)["builds"]
    _finish(found["tarball"])
    assert not _run("agent", tmp_path)["changed"]
    Path(found["tarball"]).unlink()
    assert _run("agent", tmp_path)["changed"]


def test_only_the_build_host_builds_and_only_for_somebody(tmp_path: Path) -> None:
    named = {"method": "build", "build_host": "app2"}
    waits = _run("agent", tmp_path, check=False, **named)
    assert not waits["changed"] and waits["builds"][0]["tarball"].endswith("-app2.tar.gz")
    whole = {**LACKING, "missing": []}
    idle = _run("agent", tmp_path, check=False, host="app2", hosts={"app1": whole, "app2": whole}, **named)
    assert (idle["changed"], idle["builds"]) == (False, [])


def test_what_a_host_says_of_itself_spoils_nothing_for_others(tmp_path: Path) -> None:
    lacking = {**LACKING, "missing": [wanted_builds.place("agent", tmp_path)]}
    hosts = {"app1": lacking, "app2": {"platform": "x", "missing": 1}, "app3": {**LACKING, "missing": 1}, "app4": {}}
    assert _run("agent", tmp_path, hosts=hosts)["msg"] == ["the agent would be built on the controller, for app1"]


def test_one_builds_for_all_who_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def build(_command: list[str | Path], said: str) -> None:
        asked.append(json.loads(said))
        time.sleep(0.2)
        _finish(asked[-1]["result"])

    monkeypatch.setattr(finished_build, "_run", build)
    results: list[dict[str, Any]] = []
    threads = [threading.Thread(target=lambda: results.append(_run("agent", tmp_path, False))) for _host in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(result["changed"] for result in results) == [False, False, False, True]
    (only,) = asked
    assert (only["part"], only["target"], only["options"][0]) == ("agent", "x86_64-linux-gnu.2.17", "--with-lg-page=12")
    for result in results:
        (found,) = result["builds"]
        assert (found["tarball"], found["pinned"]) == (only["result"], {"liboffheap.so": only["sha256"]})


def test_a_build_that_is_cut_off_at_its_record_is_not_finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "source").mkdir()
    (tmp_path / "liboffheap.so").write_bytes(b"built")
    result = tmp_path / "agent.tar.gz"
    files = {"liboffheap.so": tmp_path / "liboffheap.so"}
    asked = {"part": "agent", "source": str(tmp_path / "source"), "target": "", "place": "/opt/offheap/1", "record": {}}
    wanted = {**asked, "result": str(result), "sha256": ""}
    monkeypatch.setenv("CC", "true")
    monkeypatch.setattr(cross_build, "agent", lambda *_asked: files)
    sync, calls = os.fsync, count(1)

    def cut_off(descriptor: int) -> None:
        sync(descriptor)
        if next(calls) == 2:
            raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(os, "fsync", cut_off)
        cross_build.build(wanted)
    assert result.is_file() and not Path(f"{result}.json").exists()
    sha256 = cross_build.build(wanted)
    assert json.loads(Path(f"{result}.json").read_text())["sha256"] == sha256
    assert hashlib.sha256(result.read_bytes()).hexdigest() == sha256
    assert not list(tmp_path.glob("*.part"))
