# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Debug information that names files of the controller: none of them is opened."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import Mock

import pytest

from ansible_collections.offheap.profiler.plugins.plugin_utils.driver.formats import Request, View


def _found(path: str, *directories: Path) -> Path | None:
    return View(Request(source_path=directories), Mock(), Mock(), Mock(), []).find_source(path)


@pytest.mark.parametrize("way", ["{0}", "{1}/../outside/secret", "/srv/app/../../{0}"])
def test_a_file_outside_of_the_sources(tmp_path: Path, way: str) -> None:
    sources, outside = tmp_path / "sources", tmp_path / "outside"
    for directory in (sources, outside):
        directory.mkdir()
    (outside / "secret").write_text("secret")
    (sources / "main.c").write_text("int main;")
    path = way.format(outside / "secret", sources)
    assert _found(path) is None and _found(path, sources) is None
    assert _found("/build/main.c", sources) == sources / "main.c"
