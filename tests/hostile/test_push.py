# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Servers of profiles that send us elsewhere, or say what a terminal would obey."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from ansible_collections.offheap.profiler.plugins.plugin_utils.archive.capture import Capture, capture_of
from ansible_collections.offheap.profiler.plugins.plugin_utils.publish import pyroscope
from ansible_collections.offheap.profiler.plugins.plugin_utils.publish.profile_server import Server, ServerError
from ansible_collections.offheap.profiler.tests.unit.plugins.action.test_leak_push import Pyroscope
from ansible_collections.offheap.profiler.tests.unit.plugins.plugin_utils.archive import capture_samples

CAPTURE: Capture = capture_of(Path("capture"), capture_samples.facts())


@pytest.fixture
def servers() -> Iterator[tuple[Pyroscope, Pyroscope]]:
    with Pyroscope() as asked, Pyroscope() as other:
        for one in (asked, other):
            threading.Thread(target=one.serve_forever, daemon=True).start()
        yield asked, other
        for one in (asked, other):
            one.shutdown()


def _to(server: Pyroscope) -> Server:
    return Server(server.url, headers={"Authorization": "Bearer geheim"}, attempts=2, timeout=5)


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect(servers: tuple[Pyroscope, Pyroscope], status: int) -> None:
    asked, other = servers
    asked.answers = [(status, {"Location": f"{other.url}/ingest"})]
    with pytest.raises(ServerError, match="redirects to") as refused:
        pyroscope.push(_to(asked), CAPTURE, b"profile")
    assert refused.value.hopeless and other.requests == []
    pyroscope.push(_to(asked), CAPTURE, b"profile")
    assert len(asked.requests) == 2, "the next is sent"


@pytest.mark.parametrize("status", [302, 400, 403])
def test_what_it_says_stays_text(servers: tuple[Pyroscope, Pyroscope], status: int) -> None:
    asked, _other = servers
    asked.answers = [(status, {"Location": "x\x1b[2Jy\x9b31m"})]
    with pytest.raises(ServerError) as refused:
        pyroscope.push(_to(asked), CAPTURE, b"profile")
    assert str(refused.value).isprintable()
