# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Other processes make samples ahead of a survey, where that is worth it, and end with it."""

from __future__ import annotations

import os
import subprocess
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.offheap.profiler.plugins.plugin_utils.archive.archive import Archive
from ansible_collections.offheap.profiler.plugins.plugin_utils.archive.capture import Capture
from ansible_collections.offheap.profiler.plugins.plugin_utils.base import child, own_process
from ansible_collections.offheap.profiler.plugins.plugin_utils.columns import parquet, sample_cache
from ansible_collections.offheap.profiler.plugins.plugin_utils.leaks import ahead
from ansible_collections.offheap.profiler.plugins.plugin_utils.leaks.scope import Scope, in_scope
from ansible_collections.offheap.profiler.tests.agent.service import wait_for
from ansible_collections.offheap.profiler.tests.unit.strategies import leaky_archives


@pytest.fixture
def archive(tmp_path: Path) -> Archive:
    """Four hosts with three captures each."""
    found = leaky_archives.fill(tmp_path / "archive", tmp_path / "scratch", dumps=3)
    for host in ("app3", "app4"):
        for number in range(3):
            content, time = leaky_archives.dump_text(20 + number, 30), leaky_archives.START + 300 * number
            leaky_archives.add(found, tmp_path / "scratch", content, host=host, sequence=number, time=time)
    return found


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[subprocess.Popen[bytes]]:
    """The processes that are started on a machine with five processors; two captures without samples are many."""
    found: list[subprocess.Popen[bytes]] = []

    def noted(function: Any, *words: str, **environment: str) -> subprocess.Popen[bytes]:
        process = start(function, *words, **environment)
        found.extend([process] if function is not child.serve else [])
        return process

    start = own_process.started
    monkeypatch.setattr(own_process, "started", noted)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(range(5)))
    monkeypatch.setattr(ahead, "_MANY", 2)
    return found


def _helped(archive: Archive, scope: Scope | None = None) -> Any:
    scope = scope or Scope()
    return ahead.helped(archive, scope, in_scope(archive, scope, pytest.fail))


def _made(captures: list[Capture]) -> bool:
    return all(parquet.is_current(capture.derived(parquet.NAME)) for capture in captures)


def test_those_of_all_hosts_are_made_while_the_first_is_looked_at(
    archive: Archive, started: list[subprocess.Popen[bytes]]
) -> None:
    survey = _helped(archive)
    assert next(survey)[:2] == ("frontend.service", "app1")
    assert len(started) == 2
    wait_for("the last hosts have samples", partial(_made, archive.captures(host="app4")))
    wait_for("and those before", partial(_made, archive.captures(host="app3")))
    assert [host for _unit, host, _captures in survey] == ["app2", "app3", "app4"]
    assert [helper.poll() for helper in started] == [0, 0]
    assert list((archive.root / ".incoming").iterdir()) == []


def test_only_hosts_in_scope(archive: Archive, started: list[subprocess.Popen[bytes]]) -> None:
    survey = _helped(archive, Scope(hosts=["app1", "app3"]))
    next(survey)
    wait_for("those in scope have samples", partial(_made, archive.captures(host="app3")))
    assert [host for _unit, host, _captures in survey] == ["app3"]
    assert not any(capture.derived(parquet.NAME).exists() for capture in archive.captures(host="app4"))


def test_none_where_it_would_not_pay(
    archive: Archive, started: list[subprocess.Popen[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as alone:
        alone.setattr(os, "sched_getaffinity", lambda _pid: {0})
        assert len(list(_helped(archive))) == 4
    with monkeypatch.context() as few:
        few.setattr(ahead, "_MANY", 13)
        assert len(list(_helped(archive))) == 4
    assert len(list(sample_cache.each(archive, archive.captures()))) == 12
    assert len(list(_helped(archive))) == 4
    assert started == []


def test_they_end_with_a_survey_that_is_given_up(archive: Archive, started: list[subprocess.Popen[bytes]]) -> None:
    survey = _helped(archive)
    next(survey)
    survey.close()
    assert [helper.poll() for helper in started] == [0, 0]
    assert list((archive.root / ".incoming").iterdir()) == []


def test_what_they_cannot_make_stops_no_survey(
    archive: Archive, started: list[subprocess.Popen[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ahead, "make", os.abort)
    assert len(list(_helped(archive))) == 4
    assert all(helper.poll() for helper in started) and started
