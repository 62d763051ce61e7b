# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Directories that a service's user has to see have their mode, whatever the umask of who makes them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from ansible_collections.offheap.profiler.plugins.module_utils.host import places


@pytest.fixture(params=[0o022, 0o077])
def umask(request: pytest.FixtureRequest) -> Iterator[None]:
    before = os.umask(request.param)
    yield
    os.umask(before)


def test_a_directory_has_its_mode(tmp_path: Path, umask: None) -> None:
    for name, mode in (("open", 0o755), ("ours", 0o700)):
        places.make(str(tmp_path / name), mode)
        assert (tmp_path / name).stat().st_mode & 0o777 == mode


def test_one_that_an_earlier_run_has_closed_is_opened(tmp_path: Path) -> None:
    (tmp_path / "ours").mkdir(mode=0o700)
    places.make(str(tmp_path / "ours"))
    assert (tmp_path / "ours").stat().st_mode & 0o777 == 0o755
