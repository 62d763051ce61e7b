# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
from __future__ import annotations

import pytest

from ansible_collections.offheap.profiler.plugins.plugin_utils.base.durations import duration, per_day


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (45.9, "45 s"),
        (119, "119 s"),
        (600, "10 min"),
        (12000, "3 h 20 min"),
        (7200, "2 h"),
        (4 * 86400 + 7200, "4 d 2 h"),
    ],
)
def test_durations_are_said_as_people_do(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_rates_are_per_day() -> None:
    assert per_day(64 << 20) == "64.0 MiB/day"
