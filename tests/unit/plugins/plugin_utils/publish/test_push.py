# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Which captures are sent, where some cannot be."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from ansible_collections.offheap.profiler.plugins.module_utils.formats.errors import OffheapError
from ansible_collections.offheap.profiler.plugins.plugin_utils.publish.push import push


def pushed(bad: int, good: int, most: int) -> tuple[list[str], Any]:
    captures: Any = [
        (SimpleNamespace(path=f"{kind}{at}"), [])
        for kind, count in (("bad", bad), ("good", good))
        for at in range(count)
    ]
    noted: list[str] = []
    archive: Any = SimpleNamespace(note=lambda capture, _name: noted.append(capture.path))

    def send(capture: Any, _process: Any) -> None:
        if capture.path.startswith("bad"):
            raise OffheapError("it cannot be read")

    return noted, push(archive, SimpleNamespace(key="k"), captures, most, send)  # type: ignore[arg-type]


def test_what_cannot_be_sent_takes_no_place_of_another() -> None:
    noted, done = pushed(bad=3, good=5, most=2)
    assert noted == ["good0", "good1"] and (done.sent, done.left, len(done.problems)) == (2, 6, 3)


def test_so_much_that_cannot_be_sent_is_enough() -> None:
    noted, done = pushed(bad=500, good=5, most=2)
    assert noted == [] and 100 < len(done.problems) < 120


@pytest.mark.parametrize("error", [PermissionError(13, "Permission denied", "/archive/pushed"), OffheapError("denied")])
def test_a_push_that_cannot_note_what_it_sent_stops_and_says_so(error: Exception) -> None:
    def note(_capture: Any, _name: str) -> None:
        raise error

    archive: Any = SimpleNamespace(note=note, where="/archive")
    captures: Any = [(SimpleNamespace(path=f"{at}"), []) for at in range(5)]
    sent: list[str] = []
    server: Any = SimpleNamespace(key="k")
    done = push(archive, server, captures, 5, lambda capture, _process: sent.append(str(capture.path)))
    assert (sent, done.sent, done.left) == (["0"], 1, 4)
    assert "the archive /archive cannot note what was sent" in done.failure and str(error) in done.failure
