# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
from __future__ import annotations

import bz2
import contextlib
import gzip
import lzma
import tracemalloc
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.offheap.profiler.plugins.plugin_utils.base import unpack
from ansible_collections.offheap.profiler.plugins.plugin_utils.base.unpack import UnpackError

LIMIT = 64 << 20


def _lz4(content: bytes) -> bytes:
    packed = pyarrow.BufferOutputStream()
    with pyarrow.CompressedOutputStream(packed, "lz4") as stream:
        stream.write(content)
    return bytes(packed.getvalue())


def _piped(content: bytes) -> bytes:
    """As ``zstd`` packs what it gets through a pipe, without its size."""
    packer = zstandard.ZstdCompressor().compressobj()
    return packer.compress(content) + packer.flush()


PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "zstd": zstandard.compress,
    "piped zstd": _piped,
    "lz4": _lz4,
    "xz": lzma.compress,
    "bzip2": bz2.compress,
}


@given(st.binary(max_size=2000), st.sampled_from(sorted(PACKERS)))
def test_what_is_packed_comes_back(content: bytes, packer: str) -> None:
    assert unpack.unpack(PACKERS[packer](content), "x", LIMIT) == content


def test_members_and_frames_follow_each_other() -> None:
    for pack in PACKERS.values():
        assert unpack.unpack(pack(b"a\n") + pack(b"b\n"), "x", LIMIT) == b"a\nb\n"


@pytest.mark.parametrize(
    ("packer", "module", "unpacker"),
    [("gzip", zlib, "decompressobj"), ("xz", lzma, "LZMADecompressor"), ("bzip2", bz2, "BZ2Decompressor")],
)
def test_many_empty_members_are_not_fed_again_and_again(
    packer: str, module: Any, unpacker: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fed, real = [0], getattr(module, unpacker)

    class Counting:
        def __init__(self, *arguments: Any, **more: Any) -> None:
            self._own = real(*arguments, **more)

        def __getattr__(self, name: str) -> Any:
            return getattr(self._own, name)

        def decompress(self, piece: bytes, most: int) -> bytes:
            fed[0] += len(piece)
            return bytes(self._own.decompress(piece, most))

    monkeypatch.setattr(module, unpacker, Counting)
    pack = PACKERS[packer]
    data = pack(b"a\n") + pack(b"") * 20_000 + bytes(1000) + pack(b"b\n")
    assert unpack.unpack(data, "x", LIMIT) == b"a\nb\n"
    assert len(data) <= fed[0] + 1000 < 5 * len(data)


@pytest.mark.parametrize("packer", ["gzip", "xz", "bzip2"])
def test_what_follows_packed_data_is_told(packer: str) -> None:
    with pytest.raises(UnpackError, match=f"x: something follows its {packer} data"):
        unpack.unpack(PACKERS[packer](b"a\n") + b"\0more", "x", LIMIT)


def test_plain_files_are_read_as_they_are(tmp_path: Path) -> None:
    (tmp_path / "x.heap").write_bytes(b"heap_v2/1\n")
    assert unpack.read(tmp_path / "x.heap", LIMIT) == b"heap_v2/1\n"
    with pytest.raises(UnpackError, match=r"x\.heap: is larger than 4 bytes"):
        unpack.read(tmp_path / "x.heap", 4)


@pytest.mark.parametrize("packer", sorted(PACKERS))
def test_data_that_is_cut_off_anywhere_is_refused(packer: str) -> None:
    content = b"".join(b"@ 0x%x\n" % (number * 2654435761 % 2**32) for number in range(60))
    whole = PACKERS[packer](content)
    for end in range(4, len(whole)):
        with pytest.raises(UnpackError):
            unpack.unpack(whole[:end], "x", LIMIT)


def test_a_second_frame_that_is_cut_off_is_refused() -> None:
    whole = zstandard.compress(b"a 1\n" * 1000) + zstandard.compress(bytes(range(256)))
    for end in range(len(whole) - 200, len(whole)):
        with pytest.raises(UnpackError):
            unpack.unpack(whole[:end], "x", LIMIT)


@pytest.mark.parametrize("packer", sorted(PACKERS))
def test_what_was_refused_leaves_nothing_in_memory(packer: str) -> None:
    damaged = PACKERS[packer](b"heap_v2/524288\n")[:-1]
    tracemalloc.start()
    try:
        for _number in range(100):
            with pytest.raises(UnpackError):
                unpack.unpack(damaged, "x", LIMIT)
        assert tracemalloc.get_traced_memory()[0] < 1 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("packer", sorted(PACKERS))
def test_a_bomb_is_refused_before_it_is_in_memory(packer: str) -> None:
    bomb = PACKERS[packer](bytes(64 << 20))
    tracemalloc.start()
    try:
        with pytest.raises(UnpackError, match="unpacks to more than"):
            unpack.unpack(bomb, "x", LIMIT)
        _now, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    dictionary = (9 << 20) if packer == "xz" else 0
    assert peak < 2 * max(unpack.FREE_SIZE, unpack.MOST_RATIO * len(bomb)) + (1 << 20) + dictionary


@given(st.binary(max_size=300), st.sampled_from([b"\x1f\x8b", b"\x1f\x8b\x08\x00", *unpack._UNPACKERS]))
def test_damaged_data_is_our_error(rest: bytes, magic: bytes) -> None:
    with contextlib.suppress(UnpackError):
        unpack.unpack(magic + rest, "x", LIMIT)
