# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Dumps that overwhelm their parser in the child process: their host's problem, and the next one is judged."""

from __future__ import annotations

from pathlib import Path

import pytest

from ansible_collections.offheap.profiler.plugins.plugin_utils.base import child
from ansible_collections.offheap.profiler.plugins.plugin_utils.base.child import Allowance
from ansible_collections.offheap.profiler.plugins.plugin_utils.columns import sample_cache
from ansible_collections.offheap.profiler.plugins.plugin_utils.leaks import ranking
from ansible_collections.offheap.profiler.plugins.plugin_utils.leaks.scope import Scope
from ansible_collections.offheap.profiler.tests.hostile.bounds import costs_at_most
from ansible_collections.offheap.profiler.tests.unit.strategies import child_tricks, leaky_archives

WHY = {
    "spin": "takes more than 1 s",
    "hoard": "takes more than 384.0 MiB of memory",
    "flood": "gives more than 1.0 MiB",
    "crash": "SIGSEGV",
    "lie": "a number leads to nothing",
}


@pytest.mark.parametrize("trick", WHY)
def test_what_overwhelms_the_parser(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trick: str) -> None:
    archive = leaky_archives.fill(tmp_path / "archive", tmp_path / "scratch", dumps=1)
    monkeypatch.setattr(Allowance, "of", lambda _size: Allowance(1, 384 << 20, 1 << 20))
    monkeypatch.setattr(sample_cache, "_parsed", child_tricks.overwhelmed_by_app1)
    monkeypatch.setenv("TRICK", trick)
    child.end()  # the next one has this environment
    warnings: list[str] = []
    with costs_at_most(10, 64):
        _leaks, watched = ranking.rank(archive, warnings.append, Scope())
    child.end()
    assert [process.host for process in watched] == ["app2"]
    assert watched[0].live > 0
    assert len(warnings) == 1 and "on app1 was left out" in warnings[0] and WHY[trick] in warnings[0]
