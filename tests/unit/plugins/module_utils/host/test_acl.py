# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Access control lists as the kernel knows them."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from ansible_collections.offheap.profiler.plugins.module_utils.host import acl

# Mode 0700 with two users more, as the kernel lays a list out: 33 may all, 4711 may not write.
_TWO_USERS = (
    "02000000 01000700ffffffff 0200070021000000 0200050067120000 04000000ffffffff 10000700ffffffff 20000000ffffffff"
)


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[int]:
    (tmp_path / "spool").mkdir(mode=0o700)
    descriptor = os.open(tmp_path / "spool", os.O_RDONLY)
    yield descriptor
    os.close(descriptor)


def test_who_is_admitted_may_all_that_the_owner_may(directory: int) -> None:
    assert acl.admitted(directory) == frozenset()
    acl.admit(directory, [4711, 33])
    assert acl.admitted(directory) == {33, 4711}
    assert os.fstat(directory).st_mode & 0o777 == 0o770, "the group's bits are the mask"
    os.setxattr(directory, "system.posix_acl_access", bytes.fromhex(_TWO_USERS))
    assert acl.admitted(directory) == {33}
    acl.admit(directory, [])
    assert acl.admitted(directory) == frozenset()
    assert "system.posix_acl_access" not in os.listxattr(directory)
    acl.admit(directory, [])


@pytest.mark.parametrize("number", [errno.ENODATA, errno.EOPNOTSUPP])
def test_a_file_system_without_lists_admits_nobody(
    directory: int, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_arguments: object) -> bytes:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "getxattr", refuse)
    assert acl.admitted(directory) == frozenset()
    acl.admit(directory, [])


@pytest.mark.parametrize("content", [b"", b"\2\0", b"\2\0\0\0\2\0\7\0\x21"])
def test_a_list_that_is_none(directory: int, content: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getxattr", lambda *_arguments: content)
    assert acl.admitted(directory) == frozenset()
