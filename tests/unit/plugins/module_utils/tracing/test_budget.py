# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""What tracing costs is told apart from what a service does by itself."""

from __future__ import annotations

import time

import pytest

from ansible_collections.offheap.profiler.plugins.module_utils.host import procfs
from ansible_collections.offheap.profiler.plugins.module_utils.tracing import budget
from ansible_collections.offheap.profiler.plugins.module_utils.tracing.running_trace import Ended


@pytest.mark.parametrize(
    ("before", "spent", "least", "most"),
    [
        (0.0, (0, 0), 0.0, 0.0),  # it slept
        (0.1, (900, 100), 0.0, 0.0),  # as before
        (0.1, (90_000, 10_000), 0.0, 0.0),  # ten times the load
        (0.0, (0, 3), 0.0, 0.0),  # three ticks say nothing
        (0.0, (50, 50), 0.4, 1.0),  # half of a second
        (0.0, (10_000, 10_000), 0.9, 1.0),  # of 200 seconds: each takes twice as long
        (0.5, (5_000, 15_000), 0.9, 1.0),  # a share of a half becomes three quarters
        (0.0, (98_000, 2_000), 0.015, 0.021),  # two percent
        (0.0, (0, 100_000), 10.0, 1000.0),  # nothing but probes
        (0.999, (100, 900), 0.0, 0.0),
    ],
)
def test_what_it_costs(before: float, spent: tuple[int, int], least: float, most: float) -> None:
    assert least <= budget.cost_of(before, spent) <= most


class Clock:
    """A process that takes a second of CPU time in each second, and a system call that takes a microsecond."""

    now = 0.0

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(time, "monotonic", lambda: self.now)
        monkeypatch.setattr(procfs, "cpu_ticks", lambda _pid: (round(self.now / budget._TICK), 0))
        monkeypatch.setattr(budget, "seconds_of_a_system_call", lambda: 1e-6)
        self.budget = budget.BudgetOfFrees(1, 5.0)

    def later(self, seconds: float, frees: int) -> None:
        self.now += seconds
        self.budget.check(frees)


def test_frees_within_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    for second in range(10, 100, 10):
        clock.later(10, second * 45_000)


def test_frees_beyond_it(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    clock.later(1000, 1_000_000)
    clock.later(4, 2_000_000)  # many at once say little
    with pytest.raises(Ended, match=r"about 10 % more CPU time, and 5 % are allowed.*it frees 90,909 times a second"):
        clock.later(7, 2_000_000)


def test_a_service_with_little_to_do_but_free(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    monkeypatch.setattr(procfs, "cpu_ticks", lambda _pid: (0, 0))
    clock.later(10, 99_000)
    with pytest.raises(Ended, match="more CPU time"):
        clock.later(10, 200_000)


def test_a_system_call_takes_a_while() -> None:
    assert 1e-9 < budget.seconds_of_a_system_call() < 1e-4
