# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Finished and cut-off dumps: real ones, and what disks and versions can do to them."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.offheap.profiler.plugins.module_utils.formats import maps
from ansible_collections.offheap.profiler.plugins.module_utils.host import process_key, procfs
from ansible_collections.offheap.profiler.plugins.module_utils.spool import dump
from ansible_collections.offheap.profiler.tests.unit.plugins.module_utils.malloc import jemalloc_process


@pytest.fixture(scope="module")
def spool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    directory = tmp_path_factory.mktemp("spool")
    with jemalloc_process.running(directory):
        yield directory


@pytest.fixture(scope="module")
def real(spool: Path) -> bytes:
    return jemalloc_process.dumps(spool)[0].read_bytes()


def read(directory: Path, content: bytes) -> dump.Content:
    path = directory / "dump"
    path.write_bytes(content)
    fd = os.open(path, os.O_RDONLY)
    try:
        return dump.read(fd, len(content))
    finally:
        os.close(fd)


def test_a_finished_dump(tmp_path: Path, real: bytes) -> None:
    content = read(tmp_path, real)
    assert content.sha256 == hashlib.sha256(real).hexdigest()
    assert any(mapping.path.endswith("libjemalloc.so.2") and mapping.executable for mapping in content.mappings)


def test_the_same_process_has_the_same_fingerprint_and_another_has_not(spool: Path, tmp_path: Path) -> None:
    def seen(directory: Path) -> set[tuple[str, str | None]]:
        paths = jemalloc_process.dumps(directory)
        assert len(paths) > 1
        return {
            (path.name.split(".")[1], process_key.fingerprint(read(tmp_path, path.read_bytes()).mappings))
            for path in paths
        }

    (pid, fingerprint), *others = seen(spool)
    assert not others, "all dumps of one process have the same"
    assert fingerprint == process_key.fingerprint(procfs.mappings(int(pid))), "and the living process has it"
    with jemalloc_process.running(tmp_path):
        assert fingerprint not in {other for _pid, other in seen(tmp_path)}


def test_fingerprint_of_a_heap_that_grows_below_the_program() -> None:
    """As in a JVM, whose heap is the first mapping and grows."""
    rest = b"7fb09a2dd000-7fb09a2df000 r-xp 00000000 00:00 0 [vdso]\n"
    before = maps.parse(b"f8000000-f9000000 rw-p 00000000 00:00 0 \n" + rest)
    after = maps.parse(b"f8000000-fd800000 rw-p 00000000 00:00 0 \n" + rest)
    assert process_key.fingerprint(before) is not None
    assert process_key.fingerprint(before) == process_key.fingerprint(after)


def test_fingerprint_without_vdso() -> None:
    small = maps.parse(b"7fff46053000-7fff46074000 rw-p 00000000 00:00 0 [stack]\n")
    large = maps.parse(b"7fff46000000-7fff46074000 rw-p 00000000 00:00 0 [stack]\n")
    assert process_key.fingerprint(small) is not None
    assert process_key.fingerprint(small) == process_key.fingerprint(large), "a stack grows downwards"
    assert process_key.fingerprint([]) is None


def test_every_shorter_dump_is_incomplete(tmp_path: Path, real: bytes) -> None:
    vdso = real.index(b"[vdso]")
    for length in (
        0,
        1,
        8,
        12,
        100,
        4096,
        len(real) // 2,
        real.index(b"MAPPED"),
        real.index(b"MAPPED") + 30,
        vdso - 40,
        vdso,
    ):
        with pytest.raises(dump.DumpError) as caught:
            read(tmp_path, real[:length])
        assert not caught.value.finished, f"{length}: {caught.value}"


@given(st.data())
def test_cut_anywhere(tmp_path_factory: pytest.TempPathFactory, real: bytes, data: st.DataObject) -> None:
    length = data.draw(st.integers(0, real.index(b"[vdso]")))
    with pytest.raises(dump.DumpError):
        read(tmp_path_factory.getbasetemp(), real[:length])


@pytest.mark.parametrize(
    "header", [b"heap_v3/524288\n", b"heap profile:  1: 2 [ 1: 2] @ heapprofile\n", b"\x7fELF" + bytes(60) + b"\n"]
)
def test_another_format(tmp_path: Path, real: bytes, header: bytes) -> None:
    with pytest.raises(dump.DumpError, match="not heap_v2") as caught:
        read(tmp_path, header + real[real.index(b"\n") + 1 :])
    assert caught.value.finished


def test_damaged_mappings(tmp_path: Path, real: bytes) -> None:
    damaged = re.sub(rb"MAPPED_LIBRARIES:\n", b"MAPPED_LIBRARIES:\nwhat is this\n", real)
    with pytest.raises(dump.DumpError, match="damaged") as caught:
        read(tmp_path, damaged)
    assert caught.value.finished


def test_a_dump_that_shrinks_while_it_is_read(tmp_path: Path, real: bytes) -> None:
    path = tmp_path / "dump"
    path.write_bytes(real)
    fd = os.open(path, os.O_RDONLY)
    with contextlib.closing(os.fdopen(fd)), pytest.raises(dump.DumpError, match="shorter"):
        dump.read(fd, len(real) + 1)


@pytest.mark.parametrize("before", [(1 << 20) - 19, (1 << 20) - 10, (1 << 20) - 1, 1 << 20])
def test_marker_across_the_blocks_that_are_read(tmp_path: Path, real: bytes, before: int) -> None:
    head = b"heap_v2/4096\n"
    filler = head + b" " * (before - len(head) - 1) + b"\n"
    content = read(tmp_path, filler + real[real.index(b"MAPPED_LIBRARIES") :])
    assert content.mappings


def test_an_endless_list_of_mappings(tmp_path: Path) -> None:
    line = b"7f0000000000-7f0000001000 r--p 00000000 00:00 0 " + b"x" * 400 + b"\n"
    with pytest.raises(dump.DumpError, match="longer than"):
        read(tmp_path, b"heap_v2/4096\n\nMAPPED_LIBRARIES:\n" + line * 50000)


def test_the_addresses_of_all_stacks_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "dump"
    path.write_bytes(
        b"heap_v2/1\n  t*: 1: 8 [0: 0]\n@ 0x10 0xffffffffffffffff\n  t*: 1: 8 [0: 0]\n@ 0x10 0x20\n"
        b"@ 0x11111111111111111\n@ junk\n\nMAPPED_LIBRARIES:\n@ 0x30\n"
    )
    with path.open("rb") as stream:
        assert dump.addresses(stream.fileno(), path.stat().st_size) == {0x10, 0x20, (1 << 64) - 1}
