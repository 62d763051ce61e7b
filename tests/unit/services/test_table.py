# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""The page on packaged services counts what was seen, and the catalog names each service once."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ansible_collections.offheap.profiler.tests.services import table
from ansible_collections.offheap.profiler.tests.services.attached import Attachment
from ansible_collections.offheap.profiler.tests.services.catalog import LOTS
from ansible_collections.offheap.profiler.tests.services.packaged import SUITES
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
    assert f"\n{int(good)} of 1 are profiled" in table.page([outcome], [])


def test_what_did_not_run_without_us_is_no_row() -> None:
    page = table.page([GOOD, replace(GOOD, unit="dead", untried="inactive, and its client says: refused")], [])
    assert "| memcached |" in page and "| dead |" not in page


def test_a_service_counts_once_in_however_many_ways_it_was_tried() -> None:
    seen = [("bookworm", "nginx"), ("trixie", "nginx"), ("trixie", "nginx-after-USR2"), ("bookworm", "minetest-server")]
    seen += [("trixie", "luanti-server"), ("trixie", "memcached")]
    page = table.page([replace(GOOD, suite=suite, name=name) for suite, name in seen], [])
    assert "\n6 of 6 are profiled" in page and "They are 3 services" in page


def test_a_reason_cannot_break_the_table() -> None:
    page = table.page([replace(GOOD, problem="a | b\nc")], [])
    assert "| a / b c |" in page


@pytest.mark.parametrize(
    ("seen", "cell"),
    [
        ({"enabled": "yes", "rolled_back": True, "held": 0.0042}, "| yes: 27, 4 ms |"),
        ({"enabled": "yes", "problem": "1 answers did not come, 0 before"}, "| no: 1 answers did not come, 0 before |"),
        ({"enabled": "refused", "rolled_back": True}, "| refused |"),
        ({"untried": "inactive"}, "| yes |  |  |"),
    ],
)
def test_what_came_of_attaching_stands_beside_it(seen: dict[str, Any], cell: str) -> None:
    attached = Attachment(GOOD.suite, GOOD.name, GOOD.unit, samples=27, **seen)
    other = Attachment("woody", GOOD.name, GOOD.unit, enabled="failed")
    page = table.page([GOOD], [attached, other])
    assert cell in page and "| failed |" not in page


def test_why_one_is_not_attached_to_is_told() -> None:
    refused = Attachment(GOOD.suite, GOOD.name, GOOD.unit, enabled="refused", reason="it forbids itself threads")
    page = table.page([GOOD], [refused])
    assert f"- {GOOD.unit} ({GOOD.suite}), refused when attached to: it forbids itself threads" in page


def test_each_service_has_a_file_of_its_own_and_no_name_is_left_open() -> None:
    names = [service.name for lot in LOTS for service in lot]
    assert len(names) == len(set(names))
    for suite in SUITES:
        for service in (service.of(suite) for lot in LOTS for service in lot):
            assert "{" not in service.unit + service.packages
