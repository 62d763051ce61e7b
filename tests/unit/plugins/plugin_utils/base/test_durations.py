# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
from __future__ import annotations

import pytest

from ansible_collections.offheap.profiler.plugins.plugin_utils.base.durations import (
    DurationError,
    duration,
    moment,
    per_day,
    seconds_of,
)


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


@pytest.mark.parametrize(
    "text",
    ["1795305600", "1795305600.0", "20261122", "2026-11-22", "2026-11-22T00:00:00Z", "2026-11-22T01:00:00+01:00"],
)
def test_times_are_read_as_people_write_them(text: str) -> None:
    assert seconds_of(text) == 1795305600


def test_a_time_that_was_printed_is_read_again() -> None:
    assert seconds_of(moment(1795305600)) == 1795305600


def test_a_time_that_no_calendar_has_is_printed() -> None:
    """As that of a capture in an archive from elsewhere, which a list of all captures shows beside the others."""
    assert moment(-1e300) == moment(-1e12) == moment(0) == "1970-01-01 00:00:00 UTC"
    assert moment(1e300) == moment(1e11) == "5138-11-16 09:46:40 UTC"


@pytest.mark.parametrize(
    "text", ["", "yesterday", "nan", "inf", "1e400", "-5", "22.11.2026", "99999999999999d", "20261322", "١٧٩٥٣٠٥٦٠٠"]
)
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(DurationError, match="is not a time: write it like"):
        seconds_of(text)


@pytest.mark.parametrize("text", ["1969-12-31", "0001-01-01T00:00:00+23:59", "5138-11-17", "9999-12-31T23:59:59-23:59"])
def test_a_time_at_which_there_was_no_profile_is_refused(text: str) -> None:
    with pytest.raises(DurationError, match="from 1970 on, and before the year 5138"):
        seconds_of(text)
