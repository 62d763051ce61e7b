# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
from __future__ import annotations

import struct

from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.offheap.profiler.plugins.module_utils.runtimes import hsperfdata


def perf_data(*entries: tuple[str, int], first: int = 32) -> bytes:
    body = b""
    for name, value in entries:
        text = name.encode() + b"\0"
        text += b"\0" * (-len(text) % 8)
        head = struct.pack("<3i4ci", 20 + 4 + len(text) + 8, 24, 0, b"J", b"\1", b"\1", b"\1", 24 + len(text))
        body += head + b"\0" * 4 + text + struct.pack("<q", value)
    return b"\xca\xfe\xc0\xc0\1\2\0\1" + b"\0" * 16 + struct.pack("<2i", first, len(entries)) + body


def test_the_numbers_by_name() -> None:
    assert hsperfdata.parse(perf_data(("java.threads.live", 7), ("sun.gc.x", -1))) == {
        "java.threads.live": 7,
        "sun.gc.x": -1,
    }


def test_what_is_no_such_file() -> None:
    assert hsperfdata.parse(b"") == hsperfdata.parse(b"x" * 100) == {}
    assert hsperfdata.parse(perf_data(("a", 1), first=-8)) == {}


@given(st.binary(max_size=200), st.integers(-(2**31), 2**31 - 1), st.integers(-(2**31), 2**31 - 1))
def test_any_bytes(rest: bytes, first: int, count: int) -> None:
    hsperfdata.parse(b"\xca\xfe\xc0\xc0\1\2\0\1" + b"\0" * 16 + struct.pack("<2i", first, count) + rest)
