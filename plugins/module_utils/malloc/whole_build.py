# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""A build of jemalloc or of the agent on this host: whether it is whole, and how it gets there.

A build is a directory of files with a record, ``offheap.json``, that names
each of them with its SHA-256. It comes as a tarball whose own SHA-256 is known
before. It is unpacked beside its place and renamed, so that at its place there
is a whole build or what was there before, whenever the power fails or the disk
is full.

This module is private to the collection.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import stat
import tarfile
import tempfile
from types import MappingProxyType
from typing import IO, Any, BinaryIO, Iterator, Mapping

from ansible_collections.offheap.profiler.plugins.module_utils.formats.errors import OffheapError

RECORD = "offheap.json"
# A library has one MiB, or ten with debug information.
_MOST_BYTES = 256 << 20
_MOST_FILES = 100
_MOST_RECORD_BYTES = 64 << 10
_NAME = re.compile(r"[0-9A-Za-z_+-][0-9A-Za-z._+-]*\Z")
_SHA256 = re.compile(r"[0-9a-f]{64}\Z")


class BuildError(OffheapError):
    """A build cannot be installed. The message says why and what to do; nothing was changed."""


def fault(path: str) -> str | None:
    """Why there is no whole build at ``path``; ``None`` when there is."""
    try:
        with _opened(os.path.join(path, RECORD)) as file:
            files = _files(file.read(_MOST_RECORD_BYTES))
        for name, sha256 in files.items():
            with _opened(os.path.join(path, name)) as file:
                if sha256_of(file) != sha256:
                    return f"{path}/{name} is not as it was built"
    except FileNotFoundError as error:
        return f"{error.filename} is missing"
    except (OSError, ValueError) as error:
        return f"{path} is no build of ours: {error}"
    return None


def patches(library: str) -> list[str]:
    """Names of the patches in a library, by the record of its build; none for one that is not of a whole build."""
    path = os.path.dirname(os.path.dirname(library))
    if fault(path) or not library.startswith(path + "/lib/"):
        return []
    with _opened(os.path.join(path, RECORD)) as file:
        found = json.loads(file.read(_MOST_RECORD_BYTES).decode("utf-8")).get("patches")
    return sorted(found) if isinstance(found, dict) else []


def install(path: str, tarball: str, sha256: str, pinned: Mapping[str, str] = MappingProxyType({})) -> None:
    """Put the build that ``tarball`` holds, in a directory of the same name, at ``path``.

    ``pinned`` are files with the SHA-256 that each must have whatever the record
    says: who changes a tarball changes its record too. Raises BuildError when
    the tarball or such a file has another SHA-256, when it holds anything else,
    or when there is no room.
    """
    parent, name = os.path.split(path)
    try:
        _make_parents(parent)
        _remove_leftovers(parent, name)
        stage = tempfile.mkdtemp(prefix=f".{name}.", dir=parent)
        try:
            with _opened(tarball) as file:
                found = sha256_of(file)
                if found != sha256:
                    raise BuildError(
                        f"{tarball} has the SHA-256 {found}, but the build has {sha256}. It was changed on the way"
                        " or on the controller: nothing was unpacked. Remove it there and build again"
                    )
                file.seek(0)
                _unpack(file, stage, name)
            problem = fault(os.path.join(stage, name))
            if problem:
                raise BuildError(f"{tarball} does not hold a whole build: {problem}. Build it again")
            for file_name, pin in pinned.items():
                with _opened(os.path.join(stage, name, file_name)) as file:
                    found = sha256_of(file)
                if found != pin:
                    raise BuildError(
                        f"{file_name} in {tarball} has the SHA-256 {found}, but the collection pins {pin}. It was"
                        " changed on the way or in the controller's cache: nothing was installed. Remove it from"
                        " that cache, find out who can write there, and build again"
                    )
            if os.path.lexists(path):
                os.rename(path, os.path.join(stage, "before"))
            os.rename(os.path.join(stage, name), path)
            _sync(parent)
        finally:
            shutil.rmtree(stage)
    except (OSError, tarfile.TarError, EOFError, ValueError) as error:
        raise BuildError(f"{path} was not installed: {error}") from error


def _make_parents(parent: str) -> None:
    """The directory of all builds and the one above it, which every user can read and only this one can write to."""
    os.makedirs(parent, exist_ok=True)
    for directory in (os.path.dirname(parent), parent):
        os.chown(directory, os.geteuid(), os.getegid())
        os.chmod(directory, 0o755)


def _remove_leftovers(parent: str, name: str) -> None:
    for entry in os.listdir(parent):
        if entry.startswith(f".{name}."):
            shutil.rmtree(os.path.join(parent, entry))


def _unpack(file: BinaryIO, stage: str, name: str) -> None:
    """Only regular files below one directory; no links, no owners, no modes but whether they are executable."""
    left = _MOST_BYTES
    with tarfile.open(fileobj=file, mode="r:*") as tar:
        for count, member in enumerate(tar):
            parts = member.name.split("/")
            if parts[0] != name or not all(map(_NAME.match, parts[1:])) or count == _MOST_FILES:
                raise ValueError(f"the tarball holds {member.name[:200]!r}, not only files below {name}")
            target = os.path.join(stage, *parts)
            if member.isdir():
                os.makedirs(target, exist_ok=True)
                os.chmod(target, 0o755)
                continue
            content = tar.extractfile(member) if member.isreg() else None
            left -= member.size
            if content is None or left < 0:
                raise ValueError(f"{member.name} in the tarball is no regular file, or larger than {_MOST_BYTES} bytes")
            with open(target, "xb") as written:
                shutil.copyfileobj(content, written)
                os.fchmod(written.fileno(), 0o755 if member.mode & stat.S_IXUSR else 0o644)
                written.flush()
                os.fsync(written.fileno())


def _sync(directory: str) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _opened(path: str) -> Iterator[BinaryIO]:
    """Raises OSError for a link, and for what is no regular file."""
    with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(f"{path} is no regular file")
        yield file


def _files(record: bytes) -> dict[str, str]:
    """The files that a record names, with their SHA-256. Raises ValueError when it is no record."""
    found: Any = json.loads(record.decode("utf-8"))
    files = found.get("files") if isinstance(found, dict) else None
    if not isinstance(files, dict) or not files:
        raise ValueError(f"its {RECORD} names no files")
    for name, sha256 in files.items():
        if not all(map(_NAME.match, name.split("/"))) or not _SHA256.match(str(sha256)):
            raise ValueError(f"its {RECORD} is damaged")
    return files


def sha256_of(file: IO[bytes]) -> str:
    digest = hashlib.sha256()
    for block in iter(lambda: file.read(1 << 20), b""):
        digest.update(block)
    return digest.hexdigest()
