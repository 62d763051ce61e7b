# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Frames: what was written can be read, and anything else is refused before it is read in."""

from __future__ import annotations

import io
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.offheap.profiler.plugins.module_utils.formats import wire

JSON = st.dictionaries(st.text(), st.none() | st.booleans() | st.integers() | st.text() | st.lists(st.text()))


@given(st.lists(JSON | st.binary(min_size=1, max_size=2000)))
def test_what_was_written_is_read(items: list[dict[str, Any] | bytes]) -> None:
    stream = io.BytesIO()
    for item in items:
        if isinstance(item, bytes):
            wire.write_data(stream.write, item)
        else:
            wire.write_message(stream.write, item)
    stream.seek(0)
    for item in items:
        frame = wire.read(stream.read, 1 << 20)
        assert frame == (wire.Part(None, item) if isinstance(item, bytes) else wire.Part(item, b""))
    assert wire.read(stream.read, 1 << 20) is None


def test_data_larger_than_a_block_comes_in_several() -> None:
    stream = io.BytesIO()
    content = bytes(range(256)) * 4096
    wire.write_data(stream.write, content)
    stream.seek(0)
    parts = []
    while (frame := wire.read(stream.read, 0)) is not None:
        parts.append(frame.data)
    assert b"".join(parts) == content and max(map(len, parts)) == wire.BLOCK


@given(st.binary(max_size=64))
def test_noise_is_refused(noise: bytes) -> None:
    stream = io.BytesIO(noise)
    try:
        while wire.read(stream.read, 1 << 10) is not None:
            pass
    except wire.WireError:
        pass


@pytest.mark.parametrize(
    ("sent", "message"),
    [
        (struct.pack(">cI", b"J", 1 << 30), "larger than any"),
        (struct.pack(">cI", b"D", wire.BLOCK + 1), "larger than any"),
        (struct.pack(">cI", b"J", 10) + b"{}", "ends within"),
        (struct.pack(">cI", b"J", 2) + b"[]", "not a JSON object"),
        (struct.pack(">cI", b"J", 3) + b"\xff{}", "not JSON"),
        (b"Last login: Mon", "not the head"),
        (b"J\0", "ends within"),
    ],
)
def test_each_way_to_be_wrong(sent: bytes, message: str) -> None:
    def read(length: int) -> bytes:
        assert length < 1 << 20, "nothing is read before its length was checked"
        return stream.read(length)

    stream = io.BytesIO(sent)
    with pytest.raises(wire.WireError, match=message):
        wire.read(read, 1 << 20)
