# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Copies an archive to or from any address that fsspec knows, such as s3://bucket/offheap.

Archives merge by copying. Object stores have no rename, so a capture is complete once it has its capture.json, which is
written last. Pulled data is checked like data from a host: facts, checksums, build-ids.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import json
import posixpath
import tempfile
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...module_utils.formats import limits
from ...module_utils.formats.capture_facts import CaptureFacts, KnownImage
from ...module_utils.formats.errors import OffheapError
from ..base import unpack
from ..base.errors import ControllerError
from ..base.progress import Progress
from . import image_files
from .archive import FORMAT, INDEX, REMOVED, Archive, ArchiveError, failing, format_of, index, read_dump
from .capture import DUMP, FACTS, HOLDERS, LIVES, PERF_MAP, Capture
from .object_store import ObjectStore, StoreError, TooLargeError

_PIECE = 1 << 20


#: returns the derived files to upload with a capture, by name, since nobody derives them there; may create them in the
#: directory that it gets, which is temporary
Beside = Callable[[Capture, Path], Mapping[str, Path]]


@dataclass
class Copied:
    """How many captures and images were copied, or would be."""

    captures: int = 0
    images: int = 0


class Remote:
    """An archive at a URL. ``options`` are those of the file system, such as keys. Raises ControllerError."""

    def __init__(self, url: str, options: Mapping[str, Any]) -> None:
        self.url = url
        self._format = FORMAT
        self._store = ObjectStore(url, options)
        self._paths = set(self._store.files())

    def push(
        self,
        archive: Archive,
        beside: Beside,
        warn: Callable[[str], None],
        check_mode: bool = False,
        progress: Progress | None = None,
    ) -> Copied:
        """Copy to the remote what it lacks; what is damaged is skipped with a warning. Raises ArchiveError."""
        copied, progress = Copied(), progress or Progress()
        progress.at(f"copying to {self.url}")
        self._check_index(make=not check_mode)
        for name in archive.images():
            if f"images/{name}" in self._paths:
                continue
            copied.images += 1
            build_id, _slash, file = name.partition("/")
            image = None if check_mode else archive.image(build_id, image_files.said(file))
            if image is not None:
                self._store.put(f"images/{name}", image)
        for capture in archive.captures(warn=warn):
            place = archive.name_of(capture)
            if not self._paths.isdisjoint((f"{place}/{FACTS}", f"{place}/{REMOVED}")):
                continue
            try:
                read_dump(capture.dump, capture.facts.dump.sha256)
            except (OSError, ControllerError) as error:
                warn(f"{place} was skipped: {error}")
                continue
            copied.captures += 1
            if not check_mode:
                self._put_capture(capture, place, beside)
            progress.capture()
        return copied

    def _put_capture(self, capture: Capture, place: str, beside: Beside) -> None:
        if self._format < FORMAT:
            self._store.put(INDEX, index())
            self._format = FORMAT
        with tempfile.TemporaryDirectory(prefix="offheap-") as directory:
            files = {**capture.files(), **beside(capture, Path(directory))}
            for name in sorted(files, key=lambda name: name == FACTS):
                self._store.put(f"{place}/{name}", files[name])

    def pull(
        self,
        archive: Archive,
        warn: Callable[[str], None],
        check_mode: bool = False,
        progress: Progress | None = None,
    ) -> Copied:
        """Copy from the remote what the archive lacks; invalid data is skipped with a warning. Raises ArchiveError."""
        copied, progress = Copied(), progress or Progress()
        progress.at(f"copying from {self.url}")
        self._check_index(make=False)
        if not self._paths:
            raise ArchiveError(f"there is no archive at {self.url}: direction=push makes one there")
        facts_of = [path for path in sorted(self._paths) if path.startswith("captures/") and path.endswith(f"/{FACTS}")]
        # A pull that was killed may have brought captures without their images.
        wanted = {
            (image.build_id, image.sha256): None for capture in archive.captures(warn=warn) for image in capture.images
        }
        with contextlib.nullcontext(Path()) if check_mode else archive.incoming() as aside:
            for path in facts_of:
                place = posixpath.dirname(path)
                try:
                    if archive.knows(_inside(place)):
                        continue
                    facts = self._facts(archive, place)
                    files = [] if check_mode else self._bring(facts, place, aside)
                except TooLargeError as error:
                    warn(f"{self.url}/{place} was skipped: {error}")
                    continue
                except StoreError:
                    raise  # it is gone, for the next one as well
                except (OffheapError, ValueError, RecursionError) as error:
                    warn(f"{self.url}/{place} was skipped: {error}")
                    continue
                if not check_mode:
                    archive.add_capture(facts, aside / "dump", *files)
                copied.captures += 1
                wanted.update(
                    ((image.build_id, image.sha256), None) for image in facts.images if isinstance(image, KnownImage)
                )
                progress.capture()
            copied.images = self._add_images(archive, archive.missing_images(wanted), aside, warn, check_mode)
        return copied

    def _check_index(self, make: bool) -> None:
        if INDEX in self._paths:
            try:
                found = json.loads(self._read(INDEX, 1 << 16))
            except (ValueError, RecursionError) as error:
                raise ArchiveError(f"{self.url}/{INDEX} is not JSON: {error}") from error
            self._format = format_of(found, f"{self.url}/{INDEX}")
        elif self._paths:
            raise ArchiveError(f"{self.url} is not an archive, and not empty; name another address")
        elif make:
            self._store.put(INDEX, index())

    def _facts(self, archive: Archive, place: str) -> CaptureFacts:
        facts = CaptureFacts.from_json(json.loads(self._read(f"{place}/{FACTS}", limits.LARGEST_FACTS)))
        if archive.place(facts).relative_to(archive.root).as_posix() != place:
            raise ArchiveError("its facts belong to another path")
        if facts.dump.size > limits.LARGEST_DUMP:
            raise ArchiveError("its dump is too large")
        return facts

    def _bring(self, facts: CaptureFacts, place: str, aside: Path) -> list[Path | None]:
        """A capture's dump, as ``dump``, and its perf map, lives and holders."""
        data = self._read(f"{place}/{DUMP}", limits.LARGEST_DUMP)
        content = unpack.unpack(data, DUMP, max(facts.dump.size, len(data)), facts.dump.size)
        if hashlib.sha256(content).hexdigest() != facts.dump.sha256:
            raise ArchiveError("its dump does not have the checksum in its facts")
        with failing(f"cannot write {aside}"):
            (aside / "dump").write_bytes(content)
        return [
            self._beside(place, PERF_MAP, aside, limits.LARGEST_PERF_MAP),
            self._beside(place, LIVES, aside, limits.LARGEST_LIVES),
            self._beside(place, HOLDERS, aside, limits.LARGEST_HOLDERS),
        ]

    def _beside(self, place: str, name: str, aside: Path, limit: int) -> Path | None:
        """A capture's file beside its dump, unpacked."""
        if f"{place}/{name}" not in self._paths:
            return None
        plain = aside / name.removesuffix(".gz")
        _gunzip(self._get(f"{place}/{name}", aside / "packed", limit), plain, limit)
        return plain

    def _add_images(
        self,
        archive: Archive,
        wanted: Iterable[tuple[str, str]],
        aside: Path,
        warn: Callable[[str], None],
        check_mode: bool,
    ) -> int:
        there: dict[str, list[str]] = {}
        for path in self._paths:
            if path.startswith("images/"):
                there.setdefault(posixpath.basename(posixpath.dirname(path)), []).append(posixpath.basename(path))
        count = 0
        for build_id, sha256 in wanted:
            name = image_files.chosen(there.get(build_id, ()), sha256)
            if name is None:
                continue
            count += 1
            if check_mode:
                continue
            try:
                file = self._get(f"images/{build_id}/{name}", aside / "image", limits.LARGEST_IMAGE)
                if not image_files.is_image(file, build_id, image_files.said(name)):
                    raise ArchiveError("it is a different build")
                archive.put_image(build_id, image_files.as_written(name), file)
            except OffheapError as error:
                count -= 1
                warn(f"{self.url}/images/{build_id}/{name} was skipped: {error}")
        return count

    def _read(self, name: str, limit: int) -> bytes:
        content = self._store.read(name, limit)
        if content is None:
            raise ArchiveError(f"{posixpath.basename(name)} is missing")
        return content

    def _get(self, name: str, target: Path, limit: int) -> Path:
        if not self._store.get(name, target, limit):
            raise ArchiveError(f"{posixpath.basename(name)} is missing")
        return target


def _inside(place: str) -> Path:
    """The part of a capture's path below ``captures``. Raises ArchiveError for any other path."""
    parts = place.split("/")
    if len(parts) != 5 or any(part in ("", ".", "..") for part in parts):
        raise ArchiveError("this is not the path of a capture")
    return Path(*parts[1:])


def _gunzip(source: Path, target: Path, limit: int) -> None:
    try:
        with gzip.open(source) as stream, target.open("wb") as plain:
            for _piece in range(-(-limit // _PIECE)):
                plain.write(stream.read(_PIECE))
            if stream.read(1):
                raise ArchiveError(f"its {target.name} is too large")
    except (OSError, EOFError, zlib.error) as error:
        raise ArchiveError(f"its {target.name} cannot be unpacked: {error}") from error
