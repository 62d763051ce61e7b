# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""The module from its arguments to its result."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.offheap.profiler.plugins.module_utils.malloc import allocator_libraries, proof
from ansible_collections.offheap.profiler.plugins.module_utils.unit import container, service
from ansible_collections.offheap.profiler.plugins.modules import allocator_info
from ansible_collections.offheap.profiler.tests.unit.fakes import programs
from ansible_collections.offheap.profiler.tests.unit.fakes.module_run import run_module
from ansible_collections.offheap.profiler.tests.unit.fakes.units import Systemctl, shown

pytestmark = pytest.mark.usefixtures("trusting")

Run = Callable[..., dict[str, Any]]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    def run(**arguments: Any) -> dict[str, Any]:
        return run_module(allocator_info.main, monkeypatch, capsys, **arguments)

    return run


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Instead of the usual ones; all libraries there are found."""
    monkeypatch.setattr(allocator_libraries, "_PATTERNS", (f"{tmp_path}/found/*.so",))
    (tmp_path / "found").mkdir()
    return tmp_path / "found"


def paths(result: dict[str, Any]) -> list[str]:
    return [library["path"] for library in result["libraries"]]


def test_what_is_found_and_what_is_named(run: Run, places: Path, tmp_path: Path) -> None:
    found = programs.library(places, "libjemalloc.so")
    named = programs.library(tmp_path, "named.so")
    assert paths(run(prove=False)) == [str(found)]
    assert paths(run(prove=False, paths=[str(named)])) == [str(found), str(named)]
    assert paths(run(prove=False, discover=False, paths=[str(named)])) == [str(named)]
    assert paths(run(prove=False, discover=False)) == []
    result = run(prove=False)
    assert (result["changed"], result["processes"], result["mapped_by"]) == (False, [], [])
    assert result["platform"]["libc"] == "glibc"
    assert run(discover=False, builds=["/nowhere/5.3.0-0123abcd"])["missing"] == ["/nowhere/5.3.0-0123abcd"]


def test_builds_for_musl_are_missing_only_where_a_container_has_it(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "load", lambda name: name)
    monkeypatch.setattr(container, "has_musl", lambda unit: unit == "alpine")
    asked = {"discover": False, "builds": ["/nowhere/1"], "musl_builds": ["/nowhere/1-musl"]}
    assert run(**asked, units=["web"])["missing"] == ["/nowhere/1"]
    assert run(**asked, units=["web", "alpine"])["missing"] == ["/nowhere/1", "/nowhere/1-musl"]


def test_a_named_library_that_is_not_there_is_told(run: Run) -> None:
    (library,) = run(discover=False, paths=["/nowhere/lib.so"])["libraries"]
    assert (library["prof"], library["failure"]) == (False, "not-readable")


def test_proving_or_not(run: Run, places: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    programs.library(places, "libjemalloc.so")
    (library,) = run()["libraries"]
    assert (library["prof"], library["failure"]) == (False, "does-not-load"), "it defines no mallctl"

    refused = run(must_profile=True)
    assert refused["failed"] and refused["msg"].startswith(f"{library['path']}: ")
    assert refused["msg"].endswith(" (does-not-load)")

    def prove(_library: str) -> proof.Proof:
        raise AssertionError("it was run")

    monkeypatch.setattr(proof, "prove", prove)
    for check in (True, False):
        (library,) = run(prove=False, check=check)["libraries"]
        assert library["prof"] is None


def test_a_release_that_crashes_services_is_no_candidate(
    run: Run, places: Path, public_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Found or named; and the role learns which releases it must not build."""
    source = Path(programs.__file__).with_name("broken_jemalloc.c").read_text()
    path = programs.library(public_directory, "libjemalloc.so.2", source, '-DVERSION="5.3.1-0-g81034ce1f137"')
    monkeypatch.setattr(allocator_libraries, "_PATTERNS", (str(path),))
    for arguments in ({}, {"discover": False, "paths": [str(path)]}):
        result = run(**arguments)
        (library,) = result["libraries"]
        assert (library["prof"], library["failure"]) == (False, "unsound")
        assert library["version"] == "5.3.1-0-g81034ce1f137"
        assert library["message"] == result["unsound"]["5.3.1"]
    assert "jemalloc#2981" in result["unsound"]["5.3.1"]
    assert "5.3.0" not in result["unsound"]


def test_processes_of_a_unit(run: Run, places: Path, systemctl: Systemctl) -> None:
    library = programs.library(places, "libjemalloc.so")
    program = programs.compiled(places, "web")
    with programs.running(program, env={"LD_PRELOAD": str(library)}) as one, programs.running(program) as two:
        systemctl.processes("/web", one, two, 1 << 30)
        systemctl.states(shown(str(program), Id="web.service", ActiveState="active", ControlGroup="/web"))
        result = run(prove=False, unit="web", mapped_below=str(places))
    assert {(process["pid"], process["allocator"]) for process in result["processes"]} == {
        (one, "jemalloc"),
        (two, "libc"),
    }
    assert sorted(result["mapped_by"]) == sorted([one, two])


def test_mapped_below_is_a_directory(run: Run, places: Path) -> None:
    library = programs.library(places, "libjemalloc.so")
    program = programs.compiled(places.parent, "web")
    with programs.running(program, env={"LD_PRELOAD": str(library)}) as pid:
        assert run(discover=False, mapped_below=str(places))["mapped_by"] == [pid]
        assert run(discover=False, mapped_below=str(places)[:-1])["mapped_by"] == []


def test_failures(run: Run, systemctl: Systemctl, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert "not the name of a service unit" in run(discover=False, unit="a/b")["msg"]
    assert "prove" in run(prove="perhaps")["msg"]
    assert "unsupported" in run(path="/x")["msg"].lower()
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    assert "Is this a systemd host?" in run(discover=False, unit="web")["msg"]
