# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Symcaches: what the library ``symbolic`` finds in an image's debug information, as files by build-id.

Any number of processes may share a directory of them. A symcache is written aside and renamed into place, so a reader
sees all of it or nothing. Its maker locks the directory, so that it is made only once; the kernel releases the lock
however the maker ends.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..base import libraries
from ..base.output_file import replacing
from ..base.printable import printable
from .elf_image import SymbolError

symbolic = libraries.optional("symbolic")

# Images come from others, so symbolic gets only a bounded part of this machine to read one.
_SECONDS = 300
_MEMORY = 8 << 30
_MAKE = """\
import resource, sys
sys.path.pop(0)
wanted, image, target, memory, seconds = sys.argv[1:]
resource.setrlimit(resource.RLIMIT_AS, (int(memory),) * 2)
resource.setrlimit(resource.RLIMIT_CPU, (int(seconds),) * 2)
import symbolic
found = [item for item in symbolic.Archive.open(image).iter_objects() if (item.code_id or "") == wanted]
if not found:
    sys.exit("the file has another build-id")
with open(target, "wb") as stream:
    found[0].make_symcache().dump_into(stream)
"""


def open_or_make(build_id: str, image: Path, directory: Path) -> Any:
    """The symcache of the build, made from the debug information in ``image`` if missing. Raises SymbolError."""
    path = directory / f"{build_id}.symcache"
    found = _open(path)
    if found is None:
        with _lock(directory):
            found = _open(path)  # another process may have made it meanwhile
            if found is None:
                make(build_id, image, path)
                found = _open(path)
    if found is None:
        raise SymbolError(f"{path}: was just written but cannot be read")
    return found


def _open(path: Path) -> Any:
    """The symcache, None if it is missing, damaged, or from another version of symbolic."""
    if path.exists():
        with contextlib.suppress(symbolic.SymbolicError):
            cache = symbolic.SymCache.open(os.fspath(path))
            if cache.is_latest_version:
                return cache
    return None


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


def make(build_id: str, image: Path, path: Path) -> None:
    """Write an image's symcache in a child process with limits, so that a hostile image costs only its own symcache."""
    try:
        with replacing(path) as made:
            result = subprocess.run(
                [sys.executable, "-c", _MAKE, build_id, os.fspath(image), os.fspath(made), str(_MEMORY), str(_SECONDS)],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=_SECONDS,
                check=False,
            )
            if result.returncode:
                lines = result.stderr.decode("utf-8", "replace").strip().splitlines()
                reason = printable(lines[-1]) if lines else f"exit status {result.returncode}"
                raise SymbolError(f"{image}: its debug information cannot be read: {reason}")
    except subprocess.TimeoutExpired as error:
        raise SymbolError(f"{image}: reading its debug information took over {_SECONDS} s") from error
    except OSError as error:
        raise SymbolError(f"{path}: {error.strerror or error}") from error
