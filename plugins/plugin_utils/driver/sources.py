# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Dumps from anywhere: a capture of an archive, or a bare file and the places where its images may lie."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from ...module_utils.formats import limits
from ..base import unpack
from ..base.byte_size import as_text
from ..base.errors import ControllerError
from ..model.raw import Records
from ..model.samples import Samples, located, named
from ..readers import heap_v2
from ..symbols.elf_image import ElfImage, SymbolError
from ..symbols.symbolizer import JitNames, Symbolizer

# A bare dump is read without what archives and perf maps need: importing that takes longer than a small dump.
if TYPE_CHECKING:
    from ...module_utils.formats.capture_facts import CaptureFacts
    from ..archive.archive import Archive


class AnalysisError(ControllerError):
    """A dump cannot be read, or not be shown as asked for. The message says which and why."""


@dataclass(frozen=True)
class Source:
    """A dump with what is known about it. ``facts`` are for people, ``build_ids`` by mapped path."""

    path: Path
    samples: Samples
    build_ids: Mapping[str, str]
    executable: tuple[str, str]
    facts: dict[str, Any] = field(default_factory=dict)


class Images:
    """Finds images by build-id: in an archive, then in directories as pprof looks ($PPROF_BINARY_PATH)."""

    def __init__(self, binary_path: Sequence[Path] = (), archive: Archive | None = None) -> None:
        self._directories = list(binary_path)
        self._archive = archive
        self._found: dict[str, Path] = {}
        self.warnings: list[str] = []

    def find(self, build_id: str) -> Path | None:
        """The image with the build-id, None if there is none."""
        found = self._found.get(build_id)
        if found is None and self._archive is not None:
            found = self._archive.image(build_id)
        if found is None:
            found = next((path for path in self._by_build_id(build_id) if path.is_file()), None)
        return found

    def _by_build_id(self, build_id: str) -> Iterator[Path]:
        for directory in self._directories:
            yield directory / ".build-id" / build_id[:2] / f"{build_id[2:]}.debug"
            yield directory / build_id[:2] / f"{build_id[2:]}.debug"
            if (directory / build_id).is_dir():
                yield from sorted((directory / build_id).iterdir())

    def build_ids(self, dump: Records) -> dict[str, str]:
        """For a dump that nothing else is known of: build-ids of the files found under its mapped paths and names.

        That a file is still the one that was mapped cannot be known. Deleted ones are left alone.
        """
        found: dict[str, str] = {}
        for mapping in dump.mappings:
            if not mapping.executable or mapping.deleted or not mapping.path.startswith("/") or mapping.path in found:
                continue
            for path in self._by_name(mapping.path):
                build_id = self._build_id(path)
                if build_id:
                    found[mapping.path] = build_id
                    self._found.setdefault(build_id, path)
                    break
        return found

    def _by_name(self, mapped: str) -> Iterator[Path]:
        name = PurePosixPath(mapped).name
        for directory in self._directories:
            if directory.is_file():
                if directory.name == name:
                    yield directory
                continue
            yield directory / mapped.lstrip("/")
            yield directory / name
            yield from sorted(directory.glob(f"*/{_escaped(name)}"))

    def _build_id(self, path: Path) -> str:
        if not path.is_file():
            return ""
        try:
            build_id = ElfImage(path).build_id
        except SymbolError as error:
            self.warnings.append(str(error))
            return ""
        if not build_id:
            self.warnings.append(f"{path}: has no build-id, so it cannot be told from another build")
        return build_id or ""


class DumpReader:
    """Reads dumps and names their addresses. One object serves all dumps of a task."""

    def __init__(self, images: Images, symcaches: Path) -> None:
        self.images = images
        self.symbolizer = Symbolizer(images.find, symcaches)

    @property
    def warnings(self) -> list[str]:
        return [*self.images.warnings, *self.symbolizer.warnings]

    def read(self, path: Path) -> Source:
        """The dump at ``path``: a file, or a directory of an archive's capture. Raises ControllerError."""
        facts: dict[str, Any] = {}
        if path.is_dir():
            from ..archive.archive import DUMP

            path = path / DUMP
        known = None
        if _is_of_a_capture(path):
            from ...module_utils.formats.capture_facts import CaptureFactsError

            try:
                known = _capture(path)
            except (CaptureFactsError, ValueError) as error:
                self.images.warnings.append(f"{path.parent / 'capture.json'}: {error}; it is left aside")
        try:
            if path.stat().st_size > limits.LARGEST_DUMP:
                raise AnalysisError(f"{path}: is larger than {as_text(limits.LARGEST_DUMP)}")
            dump = _parse(path)
        except OSError as error:
            raise AnalysisError(f"{path}: {error.strerror or error}") from error
        if known is not None:
            build_ids = known.build_ids
            facts = {
                "host": known.host,
                "unit": known.unit,
                "process": known.process.key,
                "exe": known.process.exe,
                "time": known.dump.time,
            }
        else:
            build_ids = self.images.build_ids(dump)
        jit = _jit_names(path, float(facts.get("time") or 0.0), self.images.warnings.append)
        samples = named(located(dump, build_ids), lambda locations: self.symbolizer.frames(locations, jit))
        facts.update(sample_interval=dump.sampling.interval, threads=len(dump.threads))
        executable = _executable(dump)
        facts.setdefault("exe", executable or None)
        facts["build_id"] = build_ids.get(executable) or None
        return Source(path, samples, build_ids, (executable, build_ids.get(executable, "")), facts)


@dataclass(frozen=True)
class Places:
    """Where to look for images, and where to keep symcaches.

    Images come from ``archive``, or from the one that the first dump lies in, and from ``binary_path``, else the
    directories of $PPROF_BINARY_PATH, else, for a dump outside of an archive, from this machine. Symcaches are kept in
    ``symcaches``, else in the archive, else in the user's cache; ``check_mode`` keeps none.
    """

    archive: Path | None = None
    binary_path: Sequence[Path] = ()
    symcaches: Path | None = None
    check_mode: bool = False


@contextlib.contextmanager
def open_reader(paths: Sequence[Path], places: Places) -> Iterator[DumpReader]:
    """A reader for dumps at these ``paths``. Raises ArchiveError."""
    found = places.archive or next((root for path in paths[:1] for root in _parents(path)), None)
    opened = None
    if found is not None:
        from ..archive.archive import Archive

        opened = Archive.open(found)
    directories = list(places.binary_path) or [
        Path(path).expanduser() for path in os.environ.get("PPROF_BINARY_PATH", "").split(":") if path
    ]
    if not directories and opened is None:
        directories = [Path("/")]
    images = Images(directories, opened)
    kept = places.symcaches or (opened.symcaches if opened is not None else _user_cache())
    if not places.check_mode and _is_writable(kept):
        yield DumpReader(images, kept)
        return
    with tempfile.TemporaryDirectory(prefix="offheap-") as directory:
        yield DumpReader(images, Path(directory))


def _parents(path: Path) -> Iterator[Path]:
    return (parent for parent in path.absolute().parents if (parent / "archive.json").is_file())


def _user_cache() -> Path:
    cache = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(cache) if cache.startswith("/") else Path.home() / ".cache") / "offheap" / "symcaches"


def _is_writable(directory: Path) -> bool:
    with contextlib.suppress(OSError):
        directory.mkdir(parents=True, exist_ok=True)
        return os.access(directory, os.W_OK)
    return False


def _parse(path: Path) -> Records:
    return heap_v2.parse(unpack.read(path, limits.LARGEST_DUMP), str(path))


def _is_of_a_capture(path: Path) -> bool:
    if not (path.parent / "capture.json").is_file():
        return False
    from ..archive.archive import DUMP

    return path.name == DUMP


def _capture(path: Path) -> CaptureFacts:
    from ...module_utils.formats.capture_facts import CaptureFacts

    return CaptureFacts.from_json(json.loads((path.parent / "capture.json").read_bytes()))


def _jit_names(path: Path, time: float, warn: Callable[[str], None]) -> JitNames | None:
    """What names compiled code: of a capture the perf maps of its process, of a bare dump the map beside it."""
    beside = path.parent / f"{path.name}.map"
    times = {beside: time} if beside.is_file() else {}
    if _is_of_a_capture(path):
        from ...module_utils.formats.capture_facts import CaptureFactsError
        from ..archive.archive import PERF_MAP

        for found in path.parent.parent.glob(f"*/{PERF_MAP}"):
            with contextlib.suppress(OSError, ValueError, CaptureFactsError):  # the map of a capture that is damaged
                times[found] = float(_capture(found).dump.time)
    if not times:
        return None
    from ..symbols.jit_symbols import JitMaps

    return JitMaps(times, warn).at(time)


def _executable(dump: Records) -> str:
    """The program: the lowest code that comes from a file, with PIE or without, but for libraries."""
    code = [mapping for mapping in dump.mappings if mapping.executable and mapping.path.startswith("/")]
    programs = [mapping for mapping in code if ".so" not in PurePosixPath(mapping.path).name]
    return min(programs, key=lambda mapping: mapping.start).path if programs else ""


def _escaped(name: str) -> str:
    return "".join(f"[{character}]" if character in "*?[" else character for character in name)
