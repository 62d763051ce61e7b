# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Write a file whole or not at all, and never over something else unless that was asked for."""

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
    """Make ``path`` have this content; whether it was changed (in check mode: would be). Raises OutputError.

    A reader of ``path`` sees the old content or the new one, never a part. Without ``force`` a file that is there and
    has other content is left alone, and so is one that comes into being meanwhile.
    """
    try:
        if path.is_dir():
            raise OutputError(f"{path}: is a directory, expected the name of a file")
        if path.exists():
            if path.read_bytes() == content:
                return False
            if not force:
                raise OutputError(f"{path}: is there already, with other content; it is replaced only with force=true")
        if not check_mode:
            _write(path, content, force)
    except OSError as error:
        raise OutputError(f"{error.filename or path}: {error.strerror or error}") from error
    return True


@contextlib.contextmanager
def replacing(path: Path, force: bool = True) -> Iterator[Path]:
    """A new empty file (mode 0600) beside ``path``, which takes its place when the block ends without an error.

    Raises OSError, and FileExistsError where ``path`` came into being meanwhile and is not to be replaced by ``force``.
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
        raise OutputError(f"{path}: was made by someone else in this moment") from error
