# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Every action that reads a whole archive tells how far it is, where that is asked for."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from ansible_collections.offheap.profiler.plugins.action import archive_sync, leak_assert, leak_push, leak_report
from ansible_collections.offheap.profiler.plugins.plugin_utils.base import progress
from ansible_collections.offheap.profiler.tests.unit.fakes.actions import run_action
from ansible_collections.offheap.profiler.tests.unit.strategies import leaky_archives

READING = "reading frontend.service on app2, 2 of 2 (captures so far: 1"
ACTIONS: list[tuple[ModuleType, dict[str, Any], str]] = [
    (leak_report, {"dest": "report", "show": False}, READING),
    (leak_assert, {"max_growth": 1 << 40}, READING),
    (leak_push, {"textfile": "leaks.prom"}, READING),
    (archive_sync, {"url": "memory://told", "direction": "push"}, "copying to memory://told (captures so far: 1"),
]


@pytest.mark.parametrize("asked", ["1", "0"])
@pytest.mark.parametrize(("plugin", "arguments", "words"), ACTIONS, ids=lambda one: getattr(one, "__name__", ""))
def test_it_is_told_where_asked_for(
    plugin: ModuleType,
    arguments: dict[str, Any],
    words: str,
    asked: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    leaky_archives.fill(tmp_path / "archive", tmp_path / "scratch")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(progress, "_FIRST", 0.0)
    monkeypatch.setattr(progress, "_EVERY", 0.0)
    monkeypatch.setenv("OFFHEAP_PROGRESS", asked)
    told: list[str] = []
    monkeypatch.setattr(plugin.display, "display", lambda text, **_how: told.append(text))
    run_action(plugin, archive="archive", **arguments)
    assert any(line.startswith(words) for line in told) == (asked == "1"), told
