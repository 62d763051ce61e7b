# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Which files a bare dump takes its names from."""

from __future__ import annotations

from pathlib import Path

import pytest

from ansible_collections.offheap.profiler.plugins.plugin_utils.driver.sources import Images
from ansible_collections.offheap.profiler.plugins.plugin_utils.model.raw import Told
from ansible_collections.offheap.profiler.plugins.plugin_utils.readers import detect
from ansible_collections.offheap.profiler.plugins.plugin_utils.symbols.elf_image import ElfImage

LIBRARY = next(Path("/usr/lib").glob("*/libc.so.6")).resolve()
OLD, NEW = f"1000-2000 r-xp 00000000 08:01 1 {LIBRARY} (deleted)", f"3000-4000 r-xp 00000000 08:01 2 {LIBRARY}"


@pytest.mark.parametrize(
    ("mappings", "named"), [([NEW], True), ([OLD], False), ([OLD, NEW], False)], ids=["there", "deleted", "replaced"]
)
def test_a_replaced_file_does_not_lend_its_names_to_the_deleted_one(mappings: list[str], named: bool) -> None:
    """A build-id is that of the first mapping of its path (model/location.py), and nobody can tell that of the old."""
    head = "heap_v2/524288\n  t*: 1: 4096 [0: 0]\n@ 0x1100\n  t*: 1: 4096 [0: 0]\n\nMAPPED_LIBRARIES:\n"
    dump = detect.parse((head + "\n".join(mappings) + "\n").encode(), "a dump", Told())
    assert Images([Path("/")]).build_ids(dump) == ({str(LIBRARY): ElfImage(LIBRARY).build_id} if named else {})
