# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""A transfer that has arrived, into the archive: everything is verified before anything is stored."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ...module_utils.formats import limits, perf_map_line, wire
from ...module_utils.formats.capture_facts import ASYNC_PROFILER, JEMALLOC, CaptureFacts, SamplingFacts
from ...module_utils.formats.errors import OffheapError
from ..archive import image_files
from ..archive.archive import Archive, read_dump
from ..archive.capture import Arrived, Capture, DumpWriter
from ..base import child
from ..base.printable import printable
from ..model.raw import Told
from . import unpack_tar
from .plan import MOST_BYTES, Batch, Found
from .unpack_tar import TransferError

PACKED_NAME = wire.PACKED

#: gzip expands incompressible data by less than this factor; tar adds a header and padding for each member
_OVERHEAD = 1.001
_PER_MEMBER = 2048
_FIXED = 65536
# What only our own tools put into a spool: live memory, sampled as its first line or each recording says.
_OURS = (JEMALLOC, ASYNC_PROFILER)


@dataclass(frozen=True)
class Packed:
    """The packed file on the target, as the module's step "pack" announced it."""

    size: int
    sha256: str
    members: dict[str, int]
    skipped: dict[str, str]


@dataclass
class Ingested:
    """What a transfer brought.

    Captures (True: new), build-ids of images, what was refused and why, and the dumps that are safe now.
    """

    captures: list[tuple[Capture, bool]] = field(default_factory=list)
    images: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    safe: list[Found] = field(default_factory=list)


def read_packed(data: dict[str, Any], batch: Batch) -> Packed:
    """Check an announcement against the request. Raises TransferError."""
    size, sha256, members, skipped = (data.get(key) for key in ("size", "sha256", "members", "skipped"))
    sizes = batch.sizes()
    if (
        not isinstance(sha256, str)
        or not isinstance(size, int)
        or not isinstance(members, dict)
        or not isinstance(skipped, dict)
    ):
        raise TransferError("the host did not say what it packed")
    made = batch.made()
    for member in made & set(members):
        if not isinstance(members[member], int) or not 0 < members[member] <= limits.LARGEST_PERF_MAP:
            raise TransferError("the host packed a perf map of an impossible size")
        sizes[member] = members[member]
    total = sum(sizes.values())
    if total > MOST_BYTES:
        raise TransferError(f"the host packed {total} bytes, more than one run takes from it")
    if not 0 < size <= most_packed(sizes):
        raise TransferError(f"the host packed {total} bytes into {size}, which is impossible")
    for member, announced in members.items():
        if not isinstance(announced, int) or sizes.get(member) != announced:
            raise TransferError(f"the host packed {str(member)[:100]!r} differently from what was asked for")
    if set(sizes) | made != set(members) | set(skipped):
        raise TransferError("the host packed less than it was asked for, without saying why")
    return Packed(size, sha256, members, {member: printable(str(reason)[:500]) for member, reason in skipped.items()})


def most_packed(sizes: Mapping[str, int]) -> int:
    """The most bytes that members of these sizes can take when packed."""
    return int(sum(sizes.values()) * _OVERHEAD) + len(sizes) * _PER_MEMBER + _FIXED


def ingest(
    archive: Archive, batch: Batch, packed: Packed, file: Path, aside: Path, told: Told | None = None
) -> Ingested:
    """Verify the file, unpack it into the directory ``aside`` and store its content. ``told`` is what the user says of
    profiles that services offered, where they do not say it themselves.

    Raises TransferError if the file is not what was announced, ArchiveError if the archive cannot be written.
    """
    unpack_tar.verify(file, packed.size, packed.sha256)
    unpacked = _Unpacked(aside, batch, packed)
    unpack_tar.unpack(file, packed.members, unpacked.open)
    file.unlink()
    files = unpacked.files
    result = Ingested()
    for member, reason in packed.skipped.items():
        files.pop(member, None)
        if member not in batch.maps:
            result.problems.append(f"{_title(batch, member)} was not packed: {reason}")
        elif reason not in (perf_map_line.ENDED, perf_map_line.NONE):
            result.problems.append(f"{_title(batch, member)}: methods may have no names, because {reason}")
    for member, image in batch.images.items():
        if member not in files:
            continue
        if not image_files.is_image(files[member], image.build_id, image.sha256):
            result.problems.append(f"{_title(batch, member)} is not the file that the host announced; skipped")
            continue
        archive.add_image(image.build_id, image.basename, files[member])
        result.images.append(image.build_id)
    arrived = []
    for member, found in batch.dumps.items():
        if member not in files:
            continue
        if unpacked.dumps[member].sha256 != found.facts.dump.sha256:
            result.problems.append(f"{_title(batch, member)} changed between listing and packing; left on the host")
            continue
        facts = replace(found.facts, sampling=unpacked.dumps[member].sampling)
        if facts.source not in _OURS:
            try:
                facts = _told(facts, files[member], told or Told())
            except OffheapError as error:
                result.problems.append(f"{_title(batch, member)} was left on the host: {error}")
                continue
        arrived.append(_arrived(batch, packed, found, Arrived(facts, files[member]), files))
        result.safe.append(found)
    result.captures = archive.add_captures(arrived, aside)
    return result


def _told(facts: CaptureFacts, dump: Path, told: Told) -> CaptureFacts:
    """The facts with what the dump or the user says that it counts, and how. Raises ControllerError if nobody does."""
    size = facts.dump.size
    measure, scheme, interval = json.loads(child.call(_parsed, dump, facts.source, facts.dump.sha256, told, size=size))
    told_facts = replace(facts, measure=measure, sampling=SamplingFacts(scheme, interval or None))
    return CaptureFacts.from_json(told_facts.to_json())  # as whoever reads the archive will


def _parsed(path: Path, source: str, sha256: str, told: Told) -> bytes:
    """In the child."""
    from ..readers import detect  # this takes longer than storing a dump

    records = detect.parse_as(source, read_dump(path, sha256), "its profile", told)
    detect.refuse_if_partial(records)
    sampling = records.sampling
    return json.dumps([records.measure.value, sampling.scheme.value, sampling.interval]).encode()


class _Unpacked:
    """The files of a transfer, named by number: ``dumps`` as the archive keeps them, the others as they are."""

    def __init__(self, aside: Path, batch: Batch, packed: Packed) -> None:
        self._aside = aside
        self._batch = batch
        self._sizes = packed.members
        self.files: dict[str, Path] = {}
        self.dumps: dict[str, DumpWriter] = {}

    def open(self, member: str) -> AbstractContextManager[unpack_tar.Output]:
        path = self._aside / f"member-{len(self.files)}"
        if member not in self._batch.dumps:
            self.files[member] = path
            return unpack_tar.leaving_holes(path)
        self.files[member] = path.with_suffix(".zst")
        self.dumps[member] = DumpWriter(self.files[member], self._sizes[member])
        return self.dumps[member]


def _arrived(batch: Batch, packed: Packed, found: Found, alone: Arrived, files: dict[str, Path]) -> Arrived:
    """A dump with its lives and holders, and its perf map or the reason for having none."""
    of_lives, of_holders = (
        next((member for member, dump_of in of_kind.items() if dump_of is found), "")
        for of_kind in (batch.lives, batch.holders)
    )
    alone = replace(alone, lives=files.get(of_lives), holders=files.get(of_holders))
    member = next((member for member, dump_of in batch.maps.items() if dump_of is found), None)
    if member is None:
        return alone
    told: dict[str, str] = {"source": "beside" if found.map_identity else "process"}
    if member in packed.skipped:
        told = {"problem": printable(packed.skipped[member])}
    return replace(alone, facts=replace(alone.facts, perf_map=told), perf_map=files.get(member))


def _title(batch: Batch, member: str) -> str:
    if member in batch.maps:
        facts = batch.maps[member].facts
        return f"process {facts.process.pid} of {facts.unit}"
    for kind, of_kind in (
        ("dump", batch.dumps),
        ("the lives beside dump", batch.lives),
        ("the holders beside dump", batch.holders),
    ):
        if member in of_kind:
            facts = of_kind[member].facts
            return f"{kind} {facts.dump.name} of {facts.unit}"
    return f"image {printable(batch.images[member].path)}"
