# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""What the runner makes of gates that fail once, always, or by the dozen."""

from __future__ import annotations

import sys
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import ModuleType

import pytest

from ansible_collections.offheap.profiler.tests.gates.files import ROOT

ONCE = """
from pathlib import Path

def test_passes():
    assert not Path("{place}/alone").exists(), "it is tried again, though it passed"

def test_meets_a_bad_moment():
    moment = Path("{place}/moment")
    assert moment.exists() or moment.write_bytes(b""), "the first moment was bad"
"""
ALWAYS = """
def test_is_broken():
    raise AssertionError("broken for good")
"""


@pytest.fixture
def runner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The runner with its logs in a directory of the test's own."""
    loader = SourceFileLoader("gates_run", str(ROOT / "tests" / "gates" / "run"))
    spec = spec_from_loader(loader.name, loader)
    assert spec
    module = module_from_spec(spec)
    monkeypatch.setitem(sys.modules, loader.name, module)  # dataclasses look themselves up
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    loader.exec_module(module)
    logs = tmp_path / "gates"
    for name, value in {"ROOT": tmp_path, "LOGS": logs, "BUILDS": logs / "builds", "CACHES": logs / "pytest"}.items():
        monkeypatch.setattr(module, name, value)
    return module


def gate(runner: ModuleType, tmp_path: Path, name: str, text: str) -> object:
    path = tmp_path / f"test_{name}.py"
    path.write_text(text.replace("{place}", str(tmp_path)))
    ini = tmp_path / "pytest.ini"
    ini.write_text("[pytest]\nmarkers = in_order\n")
    return runner.Gate(name, "none", (sys.executable, "-m", "pytest", "-c", str(ini)), (path.name,))


def run(runner: ModuleType, monkeypatch: pytest.MonkeyPatch, *gates: object) -> int:
    monkeypatch.setattr(runner, "GATES", gates)
    return int(runner.main([each.name for each in gates]))  # type: ignore[attr-defined]


def test_what_fails_once_is_told_from_what_fails_always(
    runner: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    once, always = gate(runner, tmp_path, "once", ONCE), gate(runner, tmp_path, "always", ALWAYS)

    assert run(runner, monkeypatch, once, always) == 1

    summary = capsys.readouterr().out.partition("== summary")[2]
    assert "passed at the second try: test_once::test_meets_a_bad_moment (first error: gates/once.log)" in summary
    assert "== failed: always; logs are in gates/" in summary
    assert "2 passed, 1 failed, 0 skipped" in summary.splitlines()
    assert "the first moment was bad" in (tmp_path / "gates" / "once.log").read_text()
    assert "1 passed" in (tmp_path / "gates" / "once.again.log").read_text()  # and not the other test again


def test_a_run_with_one_bad_moment_passes(
    runner: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    script = runner.Gate("script", "none", ("sh", "-c", f"[ -e {tmp_path}/again ] || ! touch {tmp_path}/again"))

    assert run(runner, monkeypatch, gate(runner, tmp_path, "once", ONCE), script) == 0

    summary = capsys.readouterr().out.partition("== summary")[2]
    assert "passed at the second try: script (first error: gates/script.log)" in summary
    assert "3 passed, 0 failed, 0 skipped" in summary.splitlines()


def test_many_failures_are_no_bad_moment(
    runner: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    many = "\n".join(ONCE.replace("moment", f"moment_{number}") for number in range(runner.BAD_MOMENTS + 1))

    assert run(runner, monkeypatch, gate(runner, tmp_path, "many", many)) == 1

    shown = capsys.readouterr().out
    assert "no second try: 6 failures are more than 5" in shown
    assert "1 passed, 6 failed, 0 skipped" in shown.splitlines()


def test_one_fixture_that_fails_is_one_bad_moment(
    runner: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = """
import pytest
from pathlib import Path

@pytest.fixture(scope="module")
def host():
    moment = Path("{place}/moment")
    assert moment.exists() or moment.write_bytes(b""), "it does not boot"

@pytest.mark.parametrize("number", range(20))
def test_on_the_host(host, number):
    pass
"""
    assert run(runner, monkeypatch, gate(runner, tmp_path, "fixture", text)) == 0
    assert "20 passed, 0 failed, 0 skipped" in capsys.readouterr().out.splitlines()


def test_what_is_skipped_at_the_second_try_has_not_passed(
    runner: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = """
import pytest
from pathlib import Path

def test_gives_up():
    moment = Path("{place}/moment")
    if moment.exists():
        pytest.skip("not now")
    moment.touch()
    raise AssertionError("the first moment was bad")
"""
    assert run(runner, monkeypatch, gate(runner, tmp_path, "skips", text)) == 1
    assert "0 passed, 1 failed, 0 skipped" in capsys.readouterr().out.splitlines()


def test_a_gate_that_breaks_before_its_report_is_run_whole_again(
    runner: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = """
import os
from pathlib import Path

def test_passes():
    pass

def test_kills_its_process_once():
    moment = Path("{place}/moment")
    if not moment.exists():
        moment.touch()
        os._exit(3)
"""
    assert run(runner, monkeypatch, gate(runner, tmp_path, "breaks", text)) == 0
    assert "passed at the second try: breaks" in capsys.readouterr().out
    assert "2 passed" in (tmp_path / "gates" / "breaks.again.log").read_text()


def test_what_needs_the_tests_before_it_gets_them(
    runner: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = """
import pytest
from pathlib import Path

pytestmark = pytest.mark.in_order
steps = []

def test_first_step():
    steps.append(1)

def test_second_step():
    assert steps
    moment = Path("{place}/moment")
    assert moment.exists() or moment.write_bytes(b""), "the first moment was bad"
"""
    assert run(runner, monkeypatch, gate(runner, tmp_path, "steps", text)) == 0
