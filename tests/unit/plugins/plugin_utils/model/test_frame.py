# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
from __future__ import annotations

import pytest

from ansible_collections.offheap.profiler.plugins.plugin_utils.model.frame import Frame, Kind


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
