# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""What a hostile target could send instead of a packed file."""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import resource
import tarfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from ansible_collections.offheap.profiler.plugins.module_utils.formats.wire import PACKED
from ansible_collections.offheap.profiler.plugins.module_utils.spool import pack
from ansible_collections.offheap.profiler.plugins.plugin_utils.fetch import unpack_tar

MIB = 1 << 20
ANNOUNCED = {"dumps/0": 5, "dumps/1": 3}


def tar(*members: tuple[tarfile.TarInfo, bytes], form: int = tarfile.GNU_FORMAT) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=form) as archive:
        for info, content in members:
            archive.addfile(info, io.BytesIO(content))
    return stream.getvalue()


def member(name: str, content: bytes = b"", **fields: object) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.size = len(content)
    for field, value in fields.items():
        setattr(info, field, value)
    return info, content


PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "zstd": zstandard.ZstdCompressor(write_checksum=True).compress,
}
GOOD = (member("dumps/0", b"first"), member("dumps/1", b"two"))


def unpack(directory: Path, content: bytes, compressed: bool = True) -> dict[str, Path]:
    source = directory / "packed"
    source.write_bytes(zstandard.compress(content) if compressed else content)
    return unpacked(source, directory / "target", ANNOUNCED)


def unpacked(source: Path, target: Path, announced: Mapping[str, int]) -> dict[str, Path]:
    """The members' files, in a directory that may not exist yet."""
    target.mkdir(exist_ok=True)
    files: dict[str, Path] = {}

    def opened(member: str) -> IO[bytes]:
        files[member] = target / str(len(files))
        return files[member].open("xb")

    unpack_tar.unpack(source, announced, opened)
    return files


def written(directory: Path) -> int:
    return sum(path.stat().st_size for path in (directory / "target").iterdir())


def test_what_our_own_packing_makes(tmp_path: Path) -> None:
    staged = tmp_path / "staging"
    staged.mkdir(mode=0o700)
    content = {"dumps/0": os.urandom(3 * MIB), "images/ab": b"", "dumps/1": b"x" * 513}
    items = []
    for number, (name, data) in enumerate(content.items()):
        path = tmp_path / str(number)
        path.write_bytes(data)
        items.append(pack.Item(name, lambda path=path: os.open(path, os.O_RDONLY)))  # type: ignore[misc]
    packed = pack.pack(str(staged), items, 0)
    unpack_tar.verify(staged / PACKED, packed["size"], packed["sha256"])
    files = unpacked(staged / PACKED, tmp_path / "target", packed["members"])
    assert {name: path.read_bytes() for name, path in files.items()} == content


@pytest.mark.parametrize("pack", PACKERS)
def test_good(tmp_path: Path, pack: str) -> None:
    files = unpack(tmp_path, PACKERS[pack](tar(*GOOD)), compressed=False)
    assert {name: path.read_bytes() for name, path in files.items()} == {"dumps/0": b"first", "dumps/1": b"two"}


ATTACKS: dict[str, tuple[tuple[tarfile.TarInfo, bytes], ...]] = {
    "path traversal": (*GOOD, member("../../../../tmp/evil", b"evil")),
    "absolute path": (*GOOD, member("/etc/cron.d/evil", b"evil")),
    "unknown name": (*GOOD, member("dumps/2", b"evil")),
    "symbolic link": (member("dumps/0", type=tarfile.SYMTYPE, linkname="/etc/passwd"), GOOD[1]),
    "hard link": (GOOD[0], member("dumps/1", type=tarfile.LNKTYPE, linkname="dumps/0")),
    "device": (GOOD[0], member("dumps/1", type=tarfile.CHRTYPE, devmajor=1, devminor=5)),
    "FIFO": (GOOD[0], member("dumps/1", type=tarfile.FIFOTYPE)),
    "directory": (member("dumps/0", type=tarfile.DIRTYPE), *GOOD),
    "larger than announced": (member("dumps/0", b"first and more"), GOOD[1]),
    "smaller than announced": (member("dumps/0", b"1"), GOOD[1]),
    "twice": (*GOOD, member("dumps/0", b"again")),
    "missing": (GOOD[0],),
    "nothing": (),
    "long name": (*GOOD, member("d" * 5000, b"evil")),
}


@pytest.mark.parametrize("attack", ATTACKS)
@pytest.mark.parametrize("form", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT, tarfile.USTAR_FORMAT])
def test_attacks(tmp_path: Path, attack: str, form: int) -> None:
    if attack == "long name" and form == tarfile.USTAR_FORMAT:
        pytest.skip("that format has no long names")
    with pytest.raises(unpack_tar.TransferError):
        unpack(tmp_path, tar(*ATTACKS[attack], form=form))
    assert written(tmp_path) <= sum(ANNOUNCED.values())
    assert all(path.is_file() and not path.is_symlink() for path in (tmp_path / "target").iterdir())


def test_size_in_an_extended_header(tmp_path: Path) -> None:
    """A pax header can claim gigabytes, which tarfile would read into memory."""
    pax = tarfile.TarInfo("dumps/0")
    pax.type = tarfile.XHDTYPE
    pax.size = (8 << 30) - 1
    with pytest.raises(unpack_tar.TransferError, match="not an ordinary file"):
        unpack(tmp_path, pax.tobuf(tarfile.USTAR_FORMAT) + bytes(10240))


@pytest.mark.parametrize("pack", PACKERS)
def test_a_bomb_behind_the_end(tmp_path: Path, pack: str) -> None:
    bomb = tmp_path / "packed"
    with gzip.open(bomb, "wb", compresslevel=1) if pack == "gzip" else zstandard.open(bomb, "wb") as stream:
        stream.write(tar(*GOOD))
        for _block in range(200):
            stream.write(bytes(MIB))
    assert bomb.stat().st_size < 2 * MIB
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(unpack_tar.TransferError, match="continues after its end"):
        unpacked(bomb, tmp_path / "target", ANNOUNCED)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 20 * 1024


@pytest.mark.parametrize(
    "damage",
    [
        lambda packed: packed[: len(packed) // 2],
        lambda packed: packed[:-4],
        lambda packed: b"",
        lambda packed: b"this is no gzip file, but an error message of some proxy",
        lambda packed: packed[:40] + bytes(8) + packed[48:],
        lambda packed: packed + b"something behind it",
    ],
    ids=["half", "without its checksum", "nothing", "other text", "bytes overwritten", "bytes added"],
)
@pytest.mark.parametrize("pack", PACKERS)
def test_damage(tmp_path: Path, damage: Callable[[bytes], bytes], pack: str) -> None:
    with pytest.raises(unpack_tar.TransferError):
        unpack(tmp_path, damage(PACKERS[pack](tar(*GOOD))), compressed=False)


def test_a_window_larger_than_our_own_packing_needs(tmp_path: Path) -> None:
    """What unpacks it would take as much memory as the window has."""
    wide = zstandard.ZstdCompressionParameters(window_log=27, write_content_size=False)
    packer = zstandard.ZstdCompressor(compression_params=wide).compressobj()
    with pytest.raises(unpack_tar.TransferError, match="damaged"):
        unpack(tmp_path, packer.compress(tar(*GOOD)) + packer.flush(), compressed=False)


@settings(max_examples=300)
@given(st.lists(st.tuples(st.integers(0, 3 * 512), st.binary(min_size=1, max_size=12)), min_size=1, max_size=5))
def test_any_damage_of_the_tar_raises_one_kind_of_error(
    tmp_path_factory: pytest.TempPathFactory, writes: list[tuple[int, bytes]]
) -> None:
    directory = tmp_path_factory.mktemp("damage")
    content = bytearray(tar(*GOOD))
    for place, block in writes:
        content[place : place + len(block)] = block
    try:
        files = unpack(directory, bytes(content))
    except unpack_tar.TransferError:
        return
    assert {name: path.stat().st_size for name, path in files.items()} == ANNOUNCED


def test_verify(tmp_path: Path) -> None:
    path = tmp_path / "packed"
    path.write_bytes(b"content")
    unpack_tar.verify(path, 7, hashlib.sha256(b"content").hexdigest())
    with pytest.raises(unpack_tar.TransferError, match="7 of 9 bytes arrived"):
        unpack_tar.verify(path, 9, hashlib.sha256(b"content").hexdigest())
    with pytest.raises(unpack_tar.TransferError, match="checksum"):
        unpack_tar.verify(path, 7, "0" * 64)


def test_room(tmp_path: Path) -> None:
    unpack_tar.check_room(tmp_path, 1)
    with pytest.raises(unpack_tar.TransferError, match="make room"):
        unpack_tar.check_room(tmp_path, 1 << 60)
