# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""An archive at an address, such as s3://bucket/offheap, with the names that a directory has (archive.py).

Nothing can be renamed there. So a capture's dump and perf map are written first and its capture.json last, only where
there is none: with it the capture is there, whole, for everybody at once. What lies in a place without it is no
capture, and the next writer of the same dump writes over it. Whether something is there is never told by times.

What was read or written is kept in this user's cache, under the same names. The address says what there is; what comes
from the cache is checked like what comes from a disk.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote

from ...module_utils.formats import limits
from ...module_utils.formats.capture_facts import CaptureFacts, CaptureFactsError
from ..base.directory_name import directory_name
from ..base.errors import ControllerError
from ..base.options import from_here
from . import far_cache, image_files
from .archive import FORMAT, INDEX, REMOVED, Archive, ArchiveError, failing, format_of, index, read_dump
from .capture import DUMP, FACTS, HOLDERS, LIVES, PERF_MAP, Arrived, Capture, capture_of, in_order, write_capture
from .object_store import ObjectStore, TooLargeError, is_address

_LIMITS = {
    FACTS: limits.LARGEST_FACTS,
    DUMP: limits.LARGEST_DUMP,
    PERF_MAP: limits.LARGEST_PERF_MAP,
    LIVES: limits.LARGEST_LIVES,
    HOLDERS: limits.LARGEST_HOLDERS,
}
#: the files of each directory, with their sizes
_Listing = dict[str, dict[str, int]]


def opened(name: str | Path) -> Archive:
    """The archive in a directory, relative to the current one, or at an address. Raises ControllerError."""
    if not is_address(str(name)):
        return Archive.open(from_here(str(name)))
    archive = FarArchive(ObjectStore(str(name)))
    if not archive.exists():
        raise ArchiveError(
            f"there is no archive at {name}: collect_profiles, the module heap_fetch and fab collect create it"
        )
    return archive


def created(name: str | Path, check_mode: bool = False) -> Archive:
    """The same, created if there is none; in check mode an empty one, which nothing is written to."""
    if not is_address(str(name)):
        return Archive.create(from_here(str(name)), check_mode)
    archive = FarArchive(ObjectStore(str(name)))
    archive.make(check_mode)
    return archive


@dataclass(frozen=True)
class FarCapture(Capture):
    """A capture at an address. ``path`` is its directory in the cache, which gets a file when it is asked for."""

    fetch: Callable[[str], object] = field(compare=False)
    there: frozenset[str]

    @property
    def dump(self) -> Path:
        path = self.path / DUMP
        try:
            read_dump(path, self.facts.dump.sha256)
        except (OSError, ControllerError):  # not there yet, or damaged; what is still damaged then, its reader tells
            self.fetch(DUMP)
        return path

    def has(self, name: str) -> bool:
        return name in self.there

    @property
    def perf_map(self) -> Path | None:
        return self._beside(PERF_MAP)

    @property
    def lives(self) -> Path | None:
        return self._beside(LIVES)

    @property
    def holders(self) -> Path | None:
        return self._beside(HOLDERS)

    def _beside(self, name: str) -> Path | None:
        path = self.path / name
        return path if name in self.there and (path.is_file() or self.fetch(name)) else None

    def files(self) -> dict[str, Path]:
        """All files of this capture, brought here."""
        own = (self.path / FACTS, self.dump, self.perf_map, self.lives, self.holders)
        return {path.name: path for path in own if path is not None}


class FarArchive(Archive):
    """An archive at an address. ``root`` is its copy in the cache, with what this user has read or written.

    All methods also raise StoreError.
    """

    def __init__(self, store: ObjectStore) -> None:
        store.require_create()
        place = far_cache.place_of(store.address)
        try:
            weakref.finalize(self, os.close, far_cache.use(store.address))
        except OSError as error:
            raise ArchiveError(
                f"cannot keep what {store.address} holds in {place}: {error.strerror}; XDG_CACHE_HOME moves it"
            ) from error
        super().__init__(place)
        self._store = store
        # Several threads of a console use one archive, so what is here may be gone a moment later.
        self._known: dict[str, _Listing] = {}

    @property
    def where(self) -> str:
        return self._store.address

    def exists(self) -> bool:
        """Whether there is an archive. Raises ArchiveError for one of an unknown format."""
        content = self._store.read(INDEX, 1 << 16)
        if content is None:
            return False
        place = f"{self.where}/{INDEX}"
        try:
            self._format = format_of(json.loads(content), place)
        except (ValueError, RecursionError) as error:
            raise ArchiveError(f"{place} is damaged: {error}. Write {index().decode().strip()} into it") from error
        return True

    def make(self, check_mode: bool = False) -> None:
        """Make an archive there unless there is one or in check mode. Raises ArchiveError if there is anything else."""
        if self.exists():
            return
        there = self._store.names()
        if there and INDEX not in there:  # with it, another controller was first
            raise ArchiveError(f"{self.where} is not an archive, and not empty (it holds {there[0]}); name another")
        if not check_mode and not self._store.create(INDEX, index()):
            self.exists()

    def units(self) -> list[str]:
        return self._names("captures")

    def hosts(self, unit: str) -> list[str]:
        return self._names(f"captures/{directory_name(unit)}")

    def captures(
        self, unit: str | None = None, host: str | None = None, warn: Callable[[str], None] | None = None
    ) -> list[Capture]:
        inside = ["captures", *([] if unit is None else [directory_name(unit)])]
        if unit is not None and host is not None:
            inside.append(directory_name(host))
        listing = self._list("/".join(inside))
        wanted = None if host is None else directory_name(host)
        places = [
            place
            for place, files in listing.items()
            if FACTS in files and _is_capture(place) and wanted in (None, place.split("/")[2])
        ]
        self._bring_facts([place for place in places if listing[place][FACTS] <= limits.LARGEST_FACTS])
        found: list[Capture] = []
        for place in places:
            try:
                found.append(self._capture(self.root / place, listing[place]))
            except ArchiveError as error:
                if warn is None:
                    raise
                warn(str(error))
        return in_order(found)

    def has(self, facts: CaptureFacts) -> bool:
        files = self._files(self.place(facts))
        return (FACTS in files or REMOVED in files) and self.damage(facts) is None

    def damage(self, facts: CaptureFacts) -> str | None:
        place = self.place(facts)
        files = self._files(place)
        if FACTS not in files:
            return None
        try:
            if self._capture(place, files).facts.dump.sha256 != facts.dump.sha256:
                raise ArchiveError("its facts are of another dump")
            if not files.get(DUMP):
                raise ArchiveError("it has no dump")
        except ArchiveError as error:
            return f"{self._address(place)} in the archive is not whole: {error}"
        return None

    def confirm(self, known: Iterable[CaptureFacts]) -> None:
        """Look again whether these captures are here. Raises ArchiveError."""
        known = list(known)
        for of_host in {self._name(self.place(facts).parent.parent) for facts in known}:
            self._known.pop(of_host, None)
        for facts in known:
            if not self.has(facts):
                raise ArchiveError(f"{self._address(self.place(facts))} has just gone; run again, which brings it anew")

    def add_captures(self, arrived: Iterable[Arrived], aside: Path) -> list[tuple[Capture, bool]]:
        """Add dumps. When this returns, the store has acknowledged all of each of them."""
        if self._format < FORMAT:
            self._store.put(INDEX, index())
            self._format = FORMAT
        return [
            self._add(one, self.place(one.facts), aside / f"capture-{number}") for number, one in enumerate(arrived)
        ]

    def _add(self, arrived: Arrived, place: Path, capture: Path) -> tuple[Capture, bool]:
        files = self._files(place)
        damaged = FACTS in files
        if damaged and self.has(arrived.facts):
            return self._capture(place, files), False
        with failing(f"cannot write the capture {capture}"):
            write_capture(arrived, capture)
            content = (capture / FACTS).read_bytes()
            files = files | {path.name: path.stat().st_size for path in capture.iterdir()}
            for part in sorted(set(_LIMITS) - {FACTS}):
                if (capture / part).exists():
                    self._store.put(f"{self._name(place)}/{part}", capture / part)
            new = not damaged and self._store.create(f"{self._name(place)}/{FACTS}", content)
            if (of_host := self._known.get(self._name(place.parent.parent))) is not None:
                of_host[self._name(place)] = files
            self._keep(capture, place)
            # The facts of a writer who was first are as good, if they are of this dump.
            if not new and (damaged or not self._fetch(place, FACTS) or self.damage(arrived.facts) is not None):
                self._store.put(f"{self._name(place)}/{FACTS}", content)
                (place / FACTS).write_bytes(content)
                new = True
        return self._capture(place, files), new

    def remove_capture(self, capture: Capture) -> None:
        place = self._name(capture.path)
        self._store.put(f"{place}/{REMOVED}", b"")
        others = [name for name in self._store.files(place) if name != f"{place}/{REMOVED}"]
        self._store.remove(sorted(others, key=lambda name: not name.endswith(f"/{FACTS}")))
        self._known.pop(self._name(capture.path.parent.parent), None)
        shutil.rmtree(capture.path, ignore_errors=True)

    def knows(self, inside: Path) -> bool:
        files = self._files(self.root / "captures" / inside)
        return FACTS in files or REMOVED in files

    def noted(self, capture: Capture, about: str) -> bool:
        memo = self._memo(capture, about)
        return memo.name in self._listed(about).get(self._name(memo.parent), {})

    def note(self, capture: Capture, about: str) -> None:
        self._store.put(self._name(self._memo(capture, about)), b"")
        self._known.pop(about, None)

    def size_of(self, capture: Capture) -> int:
        return sum(self._files(capture.path).values())

    def put_image(self, build_id: str, name: str, source: Path) -> None:
        place = self._image_directory(build_id) / name
        with self.incoming() as aside, failing(f"cannot write the image {place}"):
            self._bring(source, aside / name)
            self._store.put(self._name(place), aside / name)
            self._keep(aside, place.parent)

    def image(self, build_id: str, sha256: str = "") -> Path | None:
        kept = super()._image_names(build_id)
        # Which is the only one, the address says.
        name = image_files.chosen(kept if sha256 else (), sha256)
        name = name or image_files.chosen(self._image_names(build_id), sha256)
        if name is None:
            return None
        place = self._image_directory(build_id) / name
        if name in kept:
            return place
        with self.incoming() as aside, contextlib.suppress(TooLargeError):  # as if it were not there
            there = self._store.get(f"images/{build_id}/{name}", aside / name, limits.LARGEST_IMAGE)
            if there and image_files.is_image(aside / name, build_id, image_files.said(name)):
                self._keep(aside, place.parent)
                return place
        return None

    def missing_images(self, wanted: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
        there: dict[str, list[str]] = {}
        for build_id, _slash, name in (one.partition("/") for one in self.images()):
            there.setdefault(build_id, []).append(name)
        return [one for one in dict.fromkeys(wanted) if image_files.chosen(there.get(one[0], ()), one[1]) is None]

    def _image_names(self, build_id: str) -> list[str]:
        return self._store.names(f"images/{self._image_directory(build_id).name}")

    def images(self) -> list[str]:
        return sorted(name.removeprefix("images/") for name in self._store.files("images") if name.count("/") == 2)

    def _names(self, directory: str) -> list[str]:
        return sorted(unquote(name) for name in self._store.names(directory) if not name.startswith("."))

    def _name(self, path: Path) -> str:
        return path.relative_to(self.root).as_posix()

    def _address(self, path: Path) -> str:
        return f"{self.where}/{self._name(path)}"

    def _list(self, directory: str) -> _Listing:
        found: _Listing = {}
        for name, size in self._store.files(directory).items():
            place, _slash, file = name.rpartition("/")
            found.setdefault(place, {})[file] = size
        return found

    def _files(self, place: Path) -> dict[str, int]:
        """A capture's files. What a host has there is listed once, since its captures are looked up one by one."""
        return self._listed(self._name(place.parent.parent)).get(self._name(place), {})

    def _listed(self, directory: str) -> _Listing:
        listing = self._known.get(directory)
        if listing is None:
            listing = self._known[directory] = self._list(directory)
        return listing

    def _capture(self, place: Path, files: dict[str, int]) -> FarCapture:
        """The capture there, with facts from the cache where it has them. Raises ArchiveError if it is damaged."""
        try:
            for name, largest in _LIMITS.items():
                if files.get(name, 0) > largest:
                    raise ArchiveError(f"its {name} is larger than {largest} bytes")
            if not (place / FACTS).is_file():
                self._fetch(place, FACTS)
        except ArchiveError as error:
            raise self._damaged(place, error) from error
        try:
            facts = CaptureFacts.from_json(json.loads((place / FACTS).read_text(encoding="utf-8")))
            if self.place(facts) != place:
                raise ArchiveError("its facts belong to another path")
        except (OSError, ValueError, RecursionError, CaptureFactsError, ControllerError) as error:
            (place / FACTS).unlink(missing_ok=True)
            raise self._damaged(place, error) from error
        return FarCapture(
            **vars(capture_of(place, facts)), fetch=lambda name: self._fetch(place, name), there=frozenset(files)
        )

    def _damaged(self, place: Path, error: Exception) -> ArchiveError:
        told = f"{self._address(place)} is damaged: {error}; remove it, the other captures do not need it"
        return ArchiveError(told)

    def _fetch(self, place: Path, name: str) -> bool:
        """Copy a file of a capture into the cache; False if it is not there."""
        with self.incoming() as aside:
            there = self._store.get(f"{self._name(place)}/{name}", aside / name, _LIMITS[name])
            if there:
                self._keep(aside, place)
        return there

    def _keep(self, directory: Path, place: Path) -> None:
        """Move files into the cache."""
        with failing(f"cannot keep {place}"):
            place.mkdir(parents=True, exist_ok=True)
            for path in directory.iterdir():
                os.replace(path, place / path.name)

    def _bring_facts(self, places: Iterable[str]) -> None:
        """The facts of these captures into the cache, where they are missing, several at once."""
        lacking = [place for place in places if not (self.root / place / FACTS).is_file()]
        with self.incoming() as aside:
            for name, content in self._store.read_all([f"{place}/{FACTS}" for place in lacking]).items():
                (aside / FACTS).write_bytes(content)
                self._keep(aside, (self.root / name).parent)


def _is_capture(place: str) -> bool:
    """Whether these are the parts of a capture's path, none of which leads elsewhere."""
    parts = place.split("/")
    return len(parts) == 5 and not any(part.startswith(".") or not part for part in parts)
