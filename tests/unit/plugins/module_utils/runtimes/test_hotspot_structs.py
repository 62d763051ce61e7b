# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Another process's memory: real libraries, and memory that contradicts itself. For JVMs, see tests/agent."""

from __future__ import annotations

import ctypes
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.offheap.profiler.plugins.module_utils.host import procfs
from ansible_collections.offheap.profiler.plugins.module_utils.runtimes.hotspot_structs import (
    Library,
    Memory,
    VmError,
    VmStructs,
)


@pytest.fixture
def own() -> Iterator[Memory]:
    fd = os.open("/proc/self/mem", os.O_RDONLY)
    yield Memory(fd)
    os.close(fd)


def _libc() -> int:
    return min(
        mapping.start
        for mapping in procfs.mappings(os.getpid())
        if Path(mapping.path).name.startswith(("libc.so", "libc-"))
    )


@pytest.mark.parametrize("name", ["malloc", "getppid", "environ", "qsort"])
def test_symbols_are_where_the_loader_finds_them(own: Memory, name: str) -> None:
    libc = ctypes.CDLL("libc.so.6")  # a Python at a fixed address has some of them itself
    there = ctypes.cast(getattr(libc, name), ctypes.c_void_p).value
    if name == "environ":
        there = ctypes.addressof(ctypes.c_void_p.in_dll(libc, name))
    assert Library(own, _libc()).address(name) == there


def test_what_is_not_there(own: Memory) -> None:
    library = Library(own, _libc())
    with pytest.raises(VmError, match="no gHotSpotVMStructs"):
        library.number("gHotSpotVMStructs")
    with pytest.raises(VmError, match="gHotSpotVMStruct"):
        VmStructs(own, _libc())
    for address in (0, 8, 1 << 62, (1 << 64) - 8, -8):
        with pytest.raises(VmError):
            own.read(address, 8)


@given(st.binary(min_size=64, max_size=4096), st.integers(0, 63))
def test_any_memory_is_read_to_an_end(content: bytes, header: int) -> None:
    with tempfile.TemporaryFile() as file:
        file.write(b"\0" * 64 + b"\x7fELF\x02\x01" + content[:header] + content)
        file.flush()
        with pytest.raises(VmError):
            VmStructs(Memory(file.fileno()), 64)


def test_a_text_without_an_end() -> None:
    with tempfile.TemporaryFile() as file:
        file.write(b"x" * 1000)
        file.flush()
        with pytest.raises(VmError, match="does not end"):
            Memory(file.fileno()).text(1)
