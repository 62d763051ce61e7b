# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Runs that are killed at any moment, and the next ones."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ansible_collections.offheap.profiler.tests.gates import this_run
from ansible_collections.offheap.profiler.tests.gates.files import ROOT

# A run of one gate that leaves a process in a session of its own, and files.
RUN = """
import os, sys
from pathlib import Path
from ansible_collections.offheap.profiler.tests.gates import this_run
from ansible_collections.offheap.profiler.tests.gates.runner import Gate, Runner

here = Path(sys.argv[1])
this_run.PLACE = here
gate = Gate("gate", "none", ("sh", "-c", "setsid sleep 1000 & mktemp; sleep " + sys.argv[2]))
with this_run.directory([], print) as directory:
    print("began", directory, flush=True)
    sys.exit(Runner(here, here, directory, 1, dict(os.environ)).main([gate]))
"""
NAMES = f"{this_run.PREFIX}*"


def start(place: Path, seconds: float) -> subprocess.Popen[str]:
    """A run whose gate takes so long, in a place of its own."""
    argv = [sys.executable, "-c", RUN, str(place), str(seconds)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / ".cache" / "collections")}
    return subprocess.Popen(argv, env=environment, text=True, stdout=subprocess.PIPE)


def began_in(run: subprocess.Popen[str]) -> Path:
    """The directory of a run, as soon as it has begun."""
    assert run.stdout is not None
    line = next(line for line in run.stdout if line.startswith("began "))
    return Path(line.split()[1])


def ended(run: subprocess.Popen[str]) -> int:
    """The exit status of a run, as soon as it has ended."""
    run.communicate()
    return run.returncode


@pytest.mark.parametrize("moment", range(10))
def test_a_killed_run_leaves_nothing_to_the_next(tmp_path: Path, moment: int) -> None:
    killed = start(tmp_path, 30)
    if moment:
        began_in(killed)
        time.sleep(moment * 0.02)
    else:
        time.sleep(0.1)
    killed.kill()
    killed.wait()
    assert killed.stdout is not None
    killed.stdout.close()
    left = list(tmp_path.glob(NAMES))
    assert left or not moment

    assert ended(start(tmp_path, 0)) == 0

    assert not list(tmp_path.glob(NAMES))
    assert [this_run.processes_of(directory) for directory in left] == [[] for _ in left]


def test_a_run_that_lives_is_left_alone(tmp_path: Path) -> None:
    lives = start(tmp_path, 5)
    directory = began_in(lives)

    assert ended(start(tmp_path, 0)) == 0

    assert lives.poll() is None and this_run.processes_of(directory)
    assert ended(lives) == 0
    assert not list(tmp_path.glob(NAMES)) and not this_run.processes_of(directory)


def test_a_stage_goes_with_its_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    true = subprocess.Popen(["true"])
    true.wait()
    dead, alive = (tmp_path / f"offheap-bare.{pid}.x" for pid in (true.pid, os.getpid()))
    for stage in (dead, alive):
        stage.mkdir()
    monkeypatch.setattr(this_run, "STAGES", tmp_path)
    monkeypatch.setattr(this_run, "PLACE", tmp_path)
    with this_run.directory([], print):
        assert (dead.exists(), alive.exists()) == (False, True)


GATE = [str(ROOT / ".venv" / "bin" / "python"), str(ROOT / "tests" / "gates" / "run"), "library"]


@pytest.mark.soak_only
@pytest.mark.parametrize("seconds", [1, 3, 6, 9, 12, 16, 20, 30, 40, 50])
def test_a_gate_that_boots_hosts_is_green_after_one_that_was_killed(seconds: int) -> None:
    with subprocess.Popen(GATE, stdout=subprocess.DEVNULL) as killed:
        time.sleep(seconds)
        killed.kill()
    again = subprocess.run(GATE, capture_output=True, text=True, check=False)
    assert again.returncode == 0 and "second try" not in again.stdout, again.stdout
    for command in (["ip", "-o", "link"], ["ip", "netns"], ["cat", "/proc/self/mounts"], ["ps", "-ewwo", "args"]):
        told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        assert "itlibrary" not in told, told
