# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Mangled names that were made to unfold: each is shown as it is, for little time and memory, and the next is named."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.offheap.profiler.plugins.plugin_utils.symbols.demangle import readable
from ansible_collections.offheap.profiler.plugins.plugin_utils.symbols.elf_image import SymbolTable
from ansible_collections.offheap.profiler.plugins.plugin_utils.symbols.mangled_size import (
    most_unfolded,
    unfolds_within,
)
from ansible_collections.offheap.profiler.tests.hostile.bounds import costs_at_most, in_child

DIGITS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"
PACK = f"J{'i' * 300}E"
MODULE = "ansible_collections.offheap.profiler.plugins.plugin_utils.symbols.demangle"


def _chain(first: int) -> str:
    """34 names, each with a template argument that is all before it; ``first`` is the number of what is before."""
    return "".join(f"1cIS{np.base_repr(first + 2 * level, 36)}_E" for level in range(34))


BOMBS = {
    "each type has the last one twice": "_Z1f1AIiiE" + "".join(f"S_IS{DIGITS[n]}_S{DIGITS[n]}_E" for n in range(19)),
    "thrice": "_Z1f1AIiiE" + "".join(f"S_I{f'S{DIGITS[n]}_' * 3}E" for n in range(16)),
    "each name has all of itself before": "_ZN1aI1bE" + _chain(2) + "E",
    "by the arguments of the last template": "_ZN1a1bIiE" + "1cI3fooIT_T_EE" * 30 + "Ev",
    "behind a number that hides what follows": "_ZN1aIXLj4000EEE" + _chain(1) + "E",
    "packs in packs": f"_Z1fI{PACK}EvDpDpDpDpT_",
    "packs behind a name with a number in it": f"_Z5f9000I{PACK}Ev" + "DpFvT_" * 5 + "i" + "E" * 5,
    "Rust, twice each": "_RINvC1a1b" + "".join(f"TB{place}_B{place}_E" for place in "789abcdefghijklmnopqrst") + "E",
    "depth": "_Z1f" + "P" * 4000 + "i",
    "depth of names": "_Z" + "N" * 4000 + "1aE",
    "depth of expressions": "_Z1fIX" + "ng" * 2000 + "Li1EEE",
    "depth in Rust": "_RINvC1a1b" + "R" * 4000 + "aE",
}  # fmt: skip


@pytest.mark.parametrize("bomb", BOMBS.values(), ids=BOMBS)
def test_a_name_that_unfolds(bomb: str) -> None:
    code = f"from {MODULE} import readable; print(len(readable({bomb.encode()!r})), readable(b'_ZN2os6mallocEm'))"
    length, following = in_child(code, seconds=2, mib=400).split()
    assert int(length) <= 1000 and following == "os::malloc"


@pytest.mark.parametrize("levels", [10, 34, 800])
def test_what_a_name_can_unfold_to_is_told_from_its_text(levels: int) -> None:
    name = b"_ZN1aI1bE" + b"1cIS_E" * levels + b"E"
    assert most_unfolded(name) < len(name) ** 2
    doubling = b"_Z1f" + b"T_" * levels
    assert most_unfolded(doubling) > 2**levels


@pytest.mark.parametrize(
    "name",
    [
        b"_ZNSt8_Rb_treeISsSt4pairIKSsS0_ISsSsEESt10_Select1stIS3_ESt4lessISsESaIS3_EE8_M_eraseEPSt13_Rb_tree_nodeIS3_E",
        b"_ZNSt3mapISsSt6vectorISsSaISsEESt4lessISsESaISt4pairIKSsS2_EEEixERS6_",
        b"_ZN13StubGenerator33poly1305_msg_mul_reduce_vec4_avx2E11XMMRegisterS0_S0_7AddressS1_S1_S1_S1_S0_S0_S0_S0_S0_S0_S0_S0"
        b"_S0_S0_S0_S0_8RegisterS2_S2_S2_S2_",
        b"_ZNSt3__18expectedIiiEC2IJEQ18is_constructible_vIT0_DpTL0__EEENS_10unexpect_tEDpOT_",
        b"_ZN4shop5threeIiEEPvT_Qaa3NumIS2_ErQS2__XplfL0p_fL0p_XltfL0p_fL0p_E",
        b"_RNvMs_NtNtCskbEd6xbsJ5x_4pyo38instance2PyNtB4_5PyAnyB6_",
    ],
)
def test_names_that_compilers_write_are_demangled(name: bytes) -> None:
    assert most_unfolded(name) < 1 << 16


@given(
    start=st.sampled_from(["_Z", "_ZN", "_R"]),
    pieces=st.lists(st.sampled_from(["1a", "3foo", "IS_S0_E", "S1_", "T_", "B2_", "B_", "Dp", "J", "fl", "i", "E"])),
    most=st.integers(0, 1 << 12),
)
def test_the_short_way_says_what_the_long_one_does(start: str, pieces: list[str], most: int) -> None:
    name = "".join([start, *pieces]).encode()
    assert unfolds_within(name, most) == (most_unfolded(name) <= most)


def test_names_without_an_end() -> None:
    strings = b"x" * (64 << 20) + b"\0next\0"
    rows = [(16 * number, 16, number, 1) for number in range(1000)] + [(16000, 16, len(strings) - 5, 1)]
    with costs_at_most(2, 8):
        table = SymbolTable.from_entries(np.array(rows, dtype=np.uint64), strings)
        assert not any(table.lookup(16 * number) for number in range(1000))
    assert table.lookup(16000) == b"next"


def test_of_long_names_little_is_kept() -> None:
    with costs_at_most(4, 16):
        shown = {readable(b"%d" % number + b"x" * 1_000_000) for number in range(200)}
    assert len(shown) == 200 and max(map(len, shown)) <= 1000
