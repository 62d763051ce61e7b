# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Dumps from anywhere: captures of an archive, or bare files with the places to look for their images."""

from __future__ import annotations

import contextlib
import glob
import json
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from ...module_utils.formats import limits
from ..archive import image_files
from ..base import child, libraries, unpack
from ..base.byte_size import as_text
from ..base.errors import ControllerError
from ..base.options import user_cache, user_path
from ..model import located_bytes
from ..model.raw import Records, Told
from ..model.samples import Samples, located, named
from ..symbols.elf_image import ElfImage, SymbolError

#: as a directory of images: files by their very paths
THIS_MACHINE = Path("/")
# How many times smaller a packed dump is, at most, unless it is a strange one.
_USUAL_RATIO = 20

# Archives and perf maps are imported on demand: that takes longer than reading a small dump. What reads and names dumps
# is imported while the child process starts.
if TYPE_CHECKING:
    from ...module_utils.formats.capture_facts import CaptureFacts
    from ..archive.archive import Archive
    from ..symbols.symbolizer import JitNames


class AnalysisError(ControllerError):
    """A dump cannot be read, or not be shown as requested. The message says which and why."""


@dataclass(frozen=True)
class Source:
    """A dump with what is known about it. ``facts`` are for people, ``build_ids`` by mapped path."""

    path: Path
    samples: Samples
    build_ids: Mapping[str, str]
    executable: tuple[str, str]
    facts: dict[str, Any] = field(default_factory=dict)


class Images:
    """Finds images by build-id: in an archive, then in directories, searched as pprof searches $PPROF_BINARY_PATH."""

    def __init__(self, binary_path: Sequence[Path] = (), archive: Archive | None = None) -> None:
        self._directories = list(binary_path)
        self._archive = archive
        self._found: dict[str, Path] = {}
        self.warnings: list[str] = []

    def find(self, build_id: str, sha256: str = "") -> Path | None:
        """The image with the build-id, and with the sum if a host said it, or None."""
        named = self._found.get(build_id)
        found = None if sha256 else named
        if found is None and self._archive is not None:
            found = self._archive.image(build_id, sha256)
        return found or named or next(filter(Path.is_file, self._by_build_id(build_id, sha256)), None)

    def _by_build_id(self, build_id: str, sha256: str) -> Iterator[Path]:
        for directory in self._directories:
            yield directory / ".build-id" / build_id[:2] / f"{build_id[2:]}.debug"
            yield directory / build_id[:2] / f"{build_id[2:]}.debug"
            if (directory / build_id).is_dir():
                # It may be of an archive, with files of other sums.
                found = sorted((directory / build_id).iterdir())
                yield from (path for path in found if not sha256 or image_files.said(path.name) in ("", sha256))

    def build_ids(self, dump: Records) -> dict[str, str]:
        """Build-ids for a bare dump, read from the files found under its mapped paths and names.

        Nothing shows whether such a file is still the one that was mapped. A path whose first mapping's file was
        deleted is skipped.
        """
        found: dict[str, str] = {}
        seen: set[str] = set()
        for mapping in dump.mappings:
            if not mapping.executable or not mapping.path.startswith("/") or mapping.path in seen:
                continue
            seen.add(mapping.path)
            # No kernel writes dots: they would lead out of the directories.
            if mapping.deleted or ".." in PurePosixPath(mapping.path).parts:
                continue
            for path in self._by_name(mapping.path):
                build_id = self._build_id(path)
                if build_id:
                    found[mapping.path] = build_id
                    self._found.setdefault(build_id, path)
                    break
        return found

    @property
    def where(self) -> str:
        """Where files are looked for by their paths, in words."""
        elsewhere = [str(directory) for directory in self._directories if directory != THIS_MACHINE]
        return f"in {', '.join(elsewhere)}" if elsewhere else "on this machine"

    def found(self) -> dict[str, Any]:
        """What ``build_ids`` has found, for ``learn``."""
        places = {build_id: os.fspath(path) for build_id, path in self._found.items()}
        return {"images": places, "warnings": self.warnings}

    def learn(self, told: Mapping[str, Any]) -> dict[str, str]:
        """Take over the build-ids, which are returned, and the files that another process has found."""
        for build_id, path in dict(told["images"]).items():
            self._found.setdefault(str(build_id), Path(str(path)))
        self.warnings[:] = dict.fromkeys([*self.warnings, *map(str, told["warnings"])])
        return {str(path): str(build_id) for path, build_id in dict(told["build_ids"]).items()}

    def _by_name(self, mapped: str) -> Iterator[Path]:
        name = PurePosixPath(mapped).name
        for directory in self._directories:
            if directory == THIS_MACHINE:  # another file here that happens to have the name is not the one
                yield Path(mapped)
                continue
            if directory.is_file():
                if directory.name == name:
                    yield directory
                continue
            yield directory / mapped.lstrip("/")
            yield directory / name
            yield from sorted(directory.glob(f"*/{glob.escape(name)}"))

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
    """Reads and symbolizes dumps. One object serves all dumps of a task."""

    def __init__(self, images: Images, symcaches: Path, told: Told | None = None) -> None:
        from ..symbols.symbolizer import Symbolizer

        self.images = images
        self._told = told or Told()
        self.symbolizer = Symbolizer(images.find, symcaches)

    @property
    def warnings(self) -> list[str]:
        return [*self.images.warnings, *self.symbolizer.warnings]

    def read(self, path: Path) -> Source:
        """The dump at ``path``, a file or a capture's directory. Raises ControllerError."""
        if path.is_dir():
            from ..archive.capture import DUMP

            if not (path / DUMP).exists():
                raise AnalysisError(f"{path} is a directory without {DUMP}: name a dump or a capture's directory")
            path = path / DUMP
        known = None
        if _is_of_a_capture(path):
            from ...module_utils.formats.capture_facts import CaptureFactsError

            try:
                known = _capture(path)
            except (CaptureFactsError, OSError, ValueError) as error:
                self.images.warnings.append(f"{path.parent / 'capture.json'}: {error}; it is ignored")
        try:
            size = path.stat().st_size
        except OSError as error:
            raise AnalysisError(f"{path}: {error.strerror or error}") from error
        if size > limits.LARGEST_DUMP:
            raise AnalysisError(f"{path}: is larger than {as_text(limits.LARGEST_DUMP)}")
        size = min(_USUAL_RATIO * size if known is None else known.dump.size, limits.LARGEST_DUMP)
        answer = child.call(_parsed, path, known, self._told, self.images, size=size)
        profile, told = located_bytes.unpacked(answer)
        build_ids = self.images.learn(told) if known is None else known.build_ids
        facts = {"time": told["time"] or None} if known is None else _facts_of(known)
        jit = _jit_names(path, float(facts.get("time") or 0.0), self.images.warnings.append)
        if known is not None:
            profile = replace(profile, locations=replace(profile.locations, sums=known.sums))
        samples = named(profile, lambda locations: self.symbolizer.frames(locations, jit))
        executable = str(told.get("executable", ""))
        facts.update(source=told["source"], measure=profile.measure.value)
        facts.update(sample_interval=profile.sampling.interval, threads=told.get("threads"))
        facts.setdefault("exe", executable or None)
        facts["build_id"] = build_ids.get(executable) or None
        if executable in told.get("by_path", ()):
            facts["build_id"] = None  # that of a file, and nobody knows whether it is the one that ran
        if told.get("by_path"):
            files = f"files with its paths {self.images.where}"
            facts["names"] = f"may be wrong: the dump says no build-ids, so they are of the {files}"
        return Source(path, samples, build_ids, (executable, build_ids.get(executable, "")), facts)


def _parsed(path: Path, known: CaptureFacts | None, said: Told, images: Images) -> bytes:
    """In the child: the dump, and what ``images`` knows of its files where nobody has noted their build-ids."""
    from ..readers import detect

    try:
        data = unpack.read(path, limits.LARGEST_DUMP)
    except OSError as error:
        raise AnalysisError(f"{path}: {error.strerror or error}") from error
    if known is None:
        source = detect.source_of(data, str(path))
        dump = detect.parse_as(source, data, str(path), said)
        by_path = images.build_ids(dump)
        build_ids = {**by_path, **dump.build_ids}
        told: dict[str, Any] = {"build_ids": build_ids, **images.found()}
        told["by_path"] = sorted(by_path.keys() - dump.build_ids.keys())
        reused: list[tuple[int, int]] = []
    else:
        source, dump = known.source, detect.parse_capture(data, str(path), known)
        build_ids, told, reused = {**dump.build_ids, **known.build_ids}, {}, known.reused
    del data  # each of these may be as large as all the rest
    told.update(source=source, time=dump.time, executable=_executable(dump), threads=len(dump.threads))
    profile = located(dump, build_ids, reused)
    del dump
    return located_bytes.packed(profile, told)


def _facts_of(capture: CaptureFacts) -> dict[str, Any]:
    return {
        "host": capture.host,
        "unit": capture.unit,
        "process": capture.process.key,
        "exe": capture.process.exe,
        "time": capture.dump.time,
    }


@dataclass(frozen=True)
class Places:
    """Where to look for images and where to keep symcaches, and what else the user says of the dumps.

    Images come from ``archive``, or else the archive that holds the first dump, and from ``binary_path``, or else
    $PPROF_BINARY_PATH. Without any of these they come from this machine. Symcaches are kept in ``symcaches``, else in
    the archive, else in the user's cache; ``check_mode`` keeps none. ``told`` is what the user says of bare dumps that
    do not say it themselves.
    """

    archive: str | Path | None = None
    binary_path: Sequence[Path] = ()
    symcaches: Path | None = None
    check_mode: bool = False
    told: Told = field(default_factory=Told)


@contextlib.contextmanager
def open_reader(paths: Sequence[Path], places: Places) -> Iterator[DumpReader]:
    """A reader for dumps at these ``paths``. Raises ArchiveError."""
    child.start(__name__, *libraries.DUMPS)
    libraries.load("numpy")
    found = places.archive or (_archive_around(paths[0]) if paths else None)
    opened = None
    if found is not None:
        from ..archive import far_archive

        opened = far_archive.opened(found)
    directories = image_directories(places.binary_path)
    if not directories and opened is None:
        directories = [THIS_MACHINE]
    images = Images(directories, opened)
    kept = places.symcaches or (opened.symcaches if opened is not None else user_cache("symcaches"))
    if not places.check_mode and _is_writable(kept):
        yield DumpReader(images, kept, places.told)
        return
    with tempfile.TemporaryDirectory(prefix="offheap-") as directory:
        yield DumpReader(images, Path(directory), places.told)


def image_directories(binary_path: Sequence[Path]) -> list[Path]:
    """Where images are looked for by name: the option's directories, or else those of $PPROF_BINARY_PATH."""
    return list(binary_path) or [user_path(path) for path in os.environ.get("PPROF_BINARY_PATH", "").split(":") if path]


def _archive_around(path: Path) -> str | Path | None:
    """The archive that a file lies in, or whose cache it lies in."""
    from ..archive import far_cache

    for parent in path.absolute().parents:
        if (parent / "archive.json").is_file():
            return parent
        if (parent / far_cache.ADDRESS).is_file():
            return (parent / far_cache.ADDRESS).read_text(encoding="utf-8")
    return None


def _is_writable(directory: Path) -> bool:
    with contextlib.suppress(OSError):
        directory.mkdir(parents=True, exist_ok=True)
        return os.access(directory, os.W_OK)
    return False


def _is_of_a_capture(path: Path) -> bool:
    if not (path.parent / "capture.json").is_file():
        return False
    from ..archive.capture import DUMP

    return path.name == DUMP


def _capture(path: Path) -> CaptureFacts:
    """Raises OSError, ValueError, CaptureFactsError."""
    from ...module_utils.formats.capture_facts import CaptureFacts

    try:
        return CaptureFacts.from_json(json.loads((path.parent / "capture.json").read_bytes()))
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def _jit_names(path: Path, time: float, warn: Callable[[str], None]) -> JitNames | None:
    """Names for compiled code: from the perf maps of a capture's process, or from the map beside a bare dump."""
    beside = path.parent / f"{path.name}.map"
    times = {beside: time} if beside.is_file() else {}
    if _is_of_a_capture(path):
        from ...module_utils.formats.capture_facts import CaptureFactsError
        from ..archive.capture import PERF_MAP

        for found in path.parent.parent.glob(f"*/{PERF_MAP}"):
            with contextlib.suppress(OSError, ValueError, CaptureFactsError):  # that capture is damaged
                times[found] = float(_capture(found).dump.time)
    if not times:
        return None
    from ..symbols.jit_symbols import JitMaps

    return JitMaps(times, warn).at(time)


def _executable(dump: Records) -> str:
    """The program: the lowest code mapped from a file that is not a library, with PIE or without."""
    code = [mapping for mapping in dump.mappings if mapping.executable and mapping.path.startswith("/")]
    programs = [mapping for mapping in code if ".so" not in PurePosixPath(mapping.path).name]
    return min(programs, key=lambda mapping: mapping.start).path if programs else ""
