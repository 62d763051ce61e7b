# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""The controller's directory of captures and images.

    <archive>/archive.json                                                       {"format": 1}
    <archive>/captures/<unit>/<host>/<process key>/<sequence>-<sha256, 12 digits>/dump.heap, capture.json,
                                                                                 perf.map.gz where there is one
    <archive>/images/<build-id>/<file name>
    <archive>/symcaches/<build-id>.symcache
    <archive>/.incoming/<random>/                                                 what is being written

A capture never changes. It is written aside, brought to the disk and then put into its place by one rename, so a
reader sees all of it or nothing, and any number of writers need no lock: what two of them bring at once is the same,
or it has another name. Names that come from outside are percent-encoded.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import gzip
import json
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..module_utils import dump
from . import capture_facts
from .capture_facts import ArchiveError

__all__ = ["Archive", "ArchiveError", "Capture", "Image", "directory_name"]

FORMAT = 1
#: a perf map in a capture's directory, compressed with gzip
PERF_MAP = "perf.map.gz"
_PLAIN = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-")
_MAX_NAME = 240


@dataclass(frozen=True)
class Image:
    """An executable file of a process. C(path) is where it lay on the host, C(size) in bytes."""

    path: str
    build_id: str
    size: int


@dataclass(frozen=True)
class Capture:
    """A dump with its facts. C(time) is when the dump was written, in seconds since the epoch."""

    path: Path
    host: str
    unit: str
    process: str
    sequence: int
    time: float
    facts: dict[str, Any]

    @property
    def dump(self) -> Path:
        return self.path / "dump.heap"

    @property
    def perf_map(self) -> Path | None:
        """Where the process's compiled code lay (perf_map.py), if that was brought with this dump."""
        path = self.path / PERF_MAP
        return path if path.is_file() else None

    @property
    def images(self) -> list[Image]:
        """The images whose build is known; C(facts["images"]) has the others too, with the reason."""
        return [
            Image(image["path"], image["build_id"], image["size"])
            for image in self.facts["images"]
            if image["build_id"] is not None
        ]


def directory_name(text: str) -> str:
    """A host's or a unit's name as a directory's: what is not [A-Za-z0-9._-], and a dot in front, as %XX of UTF-8."""
    encoded = "".join(chr(byte) if byte in _PLAIN else f"%{byte:02X}" for byte in text.encode("utf-8", "replace"))
    if encoded.startswith("."):
        encoded = "%2E" + encoded[1:]
    if not encoded or len(encoded) > _MAX_NAME:
        raise ArchiveError(f"{text[:100]!r} cannot be the name of a directory: it is empty or too long")
    return encoded


class Archive:
    """An archive that exists. Made by C(create) or C(open)."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._incoming = root / ".incoming"

    @classmethod
    def open(cls, root: Path) -> Archive:
        """Raises ArchiveError when there is no archive, or one of another format."""
        index = root / "archive.json"
        try:
            found = json.loads(index.read_text(encoding="utf-8"))
        except FileNotFoundError as exc:
            raise ArchiveError(f"there is no archive in {root}: {index.name} is missing") from exc
        except (OSError, ValueError) as exc:
            raise ArchiveError(f"cannot read {index}: {exc}") from exc
        if not isinstance(found, dict) or found.get("format") != FORMAT:
            raise ArchiveError(f"{index} is not of format {FORMAT}, the one that this version of the collection knows")
        return cls(root)

    @classmethod
    def create(cls, root: Path) -> Archive:
        """Open the archive, and make it first where there is none. A directory that holds other things is refused."""
        if (root / "archive.json").exists():
            return cls.open(root)
        try:
            root.mkdir(mode=0o700, parents=True, exist_ok=True)
            strange = sorted(entry.name for entry in root.iterdir() if not entry.name.startswith("."))
            if strange and not (root / "archive.json").exists():
                raise ArchiveError(
                    f"{root} is no archive and not empty (it holds {strange[0]}); name another directory"
                )
            archive = cls(root)
            with archive.incoming() as aside:
                _write(aside / "archive.json", json.dumps({"format": FORMAT}).encode() + b"\n")
                os.rename(aside / "archive.json", root / "archive.json")
            _sync(root)
        except OSError as exc:
            raise ArchiveError(f"cannot make the archive {root}: {exc}") from exc
        return archive

    @property
    def symcaches(self) -> Path:
        """Directory of symbol caches by build-id, made on demand."""
        path = self.root / "symcaches"
        path.mkdir(exist_ok=True)
        return path

    @contextlib.contextmanager
    def incoming(self) -> Iterator[Path]:
        """A new directory on the archive's file system, gone afterwards. Clears what killed runs have left.

        The owner of such a directory holds a lock on it, which the kernel takes back whatever the owner's end.
        """
        try:
            self._incoming.mkdir(exist_ok=True)
            self._clear_stale()
            path, lock = self._new_aside()
        except OSError as exc:
            raise ArchiveError(f"cannot write to the archive {self.root}: {exc}") from exc
        try:
            yield path
        finally:
            shutil.rmtree(path, ignore_errors=True)
            os.close(lock)

    def _new_aside(self) -> tuple[Path, int]:
        while True:
            path = Path(tempfile.mkdtemp(dir=self._incoming))
            # Between these two steps another writer can take it for stale. Then there is a new one.
            with contextlib.suppress(FileNotFoundError, BlockingIOError):
                lock = _lock(path)
                if path.exists():
                    return path, lock
                os.close(lock)

    def _clear_stale(self) -> None:
        for entry in self._incoming.iterdir():
            with contextlib.suppress(OSError):
                lock = _lock(entry)
                shutil.rmtree(entry, ignore_errors=True)
                os.close(lock)

    def captures(self, unit: str | None = None, host: str | None = None) -> list[Capture]:
        """All captures, or those of a unit or host, by unit, host, process and sequence. Raises ArchiveError."""
        pattern = "/".join(
            ("*" if unit is None else directory_name(unit), "*" if host is None else directory_name(host), "*", "*")
        )
        found = [
            self._read_capture(path)
            for path in (self.root / "captures").glob(pattern)
            if not any(part.startswith(".") for part in path.relative_to(self.root).parts)
        ]
        return sorted(found, key=lambda capture: (capture.unit, capture.host, capture.process, capture.sequence))

    def _read_capture(self, path: Path) -> Capture:
        try:
            facts = capture_facts.check(json.loads((path / "capture.json").read_text(encoding="utf-8")))
        except (OSError, ValueError, ArchiveError) as exc:
            raise ArchiveError(f"{path} is damaged: {exc}; remove it, the other captures do not need it") from exc
        return _capture(path, facts)

    def place(self, facts: dict[str, Any]) -> Path:
        """Where a capture with these facts lies or would lie. Raises ArchiveError when the facts are not sound."""
        facts = capture_facts.check(facts)
        capture = _capture(Path(), facts)
        return self.root.joinpath(
            "captures",
            directory_name(capture.unit),
            directory_name(capture.host),
            capture.process,
            f"{capture.sequence:06d}-{facts['dump']['sha256'][:12]}",
        )

    def has(self, facts: dict[str, Any]) -> bool:
        """Whether the archive has this very dump."""
        return self.place(facts).is_dir()

    def add_capture(self, facts: dict[str, Any], dump_file: Path, perf_map: Path | None = None) -> tuple[Capture, bool]:
        """Bring a dump in, and a perf map with it. Returns the capture, and False where it was there already.

        The content of C(dump_file) must be what the facts say (the caller has checked it). A file inside an
        C(incoming) directory is moved, any other copied; the map is compressed.
        """
        place = self.place(facts)
        added = False
        if not place.is_dir():
            with self.incoming() as aside, _failing(f"cannot write the capture {place}"):
                capture = aside / "capture"
                capture.mkdir()
                self._bring(dump_file, capture / "dump.heap")
                if perf_map is not None:
                    _compress(perf_map, capture / PERF_MAP)
                _write(capture / "capture.json", json.dumps(facts, indent=1, sort_keys=True).encode() + b"\n")
                _sync(capture)
                _make_directory(place.parent)
                added = _rename_directory(capture, place)
        return self._read_capture(place), added

    def add_image(self, build_id: str, basename: str, source: Path) -> Path:
        """Bring an image in, unless the archive has one of this build. The caller has checked that it is this build."""
        existing = self.image(build_id)
        if existing is not None:
            return existing
        place = self._image_directory(build_id) / directory_name(basename)
        with self.incoming() as aside, _failing(f"cannot write the image {place}"):
            self._bring(source, aside / "image")
            _make_directory(place.parent)
            os.rename(aside / "image", place)
            _sync(place.parent)
        return place

    def image(self, build_id: str) -> Path | None:
        """The file of a build, or None."""
        directory = self._image_directory(build_id)
        if not directory.is_dir():
            return None
        return next((path for path in sorted(directory.iterdir()) if path.is_file() and path.name[0] != "."), None)

    def missing_images(self, build_ids: Iterable[str]) -> list[str]:
        """Those that the archive does not have, in their order and once each."""
        return [build_id for build_id in dict.fromkeys(build_ids) if self.image(build_id) is None]

    def _image_directory(self, build_id: str) -> Path:
        if not capture_facts.is_build_id(build_id):
            raise ArchiveError(f"{str(build_id)[:100]!r} is not a build-id")
        return self.root / "images" / build_id

    def _bring(self, source: Path, target: Path) -> None:
        if self._incoming in source.parents:
            os.rename(source, target)
        else:
            shutil.copyfile(source, target)
        _sync(target)


def _capture(path: Path, facts: dict[str, Any]) -> Capture:
    name = dump.parse_name(facts["dump"]["name"])
    return Capture(
        path=path,
        host=facts["host"],
        unit=facts["unit"],
        process=facts["process"]["key"],
        sequence=0 if name is None else name.sequence,
        time=float(facts["dump"]["time"]),
        facts=facts,
    )


@contextlib.contextmanager
def _failing(what: str) -> Iterator[None]:
    try:
        yield
    except OSError as exc:
        raise ArchiveError(f"{what}: {exc}") from exc


def _lock(directory: Path) -> int:
    """A descriptor that holds the lock on a directory. Raises BlockingIOError where another process has it."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(fd)
        raise
    return fd


def _make_directory(path: Path) -> None:
    """With its parents, so that a power failure cannot take the way to what has been confirmed."""
    if not path.is_dir():
        _make_directory(path.parent)
        path.mkdir(exist_ok=True)
        _sync(path.parent)


def _rename_directory(source: Path, target: Path) -> bool:
    """False when another writer was first."""
    try:
        os.rename(source, target)
    except OSError as exc:
        if exc.errno in (errno.EEXIST, errno.ENOTEMPTY):
            return False
        raise
    _sync(target.parent)
    return True


def _write(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    _sync(path)


def _compress(source: Path, target: Path) -> None:
    with source.open("rb") as stream, target.open("xb") as raw, gzip.GzipFile("", "wb", 6, raw, mtime=0) as packed:
        shutil.copyfileobj(stream, packed, 1 << 20)
    _sync(target)


def _sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
