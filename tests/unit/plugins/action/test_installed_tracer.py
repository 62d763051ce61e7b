# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""What the controller sends as async-profiler's library."""

from __future__ import annotations

import hashlib
import tarfile
from pathlib import Path

import pytest
from ansible.errors import AnsibleActionFail

from ansible_collections.offheap.profiler.plugins.action.installed_tracer import library_of


def _release(directory: Path, inside: str) -> Path:
    library, release = directory / "libasyncProfiler.so", directory / "async-profiler.tar.gz"
    library.write_bytes(b"library")
    with tarfile.open(release, "w:gz") as tar:
        tar.add(library, inside)
    return release


def _sum(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def test_it_is_a_library_or_in_a_release(tmp_path: Path) -> None:
    release = _release(tmp_path, "async-profiler-4.5-linux-x64/lib/libasyncProfiler.so")
    for file in (release, tmp_path / "libasyncProfiler.so"):
        assert library_of(file, _sum(file)) == b"library"


def test_what_holds_none_is_refused(tmp_path: Path) -> None:
    release = _release(tmp_path, "async-profiler-4.5-linux-x64/libasyncProfiler.so")
    with pytest.raises(AnsibleActionFail, match=r"holds no lib/libasyncProfiler\.so: it is no release"):
        library_of(release, _sum(release))
    release.write_bytes(b"no tarball")
    with pytest.raises(AnsibleActionFail, match=r"tar\.gz cannot be read: "):
        library_of(release, _sum(release))


def test_another_file_and_none_are_refused(tmp_path: Path) -> None:
    release = _release(tmp_path, "x/lib/libasyncProfiler.so")
    with pytest.raises(AnsibleActionFail, match=f"has the SHA-256 {_sum(release)}; wanted is 0000"):
        library_of(release, "0" * 64)
    with pytest.raises(AnsibleActionFail, match=r"nowhere\.so cannot be read: "):
        library_of(tmp_path / "nowhere.so", "0" * 64)
