# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
from __future__ import annotations

import pytest

from ansible_collections.offheap.profiler.plugins.plugin_utils.model.frame import Frame, Kind, is_allocator_function


@pytest.mark.parametrize(
    ("frame", "label", "group"),
    [
        (Frame("inflate", "libz.so.1"), "inflate", "inflate"),
        (Frame("", "libz.so.1", Kind.NATIVE, 0xBDC5), "libz.so.1+0xbdc5", "libz.so.1"),
        (Frame("", "", Kind.JIT), "[jit]", "[jit]"),
        (Frame("", "", Kind.UNKNOWN), "[unmapped]", "[unmapped]"),
    ],
)
def test_frames_are_named_by_what_is_known(frame: Frame, label: str, group: str) -> None:
    assert (frame.label, frame.group) == (label, group)


@pytest.mark.parametrize(
    ("function", "is_one"),
    [
        ("_mi_prof_on_alloc", True),
        ("_mi_theap_malloc_zero_ex", True),
        ("mi_malloc", True),
        ("mi_new_nothrow", True),
        ("mi_create", False),  # MyISAM's
        ("_mi_writeinfo", False),
    ],
)
def test_mimalloc_s_functions_are_an_allocator_s_and_others_of_its_prefix_are_not(function: str, is_one: bool) -> None:
    assert is_allocator_function(Frame(function, "app")) == is_one
