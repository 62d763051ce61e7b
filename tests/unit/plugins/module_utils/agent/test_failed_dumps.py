# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Who collects is told of agents that cannot write."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.offheap.profiler.plugins.module_utils.agent import client, failed_dumps
from ansible_collections.offheap.profiler.plugins.module_utils.host import cgroup, places
from ansible_collections.offheap.profiler.tests.unit.plugins.module_utils.agent.conftest import Serve, line

FAILS = {"spool": {"dumps_failed": 3}, "problem": "the disk is full", "problem_time": 20.0, "last_dump": {"time": 10.0}}


@pytest.fixture(autouse=True)
def of_the_unit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cgroup, "belongs_to", lambda _pid, unit: unit == "u.service")


@pytest.mark.parametrize("units", [[], ["u"]])
@pytest.mark.parametrize("last", [{"time": 10.0}, {}])
def test_what_fails_is_told(units: list[str], last: dict[str, float], serve: Serve, tmp_path: Path) -> None:
    serve(line(**{**FAILS, "last_dump": last}))
    (said,) = failed_dumps.told(units, str(tmp_path))
    assert said == f"the agent in process {os.getpid()} of u.service says: the disk is full (3 of its dumps failed)"


def test_an_agent_at_an_abstract_name_is_heard(serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has no directory among the sockets."""
    agent = serve(line(**FAILS))
    (tmp_path / "spools" / "u.service").mkdir(parents=True)
    monkeypatch.setattr(places, "SPOOLS", str(tmp_path / "spools"))
    monkeypatch.setattr(client, "find", lambda unit, _root: [agent] if unit == "u.service" else [])
    assert len(failed_dumps.told([], str(tmp_path / "none"))) == 1


@pytest.mark.parametrize(
    "change",
    [
        {"last_dump": {"time": 30.0}},
        {"spool": {"dumps_failed": 0}},
        {"spool": {"dumps_failed": "3"}},
        {"spool": None},
        {"problem": None},
        {"problem_time": "now"},
        {"last_dump": {"time": []}},
        {"ok": False},
    ],
)
def test_what_works_or_makes_no_sense_is_not(change: dict[str, Any], serve: Serve, tmp_path: Path) -> None:
    serve(line(**{**FAILS, **change}))
    assert failed_dumps.told([], str(tmp_path)) == []


def test_one_that_hangs_or_is_none_of_the_unit_s(serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failed_dumps, "_PATIENCE", 0.5)
    serve(line(**FAILS), unit="other.service")
    serve(None)
    began = time.monotonic()
    assert failed_dumps.told(["other", "u", "absent"], str(tmp_path)) == []
    assert time.monotonic() - began < 10
