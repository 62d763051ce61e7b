# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""What a process is lent, in its own root: a library, unless it sees ours at its path, and a directory to write to.

The root may be another's, who may put links there and move what lies in it. So it is walked from a descriptor, part by
part, and no link is followed; a lent file is new, and removed by the descriptor of its directory.

This module is private to the collection.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import secrets
import shutil
import stat
from typing import Iterator, NamedTuple

from ansible_collections.offheap.profiler.plugins.module_utils.host import places, procfs
from ansible_collections.offheap.profiler.plugins.module_utils.tracing.running_trace import TraceError

_LARGEST = 64 << 20
_DIRECTORY = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# Where something is lent, the first that can be. Code must be allowed to be mapped from where a library is.
_PLACES = ("", "run", "tmp", "var/tmp", "dev/shm")
_LIBRARY = re.compile(r"\.offheap-\d+-[0-9a-f]{16}\.so")
_READ_ONLY = "what it sees is read-only or noexec"


class LendError(TraceError):
    """The process can open no file of ours. The message says why."""


class Lent(NamedTuple):
    """A directory of the process's user in the process's root: its path there, and descriptors of it and of what is
    ``above``."""

    path: str
    fd: int
    above: int

    def remove(self) -> None:
        """It, and what is in it."""
        with contextlib.suppress(OSError):
            for left in os.listdir(self.fd):
                os.unlink(left, dir_fd=self.fd)
            os.rmdir(os.path.basename(self.path), dir_fd=self.above)


def has_proc(pid: int) -> bool:
    """Whether the process sees itself in /proc: its descriptors as files, and its memory map."""
    return os.path.lexists(f"{procfs.directory(pid)}/root/proc/self")


@contextlib.contextmanager
def directory(pid: int, uid: int, gid: int) -> Iterator[Lent]:
    """A directory in which the process may write, as long as it is needed. Raises LendError."""
    with contextlib.ExitStack() as stack:
        root = _open(stack, f"{procfs.directory(pid)}/root", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        name = f"{pid}-{secrets.token_hex(4)}"
        for above, place in _writable(stack, root, (places.TRACING, *_PLACES), os.ST_RDONLY):
            own = name if place == places.TRACING else f".offheap-{name}"
            try:
                os.mkdir(own, 0o700, dir_fd=above)
            except OSError:
                continue
            fd = _open(stack, own, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, above)
            lent = Lent(f"/{place}/{own}".replace("//", "/"), fd, above)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX)  # it is in use (async_profiler.sweep)
                os.fchown(fd, uid, gid)
                yield lent
            finally:
                lent.remove()
            return
    raise LendError(f"process {pid} may write nowhere: {_READ_ONLY}. perf can trace it (source: perf)")


def _writable(
    stack: contextlib.ExitStack, root: int, among: tuple[str, ...], forbidden: int
) -> Iterator[tuple[int, str]]:
    """Those of the directories below the root whose file systems have none of the flags (statvfs(3))."""
    for place in among:
        found = _walk(stack, root, place)
        if found is not None and not os.fstatvfs(found).f_flag & forbidden:
            yield found, place


@contextlib.contextmanager
def visible(pid: int, library: str) -> Iterator[str]:
    """The path at which the process finds the library meanwhile. Raises LendError."""
    with contextlib.ExitStack() as stack:
        source = _open(stack, library, os.O_RDONLY | os.O_CLOEXEC)
        status = os.fstat(source)
        if not stat.S_ISREG(status.st_mode) or status.st_size > _LARGEST:
            raise LendError(f"{library} is no library")
        root = _open(stack, f"{procfs.directory(pid)}/root", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        if _may_be_run(root, library, status):
            yield library
            return
        yield stack.enter_context(_lent(pid, root, source))


def remove_libraries(pid: int) -> None:
    """Those that the process was lent by somebody who was killed meanwhile."""
    with contextlib.ExitStack() as stack, contextlib.suppress(OSError, LendError):
        root = _open(stack, f"{procfs.directory(pid)}/root", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        for directory, _place in _writable(stack, root, _PLACES, os.ST_RDONLY):
            for name in os.listdir(f"/proc/self/fd/{directory}"):
                if _LIBRARY.fullmatch(name) and name.startswith(f".offheap-{pid}-"):
                    os.unlink(name, dir_fd=directory)


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


def _may_be_run(root: int, library: str, ours: os.stat_result) -> bool:
    """Whether the path leads to the same file in that root, and code may be mapped from there."""
    with contextlib.ExitStack() as stack:
        directory = _walk(stack, root, os.path.dirname(library))
        if directory is None:
            return False
        try:
            theirs = _open(stack, os.path.basename(library), os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, directory)
        except LendError:
            return False
        return os.path.samestat(ours, os.fstat(theirs)) and not os.fstatvfs(theirs).f_flag & os.ST_NOEXEC


@contextlib.contextmanager
def _lent(pid: int, root: int, source: int) -> Iterator[str]:
    """A copy in the root, as long as it is needed."""
    name, why = f".offheap-{pid}-{secrets.token_hex(8)}.so", _READ_ONLY
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with contextlib.ExitStack() as stack:
        for directory, place in _writable(stack, root, _PLACES, os.ST_RDONLY | os.ST_NOEXEC):
            try:
                copy = os.open(name, flags, 0o600, dir_fd=directory)
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
    """All of it, or an OSError: a part of a library would end the process that maps it."""
    with open(source, "rb", closefd=False) as ours, open(copy, "wb", closefd=False) as theirs:
        shutil.copyfileobj(ours, theirs)
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
