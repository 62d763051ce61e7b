# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""What the console shows while it works."""

from __future__ import annotations

import io
import sys

import pytest
from rich.progress import Progress

from ansible_collections.offheap.profiler.console.screen import Rows, Screen, Steps


def test_the_last_hosts_that_are_waited_for_are_named() -> None:
    progress = Progress(disable=True)
    steps = Steps(progress, "looking", ["app1", "app2", "app3", "app4", "app5"])
    told = []
    for host in ("app3", "app1", "app5", "app2", "app4"):
        steps.done(host)
        told.append(progress.tasks[0].description)
    assert told == [
        "looking",
        "looking, waiting for app2, app4, app5",
        "looking, waiting for app2, app4",
        "looking, waiting for app4",
        "looking",
    ]


def test_a_host_that_is_waited_for_says_what_it_is_at() -> None:
    progress = Progress(disable=True)
    steps = Steps(progress, "tracing", ["app1", "app2", "app3", "app4"])
    at = ["window 1 of 6, 179 s left"]
    steps.working("app2", lambda: at[0])
    steps.refresh()
    assert progress.tasks[0].description == "tracing, waiting for app2 (window 1 of 6, 179 s left) and 3 more"
    at[0] = "window 2 of 6, 120 s left"
    steps.done("app1")
    told = "tracing, waiting for app2 (window 2 of 6, 120 s left), app3, app4"
    assert progress.tasks[0].description == told


def test_rows_that_come_later_stand_below_the_first_without_a_second_heading(
    capsys: pytest.CaptureFixture[str],
) -> None:
    rows = Rows(Screen(), ("HOST", "UNIT", "SIZE"), (2,))
    rows.add([])
    rows.add([("app10", "frontend.service", "1.0 MiB")])
    rows.add([("app2", "db.service", "900 B")])
    assert [line.rstrip() for line in capsys.readouterr().out.splitlines()] == [
        "HOST   UNIT                 SIZE",
        "app10  frontend.service  1.0 MiB",
        "app2   db.service          900 B",
    ]


def test_a_terminal_that_lacks_a_character_gets_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding="latin-1"))
    show = Screen()
    show.verdict(None, "Leak of 64.5 GiB/day ± 3.7 GiB: inflate ← main")
    sys.stdout.write("inflate ← main\n")
    sys.stdout.flush()
    assert written.getvalue().decode("latin-1").splitlines() == [
        "Leak of 64.5 GiB/day ± 3.7 GiB: inflate ? main",
        "inflate ? main",
    ]


def test_a_table_that_is_wider_than_the_terminal_loses_no_column(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setenv("COLUMNS", "30")
    shown = Terminal()
    monkeypatch.setattr(sys, "stdout", shown)
    rows = Rows(Screen(), ("NAME", "FIRST", "RSS"), (2,))
    rows.add([("frontend.service@app1", "2025-10-23 15:41:00 UTC", "1.0 MiB")])
    assert "frontend.service@app1  2025-10-23 15:41:00 UTC  1.0 MiB" in shown.getvalue()


def test_no_columns_are_no_reason_to_show_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "0")
    Screen().verdict(None, "No leak")
    assert capsys.readouterr().out == "No leak\n"
