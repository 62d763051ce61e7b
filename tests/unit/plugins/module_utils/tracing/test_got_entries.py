# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Objects come and go while what leads into a library is counted."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

import pytest

from ansible_collections.offheap.profiler.plugins.module_utils.formats import elf_headers
from ansible_collections.offheap.profiler.plugins.module_utils.host import procfs
from ansible_collections.offheap.profiler.plugins.module_utils.tracing import got_entries

PID = os.getpid()


def fails(monkeypatch: pytest.MonkeyPatch, times: int) -> None:
    """The next so many objects cannot be read, as those that were closed."""
    read, left = elf_headers.read, [None] * times

    def reading(source: Any, content: bytes | None = None) -> elf_headers.Headers:
        if left:
            left.pop()
            raise elf_headers.ElfError("No such file or directory")
        return read(source, content)

    monkeypatch.setattr(elf_headers, "read", reading)


def test_one_that_was_closed_and_is_back_at_its_place_is_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    (first, *_rest) = procfs.mapped_files(PID)[os.path.realpath("/proc/self/exe")]
    fails(monkeypatch, 2)
    assert got_entries._headers(PID, first, "/proc") is not None
    fails(monkeypatch, 100)
    with pytest.raises(elf_headers.ElfError):
        got_entries._headers(PID, first, "/proc")


def test_one_that_was_closed_leads_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    (first, *_rest) = procfs.mapped_files(PID)[os.path.realpath("/proc/self/exe")]
    fails(monkeypatch, 1)
    assert got_entries._headers(PID, replace(first, start=1 << 12), "/proc") is None


def test_what_headers_say_of_sizes_is_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    mappings = procfs.mapped_files(PID)[os.path.realpath("/proc/self/exe")]
    true = list(got_entries._written(PID, mappings, "/proc"))
    headers = got_entries._headers(PID, mappings[0], "/proc")
    assert headers is not None and sum(size for _start, size in true) > 100
    written = [one for one in headers.programs if one.flags & elf_headers.PF_W and one.type == elf_headers.PT_LOAD]
    many = [*headers.programs, *[one._replace(size=1 << 40) for one in written] * 60_000]
    monkeypatch.setattr(got_entries, "_headers", lambda *_arguments: replace(headers, programs=many))
    found = list(got_entries._written(PID, mappings, "/proc"))
    assert sum(size for _start, size in found) <= sum(one.end - one.start for one in mappings)
    assert {start for start, _size in true} <= {start for start, _size in found}
