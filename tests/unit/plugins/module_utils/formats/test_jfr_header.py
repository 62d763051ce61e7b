# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""What is finished of a recording, by the headers of its chunks."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.offheap.profiler.plugins.module_utils.formats import jfr_header
from ansible_collections.offheap.profiler.plugins.module_utils.formats.jfr_header import HEADER, MAGIC, JfrError

CHUNK = HEADER.pack(MAGIC, 2, 0, 100, 70, 68, 0, 0, 0, 1, 1) + bytes(32)
BEGUN = HEADER.pack(MAGIC, 2, 0, 1 << 30, 0, 0, 0, 0, 0, 1, 1) + bytes(7)


def finished(data: bytes) -> int:
    return jfr_header.finished(lambda count, offset: data[offset : offset + count], len(data))


@pytest.mark.parametrize("rest", [b"", BEGUN, BEGUN[:30]])
@pytest.mark.parametrize("count", [0, 1, 3])
def test_up_to_the_last_finished_chunk(count: int, rest: bytes) -> None:
    assert finished(count * CHUNK + rest) == count * 100


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"HEAP" + CHUNK[4:], "does not begin as one"),
        (CHUNK + b"x" * 68, "does not begin as one"),
        (CHUNK[:-1], "is cut off"),
        (CHUNK[:8] + struct.pack(">q", 68) + CHUNK[16:], "is cut off"),
        (CHUNK[:8] + struct.pack(">q", -1) + CHUNK[16:], "is cut off"),
        (CHUNK[:4] + b"\0\0\0\x09" + CHUNK[8:], "of JDK 7 or 8, which is too old"),
        (CHUNK[:4] + b"\0\7" + CHUNK[6:], "does not begin as one"),
        (CHUNK * (jfr_header.MOST_CHUNKS + 1), "more than 32768 chunks"),
    ],
)
def test_what_is_no_recording(data: bytes, says: str) -> None:
    with pytest.raises(JfrError, match=says):
        finished(data)


@given(st.binary(max_size=200))
def test_any_bytes(noise: bytes) -> None:
    try:
        assert finished(CHUNK + noise) <= 100 + len(noise)
    except JfrError as error:
        assert str(error).isprintable()
