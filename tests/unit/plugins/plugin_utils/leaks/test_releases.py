# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
from __future__ import annotations

import re

import pytest

from ansible_collections.offheap.profiler.plugins.plugin_utils.leaks.releases import Releases, Seen, is_range


def _of(*ranges: str) -> Releases:
    return Releases("X", ranges, re.compile(r"x-([0-9.]+)\.jar"), {"ab" * 10: "1.2"})


@pytest.mark.parametrize(
    ("text", "inside", "outside"),
    [
        ("4.2", ["4.2", "4.2.0", "4.2.16"], ["4.1.9", "4.3", "4", "5.2", "42"]),
        ("4.3.0", ["4.3.0", "4.3"], ["4.3.1", "4.2"]),
        ("24.16 to 24.19", ["24.16", "24.16.0", "24.17", "24.19.3"], ["24.15.9", "24.20.0", "24", "26.17"]),
        ("1.24 and later", ["1.24", "1.24.1", "1.100", "2.0"], ["1.23.9", "1.3", "0.24"]),
    ],
)
def test_ranges_count_by_numbers(text: str, inside: list[str], outside: list[str]) -> None:
    assert all(map(_of(text).covers, inside))
    assert not any(map(_of(text).covers, outside))


def test_one_of_several_ranges_is_enough() -> None:
    assert _of("1.1", "2.2 to 2.4").covers("2.3")
    assert _of("1.1", "2.2 to 2.4").words == "X 1.1 or 2.2 to 2.4"


@pytest.mark.parametrize("text", ["", "new", "4.", "4.2 to", "4.2 or later", "v4.2", 4.2, None])
def test_what_is_no_range(text: object) -> None:
    assert not is_range(text)


def test_a_release_is_found_wherever_it_stands() -> None:
    assert _of("1").found(Seen(("/opt/x-1.1.jar", "java -cp /a/y-3.jar:/a/x-2.0.jar")), []) == ["1.1", "2.0"]
    assert _of("1").found(Seen(), ["x-1.4.jar", "libc.so.6"]) == ["1.4"]
    assert _of("1").found(Seen(build_ids=frozenset({"ab" * 10, "cd"})), []) == ["1.2"]


@pytest.mark.parametrize("text", ["x-.jar", "x-1..2.jar", f"x-{'9' * 5000}.jar", "x-1.2.jarx"[:-5]])
def test_what_a_host_sends_is_no_release_because_it_looks_like_one(text: str) -> None:
    assert _of("1").found(Seen((text,)), []) == []


def test_a_group_that_takes_no_part_finds_nothing() -> None:
    assert Releases("X", ("1",), re.compile("y|x-([0-9]+)")).found(Seen(("y", "x-3")), []) == ["3"]
