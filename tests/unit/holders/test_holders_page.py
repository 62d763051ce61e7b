# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""How `make holders` judges what was said, and what its page shows."""

from __future__ import annotations

from ansible_collections.offheap.profiler.tests.holders.cases import CASES, Case
from ansible_collections.offheap.profiler.tests.holders.holders_page import Part, Seen, page

LOST = Part("lost", "lost: nothing leads to them", 0.97, 0.99, 1.0)
MAP = Part("global", "kept by global ordered of held_cpp, through 48-byte blocks (linked)", 0.97, 0.99, 1.0)


def case(name: str) -> Case:
    return next(one for one in CASES if one.name == name)


def seen(name: str, *parts: Part) -> Seen:
    return Seen(case(name).unit, "2026-01-01", 500, "; ".join(part.by for part in parts), list(parts))


def test_each_case_is_a_unit_of_its_own() -> None:
    assert len({one.unit for one in CASES}) == len(CASES) >= 24


def test_what_is_kept_must_be_told_by_its_holder() -> None:
    assert seen("kept_by_map", MAP).is_right(case("kept_by_map"))
    assert not seen("kept_by_set", MAP).is_right(case("kept_by_set"))
    assert not seen("kept_by_map", LOST).is_right(case("kept_by_map"))
    assert not seen("kept_by_map").is_right(case("kept_by_map"))


def test_what_is_lost_must_be_told_to_be() -> None:
    assert seen("lost_by_return", LOST).is_right(case("lost_by_return"))
    assert not seen("lost_by_return", MAP).is_right(case("lost_by_return"))


def test_of_what_is_half_lost_the_interval_must_have_the_half() -> None:
    halves = Part("global", "kept by global halves of held_cpp", 0.44, 0.49, 0.54)
    for low, high, right in ((0.46, 0.56, True), (0.52, 0.6, False)):
        lost = Part("lost", LOST.by, low, (low + high) / 2, high)
        assert seen("half_lost", lost, halves).is_right(case("half_lost")) is right


def test_the_page_counts_and_marks_what_is_wrong() -> None:
    text = page([seen("kept_by_map", LOST), seen("lost_by_return", LOST)])
    assert "Of 2 services, seen on 2026-01-01, 1 are told right; of what is kept, 1 are called lost." in text
    assert f"| C++ | kept by map | **{LOST.by}** |" in text and f"| C++ | lost by return | {LOST.by} |" in text
