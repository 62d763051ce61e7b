# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""The directories on a target where dumps land, entered as root although a service owns them.

Whoever took over the service can put anything there: links, FIFOs, files that change while they are read. So every
step goes through a directory's descriptor and never follows a link. Only an ordinary file with one name, owned by the
spool's owner or root, counts as a dump, and only what was packed is moved away.

This module is private to the collection.
"""

from __future__ import annotations

import errno
import os
import stat
import time
from types import TracebackType
from typing import Iterable, Iterator

from ansible_collections.offheap.profiler.plugins.module_utils.formats import dump_name, limits, unit_name
from ansible_collections.offheap.profiler.plugins.module_utils.formats.errors import OffheapError
from ansible_collections.offheap.profiler.plugins.module_utils.formats.pack_request import Identity
from ansible_collections.offheap.profiler.plugins.module_utils.host import acl, places

COLLECTED = "collected"
_PART = ".part"
# Seconds for which a part that is still written does not stay unchanged.
_IDLE = 3600.0
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


class SpoolError(OffheapError):
    """A spool or something in it cannot be trusted or used. The message says what and where."""


class Root:
    """The directory that holds all spools. Only root may put anything into it."""

    def __init__(self, path: str = places.SPOOLS) -> None:
        self.path = path
        try:
            self._fd = os.open(path, _DIRECTORY)
        except OSError as exc:
            raise SpoolError(f"cannot open the directory of spools {path}: {exc.strerror}") from exc
        try:
            _check_trusted(self._fd, path)
        except SpoolError:
            os.close(self._fd)
            raise

    def __enter__(self) -> Root:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._fd)

    def units(self) -> list[str]:
        """The units that have a spool here, by name."""
        return sorted(name for name in os.listdir(self._fd) if unit_name.is_service(name))

    def spool(self, unit: str) -> Spool | None:
        """The unit's spool, None if there is none. Raises SpoolError if something else is there, and UnitNameError."""
        unit = unit_name.service(unit)
        path = os.path.join(self.path, unit)
        try:
            return Spool(unit, path, os.open(unit, _DIRECTORY | os.O_NOFOLLOW, dir_fd=self._fd))
        except FileNotFoundError:
            return None
        except OSError as exc:
            if exc.errno not in (errno.ELOOP, errno.ENOTDIR):
                raise SpoolError(f"cannot open the spool {path}: {exc.strerror}") from exc
        return self._private_spool(unit, path)

    def _private_spool(self, unit: str, path: str) -> Spool | None:
        """The state directory of a unit with DynamicUser=, to which systemd makes a link (systemd.exec(5))."""
        state, name = os.path.split(self.path)
        try:
            target = os.path.normpath(os.path.join(self.path, os.readlink(unit, dir_fd=self._fd)))
        except OSError as exc:
            raise SpoolError(f"the spool {path} is not a directory") from exc
        private = os.path.join(state, "private")
        if target != os.path.join(private, name, unit):
            raise SpoolError(f"the spool {path} is a link to {target}, which systemd would not make")
        opened: list[int] = []
        try:
            opened.append(os.open(private, _DIRECTORY | os.O_NOFOLLOW))
            _check_trusted(opened[-1], private)
            opened.append(os.open(name, _DIRECTORY | os.O_NOFOLLOW, dir_fd=opened[-1]))
            _check_trusted(opened[-1], os.path.join(private, name))
            return Spool(unit, target, os.open(unit, _DIRECTORY | os.O_NOFOLLOW, dir_fd=opened[-1]))
        except FileNotFoundError:
            return None
        except OSError as exc:
            raise SpoolError(f"cannot open the spool {target}: {exc.strerror}") from exc
        finally:
            for fd in opened:
                os.close(fd)


class Spool:
    """One unit's spool, held by its descriptor."""

    def __init__(self, unit: str, path: str, fd: int) -> None:
        self.unit = unit
        self.path = path
        self._fd = fd
        self.owner = os.fstat(fd).st_uid

    def __enter__(self) -> Spool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._fd)

    def names(self) -> Iterator[str]:
        """The names of dumps here that are not collected, in no order."""
        with os.scandir(self._fd) as entries:
            for entry in entries:
                if dump_name.parse(entry.name):
                    yield entry.name

    def open(self, name: str) -> int:
        """A descriptor of the dump, to be closed by the caller. Raises SpoolError if it is not a trusted dump."""
        fd = self._open(name, "")
        if fd is None:
            raise SpoolError(f"cannot open {self.path}/{name}: {os.strerror(errno.ENOENT)}")
        return fd

    def open_companion(self, name: str, suffix: str) -> int | None:
        """A descriptor of the file beside a dump, None if there is none. Raises SpoolError like ``open``."""
        return self._open(name, suffix)

    def _open(self, name: str, suffix: str) -> int | None:
        if not dump_name.parse(name):
            raise SpoolError(f"{name!r} is not the name of a dump")
        name += suffix
        try:
            # O_NONBLOCK: opening a FIFO must not wait for its writer
            fd = os.open(
                name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC, dir_fd=self._fd
            )
        except FileNotFoundError:
            return None
        except OSError as exc:
            reason = "it is a link" if exc.errno == errno.ELOOP else exc.strerror
            raise SpoolError(f"cannot open {self.path}/{name}: {reason}") from exc
        problem = self._problem(os.fstat(fd))
        if problem:
            os.close(fd)
            raise SpoolError(f"{self.path}/{name} is not collected: {problem}")
        return fd

    def _problem(self, status: os.stat_result) -> str | None:
        if not stat.S_ISREG(status.st_mode):
            return "it is not an ordinary file"
        if status.st_nlink != 1:
            return f"it has {status.st_nlink} names (hard links)"
        if status.st_uid not in (self.owner, 0) and status.st_uid not in acl.admitted(self._fd):
            return f"it belongs to user {status.st_uid}, the spool to user {self.owner}"
        return None

    def has(self, name: str) -> bool:
        """Whether a dump of this name is here, collected or not."""
        return any(os.path.lexists(f"/proc/self/fd/{self._fd}/{part}{name}") for part in ("", f"{COLLECTED}/"))

    def add(self, name: str, source: int, size: int, written: int | None = None) -> None:
        """Copy the first ``size`` bytes of an open file into a new dump, which has its name when it is whole.

        A file that belongs beside a dump is added likewise, before it.

        ``written`` is when it was (nanoseconds since the epoch), by default now. Raises SpoolError, also if there is no
        room for it.
        """
        if not dump_name.parse(dump_name.beside(name)):
            raise SpoolError(f"{name!r} is not the name of a dump")
        self.thin_collected(limits.LARGEST_SPOOL - size)
        part = f".{name}{_PART}"  # others may add at the same time
        self._remove_parts(part)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            fd = os.open(part, flags, 0o600, dir_fd=self._fd)
            try:
                done = 0
                while done < size:
                    sent = os.sendfile(fd, source, done, size - done)
                    if not sent:
                        raise SpoolError(f"{name} became shorter while it was copied")
                    done += sent
                if written is not None:
                    os.utime(fd, ns=(written, written))
                os.fsync(fd)
            finally:
                os.close(fd)
            os.rename(part, name, src_dir_fd=self._fd, dst_dir_fd=self._fd)
        except OSError as exc:
            raise SpoolError(f"cannot write {self.path}/{name}: {exc.strerror}") from exc
        finally:
            self._unlink(part)

    def _remove_parts(self, own: str) -> None:
        """What was cut off: this one, and others that nobody has written to for long."""
        for name in os.listdir(self._fd):
            if name == own or (name.endswith(_PART) and abs(time.time() - _changed(self._fd, name)) > _IDLE):
                self._unlink(name)

    def collect(self, dumps: Iterable[tuple[str, Identity]], delete: bool) -> list[str]:
        """Move dumps that have not changed since packing to ``collected/``, or delete them. Returns their names.

        The files beside a dump go with it.
        """
        if delete:
            deleted = []
            for name, identity in dumps:
                if self._is(name, identity) and self._unlink(name):
                    deleted.append(name)
                    for suffix in dump_name.COMPANIONS:
                        self._unlink(name + suffix)
            return deleted
        directory = -1
        moved = []
        try:
            for name, identity in dumps:
                if not self._is(name, identity):
                    continue
                if directory < 0:
                    directory = self._make_collected()
                if not self._move(name, directory):
                    continue
                moved.append(name)
                for suffix in dump_name.COMPANIONS:
                    self._move(name + suffix, directory)
        finally:
            if directory >= 0:
                os.close(directory)
        return moved

    def _move(self, name: str, directory: int) -> bool:
        try:
            os.rename(name, name, src_dir_fd=self._fd, dst_dir_fd=directory)
        except FileNotFoundError:
            return False
        except OSError as exc:
            raise SpoolError(f"cannot move {self.path}/{name} to {COLLECTED}/: {exc.strerror}") from exc
        return True

    def _is(self, name: str, identity: Identity) -> bool:
        if not dump_name.parse(name):
            raise SpoolError(f"{name!r} is not the name of a dump")
        try:
            return Identity.of(os.stat(name, dir_fd=self._fd, follow_symlinks=False)) == identity
        except OSError:
            return False

    def _unlink(self, name: str) -> bool:
        try:
            os.unlink(name, dir_fd=self._fd)
        except FileNotFoundError:
            return False
        except OSError as exc:
            raise SpoolError(f"cannot delete {self.path}/{name}: {exc.strerror}") from exc
        return True

    def thin_collected(self, most: int) -> None:
        """Delete the oldest collected dumps, with their companions, until all files here take at most ``most`` bytes.

        Raises SpoolError if one cannot be deleted, or if those that are not collected take more: they stay.
        """
        left = used = sum(_bytes_of(self._fd).values())
        try:
            directory = self._open_collected()
        except FileNotFoundError:
            directory = -1
        if directory >= 0:
            try:
                left += _thin(directory, most - used)
            except OSError as exc:
                where = f"{self.path}/{COLLECTED}/{exc.filename}"
                raise SpoolError(f"cannot delete {where}: {exc.strerror}") from exc
            finally:
                os.close(directory)
        if left > most:
            raise SpoolError(
                f"{self.path} takes {left >> 20} MiB, more than the {most >> 20} MiB meant for it, with files that are"
                " not collected. See what they are; rollback_purge=true removes them"
            )

    def _make_collected(self) -> int:
        try:
            os.mkdir(COLLECTED, 0o700, dir_fd=self._fd)
        except FileExistsError:
            pass
        except OSError as exc:
            raise SpoolError(f"cannot make {self.path}/{COLLECTED}: {exc.strerror}") from exc
        return self._open_collected()

    def _open_collected(self) -> int:
        """The directory of collected dumps; whoever made it, it must not be a link or belong to a third user.

        Raises SpoolError, and FileNotFoundError if there is none.
        """
        where = f"{self.path}/{COLLECTED}"
        try:
            fd = os.open(COLLECTED, _DIRECTORY | os.O_NOFOLLOW, dir_fd=self._fd)
        except FileNotFoundError:
            raise
        except OSError as exc:
            raise SpoolError(f"{where} is not a directory, so dumps are left where they are: {exc.strerror}") from exc
        if os.fstat(fd).st_uid not in (self.owner, 0, os.geteuid()):
            os.close(fd)
            raise SpoolError(f"{where} belongs to another user than the spool, so dumps are left where they are")
        return fd


def _bytes_of(directory: int) -> dict[str, int]:
    """What each file takes on the disk."""
    found: dict[str, int] = {}
    for name in os.listdir(directory):
        try:
            status = os.stat(name, dir_fd=directory, follow_symlinks=False)
        except FileNotFoundError:
            continue
        if stat.S_ISREG(status.st_mode):
            found[name] = status.st_blocks * 512
    return found


def _thin(directory: int, most: int) -> int:
    """Delete the oldest dumps until a directory's files take at most ``most`` bytes. Returns what they then take."""
    sizes = _bytes_of(directory)
    used = sum(sizes.values())
    for name in sorted(filter(dump_name.parse, sizes), key=lambda name: _changed(directory, name)):
        if used <= most:
            break
        for part in (name, *(name + suffix for suffix in dump_name.COMPANIONS)):
            try:
                os.unlink(part, dir_fd=directory)
            except FileNotFoundError:
                continue
            used -= sizes.get(part, 0)
    return used


def _changed(directory: int, name: str) -> float:
    try:
        return os.stat(name, dir_fd=directory, follow_symlinks=False).st_mtime
    except FileNotFoundError:
        return 0.0


def _check_trusted(fd: int, path: str) -> None:
    status = os.fstat(fd)
    if status.st_uid not in (0, os.geteuid()):
        raise SpoolError(f"{path} belongs to user {status.st_uid} instead of root; nothing in it is touched")
    if status.st_mode & 0o022:
        raise SpoolError(
            f"users other than root can write to {path} (mode {status.st_mode & 0o7777:o}); nothing in it is touched"
        )
