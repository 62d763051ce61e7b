# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Files at an address that fsspec knows, such as s3://bucket/offheap: list, read, write, and create exactly once.

A file appears there whole or not at all. There is no rename, and no order but that in which one writer writes. The
library behind the address finds the credentials (environment, files, the machine's role) and tries again what fails
for a moment, so neither is done here.
"""

from __future__ import annotations

import contextlib
import inspect
import posixpath
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..base import libraries
from ..base.errors import ControllerError

fsspec = libraries.optional("fsspec")


class StoreError(ControllerError):
    """An address cannot be used, or what lies there cannot be read or written. The message says which and why."""


class TooLargeError(StoreError):
    """A file is larger than anything of its kind."""


def is_address(name: str) -> bool:
    """Whether this names something that fsspec opens, not a path."""
    return re.match(r"[a-z][a-z0-9+.:-]*://", name) is not None


class ObjectStore:
    """The files below an address. ``options`` are those of fsspec's file system. Names are relative, with slashes.

    Its methods raise StoreError.
    """

    def __init__(self, address: str, options: Mapping[str, Any] | None = None) -> None:
        if ":" in address.partition("://")[2].partition("/")[0].rpartition("@")[0]:
            raise StoreError(
                "an address must hold no password, since addresses are printed: take it out. The library behind the"
                " address finds it elsewhere; for s3:// in AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or ~/.aws"
            )
        self.address = address.rstrip("/")
        with self._talking(""):
            self._files, self._root = fsspec.core.url_to_fs(self.address, skip_instance_cache=True, **(options or {}))
            self._files.dircache.use_listings_cache = False  # others write there, too

    def require_create(self) -> None:
        """Raises StoreError if a file cannot be created only where there is none, in one step."""
        own = getattr(type(self._files), "_pipe_file" if self._files.async_impl else "pipe_file")
        if own is fsspec.spec.AbstractFileSystem.pipe_file or "mode" not in inspect.signature(own).parameters:
            raise StoreError(
                f"{self.address} cannot hold an archive that is written in place: the installed library for"
                f" {self.address.partition('://')[0]}:// cannot create a file only where there is none. For s3:// that"
                " takes s3fs 2025.2 or later; else collect into a directory, and copy it with archive_sync"
            )

    def files(self, directory: str = "") -> dict[str, int]:
        """All files below a directory, by name, with their sizes in bytes."""
        with self._talking(directory):
            found = self._files.find(self._at(directory), detail=True)
            return {posixpath.relpath(path, self._root): int(about["size"] or 0) for path, about in found.items()}

    def names(self, directory: str = "") -> list[str]:
        """What lies directly in a directory: the last part of each name, sorted."""
        with self._talking(directory), contextlib.suppress(FileNotFoundError):
            return sorted({posixpath.basename(path.rstrip("/")) for path in self._files.ls(self._at(directory), False)})
        return []

    def read(self, name: str, limit: int) -> bytes | None:
        """A file's content, or None if there is none. Raises StoreError if it has more than ``limit`` bytes."""
        with self._talking(name), contextlib.suppress(FileNotFoundError):
            self._check_size(name, limit)
            content: bytes = self._files.cat_file(self._at(name))
            return content
        return None

    def read_all(self, names: Sequence[str]) -> dict[str, bytes]:
        """The content of those of these files that are there, all of them small. The library reads several at once."""
        contents: dict[str, bytes] = {}
        with self._talking(""):
            found = self._files.cat([self._at(name) for name in names], on_error="return") if names else {}
            for path, content in found.items():
                if isinstance(content, FileNotFoundError):
                    continue
                if isinstance(content, BaseException):
                    raise content
                contents[posixpath.relpath(path, self._root)] = content
        return contents

    def get(self, name: str, target: Path, limit: int) -> bool:
        """Copy a file here; False if there is none. Raises StoreError if it has more than ``limit`` bytes."""
        with self._talking(name), contextlib.suppress(FileNotFoundError):
            self._check_size(name, limit)
            self._files.get_file(self._at(name), str(target))
            return True
        return False

    def put(self, name: str, source: Path | bytes) -> None:
        """Write a file, also over one that is there."""
        with self._talking(name):
            self._make_parent(name)
            if isinstance(source, Path):
                self._files.put_file(str(source), self._at(name))
            else:
                self._files.pipe_file(self._at(name), source)

    def create(self, name: str, content: bytes) -> bool:
        """Write a file unless there is one, in one step: of several writers one succeeds, the others get False."""
        with self._talking(name):
            self._make_parent(name)
            try:
                self._files.pipe_file(self._at(name), content, mode="create")
            except Exception:  # each library says in its own way that there is one
                if not self._files.exists(self._at(name)):
                    raise
                return False
        return True

    def remove(self, names: Sequence[str]) -> None:
        """Remove these files, those that are there."""
        for name in names:
            with self._talking(name), contextlib.suppress(FileNotFoundError):
                self._files.rm_file(self._at(name))

    def _make_parent(self, name: str) -> None:
        if not self._files.async_impl:  # object stores, which are all asynchronous, have no directories
            self._files.makedirs(posixpath.dirname(self._at(name)), exist_ok=True)

    def _check_size(self, name: str, limit: int) -> None:
        size = self._files.size(self._at(name))
        if size is None or size > limit:
            raise TooLargeError(f"{self.address}/{name} is larger than {limit} bytes")

    def _at(self, name: str) -> str:
        return posixpath.join(self._root, name) if name else str(self._root)

    @contextlib.contextmanager
    def _talking(self, name: str) -> Iterator[None]:
        place = f"{self.address}/{name}".rstrip("/")
        try:
            yield
        except ControllerError:
            raise
        except ImportError as error:  # "Install s3fs to access S3"
            named = re.search(r"[Ii]nstall (\w+)", str(error))
            pip = f"{sys.executable} -m pip install {named[1] if named else 'LIBRARY'}"
            raise StoreError(f"{place} needs a library: {error}. On the controller: {pip}") from error
        except Exception as error:  # of the library behind the address, which has a hierarchy of its own
            raise StoreError(f"{place}: {error or type(error).__name__}") from error
