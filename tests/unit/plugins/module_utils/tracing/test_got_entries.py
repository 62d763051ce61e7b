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
