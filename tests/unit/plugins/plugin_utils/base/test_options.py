# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
from __future__ import annotations

from pathlib import Path

import pytest

from ansible_collections.offheap.profiler.plugins.plugin_utils.base import options


def test_a_path_is_from_here_or_from_home_and_a_home_of_nobody_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/me")
    given = ["archive", "/archive", "~/archive", "~nobody-has-this-name/archive"]
    wanted = [tmp_path / "archive", Path("/archive"), Path("/home/me/archive"), tmp_path / given[3]]
    assert [options.from_here(path) for path in given] == wanted
