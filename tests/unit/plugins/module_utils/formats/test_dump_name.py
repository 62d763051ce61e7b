# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Names of dumps: those that jemalloc writes are read, and no others."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.offheap.profiler.plugins.module_utils.formats import dump_name


@given(st.integers(0, 1 << 32), st.integers(0, 10**9 - 1), st.sampled_from(["i0", "i7", "m3", "u12", "f", "f3"]))
@pytest.mark.parametrize("namespace", ["", "4026531836."])
@pytest.mark.parametrize("start", [None, "1f3a9c20-48213507", "00000000-0", "1f3a9c20" * 4])
def test_parts(start: str | None, namespace: str, pid: int, sequence: int, cause: str) -> None:
    name = f"jeprof.{start + '.' if start else ''}{namespace}{pid}.{sequence}.{cause}.heap"
    assert dump_name.parse(name) == dump_name.DumpName(pid, sequence, start)
    assert dump_name.parse(name.replace("jeprof", "asprof")) == dump_name.DumpName(
        pid, sequence, start, dump_name.TRACED
    )


def test_a_recording_has_such_a_name() -> None:
    name = dump_name.of_trace(dump_name.TRACED, "1f3a9c20aabb", 48213507, 12, 3)
    assert dump_name.parse(name) == dump_name.DumpName(12, 3, "1f3a9c20-48213507", dump_name.TRACED)


@pytest.mark.parametrize(
    "name",
    [
        "",
        "x.heap",
        "jeprof.heap",
        "jeprof.12.0.i.heap",
        "jeprof.12.0.x0.heap",
        "jeprof.12.0.i0.heap\n",
        "jeprof.12.0.i0.heap.json",
        "jeprof.-1.0.i0.heap",
        "jeprof.12345678901.0.i0.heap",
        "a/jeprof.12.0.i0.heap",
        "other.12.0.i0.heap",
        "jeprof.1f3a9c20-.12.0.i0.heap",
        "jeprof.1F3A9C20-1.12.0.i0.heap",
        "jeprof.1f3a9c20.12.0.i0.heap",
        "jeprof.١٢.0.i0.heap",
    ],
)
def test_other_names(name: str) -> None:
    assert dump_name.parse(name) is None
