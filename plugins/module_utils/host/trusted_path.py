# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Whether only root decides what lies at a path, as sshd asks of the files that it trusts (StrictModes).

A library that a service preloads is code of that service, and of root when
root tries it. Whoever may replace it, or a directory or link on the way to it,
decides what runs there.

This module is private to the collection.
"""

from __future__ import annotations

import errno
import grp
import os
import pwd
import stat

# As the kernel (path_resolution(7)).
_MOST_LINKS = 40


def fault(path: str) -> str | None:
    """The first part of an absolute path that others than root may change, and why; ``None`` when there is none.

    Parts are the directories and links on the way, and what lies at its end, which must be a regular file.

    Raises OSError when a part is missing or cannot be looked at.
    """
    place, status, links = "/", os.lstat("/"), 0
    found = _fault(place, status)
    names = path.split("/")[::-1]
    while names and not found:
        name = names.pop()
        if name in ("", "."):
            continue
        # What a link leads to is resolved here, so ".." is the directory above, and that one was looked at.
        place = os.path.normpath(os.path.join(place, name))
        status = os.lstat(place)
        found = _fault(place, status)
        if stat.S_ISLNK(status.st_mode):
            links += 1
            if links > _MOST_LINKS:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
            target = os.readlink(place)
            place = "/" if target.startswith("/") else os.path.dirname(place)
            names += target.split("/")[::-1]
    if not found and not stat.S_ISREG(status.st_mode):
        return f"{place} is no regular file"
    return found


def _fault(place: str, status: os.stat_result) -> str | None:
    if status.st_uid:
        return f"{place} belongs to {_user(status.st_uid)}"
    if stat.S_ISLNK(status.st_mode):
        return None  # the mode of a link means nothing
    mode = stat.S_IMODE(status.st_mode)
    if mode & stat.S_IWOTH:
        return f"every user may write to {place} (mode {mode:04o})"
    if mode & stat.S_IWGRP:
        return f"the group {_group(status.st_gid)} may write to {place} (mode {mode:04o})"
    return None


def _user(uid: int) -> str:
    try:
        return f"the user {pwd.getpwuid(uid).pw_name}"
    except KeyError:
        return f"the user with the id {uid}"


def _group(gid: int) -> str:
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)
