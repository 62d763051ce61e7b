# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""The directory of a unit's dumps: made for the service's user, removed once all dumps are collected."""

from __future__ import annotations

import os
import secrets
import stat
from functools import partial
from typing import Sequence

from ansible_collections.offheap.profiler.plugins.module_utils.host import places
from ansible_collections.offheap.profiler.plugins.module_utils.unit.changes import Changes
from ansible_collections.offheap.profiler.plugins.module_utils.unit.programs import Owner
from ansible_collections.offheap.profiler.plugins.module_utils.unit.refusal import UnitError


def make(changes: Changes, spool: str, owner: Owner) -> None:
    """Make the spool, with mode 0700 and owned by the service's user. Its parent is root's, so nobody can plant one."""
    for path, mode, wanted in ((places.SPOOLS, 0o755, Owner(0, 0)), (spool, 0o700, owner)):
        now = _state(path)
        if now is None:
            changes.note(path, "", f"directory {mode:o} {wanted.uid}:{wanted.gid}\n")
            changes.do(partial(_create, path, mode, wanted))
        elif not stat.S_ISDIR(now.st_mode):
            raise UnitError(f"{path} exists but is not a directory; move it away")
        elif (stat.S_IMODE(now.st_mode), now.st_uid, now.st_gid) != (mode, wanted.uid, wanted.gid):
            changes.note(
                path,
                f"directory {stat.S_IMODE(now.st_mode):o} {now.st_uid}:{now.st_gid}\n",
                f"directory {mode:o} {wanted.uid}:{wanted.gid}\n",
            )
            changes.do(partial(_own, path, mode, wanted))


def _state(path: str) -> os.stat_result | None:
    try:
        return os.lstat(path)
    except FileNotFoundError:
        return None


def _create(path: str, mode: int, owner: Owner) -> None:
    os.mkdir(path, 0o700)
    _own(path, mode, owner)


def _own(path: str, mode: int, owner: Owner) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        os.fchown(descriptor, owner.uid, owner.gid)
        os.fchmod(descriptor, mode)
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
    if real != spool:
        changes.do(lambda: os.unlink(spool))
    changes.do(lambda: remove(real))
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
    if os.path.isdir(path) and not os.listdir(path):
        changes.do(lambda: os.rmdir(path))
