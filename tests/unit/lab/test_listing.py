# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""What a listing says about a file, and what it leaves out."""

from __future__ import annotations

import fnmatch
import hashlib
import os
import re
from pathlib import Path

import pytest

from ansible_collections.offheap.profiler.tests.lab.nspawnlab import listing, listing_on_host


def _paths(root: Path, *left_out: str) -> list[str]:
    skip = re.compile("|".join(fnmatch.translate(str(root / pattern)) for pattern in (*left_out, "-")))
    return [os.path.relpath(path, root) for path in listing_on_host.walk(str(root), skip)]


def test_file(tmp_path: Path) -> None:
    path = tmp_path / "a file"
    path.write_text("text")
    path.chmod(0o4750)
    digest = hashlib.sha256(b"text").hexdigest()
    owner = f"{os.getuid()} {os.getgid()}"
    expected = f"f 4750 {owner} 4 {digest} {tmp_path}/a\\u{{20}}file"
    assert listing_on_host.line(str(path)).decode() == expected


def test_link_and_directory(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("to nowhere")
    assert listing_on_host.line(str(tmp_path / "link")).decode().split()[4:6] == ["10", "to\\u{20}nowhere"]
    assert listing_on_host.line(str(tmp_path)).decode().split()[4:6] == ["0", "-"]


def test_vanished_file_is_a_line_of_its_own(tmp_path: Path) -> None:
    assert listing_on_host.line(str(tmp_path / "gone")).decode() == f"- - - - - - {tmp_path}/gone"


def test_undecodable_name_is_one_line(tmp_path: Path) -> None:
    name = os.fsdecode(b"bad\xff\nname")
    (tmp_path / name).touch()
    line = listing_on_host.line(str(tmp_path / name))
    assert b"\n" not in line and line.endswith(b"bad\\u{dcff}\\u{a}name")


def test_walk_is_sorted_and_does_not_follow_links(tmp_path: Path) -> None:
    (tmp_path / "b" / "c").mkdir(parents=True)
    (tmp_path / "a").symlink_to("b")
    assert _paths(tmp_path) == [".", "a", "b", "b/c"]


def test_left_out_directory_takes_what_is_below(tmp_path: Path) -> None:
    (tmp_path / "units").mkdir()
    (tmp_path / "units" / "invocation:x.service").symlink_to("id")
    (tmp_path / "units" / "other").touch()
    (tmp_path / "users" / "1000").mkdir(parents=True)
    assert _paths(tmp_path, "users", "units/invocation:*") == [".", "units", "units/other"]


@pytest.mark.parametrize(
    "path",
    [
        "/etc/systemd/system/frontend.service.d/90-offheap.conf",
        "/run/systemd/system/frontend.service.d/90-offheap.conf",
        "/opt/offheap/jemalloc",
        "/usr/local/lib/libjemalloc.so.2",
        "/var/lib/offheap/vault.service",
        "/var/lib/private/offheap",
        "/run/systemd/transient/offheap.service",
        "/run/systemd/system.control",
    ],
)
def test_nothing_that_profiling_touches_is_left_out(path: str) -> None:
    assert not any(fnmatch.fnmatchcase(path, pattern) for pattern in listing.LEFT_OUT)
    assert any(path.startswith(root) for root in listing.ROOTS)
