# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Series, their growth, and how they are drawn."""

from __future__ import annotations

import io
import time
from collections.abc import Iterator
from typing import Any

import pytest
from rich.console import Console

from ansible_collections.offheap.profiler.console.screen import Screen
from ansible_collections.offheap.profiler.console.watch import MOST, Series, View, curve, per_hour, shown

MIB = 1 << 20


def sample(time: float, rss: float, **more: Any) -> dict[str, Any]:
    return {"time": time, "rss": rss, "start": "1b", "active": "active", **more}


def test_growth_is_of_live_bytes_where_they_are_known() -> None:
    series = Series("app1")
    for number in range(10):
        series.add(sample(100.0 + number, 50 * MIB, allocated=number * MIB))
    assert series.growth() == pytest.approx(3600 * MIB)
    without = Series("app2")
    for number in range(10):
        without.add(sample(100.0 + number, number * 2 * MIB))
    assert without.growth() == pytest.approx(7200 * MIB)


def test_live_bytes_of_an_agent_that_no_longer_answers_are_not_told() -> None:
    """Sizes of every other look over twice the time would grow twice as fast."""
    series = Series("app1")
    for number in range(2 * MOST):
        series.add(sample(float(number), 50 * MIB, **({} if number % 2 else {"allocated": number * MIB})))
    assert (series.growth(), series.document()["live"]) == (0, None)
    for number in range(2 * MOST, 2 * MOST + 10):
        series.add(sample(float(number), 50 * MIB, allocated=number * MIB))
    assert series.growth() == pytest.approx(3600 * MIB)


def test_no_growth_is_told_that_may_as_well_be_none() -> None:
    few, tooth, flat = Series("app1"), Series("app2"), Series("app3")
    for number in range(40):
        if number < 9:
            few.add(sample(number, number * MIB))
        tooth.add(sample(number, (50 + number % 5) * MIB))
        flat.add(sample(number, 50 * MIB))
    assert (few.growth(), tooth.growth(), flat.growth()) == (None, None, 0)


def test_a_restart_begins_anew() -> None:
    series = Series("app1")
    for number in range(5):
        series.add(sample(number, number))
    series.add({**sample(5, 1), "start": "2c"})
    assert list(series.times) == [5] and series.growth() is None


def test_no_more_is_kept_than_can_be_used() -> None:
    series = Series("app1")
    for number in range(MOST + 10):
        series.add(sample(number, number))
    assert len(series.rss) == MOST


def test_curves() -> None:
    assert curve([], 8) == ""
    assert curve([5, 5, 5], 8) == "▁▁▁"
    assert curve([0, 1, 2, 3, 4, 5, 6, 7], 8) == "▁▂▃▄▅▆▇█"
    assert len(curve(range(100), 8)) == 8


def test_signs() -> None:
    assert (per_hour(None), per_hour(MIB), per_hour(-MIB)) == ("…", "+1.0 MiB/h", "-1.0 MiB/h")


@pytest.mark.parametrize("width", [80, 120])
def test_a_view_fits_its_terminal(width: int) -> None:
    series = Series("a-host-of-some-length")
    for number in range(100):
        series.add(sample(number, 3 * MIB + number * 100000, allocated=number * 100000))
    output = io.StringIO()
    Console(file=output, width=width, force_terminal=False).print(View("frontend", [series, Series("silent")]))
    lines = output.getvalue().splitlines()
    assert max(map(len, lines)) <= width and "connecting" in output.getvalue()
    assert "12.4 MiB" in lines[2] and "+343.3 MiB/h" in lines[2] and "█" in lines[2]


@pytest.fixture
def new_york(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "America/New_York")
        time.tzset()
        yield
    time.tzset()


def test_lines_say_which_day_it_was_and_do_not_repeat_an_hour(
    new_york: None, capsys: pytest.CaptureFixture[str]
) -> None:
    """In New York, 01:30 came twice on 2 November 2025."""
    series, said = Series("app1"), ""
    with shown(Screen(), "frontend.service", [series], 0.01):
        for number in range(2):
            series.add(sample(1762061400.0 + 3600 * number, MIB))
            while said.count("\n") <= number:
                time.sleep(0.01)
                said += capsys.readouterr().out
    assert said == "2025-11-02 05:30:00 UTC app1 rss 1.0 MiB\n2025-11-02 06:30:00 UTC app1 rss 1.0 MiB\n"
