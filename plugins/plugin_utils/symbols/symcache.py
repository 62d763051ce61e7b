# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Symcaches: what the library ``symbolic`` finds in an image's debug information, as files by build-id and
SHA-256 of the image.

Any number of processes may share a directory of them. A symcache is written aside and renamed into place, so a reader
sees all of it or nothing. Its maker locks the directory, so that it is made only once; the kernel releases the lock
however the maker ends. Images come from others, so they and their symcaches are read in the child process.
"""

from __future__ import annotations

import contextlib
import fcntl
import io
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..base import child, libraries
from ..base.output_file import replacing
from .elf_image import SymbolError

symbolic = libraries.optional("symbolic")


def like_a_dump(tables: int) -> int:
    """The size of a dump that takes as much to read as so many bytes of an image's tables.

    Of tables of symbols, naming takes up to three times their size in memory, and of debug information a symcache takes
    as much as that has; a dump takes five times its own.
    """
    return tables // 3


def found_or_made(build_id: str, sha256: str, image: Path, directory: Path, tables: int) -> Path:
    """The symcache of an image, made from the debug information in ``image``, or in a file of its build, if missing.

    ``tables`` are the bytes of that file's tables (elf_image.py). Raises SymbolError.
    """
    path = directory / f"{build_id}{sha256 and '-'}{sha256}.symcache"
    if not _is_current(path):
        with _lock(directory):
            if not _is_current(path):  # another process may have made it meanwhile
                make(build_id, image, path, tables)
    return path


def opened(path: Path) -> Any:
    """In the child: the symcache. Raises SymbolError."""
    try:
        return symbolic.SymCache.open(os.fspath(path))
    except symbolic.SymbolicError as error:
        raise SymbolError(f"{path}: {error}") from error


def _is_current(path: Path) -> bool:
    """False if it is missing, damaged, or from another version of symbolic."""
    with contextlib.suppress(child.ChildError):
        return path.exists() and child.call(_checked, path, size=0) == b"current"
    return False


def _checked(path: Path) -> bytes:
    return b"current" if opened(path).is_latest_version else b"old"


@contextlib.contextmanager
def _lock(directory: Path) -> Iterator[None]:
    try:
        directory.mkdir(parents=True, exist_ok=True)
        handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise SymbolError(f"{directory}: {error.strerror or error}") from error
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def make(build_id: str, image: Path, path: Path, tables: int) -> None:
    """Write an image's symcache. Raises SymbolError."""
    try:
        content = child.call(_made, build_id, image, size=like_a_dump(tables))
        with replacing(path) as beside:
            beside.write_bytes(content)
    except child.ChildError as error:
        raise SymbolError(f"{image}: its debug information cannot be read: {error}") from error
    except OSError as error:
        raise SymbolError(f"{path}: {error.strerror or error}") from error


def _made(build_id: str, image: Path) -> bytes:
    try:
        found = [item for item in symbolic.Archive.open(os.fspath(image)).iter_objects() if item.code_id == build_id]
        if not found:
            raise SymbolError("the file has another build-id")
        stream = io.BytesIO()
        found[0].make_symcache().dump_into(stream)
    except symbolic.SymbolicError as error:
        raise SymbolError(str(error)) from error
    return stream.getvalue()
