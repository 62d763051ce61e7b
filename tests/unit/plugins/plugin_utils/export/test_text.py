# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
from __future__ import annotations

import math

import pytest
from hypothesis import given

from ansible_collections.offheap.profiler.plugins.plugin_utils.export import text
from ansible_collections.offheap.profiler.plugins.plugin_utils.model import stack_summary
from ansible_collections.offheap.profiler.plugins.plugin_utils.model.profile import Profile
from ansible_collections.offheap.profiler.tests.unit.strategies.profiles import profile, profiles

MIB = 1 << 20


def test_the_table_has_flat_and_cumulative_bytes_with_their_error() -> None:
    found = profile(
        {
            ("inflate", "unzip", "main"): 50 * MIB,
            ("deflate", "zip", "main"): 25 * MIB,
            ("walk", "walk", "walk", "main"): 25 * MIB,
            (): 0,
        }
    )
    assert text.render(found, [("Unit", "frontend.service"), ("Verdict", "Leak\nfast")]) == (
        "Unit     frontend.service\n"
        "Verdict  Leak\n"
        "         fast\n"
        "\n"
        "Total: 100.0 MiB ± 13.9 MiB live (104857600 bytes)\n"
        "± is the 95 % interval of cum, as sampling alone makes it.\n"
        "\n"
        "      flat  flat%        cum   cum%          ±  function\n"
        "  50.0 MiB  50.0%   50.0 MiB  50.0%    9.8 MiB  inflate\n"
        "  25.0 MiB  25.0%   25.0 MiB  25.0%    6.9 MiB  deflate\n"
        "  25.0 MiB  25.0%   25.0 MiB  25.0%    6.9 MiB  walk\n"
        "       0 B   0.0%  100.0 MiB 100.0%   13.9 MiB  main\n"
        "       0 B   0.0%   50.0 MiB  50.0%    9.8 MiB  unzip\n"
        "       0 B   0.0%   25.0 MiB  25.0%    6.9 MiB  zip\n"
    )


def test_a_profile_without_samples_is_a_table_without_rows() -> None:
    assert "Total: 0 B ± 0 B live (0 bytes)" in text.render(profile({}), [])


@given(profiles())
def test_flat_bytes_add_up_to_the_total(found: Profile) -> None:
    rows = text.rows(found)
    assert math.isclose(math.fsum(row.flat for row in rows), found.total_bytes, rel_tol=1e-9, abs_tol=1e-6)
    for row in rows:
        assert row.flat <= row.cumulative * (1 + 1e-9) <= found.total_bytes * (1 + 2e-9)
    assert len(text.render(found, []).splitlines()) == len(rows) + 4


@pytest.mark.parametrize(
    ("stack", "line"),
    [
        (
            ("libz.so.1+0xbdc5", "inflate", "Java_java_util_zip_Inflater_inflateBytesBytes", "[jit]"),
            "inflate ← Java_java_util_zip_Inflater_inflateBytesBytes ← [jit]",
        ),
        (("std::vector<int>::push_back", "shop::add", "main"), "shop::add ← main"),
        (("std::string::append", "libc.so.6+0x10"), "std::string::append ← libc.so.6+0x10"),
        (("libz.so.1+0x1", "libz.so.1+0x2", "[jit]"), "libz.so.1+0x1 ← libz.so.1+0x2 ← [jit]"),
        (("a", "b", "b", "b", "c", "d", "e", "f"), "a ← b ← c ← d ← e ← …"),
        ((), "[no stack]"),
    ],
)
def test_a_path_in_one_line_keeps_the_frames_that_tell(stack: tuple[str, ...], line: str) -> None:
    found = profile({stack: 1.0})
    assert stack_summary.render([found.frames[index] for index in found.stacks[0]]) == line
