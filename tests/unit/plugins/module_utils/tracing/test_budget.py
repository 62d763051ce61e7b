# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""What tracing costs is told apart from what a service does by itself."""

from __future__ import annotations

import pytest

from ansible_collections.offheap.profiler.plugins.module_utils.tracing import budget


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
