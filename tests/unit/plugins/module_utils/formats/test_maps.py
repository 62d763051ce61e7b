# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Lines of maps: what the kernel writes is read, whatever a path holds, and anything else is refused."""

from __future__ import annotations

import contextlib
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.offheap.profiler.plugins.module_utils.formats import maps

# The kernel writes a newline as \012, so a path that contains this text itself is ambiguous.
PATHS = st.binary(max_size=60).map(lambda path: b"/" + path.replace(b"\0", b"").replace(b"\\012", b""))


@given(
    st.lists(st.integers(0, (1 << 64) - 1), min_size=2, max_size=2, unique=True).map(sorted),
    st.tuples(*map(st.sampled_from, ("r-", "w-", "x-", "ps"))).map("".join),
    st.integers(0, (1 << 64) - 1),
    PATHS,
    st.booleans(),
)
def test_every_line_of_the_kernel_is_read(
    bounds: list[int], permissions: str, offset: int, path: bytes, deleted: bool
) -> None:
    start, end = bounds
    written = path.replace(b"\n", b"\\012") + (b" (deleted)" if deleted else b"")
    line = b"%08x-%08x %s %08x fd:01 4711" % (start, end, permissions.encode(), offset)
    mapping = maps.parse_line(line.ljust(73) + written)
    if not deleted and path.endswith(b" (deleted)"):
        return
    assert mapping == maps.Mapping(start, end, permissions, offset, os.fsdecode(path), deleted)
    assert (mapping.device, mapping.inode) == ("fd:01", 4711)
    assert mapping.executable is ("x" in permissions)


@pytest.mark.parametrize("line", [b"7f00-7f01 r-xp 00000000 00:00 0", b"7f00-7f01 r-xp 00000000 00:00 0 "])
def test_anonymous_memory(line: bytes) -> None:
    mapping = maps.parse_line(line)
    assert mapping.path == "" and mapping.file_less and not mapping.is_file


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"7f00 r-xp 00000000 00:00 0",
        b"7f00-7f01 rxxp 00000000 00:00 0",
        b"7f00-7f01 r-xp 0 00:00",
        b"7f00-7f01 r-xp 0 00:00 0\n",
        b"7F00-7f01 r-xp 0 00:00 0",
        b"12345678123456781-7f01 r-xp 0 00:00 0",
        b"7f00-7f01 r-xp 0 00:00 0/lib",
        b"7f01-7f00 r-xp 00000000 00:00 0",
        b"7f00-7f00 r-xp 00000000 00:00 0",
    ],
)
def test_what_is_no_line(line: bytes) -> None:
    with pytest.raises(maps.MapsError):
        maps.parse_line(line)


def test_a_text() -> None:
    text = b"1000-2000 r--p 0 00:00 0\n2000-3000 r-xp 1000 08:01 7   /lib/libc.so\n"
    first, second = maps.parse(text)
    assert (first.end, second.path, second.range_name) == (0x2000, "/lib/libc.so", "2000-3000")
    with pytest.raises(maps.MapsError, match="nonsense"):
        maps.parse(text + b"nonsense\n")


@pytest.mark.parametrize(
    ("path", "file_less", "shared"),
    [
        ("", True, False),
        ("[heap]", True, False),
        ("[stack]", True, False),
        ("[stack:12]", True, False),
        ("[anon:v8]", True, False),
        ("[anon_shmem:x]", True, True),
        ("//anon", True, False),
        ("/anon_hugepage", True, False),
        ("/[aio]", True, False),
        ("/memfd:doublemapper", True, True),
        ("/dev/zero", True, True),
        ("/dev/shm/x", True, True),
        ("/SYSV00000000", True, True),
        ("[vdso]", False, False),
        ("/usr/lib/libc.so.6", False, False),
        ("/memory.so", False, False),
    ],
)
def test_memory_without_a_file(path: str, file_less: bool, shared: bool) -> None:
    assert maps.is_file_less(path) is file_less
    assert maps.is_shared(path) is shared
    mapping = maps.Mapping(0, 1, "r-xp", 0, path, False, "08:01", 7)
    assert mapping.is_file is (not file_less and path.startswith("/"))


@given(st.binary(max_size=120))
def test_anything_is_read_or_refused(line: bytes) -> None:
    with contextlib.suppress(maps.MapsError):
        maps.parse(line)


@pytest.mark.parametrize(
    "line",
    [
        b"7f00-7f01 rw-s 00000000 00:01 1027                       /memfd:java (deleted)",
        b"7f00-7f01 rw-s 00000000 00:0e 2056                       anon_inode:[perf_event]",
        b"7f00-7f01 rw-p 00000000 00:00 0                          /without/an/inode",
    ],
)
def test_what_is_no_file(line: bytes) -> None:
    assert not maps.parse_line(line).is_file
