# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""What is shown while a live trace runs."""

from __future__ import annotations

import time

import pytest

from ansible_collections.offheap.profiler.console.traced import Windows
from ansible_collections.offheap.profiler.plugins.plugin_utils.fetch.host_session import SessionError


def test_a_trace_says_in_which_window_it_is_and_how_long_the_rest_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    windows = Windows(30, 6)
    assert windows.text() == "", "what is prepared before is no window"
    now[0] += 12
    windows.begin(b"begun")
    told = []
    for gone in (0, 29.5, 30, 150, 179.2, 200):
        now[0] = 1012.0 + gone
        told.append(windows.text())
    assert told == [
        "window 1 of 6, 3 min left",
        "window 1 of 6, 2 min left",
        "window 2 of 6, 2 min left",
        "window 6 of 6, 30 s left",
        "window 6 of 6, 0 s left",
        "window 6 of 6, 0 s left",
    ]


def test_a_host_cannot_make_us_wait_by_beginning_again_and_again() -> None:
    windows = Windows(30, 6)
    windows.begin(b"begun")
    with pytest.raises(SessionError, match="began twice"):
        windows.begin(b"begun")
