# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""The directory of a unit's dumps: made for the service's user, removed once all dumps are collected."""

from __future__ import annotations

import errno
import os
import secrets
import stat
from functools import partial
from typing import NamedTuple, Sequence

from ansible_collections.offheap.profiler.plugins.module_utils.host import acl, places
from ansible_collections.offheap.profiler.plugins.module_utils.unit.changes import Changes
from ansible_collections.offheap.profiler.plugins.module_utils.unit.programs import Owner
from ansible_collections.offheap.profiler.plugins.module_utils.unit.refusal import UnitError

# The bits that say what an access control list may grant at most, where there is one.
_GROUP = 0o070


class _Rights(NamedTuple):
    """Whose a directory is, and which users its access control list admits."""

    mode: int
    owner: Owner
    users: frozenset[int] = frozenset()

    @property
    def text(self) -> str:
        users = f", and users {', '.join(map(str, sorted(self.users)))}" if self.users else ""
        return f"directory {self.mode:o} {self.owner.uid}:{self.owner.gid}{users}\n"


def make(changes: Changes, spool: str, writers: Sequence[Owner]) -> None:
    """Make the spool, with mode 0700 and owned by the service's user, the first of these; the other users are admitted
    by an access control list. Its parent is root's, so nobody can plant one.

    Raises UnitError, also where such a list is needed and the file system has none.
    """
    owner, *others = writers
    users = frozenset(one.uid for one in others)
    for path, wanted in ((places.SPOOLS, _Rights(0o755, Owner(0, 0))), (spool, _Rights(0o700, owner, users))):
        now = _rights(path)
        if now is None:
            changes.note(path, "", wanted.text)
            changes.do(partial(_create, path, wanted))
        elif now != wanted:
            changes.note(path, now.text, wanted.text)
            changes.do(partial(_own, path, wanted))


def _rights(path: str) -> _Rights | None:
    """None if there is nothing. Raises UnitError for anything but a directory."""
    try:
        now = os.lstat(path)
    except FileNotFoundError:
        return None
    if not stat.S_ISDIR(now.st_mode):
        raise UnitError(f"{path} exists but is not a directory; move it away")
    mode = stat.S_IMODE(now.st_mode)
    users = acl.admitted(path) if mode & _GROUP == _GROUP else frozenset()
    return _Rights(mode & ~_GROUP if users else mode, Owner(now.st_uid, now.st_gid), users)


def _create(path: str, rights: _Rights) -> None:
    try:
        os.mkdir(path, 0o700)
    except OSError as exc:
        raise UnitError(f"{path} cannot be made: {exc.strerror}. Correct that and run this again") from exc
    _own(path, rights)


def _own(path: str, rights: _Rights) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        os.fchown(descriptor, *rights.owner)
        acl.admit(descriptor, rights.users)
        os.fchmod(descriptor, rights.mode | (_GROUP if rights.users else 0))
    except OSError as exc:
        if exc.errno != errno.EOPNOTSUPP:
            raise
        raise UnitError(
            f"the workers have several users, and the file system of {path} has no access control lists to let all of"
            " them write there. With children: false in agent_settings, only the first process is profiled"
        ) from exc
    finally:
        os.close(descriptor)


def purge(changes: Changes, spool: str, in_use: bool, waiting: Sequence[str]) -> None:
    """Remove the spool, and any directory above it that is then empty.

    ``waiting`` are the dumps that could still be collected. Raises UnitError if there are any, or if a process still
    dumps there.
    """
    real = os.path.join(places.PRIVATE_SPOOLS, os.path.basename(spool)) if os.path.islink(spool) else spool
    if not os.path.isdir(real):
        if os.path.islink(spool):  # its directory is gone already
            changes.note(spool, "link\n", "")
            changes.do(lambda: os.unlink(spool))
        _remove_empty(changes, os.path.dirname(spool))
        return
    if in_use:
        raise UnitError(f"{spool} was not removed: the unit still runs under the profiler. Restart it first")
    if waiting:
        raise UnitError(
            f"{spool} was not removed: {len(waiting)} dumps in it are not collected, the first is {waiting[0]}."
            " Run collect_profiles, or discard them with rollback_discard=true"
        )
    changes.note(spool, "directory\n", "")
    try:
        changes.do(lambda: remove(real))
        if real != spool:  # after what it leads to, which nobody would find without it
            changes.do(lambda: os.unlink(spool))
    except OSError as exc:
        raise UnitError(f"{real} cannot be removed: {exc}. Correct that and run this again") from exc
    for parent in (os.path.dirname(real), os.path.dirname(spool)):
        _remove_empty(changes, parent)


def remove(path: str) -> None:
    """Remove a directory with all in it, however deep: folders are moved up, and links are not followed."""
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
    token, number = secrets.token_hex(8), 0
    top = os.open(path, flags)
    try:
        folders = _without_files(top)
        while folders:
            folder = folders.pop()
            inner = os.open(folder, flags, dir_fd=top)
            try:
                for name in _without_files(inner):
                    number += 1
                    folders.append(f"{token}-{number}")
                    os.rename(name, folders[-1], src_dir_fd=inner, dst_dir_fd=top)
            finally:
                os.close(inner)
            os.rmdir(folder, dir_fd=top)
    finally:
        os.close(top)
    os.rmdir(path)


def _without_files(directory: int) -> list[str]:
    """Remove all but folders from an open directory. Returns the names of those."""
    folders = []
    for name in os.listdir(directory):
        if stat.S_ISDIR(os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode):
            folders.append(name)
        else:
            os.unlink(name, dir_fd=directory)
    return folders


def _remove_empty(changes: Changes, path: str) -> None:
    if os.path.isdir(path) and not os.path.ismount(path) and not os.listdir(path):
        changes.do(lambda: os.rmdir(path))
