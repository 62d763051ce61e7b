# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""ELF files whose sections all claim the same megabyte of notes."""

from __future__ import annotations

import struct

import pytest

from ansible_collections.offheap.profiler.plugins.module_utils.formats import elf_headers
from ansible_collections.offheap.profiler.tests.hostile.bounds import costs_at_most


def _image(sections: int) -> bytes:
    notes = (struct.pack("<III", 0, 52, 1) + bytes(52)) * (1 << 14)
    layout = (3, 62, 1, 0, 0, 64 + len(notes), 0, 64, 56, 0, 64, sections, 0)
    header = b"\x7fELF\x02\x01\x01".ljust(16, b"\0") + struct.pack("<HHIQQQIHHHHHH", *layout)
    section = struct.pack("<IIQQQQIIQQ", 0, 7, 0, 0, 64, len(notes), 0, 0, 4, 0)
    return header + notes + section * sections


@pytest.mark.parametrize("sections", [2, 100, 10000])
def test_notes_are_read_once(sections: int) -> None:
    image = _image(sections)
    with costs_at_most(3, 32), pytest.raises(elf_headers.ElfError, match="bytes of notes"):
        elf_headers.read("liar", image).build_id()
