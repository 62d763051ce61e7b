# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""What the runner makes of gates that fail once, always, or by the dozen."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ansible_collections.offheap.profiler.tests.gates import runner
from ansible_collections.offheap.profiler.tests.gates.runner import BAD_MOMENTS, Gate, Runner

ONCE = """
from pathlib import Path

def test_passes():
    pass

def test_meets_a_bad_moment():
    moment = Path("{place}/moment")
    assert moment.exists() or moment.write_bytes(b""), "the first moment was bad"
"""
ALWAYS = """
def test_is_broken():
    raise AssertionError("broken for good")
"""

Run = Callable[..., int]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Runs gates, with logs in a directory of the test's own."""
    logs = tmp_path / "gates"
    logs.mkdir()
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = in_order\n")
    return lambda *gates: Runner(tmp_path, logs, tmp_path / "run", 2, dict(os.environ)).main(gates)


def gate(tmp_path: Path, name: str, text: str, after: str = "") -> Gate:
    path = tmp_path / f"test_{name}.py"
    path.write_text(text.replace("{place}", str(tmp_path)))
    return Gate(name, "none", (sys.executable, "-m", "pytest"), (path.name,), after)


def test_what_fails_once_is_told_from_what_fails_always(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(gate(tmp_path, "once", ONCE), gate(tmp_path, "always", ALWAYS)) == 1

    summary = capsys.readouterr().out.partition("== summary")[2]
    assert "passed at the second try: test_once::test_meets_a_bad_moment (first error: gates/once.log)" in summary
    assert "== failed: always; logs are in gates/" in summary
    assert "   FAILED test_always::test_is_broken: AssertionError: broken for good" in summary
    assert "2 passed, 1 failed, 0 skipped" in summary.splitlines()
    assert "the first moment was bad" in (tmp_path / "gates" / "once.log").read_text()
    assert "1 passed" in (tmp_path / "gates" / "once.again.log").read_text()  # and not the other test again


def test_a_run_with_bad_moments_passes(run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = Gate("script", "none", ("sh", "-c", f"[ -e {tmp_path}/again ] || ! touch {tmp_path}/again"))

    assert run(gate(tmp_path, "once", ONCE), script) == 0

    summary = capsys.readouterr().out.partition("== summary")[2]
    assert "passed at the second try: script (first error: gates/script.log)" in summary
    assert "3 passed, 0 failed, 0 skipped" in summary.splitlines()


def test_many_failures_are_no_bad_moment(run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    failing = 'def test_{0}():\n    raise AssertionError("{0}")\n'
    many = "".join(failing.format(number) for number in range(BAD_MOMENTS + 1))

    assert run(gate(tmp_path, "many", many)) == 1

    shown = capsys.readouterr().out
    assert "no second try: 6 failures are more than 5" in shown
    assert "0 passed, 6 failed, 0 skipped" in shown.splitlines()


def test_one_fixture_that_fails_is_one_bad_moment(run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
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
    assert run(gate(tmp_path, "fixture", text)) == 0
    assert "20 passed, 0 failed, 0 skipped" in capsys.readouterr().out.splitlines()


def test_what_is_skipped_at_the_second_try_has_not_passed(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
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
    assert run(gate(tmp_path, "skips", text)) == 1
    assert "0 passed, 1 failed, 0 skipped" in capsys.readouterr().out.splitlines()


def test_a_gate_that_breaks_before_its_report_is_run_whole_again(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
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
    assert run(gate(tmp_path, "breaks", text)) == 0
    shown = capsys.readouterr().out
    assert "passed at the second try: breaks" in shown
    assert "2 passed, 0 failed, 0 skipped" in shown.splitlines()


def test_what_needs_the_tests_before_it_gets_them(run: Run, tmp_path: Path) -> None:
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
    assert run(gate(tmp_path, "steps", text)) == 0


def test_a_gate_waits_for_the_one_that_it_needs(run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    needs = Gate("needs", "none", ("test", "-e", f"{tmp_path}/made"), after="makes")
    makes = Gate("makes", "none", ("sh", "-c", f"sleep 1; touch {tmp_path}/made"))

    assert run(needs, makes) == 0
    assert "second try" not in capsys.readouterr().out


def test_the_summary_says_how_long_each_took_the_last_time(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    quick = Gate("quick", "none", ("true",))
    assert run(quick) == 0
    assert "last time" not in capsys.readouterr().out
    assert run(quick) == 0
    assert "(last time    0.0 s)" in capsys.readouterr().out


def test_a_gate_that_hangs_is_stopped(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(runner, "LONGEST", 1)
    assert run(Gate("hangs", "none", ("sleep", "1000"))) == 1
    shown = capsys.readouterr().out
    assert "hangs: stopped: nothing here takes longer than 1 s" in shown
    assert "== failed: hangs" in shown and "hangs.again" not in shown
