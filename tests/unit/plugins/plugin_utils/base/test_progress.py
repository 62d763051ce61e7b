# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
from __future__ import annotations

import pytest

from ansible_collections.offheap.profiler.plugins.plugin_utils.base import progress


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(progress, "time", clock)
    return clock


def test_a_short_job_is_silent_and_a_long_one_is_told_now_and_then(clock: Clock) -> None:
    told: list[tuple[float, str]] = []
    job = progress.Progress(lambda text: told.append((clock.now - 100, text)))
    job.at("reading web.service on app1, 1 of 2")
    for _half_second in range(24):
        clock.now += 0.5
        job.capture()
    assert [time for time, _text in told] == [1.0, 6.0, 11.0]
    assert told[0][1] == "reading web.service on app1, 1 of 2 (captures so far: 2, 2 a second)"
    clock.now += 9
    job.at("writing the report")
    assert told[-1][1].startswith("writing the report (captures so far: 24")


@pytest.mark.parametrize(
    ("terminal", "asked", "heard"),
    [(False, "", False), (True, "", True), (False, "1", True), (True, "0", False)],
)
def test_it_is_told_at_a_terminal_or_where_asked_for(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, terminal: bool, asked: str, heard: bool
) -> None:
    monkeypatch.setattr(progress, "_AT_A_TERMINAL", terminal)
    monkeypatch.setenv("OFFHEAP_PROGRESS", asked)
    told: list[str] = []
    job = progress.for_people(told.append)
    clock.now += 3
    job.at("copying")
    assert bool(told) is heard
