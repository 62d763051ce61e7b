# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Separate debug information of an image: files on this machine, or by build-id on debuginfod servers.

Directories have GDB's layout: ``<directory>/.build-id/xx/yyyy.debug``, or the path of the image with ``.debug`` behind
it, as Alpine packages them, or without. Servers are those of $DEBUGINFOD_URLS, if it is set, asked for
``<url>/buildid/<build-id>/debuginfo`` as in debuginfod(8). Any file is accepted only if it has the build-id that was
asked for; a download is then kept.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from ..base.errors import ControllerError
from ..base.output_file import replacing
from . import image_names
from .elf_image import SymbolError

_DIRECTORIES = (Path("/usr/lib/debug"),)
_BUILD_ID = re.compile(r"[0-9a-f]{2,128}")
_SECONDS = 90.0
_LARGEST = 4 << 30
_PIECE = 1 << 20


class DebugFiles:
    """Finds the debug file of a build. ``cache`` is the directory where downloads are kept.

    Calls ``warn`` once for each server that fails, and does not ask it again.
    """

    def __init__(
        self,
        cache: Path,
        warn: Callable[[str], None],
        urls: Sequence[str] | None = None,
        directories: Sequence[Path] = _DIRECTORIES,
    ) -> None:
        self._cache = cache
        self._warn = warn
        told = os.environ.get("DEBUGINFOD_URLS", "").split() if urls is None else urls
        # Fedora's has words on signatures between the addresses, which are for its own client.
        self._urls = [url for url in told if not url.startswith("ima:")]
        self._directories = directories
        self._missing: set[str] = set()

    def find(self, build_id: str, image: str) -> Path | None:
        """The file, or None. ``image`` is the path that the image had where it ran."""
        if not _BUILD_ID.fullmatch(build_id) or build_id in self._missing:
            return None
        name = f"{build_id[:2]}/{build_id[2:]}.debug"
        kept = self._cache / ".build-id" / name
        names = [f".build-id/{name}"]
        # No kernel writes dots: they would lead out of the directories.
        if image.startswith("/") and ".." not in PurePosixPath(image).parts:
            names += [f"{image.lstrip('/')}.debug", image.lstrip("/")]
        for path in (*(directory / one for directory in self._directories for one in names), kept):
            if _is_of(build_id, path):
                return path
        for url in list(self._urls):
            if self._download(url, build_id, kept):
                return kept
        self._missing.add(build_id)
        return None

    def _download(self, url: str, build_id: str, target: Path) -> bool:
        if not url.startswith(("http://", "https://")) or "@" in url:
            self._drop(url, "expected an http or https address, without a password")
            return False
        # Importing these takes longer than reading most dumps, and few runs ask a server.
        import http.client
        import urllib.error
        import urllib.request

        address = f"{url.rstrip('/')}/buildid/{build_id}/debuginfo"
        request = urllib.request.Request(address, headers={"User-Agent": "offheap"})
        try:
            with urllib.request.build_opener().open(request, timeout=_SECONDS) as response:
                target.parent.mkdir(parents=True, exist_ok=True)
                with replacing(target) as brought:
                    _save(response, brought, address)
                    if not _is_of(build_id, brought):
                        raise SymbolError(f"{address}: sent a file of another build")
        except urllib.error.HTTPError as error:
            error.close()
            if error.code != 404:
                self._drop(url, f"it answers {error.code}")
            return False
        except (OSError, http.client.HTTPException, ValueError, SymbolError) as error:
            self._drop(url, str(error))
            return False
        return True

    def _drop(self, url: str, reason: str) -> None:
        self._urls.remove(url)
        shown = f"{url.partition('://')[0]}://…@{url.rpartition('@')[2]}" if "@" in url else url
        self._warn(f"{shown} of DEBUGINFOD_URLS is not asked again: {reason}")


def _is_of(build_id: str, path: Path) -> bool:
    with contextlib.suppress(ControllerError, OSError):
        return path.is_file() and image_names.described(path).build_id == build_id
    return False


def _save(response: BinaryIO, path: Path, address: str) -> None:
    size = 0
    with path.open("wb") as stream:
        while piece := response.read(_PIECE):
            size += len(piece)
            if size > _LARGEST:
                raise SymbolError(f"{address}: sends more than {_LARGEST >> 30} GiB")
            stream.write(piece)
