# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Every way in which another than root comes to decide what lies at a path."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from ansible_collections.offheap.profiler.plugins.module_utils.host import trusted_path

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can make what only root may change")
USER, GROUP = 65534, 54321


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory of root's; the usual ones of tests are below /tmp."""
    directory = Path(tempfile.mkdtemp(dir=Path.home()))
    directory.chmod(0o755)
    yield directory
    shutil.rmtree(directory)


@pytest.fixture
def library(place: Path) -> Path:
    path = place / "opt" / "lib" / "libjemalloc.so.2"
    path.parent.mkdir(parents=True)
    path.write_text("")
    return path


def test_what_only_root_may_change(library: Path, place: Path) -> None:
    assert trusted_path.fault(str(library)) is None
    (place / "link").symlink_to("opt/lib")
    (place / "opt" / "again").symlink_to(f"{place}/link/../lib/libjemalloc.so.2")
    assert trusted_path.fault(f"{place}/opt/again") is None
    assert trusted_path.fault("/bin/sh") is None, "most of these are links today"


@pytest.mark.parametrize("part", [0, 1, 2])
def test_the_part_that_someone_may_change_is_named(library: Path, part: int) -> None:
    """The file, its directory, and the one above it."""
    changed = [library, *library.parents][part]
    mode = changed.stat().st_mode & 0o777
    os.chown(changed, USER, 0)
    assert trusted_path.fault(str(library)) == f"{changed} belongs to the user nobody"
    os.chown(changed, GROUP, 0)
    assert trusted_path.fault(str(library)) == f"{changed} belongs to the user with the id {GROUP}"
    os.chown(changed, 0, GROUP)
    changed.chmod(mode | 0o020)
    assert trusted_path.fault(str(library)) == f"the group {GROUP} may write to {changed} (mode {mode | 0o020:04o})"
    changed.chmod(mode | 0o002)
    assert trusted_path.fault(str(library)) == f"every user may write to {changed} (mode {mode | 0o002:04o})"
    changed.chmod(mode | 0o1002)
    assert "may write to" in str(trusted_path.fault(str(library))), "the sticky bit still lets them make files there"


def test_a_link_of_another_user_s(library: Path, place: Path) -> None:
    link = place / "libjemalloc.so"
    link.symlink_to(library)
    os.lchown(link, USER, 0)
    assert trusted_path.fault(str(link)) == f"{link} belongs to the user nobody"


def test_a_link_out_of_a_directory_of_another_user_s(library: Path, place: Path) -> None:
    """Resolving the path first would hide who may change the link."""
    theirs = place / "theirs"
    theirs.mkdir()
    (theirs / "lib").symlink_to(library.parent)
    os.chown(theirs, USER, 0)
    assert trusted_path.fault(str(theirs / "lib" / library.name)) == f"{theirs} belongs to the user nobody"
    (place / "way").symlink_to(f"theirs/../opt/lib/{library.name}")
    assert trusted_path.fault(str(place / "way")) == f"{theirs} belongs to the user nobody"


def test_what_is_no_regular_file(place: Path) -> None:
    os.mkfifo(place / "pipe")
    for path in (f"{place}/pipe", str(place), "/"):
        assert "is no regular file" in str(trusted_path.fault(path))
    assert trusted_path.fault("/dev/zero") is not None


def test_what_is_not_there_or_turns_in_circles(place: Path) -> None:
    with pytest.raises(FileNotFoundError):
        trusted_path.fault(str(place / "gone"))
    (place / "a").symlink_to("b")
    (place / "b").symlink_to("a")
    with pytest.raises(OSError) as caught:
        trusted_path.fault(str(place / "a"))
    assert caught.value.errno == errno.ELOOP
