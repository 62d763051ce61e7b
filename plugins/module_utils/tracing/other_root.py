# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""What a process sees of ours: a library at its own path, or lent for a moment into its root; a directory.

The root may be another's, who may put links there and move what lies in it. So it is walked from a descriptor, part by
part, and no link is followed; a lent file is new, and removed by the descriptor of its directory.

This module is private to the collection.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
from typing import Iterator

from ansible_collections.offheap.profiler.plugins.module_utils.tracing.running_trace import TraceError

_LARGEST = 64 << 20
_BLOCK = 1 << 20
_DIRECTORY = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# Where it is lent, the first that can be: code must be allowed to be mapped from there.
_PLACES = ("", "run", "tmp", "var/tmp", "dev/shm")


class LendError(TraceError):
    """The process can open no file of ours. The message says why."""


def writes(pid: int, directory: str) -> bool:
    """Whether the process sees our directory, and not read-only. Its user is not asked. Raises LendError."""
    with contextlib.ExitStack() as stack:
        root = _open(stack, f"/proc/{pid}/root", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        theirs = _walk(stack, root, directory)
        if theirs is None or not os.path.samestat(os.fstat(theirs), os.stat(directory)):
            return False
        return not os.fstatvfs(theirs).f_flag & os.ST_RDONLY


@contextlib.contextmanager
def visible(pid: int, library: str) -> Iterator[str]:
    """The path at which the process finds the library meanwhile. Raises LendError."""
    with contextlib.ExitStack() as stack:
        source = _open(stack, library, os.O_RDONLY | os.O_CLOEXEC)
        status = os.fstat(source)
        if not stat.S_ISREG(status.st_mode) or status.st_size > _LARGEST:
            raise LendError(f"{library} is no library")
        root = _open(stack, f"/proc/{pid}/root", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        if _is_there(root, library, status):
            yield library
            return
        yield stack.enter_context(_lent(pid, root, source))


def _open(stack: contextlib.ExitStack, path: str, flags: int, directory: int | None = None) -> int:
    try:
        fd = os.open(path, flags, dir_fd=directory)
    except OSError as exc:
        raise LendError(f"cannot open {path}: {exc.strerror}") from exc
    stack.callback(os.close, fd)
    return fd


def _walk(stack: contextlib.ExitStack, root: int, path: str) -> int | None:
    """The directory at a path below the root; None if there is none, or a link on the way."""
    with contextlib.suppress(LendError):
        for part in path.split("/"):
            if part:
                root = _open(stack, part, _DIRECTORY, root)
        return root
    return None


def _is_there(root: int, library: str, ours: os.stat_result) -> bool:
    """Whether the path leads to the same file in that root."""
    with contextlib.ExitStack() as stack:
        directory = _walk(stack, root, os.path.dirname(library))
        if directory is None:
            return False
        try:
            theirs = os.stat(os.path.basename(library), dir_fd=directory, follow_symlinks=False)
        except OSError:
            return False
        return os.path.samestat(ours, theirs)


@contextlib.contextmanager
def _lent(pid: int, root: int, source: int) -> Iterator[str]:
    """A copy in the root, as long as it is needed."""
    name, why = f".offheap-{pid}-{secrets.token_hex(8)}.so", "it has no directory for it"
    with contextlib.ExitStack() as stack:
        for place in _PLACES:
            directory = _walk(stack, root, place)
            if directory is None:
                continue
            if os.fstatvfs(directory).f_flag & (os.ST_RDONLY | os.ST_NOEXEC):
                why = "all its file systems are read-only or noexec"
                continue
            try:
                copy = os.open(
                    name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=directory
                )
            except OSError as exc:
                why = str(exc.strerror)
                continue
            try:
                _copy(source, copy)
                yield f"/{place}/{name}".replace("//", "/")
            except OSError as exc:
                raise LendError(f"the library cannot be lent into the root of process {pid}: {exc.strerror}") from exc
            finally:
                _remove(directory, name, copy)
            return
    raise LendError(f"process {pid} does not see the library, and none can be lent into its root: {why}")


def _copy(source: int, copy: int) -> None:
    offset = 0
    while True:
        block = os.pread(source, _BLOCK, offset)
        if not block:
            break
        os.pwrite(copy, block, offset)
        offset += len(block)
    os.fchmod(copy, 0o444)


def _remove(directory: int, name: str, copy: int) -> None:
    """Unless somebody has put another file there."""
    try:
        if os.path.samestat(os.fstat(copy), os.stat(name, dir_fd=directory, follow_symlinks=False)):
            os.unlink(name, dir_fd=directory)
    except FileNotFoundError:
        pass
    finally:
        os.close(copy)
