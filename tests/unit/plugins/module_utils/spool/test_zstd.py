# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""What the host's libzstd packs, read by another implementation, and hosts that have none that is new enough."""

from __future__ import annotations

import os

import pytest
import zstandard

from ansible_collections.offheap.profiler.plugins.module_utils.spool import zstd

BLOCK = 1 << 17


def unpacked(content: bytes) -> bytes:
    unpacker = zstandard.ZstdDecompressor().decompressobj()
    found = unpacker.decompress(content)
    assert unpacker.eof and not unpacker.unused_data, "one frame, whole"
    return found


@pytest.mark.parametrize(
    "blocks",
    [
        [],
        [b""],
        [b"one"],
        [b"@ 0x1 0x2\n" * 5000] * 40,
        [os.urandom(BLOCK)] * 3 + [os.urandom(3 * BLOCK + 1)],
    ],
    ids=["nothing", "empty", "short", "shrinks", "does not shrink"],
)
def test_it_comes_back(blocks: list[bytes]) -> None:
    out: list[bytes] = []
    with zstd.Writer(zstd.library(), out.append) as packer:
        for block in blocks:
            assert packer.write(block) == len(block)
    assert unpacked(b"".join(out)) == b"".join(blocks)
    assert all(out), "no empty block is sent"


def test_what_is_broken_off_is_no_frame() -> None:
    out: list[bytes] = []
    with pytest.raises(OSError, match="gone"), zstd.Writer(zstd.library(), out.append) as packer:
        packer.write(os.urandom(3 * BLOCK))
        raise OSError("gone")
    unpacker = zstandard.ZstdDecompressor().decompressobj()
    unpacker.decompress(b"".join(out))
    assert not unpacker.eof


def test_no_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zstd, "_LIBRARY", "libthere-is-none.so.1")
    assert zstd.library() is None


def test_a_library_without_the_stable_interface(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zstd, "_LIBRARY", "libc.so.6")
    assert zstd.library() is None
