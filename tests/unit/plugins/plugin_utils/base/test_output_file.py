# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
from __future__ import annotations

import os
from pathlib import Path

import pytest

from ansible_collections.offheap.profiler.plugins.plugin_utils.base.output_file import OutputError, replacing, write


def test_a_file_is_written_once(tmp_path: Path) -> None:
    path = tmp_path / "a" / "report.txt"
    assert write(path, b"one", force=False, check_mode=True)
    assert not path.parent.exists()
    assert write(path, b"one", force=False)
    assert not write(path, b"one", force=False), "it has this content"
    with pytest.raises(OutputError, match="only with force=true"):
        write(path, b"two", force=False)
    assert write(path, b"two", force=True)
    assert path.read_bytes() == b"two"
    assert [entry.name for entry in path.parent.iterdir()] == ["report.txt"]


def test_others_may_read_it_as_the_umask_says(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        write(tmp_path / "x", b"", force=False)
    finally:
        os.umask(before)
    assert (tmp_path / "x").stat().st_mode & 0o777 == 0o640


def test_what_is_made_meanwhile_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x"
    monkeypatch.setattr(os, "umask", lambda mask: path.write_bytes(b"theirs") and 0)
    with pytest.raises(OutputError, match="just created by another process"):
        write(path, b"ours", force=False)
    assert [entry.name for entry in tmp_path.iterdir()] == ["x"]
    assert path.read_bytes() == b"theirs"


def test_a_block_that_fails_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"old")
    with pytest.raises(ZeroDivisionError), replacing(path) as made:
        made.write_bytes(b"half")
        assert path.read_bytes() == b"old"
        raise ZeroDivisionError
    assert path.read_bytes() == b"old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["x"]
