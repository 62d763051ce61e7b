# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Entries of smaps: each is read, whatever its path, and any other text is refused."""

from __future__ import annotations

import io
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.offheap.profiler.plugins.module_utils.host import procfs, regions
from ansible_collections.offheap.profiler.plugins.module_utils.host.regions import Region

ENTRY = """{start:x}-{end:x} {perms} 00000000 00:00 0                          {path}
Size:              {size} kB
KernelPageSize:        4 kB
MMUPageSize:           4 kB
Rss:                 {rss} kB
Pss:                 {rss} kB
Shared_Clean:          0 kB
Private_Dirty:       {rss} kB
Anonymous:           {rss} kB
Swap:                  {swap} kB
SwapPss:               0 kB
Locked:                0 kB
THPeligible:           0
VmFlags: rd wr mr mw me ac
"""


def _text(*entries: Region) -> bytes:
    return "".join(
        ENTRY.format(
            start=region.start,
            end=region.end,
            perms=region.permissions,
            path=region.path,
            size=region.size >> 10,
            rss=region.rss >> 10,
            swap=region.swap >> 10,
        )
        for region in entries
    ).encode()


@given(st.lists(st.tuples(st.integers(1, 40), st.integers(0, 40), st.text("ab /[]()-:x", max_size=30)), max_size=40))
def test_every_entry_is_read_whatever_its_path(rows: list[tuple[int, int, str]]) -> None:
    entries, at = [], 0x10000
    for pages, resident, path in rows:
        entries.append(Region(at, at + pages * 4096, "rw-p", path.strip(), resident * 1024, resident * 1024, 0))
        at += (pages + 1) * 4096
    assert list(regions.parse(io.BytesIO(_text(*entries)))) == entries


def test_a_text_that_is_no_map_is_refused() -> None:
    with pytest.raises(procfs.ProcfsError, match="not an entry"):
        list(regions.parse(io.BytesIO(b"x" * (2 << 20))))


def test_a_text_without_an_end_takes_as_long_as_it_is() -> None:
    head, lines = _text(Region(0x1000, 0x2000, "rw-p", "", 0, 0, 0)).split(b"\n", 1)[0], b"Rss: 1 kB\nPss: 1 kB\n"
    began = time.process_time()
    assert list(regions.parse(io.BytesIO(head + b"\n" + lines * 20_000))) == []
    assert time.process_time() - began < 5
