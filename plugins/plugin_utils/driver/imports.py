# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Profiles that other tools have written, into the archive, where they are judged like those that hosts sent."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...module_utils.formats import dump_name, limits, sidecar, unit_name, values
from ...module_utils.formats.capture_facts import (
    CaptureFacts,
    CaptureFactsError,
    DumpFacts,
    KnownImage,
    ProcessFacts,
    SamplingFacts,
    UnknownImage,
)
from ..archive import far_archive, image_files
from ..archive.archive import Archive
from ..archive.capture import Arrived
from ..base import child, libraries, unpack
from ..base.errors import ControllerError
from ..model.raw import Told
from ..readers import detect
from .sources import Images, image_directories

# Digits of a sequence number in a dump's name.
_SEQUENCES = 10**9
# As many digits as the name of a dump has for it.
_PROCESSES = 10**10
# Refused files that a message names.
_MOST_NAMED = 8
_IMAGE_MISSING = "it was not found where its profile was imported"


class ProfileImportError(ControllerError):
    """A profile cannot be imported. The message says which and why; then none was."""


@dataclass(frozen=True)
class Origin:
    """Where profiles come from, as the user says it.

    ``time`` is when a profile was taken (seconds since the epoch), None if it says that itself or its file's own time
    does. ``process`` tells processes of a unit apart: the profiles of one are one series. If it is 0, the names of our
    own dumps tell them apart.
    """

    unit: str
    host: str
    process: int = 0
    label: str | None = None
    time: float | None = None
    told: Told = field(default_factory=Told)


@dataclass(frozen=True)
class Imported:
    """A profile in the archive: the file it came from, its facts, and where it lies. ``new`` is False if it was there
    before. ``clock`` is what said the time: ``option``, ``profile`` or ``file``."""

    file: Path
    facts: CaptureFacts
    path: Path
    new: bool
    clock: str


def import_profiles(
    files: Sequence[Path], origin: Origin, name: str | Path, binary_path: Sequence[Path] = (), check_mode: bool = False
) -> list[Imported]:
    """Import ``files`` into the archive of this name (far_archive.py), which is created if there is none, with those
    images of theirs that are found in ``binary_path``. In check mode nothing is written.

    This machine's own files are not looked at: that another one had the same ones would be a guess, kept for good.

    Raises ControllerError and OffheapError; then nothing was imported.
    """
    unit_name.service(origin.unit)
    if not files:  # as of a pattern that matches none
        raise ProfileImportError("no file is named, so there is nothing to import")
    if not 0 <= origin.process < _PROCESSES:
        raise ProfileImportError(f"the process is {origin.process}; give 0 to {_PROCESSES - 1}")
    if origin.time is not None and len(files) > 1:
        raise ProfileImportError(
            "a time can be given for a single profile only: the files' own times tell several apart"
        )
    child.start(__name__, *libraries.DUMPS)
    images = Images(image_directories(binary_path))
    with _opened(name, check_mode) as (archive, aside):
        sums = functools.cache(image_files.sha256_of)
        found = _all_looked_at(files, lambda file: _looked_at(file, origin, images, aside, sums))
        if check_mode:
            return [
                Imported(one.file, one.facts, archive.place(one.facts), not archive.has(one.facts), one.clock)
                for one in found
            ]
        for one in found:
            for build_id, image in one.images.items():
                archive.add_image(build_id, image.name, image)
        arrived = [Arrived(one.facts, one.dump, one.perf_map, one.lives, one.holders) for one in found]
        captures = archive.add_captures(arrived, aside)
    return [
        Imported(one.file, one.facts, capture.path, new, one.clock)
        for one, (capture, new) in zip(found, captures, strict=True)
    ]


@dataclass(frozen=True)
class _Profile:
    """A file that can be read: its unpacked copy, and the images that it needs, by build-id."""

    file: Path
    facts: CaptureFacts
    dump: Path
    perf_map: Path | None
    lives: Path | None
    holders: Path | None
    images: Mapping[str, Path]
    clock: str


@contextlib.contextmanager
def _opened(name: str | Path, check_mode: bool) -> Iterator[tuple[Archive, Path]]:
    """The archive, and a directory for files on their way into it."""
    if check_mode:
        with tempfile.TemporaryDirectory(prefix="offheap-") as directory:
            yield far_archive.created(name, check_mode), Path(directory)
        return
    archive = far_archive.created(name)
    with archive.incoming() as aside:
        yield archive, aside


def _all_looked_at(files: Sequence[Path], look: Callable[[Path], _Profile]) -> list[_Profile]:
    """What each file is. One that cannot be imported fails all, and so all such are named."""
    found, refused = [], []
    for file in files:
        try:
            found.append(look(file))
        except ControllerError as error:
            refused.append(str(error))
    if refused:
        more = len(refused) - _MOST_NAMED
        told = "\n".join(refused[:_MOST_NAMED]) + (f"\nand {more} more files" if more > 0 else "")
        rest = f"\nNothing was imported: leave {'these' if len(refused) > 1 else 'this'} out" if found else ""
        raise ProfileImportError(told + rest)
    return found


def _looked_at(file: Path, origin: Origin, images: Images, aside: Path, sum_of: Callable[[Path], str]) -> _Profile:
    try:
        status = file.stat()
        if status.st_size > limits.LARGEST_DUMP:
            raise ProfileImportError(f"{file}: is larger than {limits.LARGEST_DUMP} bytes")
        answer = child.call(_read, file, origin.told, images, size=min(20 * status.st_size, limits.LARGEST_DUMP))
        head, _newline, data = answer.partition(b"\n")
        said = json.loads(head)
        build_ids = images.learn(said)
        sha256 = hashlib.sha256(data).hexdigest()
        dump = aside / f"{sha256}.heap"
        dump.write_bytes(data)
    except OSError as error:
        raise ProfileImportError(f"{file}: {error.strerror or error}") from error
    clock, time = _time(origin, float(said["time"]), status.st_mtime)
    named = dump_name.parse(file.name)
    process = origin.process or (named.pid if named else 0)
    places = {build_id: path for build_id in build_ids.values() if (path := images.find(build_id)) is not None}
    facts = CaptureFacts(
        host=origin.host,
        unit=unit_name.service(origin.unit),
        label=origin.label,
        # Two profiles with the same content, taken at two times, are two captures.
        dump=DumpFacts(f"{dump_name.PREFIX}.{process}.{int(time) % _SEQUENCES}.m0.heap", len(data), sha256, time),
        process=ProcessFacts(process, _key(process, (named and named.start) or "", said)),
        images=tuple(
            _image(path, build_ids.get(path, ""), places, sum_of)
            for path in dict.fromkeys([*said["paths"], *build_ids])
        ),
        agent=_agent(file, status.st_size) if named else None,
        source=said["source"],
        measure=said["measure"],
        sampling=SamplingFacts(said["scheme"], said["interval"] or None),
        more={"imported_from": file.name, **({detect.UNIT: origin.told.unit} if origin.told.unit else {})},
    )
    try:
        checked = CaptureFacts.from_json(json.loads(json.dumps(facts.to_json())))
    except CaptureFactsError as error:
        raise ProfileImportError(f"{file}: {error}") from error
    suffixes = (dump_name.PERF_MAP, dump_name.LIVES, dump_name.HOLDERS)
    beside = (file.with_name(file.name + suffix) for suffix in suffixes)
    perf_map, lives, holders = (path if path.is_file() else None for path in beside)
    return _Profile(file, checked, dump, perf_map, lives, holders, places, clock)


def _read(path: Path, told: Told, images: Images) -> bytes:
    """In the child: what a file says of itself (JSON, one line), and its unpacked content."""
    data = unpack.read(path, limits.LARGEST_DUMP)
    source = detect.source_of(data, str(path))
    records = detect.parse_as(source, data, str(path), told)
    detect.refuse_if_partial(records)
    mapped = [mapping.path for mapping in records.mappings if mapping.executable and mapping.path.startswith("/")]
    said: dict[str, Any] = {
        "source": source,
        "measure": records.measure.value,
        "scheme": records.sampling.scheme.value,
        "interval": records.sampling.interval,
        "time": records.time,
        "paths": list(dict.fromkeys(mapped)),
        "build_ids": {**images.build_ids(records), **records.build_ids},
        **images.found(),
    }
    return json.dumps(said).encode() + b"\n" + data


def _time(origin: Origin, of_profile: float, of_file: float) -> tuple[str, float]:
    """(what said the time, the time); of a file from before 1970, no report would read the capture."""
    if origin.time is not None:
        return "option", origin.time
    return ("profile", of_profile) if of_profile > 0 else ("file", values.nearest_time(of_file))


def _key(process: int, start: str, said: Mapping[str, Any]) -> str:
    """The process's key: what sources count in different ways are never one series, nor are two starts."""
    counted = " ".join(filter(None, (said["source"], said["measure"], start))).encode()
    return f"{process}-{hashlib.sha256(counted).hexdigest()[:8]}"


def _agent(dump: Path, size: int) -> dict[str, Any] | None:
    """What the agent wrote beside a dump of a spool, as a capture has it. Raises OSError."""
    try:
        with dump.with_name(dump.name + dump_name.SIDECAR).open("rb") as stream:
            return sidecar.read(stream.fileno(), dump.name, size).to_json()
    except FileNotFoundError:
        return None
    except sidecar.SidecarError as error:
        return {"problem": str(error)}


def _image(
    path: str, build_id: str, places: Mapping[str, Path], sum_of: Callable[[Path], str]
) -> KnownImage | UnknownImage:
    if not build_id:
        return UnknownImage(path, _IMAGE_MISSING)
    if build_id not in places:  # the profile itself names its build-id, and does not say how large the file is
        return KnownImage(path, build_id, 0)
    return KnownImage(path, build_id, places[build_id].stat().st_size, sum_of(places[build_id]))
