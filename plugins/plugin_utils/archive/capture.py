# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""One capture of an archive: a dump with its facts, and its files."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from ...module_utils.formats import dump_name
from ...module_utils.formats.capture_facts import HEAD, CaptureFacts, KnownImage, SamplingFacts, sampling_of
from ..base import libraries
from ..base.durable import compress, sync

zstandard = libraries.optional("zstandard")

DUMP = "dump.heap.zst"
FACTS = "capture.json"
#: a perf map in a capture's directory, compressed with gzip
PERF_MAP = "perf.map.gz"
#: the lives of what was sampled, as the agent wrote them, likewise
LIVES = "lives.gz"
#: who held what lived, likewise
HOLDERS = "holders.gz"
# Level 3 takes half as long again and packs real dumps no better.
_LEVEL = 2


@dataclass(frozen=True)
class Capture:
    """A dump with its facts. ``time`` is when the dump was written, in seconds since the epoch."""

    path: Path
    host: str
    unit: str
    process: str
    sequence: int
    time: float
    facts: CaptureFacts

    @property
    def dump(self) -> Path:
        """The dump as its source wrote it, compressed with zstd."""
        return self.path / DUMP

    def derived(self, name: str) -> Path:
        """The path, existing or not, of a file that can be rebuilt from this capture alone."""
        return self.path / name

    def has(self, name: str) -> bool:
        """Whether there is a file with this name."""
        return (self.path / name).is_file()

    @property
    def perf_map(self) -> Path | None:
        """The perf map of the process's compiled code (perf_map.py), if one came with this dump."""
        path = self.path / PERF_MAP
        return path if path.is_file() else None

    @property
    def lives(self) -> Path | None:
        """The book of lives (lives_book.py), if one came with this dump."""
        path = self.path / LIVES
        return path if path.is_file() else None

    @property
    def holders(self) -> Path | None:
        """Who held what lived (formats/holders.py), if that came with this dump."""
        path = self.path / HOLDERS
        return path if path.is_file() else None

    def files(self) -> dict[str, Path]:
        """All files of this capture, by name."""
        return {path.name: path for path in self.path.iterdir()}

    @property
    def images(self) -> list[KnownImage]:
        """The images whose build-id is known; ``facts.images`` also has the others, with the reason."""
        return [image for image in self.facts.images if isinstance(image, KnownImage)]


@dataclass(frozen=True)
class Arrived:
    """A dump to add, with its facts and what lay beside it. The caller has checked that the dump matches the facts.

    ``dump`` is the plain file or, if its name ends in ``.zst``, compressed as the archive keeps it.
    """

    facts: CaptureFacts
    dump: Path
    perf_map: Path | None = None
    lives: Path | None = None
    holders: Path | None = None


def capture_of(path: Path, facts: CaptureFacts) -> Capture:
    """The capture with these facts at a path."""
    name = dump_name.parse(facts.dump.name)
    return Capture(
        path=path,
        host=facts.host,
        unit=facts.unit,
        process=facts.process.key,
        sequence=0 if name is None else name.sequence,
        time=float(facts.dump.time),
        facts=facts,
    )


def in_order(captures: Iterable[Capture]) -> list[Capture]:
    """Captures by unit, host, process and sequence."""
    return sorted(captures, key=lambda capture: (capture.unit, capture.host, capture.process, capture.sequence))


def write_capture(arrived: Arrived, directory: Path) -> None:
    """Write a capture's files to a new directory. A packed dump is moved there. Raises OSError."""
    directory.mkdir()
    if arrived.dump.suffix == ".zst":
        os.rename(arrived.dump, directory / DUMP)
    else:
        with arrived.dump.open("rb") as stream, DumpWriter(directory / DUMP, arrived.dump.stat().st_size) as output:
            shutil.copyfileobj(stream, output, 1 << 20)
    besides = ((arrived.perf_map, PERF_MAP), (arrived.lives, LIVES), (arrived.holders, HOLDERS))
    for beside, name in besides:
        if beside is not None:
            compress(beside, directory / name)
    (directory / FACTS).write_bytes(json.dumps(arrived.facts.to_json(), sort_keys=True).encode() + b"\n")


def sync_capture(directory: Path) -> None:
    """Let what ``write_capture`` has written survive a power failure. Raises OSError."""
    for path in (directory / DUMP, directory / FACTS, directory):  # what lay beside it is, since it was packed
        sync(path)


class DumpWriter:
    """Writes a dump of ``size`` bytes to a new file, as the archive keeps it. Use it as a context manager."""

    def __init__(self, path: Path, size: int) -> None:
        self._file = path.open("xb")
        compressor = zstandard.ZstdCompressor(level=_LEVEL, write_checksum=True)
        self._stream = compressor.stream_writer(self._file, size=size)
        self._digest = hashlib.sha256()
        self._head = b""

    def write(self, block: bytes) -> None:
        self._digest.update(block)
        if len(self._head) < HEAD:
            self._head += block[: HEAD - len(self._head)]
        self._stream.write(block)

    @property
    def sha256(self) -> str:
        """The SHA-256 of what was written, in hex."""
        return self._digest.hexdigest()

    @property
    def sampling(self) -> SamplingFacts:
        """What the dump's first line says about sampling."""
        return sampling_of(self._head)

    def __enter__(self) -> DumpWriter:
        return self

    def __exit__(self, error: object, *_exc: object) -> None:
        with self._file:
            if error is None:  # else the content is incomplete, and zstd refuses to end it
                self._stream.close()
        del self._stream  # frees megabytes: the writer may be kept for its checksum
