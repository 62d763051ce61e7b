# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""The controller's directory of captures and images.

    <archive>/archive.json                                                       {"format": 3}
    <archive>/captures/<unit>/<host>/<process key>/<sequence>-<sha256, 12 digits>/
        capture.json, dump.heap.zst, perf.map.gz (if there is one); after a removal only "removed"
        what was derived from it, created on first use (columns/sample_cache.py)
    <archive>/images/<build-id>/<file name>
    <archive>/symcaches/<build-id>.symcache
    <archive>/.incoming/<random>/                                                 writes in progress

A capture never changes. It is written to .incoming, synced to disk and moved into place by one rename, so a reader
sees all of it or nothing. Writers need no lock: two captures with the same name are the same capture. Names from
outside are percent-encoded. docs/archive_format.md has the full description.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from urllib.parse import unquote

from ...module_utils.formats import limits
from ...module_utils.formats.capture_facts import (
    CaptureFacts,
    CaptureFactsError,
    is_build_id,
)
from ..base import unpack
from ..base.directory_name import directory_name
from ..base.durable import compress, lock, make_directory, rename_directory, sync, write
from ..base.errors import ControllerError
from .capture import DUMP, PERF_MAP, Arrived, Capture, DumpWriter, capture_of

FORMAT = 3
#: formats that this version reads and writes; the first new capture upgrades the archive to FORMAT
READABLE = (2, FORMAT)
INDEX = "archive.json"
#: marks a removed capture, so that it is not collected again
REMOVED = "removed"


class ArchiveError(ControllerError):
    """The archive, or data meant for it, cannot be used. The message says what and where."""


def format_of(found: object, place: str) -> int:
    """The format that an archive's index names. Raises ArchiveError if this version does not know it."""
    number = found.get("format") if isinstance(found, dict) else None
    if number not in READABLE:
        raise ArchiveError(
            f"{place} is not in format {FORMAT} or {READABLE[0]}, which this version of the collection supports; use"
            " the version that made the archive, or collect into a new directory"
        )
    return int(number)


def index() -> bytes:
    """The content of a new archive's index."""
    return json.dumps({"format": FORMAT}).encode() + b"\n"


class Archive:
    """An existing archive, from ``create`` or ``open``."""

    def __init__(self, root: Path, format_there: int = FORMAT) -> None:
        self.root = root
        self._format = format_there
        self._incoming = root / ".incoming"

    @classmethod
    def open(cls, root: Path) -> Archive:
        """Raises ArchiveError if there is no archive, or one of an unknown format."""
        place = root / INDEX
        try:
            found = json.loads(place.read_text(encoding="utf-8"))
        except FileNotFoundError as exc:
            raise ArchiveError(
                f"there is no archive in {root}: collect_profiles, the module heap_fetch and fab collect create it; if"
                " it is elsewhere, set offheap_archive"
            ) from exc
        except (OSError, ValueError) as exc:
            raise ArchiveError(f"cannot read {place}: {exc}") from exc
        return cls(root, format_of(found, str(place)))

    @classmethod
    def create(cls, root: Path) -> Archive:
        """Open the archive, or create it if there is none. Refuses a directory that holds anything else."""
        if (root / INDEX).exists():
            return cls.open(root)
        try:
            root.mkdir(mode=0o700, parents=True, exist_ok=True)
            strange = sorted(entry.name for entry in root.iterdir() if not entry.name.startswith("."))
            if strange and not (root / INDEX).exists():
                raise ArchiveError(
                    f"{root} is not an archive, and not empty (it holds {strange[0]}); name another directory"
                )
            archive = cls(root)
            with archive.incoming() as aside:
                archive._write_index(aside)
        except OSError as exc:
            raise ArchiveError(f"cannot create the archive {root}: {exc}") from exc
        return archive

    def _write_index(self, aside: Path) -> None:
        write(aside / INDEX, index())
        os.rename(aside / INDEX, self.root / INDEX)
        sync(self.root)
        self._format = FORMAT

    @property
    def symcaches(self) -> Path:
        """Directory of symbol caches by build-id, created on first use."""
        path = self.root / "symcaches"
        path.mkdir(exist_ok=True)
        return path

    @contextlib.contextmanager
    def incoming(self) -> Iterator[Path]:
        """A temporary directory on the archive's file system. Also removes those that killed runs left behind.

        The owner holds a lock on its directory, which the kernel releases however the owner ends.
        """
        try:
            self._incoming.mkdir(exist_ok=True)
            self._clear_stale()
            path, held = self._new_aside()
        except OSError as exc:
            raise ArchiveError(f"cannot write to the archive {self.root}: {exc}") from exc
        try:
            yield path
        finally:
            shutil.rmtree(path, ignore_errors=True)
            os.close(held)

    def _new_aside(self) -> tuple[Path, int]:
        while True:
            path = Path(tempfile.mkdtemp(dir=self._incoming))
            # Between these two steps another writer may remove it as stale; then try again.
            with contextlib.suppress(FileNotFoundError, BlockingIOError):
                held = lock(path)
                if path.exists():
                    return path, held
                os.close(held)

    def _clear_stale(self) -> None:
        for entry in self._incoming.iterdir():
            with contextlib.suppress(OSError):
                held = lock(entry)
                shutil.rmtree(entry, ignore_errors=True)
                os.close(held)

    def units(self) -> list[str]:
        """The units that have, or had, captures."""
        return sorted(unquote(path.name) for path in (self.root / "captures").glob("[!.]*") if path.is_dir())

    def hosts(self, unit: str) -> list[str]:
        """The hosts of a unit. Raises ControllerError if ``unit`` cannot be a directory's name."""
        found = (self.root / "captures" / directory_name(unit)).glob("[!.]*")
        return sorted(unquote(path.name) for path in found if path.is_dir())

    def lacking(self, name: str, units: Sequence[str] = (), hosts: Sequence[str] = ()) -> int:
        """How many captures of these units and hosts (none given: of all) lack the derived file ``name``."""
        count = 0
        for facts in (self.root / "captures").glob("*/*/*/*/capture.json"):
            unit, host = map(unquote, facts.parts[-5:-3])
            wanted = (not units or unit in units) and (not hosts or host in hosts)
            count += wanted and not (facts.parent / name).is_file()
        return count

    def name_of(self, capture: Capture) -> str:
        """The capture's path below the root, the same in every archive."""
        return capture.path.relative_to(self.root).as_posix()

    def memo(self, capture: Capture, *about: str) -> Path:
        """The path of an empty file that notes something about a capture, such as which server has its profile."""
        return self.root.joinpath(*about, *capture.path.parts[-4:])

    def captures(self, unit: str | None = None, host: str | None = None) -> list[Capture]:
        """All captures, or those of a unit or host, sorted by unit, host, process and sequence. Raises ArchiveError."""
        pattern = "/".join(
            ("*" if unit is None else directory_name(unit), "*" if host is None else directory_name(host), "*", "*")
        )
        found = []
        for path in (self.root / "captures").glob(pattern):
            if any(part.startswith(".") for part in path.relative_to(self.root).parts) or _is_removed(path):
                continue
            try:
                found.append(self._read_capture(path))
            except ArchiveError:
                if path.is_dir() and not _is_removed(path):  # else another process has just removed it
                    raise
        return sorted(found, key=lambda capture: (capture.unit, capture.host, capture.process, capture.sequence))

    def _read_capture(self, path: Path) -> Capture:
        try:
            facts = CaptureFacts.from_json(json.loads((path / "capture.json").read_text(encoding="utf-8")))
        except (OSError, ValueError, CaptureFactsError) as exc:
            raise ArchiveError(f"{path} is damaged: {exc}; remove it, the other captures do not need it") from exc
        return capture_of(path, facts)

    def place(self, facts: CaptureFacts) -> Path:
        """The path, existing or not, of a capture with these facts. Raises ControllerError for an unusable name."""
        capture = capture_of(Path(), facts)
        return self.root.joinpath(
            "captures",
            directory_name(capture.unit),
            directory_name(capture.host),
            capture.process,
            f"{capture.sequence:06d}-{facts.dump.sha256[:12]}",
        )

    def has(self, facts: CaptureFacts) -> bool:
        """Whether the archive has this dump whole, or had it until somebody removed it: hosts may delete theirs."""
        return self.place(facts).is_dir() and self.damage(facts) is None

    def damage(self, facts: CaptureFacts) -> str | None:
        """What is wrong with what lies at this dump's place; None if it is whole, was removed, or nothing is there."""
        place = self.place(facts)
        if not place.is_dir() or _is_removed(place):
            return None
        try:
            there = self._read_capture(place)
            if there.facts.dump.sha256 != facts.dump.sha256:
                raise ArchiveError("its facts are of another dump")
            read_dump(there.dump, facts.dump.sha256)
        except (OSError, ControllerError) as exc:
            return f"{place} in the archive is not whole: {exc}"
        return None

    def confirm(self, known: Iterable[CaptureFacts]) -> None:
        """Sync captures that are already here: whoever added them may have been killed before doing so.

        Call it before telling a host that they are safe. Raises ArchiveError.
        """
        _sync_all({self.place(facts).parent for facts in known})

    def add_capture(self, facts: CaptureFacts, dump_file: Path, perf_map: Path | None = None) -> tuple[Capture, bool]:
        """``add_captures`` for a single dump."""
        with self.incoming() as aside:
            (added,) = self.add_captures([Arrived(facts, dump_file, perf_map)], aside)
        return added

    def add_captures(self, arrived: Iterable[Arrived], aside: Path) -> list[tuple[Capture, bool]]:
        """Add dumps. Returns the captures, each with False if it was already there.

        A capture appears only once it is complete; when this returns, all of them survive a power failure. Captures
        that were removed from the archive, or are damaged there, come back. ``aside`` is a directory from
        ``incoming``, passed to no other call of this method.
        """
        if self._format < FORMAT:  # so that an older reader refuses it instead of misreading it
            with _failing(f"cannot write {self.root / INDEX}"):
                self._write_index(aside)
        found = [
            self._add(one, self.place(one.facts), aside / f"capture-{number}") for number, one in enumerate(arrived)
        ]
        _sync_all({capture.path.parent for capture, _added in found})
        return found

    def _add(self, arrived: Arrived, place: Path, capture: Path) -> tuple[Capture, bool]:
        if self.has(arrived.facts) and not _is_removed(place):
            return self._read_capture(place), False
        stale = place.is_dir()
        with _failing(f"cannot write the capture {place}"):
            capture.mkdir()
            if arrived.dump.suffix == ".zst":
                os.rename(arrived.dump, capture / DUMP)
            else:
                _pack(arrived.dump, capture / DUMP)
            sync(capture / DUMP)
            if arrived.perf_map is not None:
                compress(arrived.perf_map, capture / PERF_MAP)
            write(capture / "capture.json", json.dumps(arrived.facts.to_json(), sort_keys=True).encode() + b"\n")
            sync(capture)
            make_directory(place.parent)
            if stale:
                with contextlib.suppress(FileNotFoundError):  # another writer was first
                    os.rename(place, capture.with_suffix(f".{REMOVED}"))
            if rename_directory(capture, place):
                return capture_of(place, arrived.facts), True
        return self._read_capture(place), False

    def remove_capture(self, capture: Capture) -> None:
        """Remove a capture. A marker stays in its place, so that it is not collected again."""
        with self.incoming() as aside, _failing(f"cannot remove {capture.path}"):
            (aside / "place").mkdir()
            write(aside / "place" / REMOVED, b"")
            with contextlib.suppress(FileNotFoundError):  # another process was first
                os.rename(capture.path, aside / "capture")
                rename_directory(aside / "place", capture.path)
                sync(capture.path.parent)

    def add_image(self, build_id: str, basename: str, source: Path) -> Path:
        """Add an image unless the archive has one of this build. The caller has checked the build-id."""
        existing = self.image(build_id)
        if existing is not None:
            return existing
        place = self._image_directory(build_id) / directory_name(basename)
        with self.incoming() as aside, _failing(f"cannot write the image {place}"):
            self._bring(source, aside / "image")
            make_directory(place.parent)
            os.rename(aside / "image", place)
            sync(place.parent)
        return place

    def image(self, build_id: str) -> Path | None:
        """The image with this build-id, or None."""
        directory = self._image_directory(build_id)
        if not directory.is_dir():
            return None
        return next((path for path in sorted(directory.iterdir()) if path.is_file() and path.name[0] != "."), None)

    def missing_images(self, build_ids: Iterable[str]) -> list[str]:
        """The build-ids that have no image here, in order and without duplicates."""
        return [build_id for build_id in dict.fromkeys(build_ids) if self.image(build_id) is None]

    def _image_directory(self, build_id: str) -> Path:
        if not is_build_id(build_id):
            raise ArchiveError(f"{str(build_id)[:100]!r} is not a build-id")
        return self.root / "images" / build_id

    def _bring(self, source: Path, target: Path) -> None:
        if self._incoming in source.parents:
            os.rename(source, target)
        else:
            shutil.copyfile(source, target)
        sync(target)


def read_dump(path: Path, sha256: str) -> bytes:
    """A capture's dump, checked again: a disk may have damaged it since. Raises OSError or ControllerError."""
    data = unpack.read(path, limits.LARGEST_DUMP)
    if hashlib.sha256(data).hexdigest() != sha256:
        raise ArchiveError(f"{path} is damaged: its checksum has changed since it was collected")
    return data


def _pack(source: Path, target: Path) -> None:
    with source.open("rb") as stream, DumpWriter(target, source.stat().st_size) as output:
        shutil.copyfileobj(stream, output, 1 << 20)


def _is_removed(path: Path) -> bool:
    return (path / REMOVED).is_file() and not (path / "capture.json").is_file()


def _sync_all(directories: Iterable[Path]) -> None:
    for directory in directories:
        with _failing(f"cannot write {directory}"):
            sync(directory)


@contextlib.contextmanager
def _failing(what: str) -> Iterator[None]:
    try:
        yield
    except OSError as exc:
        raise ArchiveError(f"{what}: {exc}") from exc
