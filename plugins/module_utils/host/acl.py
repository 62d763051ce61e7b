# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""The users whom a directory's access control list (acl(5)) admits beside its owner.

The standard library has no ACLs, but extended attributes: layout of include/uapi/linux/posix_acl_xattr.h.

This module is private to the collection.
"""

from __future__ import annotations

import errno
import os
import struct
from typing import Iterable

_NAME = "system.posix_acl_access"
_VERSION, _ENTRY = struct.Struct("<I"), struct.Struct("<HHI")
_OWNER, _USER, _GROUP, _MASK, _OTHERS = 0x01, 0x02, 0x04, 0x10, 0x20
_ALL, _NONE, _NOBODY = 7, 0, 0xFFFFFFFF
_ABSENT = (errno.ENODATA, errno.EOPNOTSUPP)


def admitted(directory: int | str) -> frozenset[int]:
    """The users that may do in a directory what its owner may. Raises OSError."""
    try:
        content = os.getxattr(directory, _NAME)
    except OSError as exc:
        if exc.errno in _ABSENT:
            return frozenset()
        raise
    entries = content[_VERSION.size :]
    whole = entries[: len(entries) - len(entries) % _ENTRY.size]
    return frozenset(uid for tag, may, uid in _ENTRY.iter_unpack(whole) if tag == _USER and may == _ALL)


def admit(directory: int, users: Iterable[int]) -> None:
    """Admit these users, and nobody else but the owner, to a directory of mode 0700. Raises OSError, also if there are
    users and the file system has no ACLs."""
    named = [(_USER, _ALL, uid) for uid in sorted(users)]
    if named:
        entries = [(_OWNER, _ALL, _NOBODY), *named, (_GROUP, _NONE, _NOBODY), (_MASK, _ALL, _NOBODY)]
        content = _VERSION.pack(2) + b"".join(_ENTRY.pack(*one) for one in [*entries, (_OTHERS, _NONE, _NOBODY)])
        os.setxattr(directory, _NAME, content)
    elif admitted(directory):
        os.removexattr(directory, _NAME)
