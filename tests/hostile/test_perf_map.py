# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Perf maps that a host has made up: what they may cost whoever names code with them."""

from __future__ import annotations

from ansible_collections.offheap.profiler.plugins.module_utils.formats import perf_map_line
from ansible_collections.offheap.profiler.plugins.plugin_utils.symbols import perf_map
from ansible_collections.offheap.profiler.tests.hostile.bounds import costs_at_most

_NEXT = perf_map_line.added(0x900000, ["demo.After.run()"])


def test_a_line_that_claims_to_be_thousands_of_calls() -> None:
    line = b"100000 100000 [inlined] " + b"a;" * 32000 + b"\n"
    with costs_at_most(2, 8):
        known = perf_map.parse(line + _NEXT)
        frames = [known.frames(0x100000 + place) for place in range(2000)]
    assert not any(frames)
    assert [frame.function for frame in known.frames(0x900000)] == ["demo.After.run"]


def test_a_line_for_many_addresses_is_named_once() -> None:
    calls = ";".join(f"demo.Deep.call{number}()" for number in range(perf_map_line.MOST_CALLS))
    with costs_at_most(2, 8):
        known = perf_map.parse(f"100000 100000 [inlined] {calls}\n".encode() + _NEXT)
        frames = [known.frames(0x100000 + place) for place in range(20000)]
    assert {len(found) for found in frames} == {perf_map_line.MOST_CALLS}
    assert known.frames(0x900000)


def test_of_names_longer_than_any_real_one_little_is_kept() -> None:
    lines = [b"%x 1 %d%s\n" % (0x1000 + number, number, b"x" * 65000) for number in range(200)]
    with costs_at_most(2, 32):
        known = perf_map.parse(b"".join(lines) + _NEXT)
        frames = [known.frames(0x1000 + number) for number in range(200)]
    assert len(set(frames)) == 200
    assert known.frames(0x900000)
