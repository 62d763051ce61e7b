# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""The controller's directory of captures and images. far_archive.py has the same at an address.

    <archive>/archive.json                                                       {"format": 3}
    <archive>/captures/<unit>/<host>/<process key>/<sequence>-<sha256, 12 digits>/
        capture.json, dump.heap.zst, perf.map.gz, lives.gz, holders.gz (if there are such); when removed only "removed"
        what was derived from it, created on first use (columns/sample_cache.py)
    <archive>/images/<build-id>/<file name>@<sha256>                              image_files.py
    <archive>/symcaches/<build-id>-<sha256>.symcache
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
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from urllib.parse import unquote

from ...module_utils.formats import limits
from ...module_utils.formats.capture_facts import (
    CaptureFacts,
    CaptureFactsError,
    is_build_id,
)
from ..base import unpack
from ..base.directory_name import below, directory_name
from ..base.durable import lock, make_directory, rename_directory, sync, write
from ..base.errors import ControllerError
from . import image_files
from .capture import FACTS, Arrived, Capture, capture_of, in_order, sync_capture, write_capture

FORMAT = 3
#: formats that this version reads and writes; the first new capture upgrades the archive to FORMAT
READABLE = (2, FORMAT)
INDEX = "archive.json"
# How many names a message lists.
_MOST_NAMES = 8
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
                " it is elsewhere, set offheap_archive (fab: --archive)"
            ) from exc
        except NotADirectoryError as exc:
            raise ArchiveError(f"{root} is a file, and an archive is a directory: name that") from exc
        except OSError as exc:
            raise ArchiveError(f"cannot read {place}: {exc.strerror}") from exc
        except (ValueError, RecursionError) as exc:
            raise ArchiveError(
                f"{place} is damaged: {exc}. Write {index().decode().strip()} into it; the captures do not need it"
            ) from exc
        return cls(root, format_of(found, str(place)))

    @classmethod
    def create(cls, root: Path, check_mode: bool = False) -> Archive:
        """Open the archive, or create it if there is none, but not in check mode. Refuses what holds anything else."""
        if (root / INDEX).exists():
            return cls.open(root)
        strange: list[str] = []
        try:
            if not check_mode:
                root.mkdir(mode=0o700, parents=True, exist_ok=True)
            with contextlib.suppress(FileNotFoundError):  # in check mode
                strange += sorted(name for name in os.listdir(root) if not name.startswith("."))
            if strange and not (root / INDEX).exists():
                raise ArchiveError(
                    f"{root} is not an archive, and not empty (it holds {strange[0]}); name another directory"
                )
            archive = cls(root)
            if not check_mode:
                with archive.incoming() as aside:
                    archive._write_index(aside)
        except OSError as exc:
            reason = "there is a file of that name" if root.is_file() else exc.strerror
            raise ArchiveError(f"cannot create the archive {root}: {reason}; name another directory") from exc
        return archive

    def _write_index(self, aside: Path) -> None:
        write(aside / INDEX, index())
        os.rename(aside / INDEX, self.root / INDEX)
        sync(self.root)
        self._format = FORMAT

    @property
    def where(self) -> str:
        """What users call it."""
        return str(self.root)

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
        return sorted(unquote(path.name) for path in below(self.root / "captures") if path.is_dir())

    def hosts(self, unit: str) -> list[str]:
        """The hosts of a unit. Raises ControllerError if ``unit`` cannot be a directory's name."""
        found = below(self.root / "captures" / directory_name(unit))
        return sorted(unquote(path.name) for path in found if path.is_dir())

    def absent(self, units: Iterable[str] = (), hosts: Iterable[str] = ()) -> list[str]:
        """A sentence about the units, and one about the hosts, that have no captures here: perhaps typing errors."""
        there = {unit: self.hosts(unit) for unit in self.units()}
        told = []
        for kind, wanted, known in (("unit", units, set(there)), ("host", hosts, set().union(*there.values()))):
            if unknown := [name for name in wanted if name not in known]:
                some = sorted(known)
                has = f"it has {', '.join(some[:_MOST_NAMES])}" if some else "it is empty"
                more = f" and {len(some) - _MOST_NAMES} more" if len(some) > _MOST_NAMES else ""
                told.append(f"the archive {self.where} has no captures of the {kind} {', '.join(unknown)}: {has}{more}")
        return told

    def nothing(self, units: Iterable[str] = (), hosts: Iterable[str] = ()) -> str:
        """Why there is nothing to say about these units and hosts (none given: all)."""
        together = f"the archive {self.where} has no captures of these units on these hosts"
        empty = f"the archive {self.where} is empty: collect_profiles and fab collect bring captures"
        return "; ".join(self.absent(units, hosts)) or (together if self.units() else empty)

    def require(self, units: Sequence[str] = (), hosts: Sequence[str] = ()) -> None:
        """Raises ArchiveError if none of these units has captures of one of these hosts (none given: of any)."""
        for unit in self.units():
            if (not units or unit in units) and any(not hosts or host in hosts for host in self.hosts(unit)):
                return
        raise ArchiveError(self.nothing(units, hosts))

    def name_of(self, capture: Capture) -> str:
        """The capture's path below the root, the same in every archive."""
        return capture.path.relative_to(self.root).as_posix()

    def named(self, unit: str, host: str, names: Iterable[str]) -> list[Capture]:
        """Those captures of a unit on a host that have these names, in the order of ``captures``."""
        wanted = set(names)
        return [one for one in self.captures(unit, host, lambda _warning: None) if self.name_of(one) in wanted]

    def knows(self, inside: Path) -> bool:
        """Whether there is, or was, a capture with this path below ``captures``."""
        return (self.root / "captures" / inside).is_dir()

    def noted(self, capture: Capture, about: str) -> bool:
        """Whether ``note`` was called for this capture, by anybody."""
        return self._memo(capture, about).exists()

    def note(self, capture: Capture, about: str) -> None:
        """Note something about a capture, such as which server has its profile. Raises OSError or ControllerError."""
        memo = self._memo(capture, about)
        memo.parent.mkdir(parents=True, exist_ok=True)
        memo.touch()

    def _memo(self, capture: Capture, about: str) -> Path:
        return self.root.joinpath(about, *capture.path.parts[-4:])

    def size_of(self, capture: Capture) -> int:
        """What a capture takes here, in bytes."""
        return sum(path.stat().st_size for path in capture.path.iterdir() if path.is_file())

    def captures(
        self, unit: str | None = None, host: str | None = None, warn: Callable[[str], None] | None = None
    ) -> list[Capture]:
        """All captures, or those of a unit or host, sorted by unit, host, process and sequence.

        Without ``warn``, which is told of those that are damaged, raises ArchiveError for the first of them.
        """
        places = [self.root / "captures"]
        for name in (unit, host, None, None):
            wanted = None if name is None else directory_name(name)
            places = [path for place in places for path in below(place, warn) if wanted in (None, path.name)]
        found = []
        for path in places:
            try:
                if not _is_removed(path):
                    found.append(self._read_capture(path))
            except ArchiveError as error:
                if not path.is_dir() or _is_removed(path):  # another process has just removed it
                    continue
                if warn is None:
                    raise
                warn(str(error))
        return in_order(found)

    def _read_capture(self, path: Path) -> Capture:
        try:
            facts = CaptureFacts.from_json(json.loads((path / FACTS).read_text(encoding="utf-8")))
        except PermissionError as exc:
            raise ArchiveError(f"cannot read {exc.filename}: {exc.strerror}") from exc
        except (OSError, ValueError, RecursionError, CaptureFactsError) as exc:
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

    def add_capture(
        self,
        facts: CaptureFacts,
        dump_file: Path,
        perf_map: Path | None = None,
        lives: Path | None = None,
        holders: Path | None = None,
    ) -> tuple[Capture, bool]:
        """``add_captures`` for a single dump."""
        with self.incoming() as aside:
            (added,) = self.add_captures([Arrived(facts, dump_file, perf_map, lives, holders)], aside)
        return added

    def add_captures(self, arrived: Iterable[Arrived], aside: Path) -> list[tuple[Capture, bool]]:
        """Add dumps. Returns the captures, each with False if it was already there.

        A capture appears only once it is complete; when this returns, all of them survive a power failure. Captures
        that were removed from the archive, or are damaged there, come back. ``aside`` is a directory from
        ``incoming``, passed to no other call of this method.
        """
        if self._format < FORMAT:  # so that an older reader refuses it instead of misreading it
            with failing(f"cannot write {self.root / INDEX}"):
                self._write_index(aside)
        written = []
        for number, one in enumerate(arrived):
            place, capture = self.place(one.facts), aside / f"capture-{number}"
            if not self.has(one.facts) or _is_removed(place):
                with failing(f"cannot write the capture {place}"):
                    write_capture(one, capture)
            written.append((one.facts, place, capture))
        # Once all are written, the first sync has the file system's journal written for all of them.
        for _facts, place, capture in written:
            if capture.exists():
                with failing(f"cannot write the capture {place}"):
                    sync_capture(capture)
        found = [self._put(*one) for one in written]
        _sync_all({capture.path.parent for capture, _added in found})
        return found

    def _put(self, facts: CaptureFacts, place: Path, capture: Path) -> tuple[Capture, bool]:
        """Move a capture to its place, if one was written because nothing whole is there."""
        with failing(f"cannot write the capture {place}"):
            if capture.exists():
                make_directory(place.parent)
                if not self.has(facts) or _is_removed(place):
                    with contextlib.suppress(FileNotFoundError):
                        os.rename(place, capture.with_suffix(f".{REMOVED}"))
                if rename_directory(capture, place):
                    return capture_of(place, facts), True
        return self._read_capture(place), False

    def remove_capture(self, capture: Capture) -> None:
        """Remove a capture. A marker stays in its place, so that it is not collected again."""
        with self.incoming() as aside, failing(f"cannot remove {capture.path}"):
            (aside / "place").mkdir()
            write(aside / "place" / REMOVED, b"")
            with contextlib.suppress(FileNotFoundError):  # another process was first
                os.rename(capture.path, aside / "capture")
                rename_directory(aside / "place", capture.path)
                sync(capture.path.parent)

    def add_image(self, build_id: str, basename: str, source: Path) -> Path:
        """Add an image unless the archive has it. The caller has checked the build-id; the sum is that of the file."""
        with failing(f"cannot read the image {source}"):
            sha256 = image_files.sha256_of(source)
        there = image_files.chosen(self._image_names(build_id), sha256)
        name = there or image_files.name_of(basename, sha256)
        if there is None:
            self.put_image(build_id, name, source)
        return self._image_directory(build_id) / name

    def put_image(self, build_id: str, name: str, source: Path) -> None:
        """Add an image under a name that image_files.py made of its sum. The caller has checked both."""
        place = self._image_directory(build_id) / name
        with self.incoming() as aside, failing(f"cannot write the image {place}"):
            self._bring(source, aside / "image")
            make_directory(place.parent)
            os.rename(aside / "image", place)
            sync(place.parent)

    def image(self, build_id: str, sha256: str = "") -> Path | None:
        """The image with this build-id and sum, or None. What there is for captures without one: image_files.py."""
        name = image_files.chosen(self._image_names(build_id), sha256)
        return None if name is None else self._image_directory(build_id) / name

    def missing_images(self, wanted: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
        """Those of these images, by build-id and sum, that are not here, in order and without duplicates."""
        found = dict.fromkeys(wanted)
        names = {build_id: self._image_names(build_id) for build_id, _sha256 in found}
        return [one for one in found if image_files.chosen(names[one[0]], one[1]) is None]

    def _image_names(self, build_id: str) -> list[str]:
        """The names of the files of a build-id. Raises ArchiveError for what is none."""
        directory = self._image_directory(build_id)
        return [path.name for path in directory.iterdir() if path.is_file()] if directory.is_dir() else []

    def images(self) -> list[str]:
        """The names of all images, below ``images``: build-id and file name."""
        found = (self.root / "images").glob("[!.]*/[!.]*")
        return sorted(path.relative_to(self.root / "images").as_posix() for path in found if path.is_file())

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
    # Its size was checked when it came; one of many threads that do the same packs a thousand times.
    data = unpack.read(path, limits.LARGEST_DUMP, limits.LARGEST_DUMP)
    if hashlib.sha256(data).hexdigest() != sha256:
        raise ArchiveError(f"{path} is damaged: its checksum has changed since it was collected")
    return data


def _is_removed(path: Path) -> bool:
    return os.path.isfile(path / REMOVED) and not os.path.isfile(path / FACTS)


def _sync_all(directories: Iterable[Path]) -> None:
    for directory in directories:
        with failing(f"cannot write {directory}"):
            sync(directory)


@contextlib.contextmanager
def failing(what: str) -> Iterator[None]:
    try:
        yield
    except OSError as exc:
        raise ArchiveError(f"{what}: {exc}") from exc
