# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
from __future__ import annotations

import json
from pathlib import Path

import pytest
from invoke.context import Context

from ansible_collections.offheap.profiler.console import dump_tasks, screen
from ansible_collections.offheap.profiler.plugins.plugin_utils.archive.capture import DUMP
from ansible_collections.offheap.profiler.tests.unit.strategies import leaky_archives


def test_how_long_to_wait_for_a_leak_is_told_by_sampling(capsys: pytest.CaptureFixture[str]) -> None:
    dump_tasks.wait.body(Context(), "60MiB")
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["19", "(default)", "512.0", "KiB", "18", "h", "55", "min"] in lines
    dump_tasks.wait.body(Context(), "60MiB", json=True)
    rows = json.loads(capsys.readouterr().out)
    assert [row["interval"] for row in rows] == [1 << row["lg_prof_sample"] for row in rows]
    assert [row["seconds"] for row in rows] == sorted(row["seconds"] for row in rows)


def test_a_dump_that_cannot_be_read_hides_no_other(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = leaky_archives.fill(tmp_path / "archive", tmp_path / "scratch")
    first, second = store.captures()[:2]
    (first.path / DUMP).write_bytes(b"heap_v2/damaged")
    assert dump_tasks.show_captures(store, [first.facts, second.facts], 5, screen.Screen(False)) == 1
    told = capsys.readouterr()
    assert f"{first.host}: " in told.err and "flat" in told.out
