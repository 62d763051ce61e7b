# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""A host that keeps a session busy with nothing."""

from __future__ import annotations

import io
import itertools
import struct
import time

import pytest

from ansible_collections.offheap.profiler.plugins.module_utils.formats import limits, wire
from ansible_collections.offheap.profiler.plugins.plugin_utils.fetch import host_session
from ansible_collections.offheap.profiler.tests.hostile.bounds import costs_at_most


@pytest.mark.parametrize("kind", [b"J", b"D"])
def test_empty_messages_for_ever(kind: bytes) -> None:
    heads = itertools.repeat(struct.pack(">cI", kind, 0), 100_000)
    with costs_at_most(0.5, 1), pytest.raises(wire.WireError, match="empty"):
        while True:
            wire.read(lambda count: next(heads) if count else b"", 1 << 20)


MADE_OF = {
    "lists": b"[" + b"[]," * 2_700_000 + b"0]",
    "objects": b"[" + b'{"a":0},' * 1_000_000 + b"0]",
    "texts": b"[" + b'"ab",' * 5_000_000 + b"0]",
    "numbers": b"[" + b"1e9," * 7_000_000 + b"0]",
    "depth": b"[" * 5_000_000,
}


@pytest.mark.parametrize("values", MADE_OF.values(), ids=MADE_OF)
def test_small_messages_that_become_large_objects(values: bytes) -> None:
    body = b'{"captures":' + values + b"}"
    parts = iter([struct.pack(">cI", b"J", len(body)), body])
    with costs_at_most(3, 2), pytest.raises(wire.WireError, match="more values than any expected one"):
        wire.read(lambda _count: next(parts), limits.LARGEST_MESSAGE)


def test_the_largest_listing_that_is_honest() -> None:
    captures = [{"unit": "x.service", "name": f"jeprof.1.{n}.heap", "images": list(range(700))} for n in range(5000)]
    sent: list[bytes] = []
    wire.write_message(sent.append, {"captures": captures})
    stream = io.BytesIO(b"".join(sent))
    read = wire.read(stream.read, limits.LARGEST_MESSAGE)
    assert read is not None and read.message == {"captures": captures}


class Drip:
    """A host that begins a message and sends a byte of it each 29 seconds, by a clock of its own."""

    def __init__(self) -> None:
        self.now = 0.0
        self.sent = 0
        head = [bytes([byte]) for byte in struct.pack(">cI", b"J", 1 << 20)]
        self._blocks = itertools.chain([b"READY\n"], head, itertools.repeat(b" "))

    def send(self, block: bytes) -> None:
        """Takes all."""

    def receive(self, most: int) -> bytes:
        self.now += 29.0
        self.sent += 1
        return next(self._blocks)

    def set_timeout(self, seconds: float) -> None:
        assert seconds > 29.0, "each byte comes in time"

    def close(self) -> None:
        """Nothing to end."""


def test_a_message_that_comes_by_the_byte(monkeypatch: pytest.MonkeyPatch) -> None:
    drip = Drip()
    monkeypatch.setattr(time, "monotonic", lambda: drip.now)
    with host_session.Session(drip, "READY", "", lambda: None) as host:
        before = drip.sent
        with pytest.raises(host_session.SessionError, match="less than 1000 bytes a second"):
            host.ask("find")
        assert drip.sent - before < 10
