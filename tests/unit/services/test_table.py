# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""The page on packaged services counts what was seen, and the catalog names each service once."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ansible_collections.offheap.profiler.tests.services import table
from ansible_collections.offheap.profiler.tests.services.catalog import LOTS, SUITES
from ansible_collections.offheap.profiler.tests.services.trial import Outcome

GOOD = Outcome(
    "trixie",
    "memcached",
    "memcached",
    "1.6.38",
    enabled="yes",
    samples=70,
    named=0.5,
    processes=2,
    restart="yes",
    rolled_back=True,
)


@pytest.mark.parametrize(
    ("outcome", "good"),
    [
        (GOOD, True),
        (replace(GOOD, enabled="refused", reason="not here", samples=0), True),
        (replace(GOOD, enabled="put back", reason="no agent"), False),
        (replace(GOOD, samples=0), True),
        (replace(GOOD, samples=0, processes=0), False),
        (replace(GOOD, rolled_back=False, changed=["/etc/a"]), False),
    ],
)
def test_good_is_profiled_or_refused_and_as_before(outcome: Outcome, good: bool) -> None:
    assert table.is_good(outcome) is good
    assert f"\n{int(good)} of 1 are profiled" in table.page([outcome])


def test_what_did_not_run_without_us_is_no_row() -> None:
    page = table.page([GOOD, replace(GOOD, unit="dead", untried="inactive, and its client says: refused")])
    assert "| memcached |" in page and "| dead |" not in page


def test_a_reason_cannot_break_the_table() -> None:
    page = table.page([replace(GOOD, problem="a | b\nc")])
    assert "| a / b c |" in page


def test_each_service_has_a_file_of_its_own_and_no_name_is_left_open() -> None:
    names = [service.name for lot in LOTS for service in lot]
    assert len(names) == len(set(names))
    for suite in SUITES:
        for service in (service.of(suite) for lot in LOTS for service in lot):
            assert "{" not in service.unit + service.packages
