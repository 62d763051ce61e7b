# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Writes a file whole or not at all, and overwrites other content only if asked to."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from .errors import ControllerError


class OutputError(ControllerError):
    """The file cannot or must not be written. The message says why."""


def write(path: Path, content: bytes, force: bool, check_mode: bool = False) -> bool:
    """Give ``path`` this content. Returns whether that changed it (in check mode: would). Raises OutputError.

    A reader of ``path`` sees the old content or the new, never a part. Without ``force`` an existing file with other
    content stays as it is, even one created meanwhile.
    """
    try:
        if path.is_dir():
            raise OutputError(f"{path}: is a directory; name a file")
        if path.exists():
            if path.read_bytes() == content:
                return False
            if not force:
                raise OutputError(
                    f"{path}: exists with other content; it is replaced only with force=true (fab: --force)"
                )
        if not check_mode:
            _write(path, content, force)
    except (FileExistsError, NotADirectoryError) as error:
        raise OutputError(f"{path} cannot be written: part of its path is a file, not a directory") from error
    except OSError as error:
        raise OutputError(f"{path} cannot be written: {error.strerror or error}; name another place") from error
    return True


@contextlib.contextmanager
def replacing(path: Path, force: bool = True) -> Iterator[Path]:
    """A new empty file (mode 0600) beside ``path`` that replaces it when the block ends without an error.

    Raises OSError, and FileExistsError if ``path`` was created meanwhile and ``force`` is false.
    """
    handle, name = tempfile.mkstemp(prefix=f".{path.name[:40]}.", dir=path.parent)
    os.close(handle)
    try:
        yield Path(name)
        if force:
            os.replace(name, path)
        else:
            os.link(name, path)
    finally:
        with contextlib.suppress(OSError):
            os.unlink(name)


def _write(path: Path, content: bytes, force: bool) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with replacing(path, force) as beside:
            beside.write_bytes(content)
            mask = os.umask(0)
            os.umask(mask)
            beside.chmod(0o666 & ~mask)
    except FileExistsError as error:
        raise OutputError(f"{path}: was just created by another process") from error
