# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Spools that a service's user has prepared for their removal."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ansible_collections.offheap.profiler.plugins.module_utils.unit import spool_directory
from ansible_collections.offheap.profiler.plugins.module_utils.unit.changes import Changes
from ansible_collections.offheap.profiler.tests.hostile.bounds import costs_at_most


@pytest.mark.parametrize(("depth", "name"), [(1100, "d"), (3000, "x" * 200)])
def test_a_spool_of_great_depth_with_links(tmp_path: Path, depth: int, name: str) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").touch()
    spool = tmp_path / "spools" / "a.service"
    spool.mkdir(parents=True)
    place = os.open(spool, os.O_RDONLY)
    for _level in range(depth):
        os.symlink(outside, "link", dir_fd=place)
        os.mkdir(name, dir_fd=place)
        below = os.open(name, os.O_RDONLY, dir_fd=place)
        os.close(place)
        place = below
    os.close(place)
    with costs_at_most(5, 4):
        spool_directory.purge(Changes(check_mode=False), str(spool), in_use=False, waiting=[])
    assert not spool.exists() and (outside / "kept").exists()
