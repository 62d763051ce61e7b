# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Which stack of the same code tells most about a path."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.offheap.profiler.plugins.plugin_utils.leaks.inlining import is_inlined, least_inlined

INLINED = ("inflate", "j.Inflater.inflate", "j.Task.run", "j.Pool.runWorker", "Interpreter", "start_thread")
WHOLE = ("inflate", "j.Inflater.inflate", "Shop.serve", "Shop.handle", "j.Task.run", "Interpreter", "start_thread")
OTHER = ("inflate", "j.Inflater.inflate", "Shop.pack", "j.Other.run", "Interpreter", "start_thread")


def test_the_stack_that_names_most() -> None:
    assert least_inlined(INLINED, {INLINED: 100.0, WHOLE: 20.0, OTHER: 90.0}) == WHOLE
    assert least_inlined(INLINED, {INLINED: 100.0, WHOLE: 1.0}) == INLINED, "hardly there"
    assert least_inlined(INLINED, {INLINED: 100.0, OTHER: 90.0}) == INLINED, "another path"
    assert least_inlined(WHOLE, {INLINED: 100.0, WHOLE: 20.0}) == WHOLE
    assert least_inlined(WHOLE, {}) == WHOLE


NAMES = st.lists(st.sampled_from(["a", "b", "j.c", "j.d", "Interpreter"]), max_size=8)


@given(NAMES, st.data())
def test_leaving_out_names_is_inlining(names: list[str], data: st.DataObject) -> None:
    kept = data.draw(st.lists(st.booleans(), min_size=len(names), max_size=len(names)))
    assert is_inlined([name for name, keep in zip(names, kept, strict=True) if keep], names)
