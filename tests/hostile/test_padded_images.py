# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Images that are large and hold little: what reading them may cost, and what they take in the archive."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
from pathlib import Path

import pytest

from ansible_collections.offheap.profiler.plugins.module_utils.formats import limits
from ansible_collections.offheap.profiler.plugins.plugin_utils.archive import image_files
from ansible_collections.offheap.profiler.plugins.plugin_utils.archive.archive import Archive
from ansible_collections.offheap.profiler.plugins.plugin_utils.base import child
from ansible_collections.offheap.profiler.plugins.plugin_utils.fetch import unpack_tar
from ansible_collections.offheap.profiler.plugins.plugin_utils.fetch.collect import Wanted, collect
from ansible_collections.offheap.profiler.plugins.plugin_utils.fetch.ingest import Ingested, Packed
from ansible_collections.offheap.profiler.plugins.plugin_utils.fetch.plan import Batch
from ansible_collections.offheap.profiler.plugins.plugin_utils.model.location import Location
from ansible_collections.offheap.profiler.plugins.plugin_utils.symbols import image_names
from ansible_collections.offheap.profiler.plugins.plugin_utils.symbols.symbolizer import Symbolizer
from ansible_collections.offheap.profiler.tests.hostile.bounds import costs_at_most
from ansible_collections.offheap.profiler.tests.hostile.test_images import BUILD_ID, _image
from ansible_collections.offheap.profiler.tests.unit.plugins.plugin_utils.archive import capture_samples
from ansible_collections.offheap.profiler.tests.unit.plugins.plugin_utils.fetch.test_collect import Host
from ansible_collections.offheap.profiler.tests.unit.plugins.plugin_utils.fetch.test_ingest import Target
from ansible_collections.offheap.profiler.tests.unit.strategies import child_tricks

_MIB = 1 << 20


def _padded(path: Path, symbols: int, holes: int, filled: int) -> None:
    """An image with so many bytes of symbols, all in holes, and more behind its sections that nothing leads to."""
    _image(path, symbols)
    with path.open("ab") as stream:
        stream.truncate(stream.tell() + holes)
        stream.seek(0, os.SEEK_END)
        for _mib in range(filled // _MIB):
            stream.write(os.urandom(_MIB))


@pytest.mark.parametrize(
    ("symbols", "holes", "filled"),
    [(24, 1024 * _MIB, 0), (24, 0, 32 * _MIB), (96 * _MIB // 24 * 24, 0, 0)],
    ids=["holes", "noise", "symbols in holes"],
)
def test_what_is_not_read_gives_an_image_no_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, symbols: int, holes: int, filled: int
) -> None:
    """Its reader is taken over, and takes 512 MiB."""
    _padded(tmp_path / "liar", symbols, holes, filled)
    monkeypatch.setattr(image_names, "_named", child_tricks.overwhelmed_by_liar)
    monkeypatch.setenv("TRICK", "hoard")
    child.end()  # the next one has this environment
    symbolizer = Symbolizer(lambda _build_id, _sum: tmp_path / "liar", tmp_path)
    with costs_at_most(10, 16):
        symbolizer.frames([Location("/opt/liar.so", BUILD_ID, 4096, 0)])
    child.end()
    (told,) = symbolizer.warnings
    assert re.fullmatch(r"liar.so: parsing it takes more than 512\.\d MiB of memory", told)


def test_holes_of_an_image_take_no_room(tmp_path: Path) -> None:
    """On their way and in the archive: 256 MiB that are a few kilobytes on the host."""
    target = Target(tmp_path, [b"one"], before=lambda program: os.truncate(program, 256 * _MIB))
    archive = Archive.create(tmp_path / "archive")
    with costs_at_most(10, 64):
        brought = target.bring(archive, target.pack())
    image = archive.image(brought.images[0], image_files.sha256_of(target.program))
    assert image is not None and image.stat().st_size == 256 * _MIB
    stored = int(subprocess.run(["du", "-s", "-k", archive.root], check=True, capture_output=True).stdout.split()[0])
    assert stored < 4096, "KiB"


def test_images_leave_dumps_their_share(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A service's user maps forty files of a GiB that hold nothing."""
    listing = capture_samples.listing(b"one", b"two", b"three")
    listing["free"] = 1 << 60
    (honest, _gone) = listing["images"]
    for number in range(40):
        sha256 = hashlib.sha256(b"%d" % number).hexdigest()
        liar = dict(honest, path=f"/srv/{number}", sha256=sha256, size=1 << 30, build_id=f"{number:040x}")
        listing["images"].insert(0, liar)
    for capture in listing["captures"]:
        capture["images"] = list(range(len(listing["images"])))
    asked: list[Batch] = []
    monkeypatch.setattr(unpack_tar, "room", lambda _directory: 1 << 40)

    class Liar(Host):
        """Remembers what it was asked for."""

        def bring(self, archive: Archive, batch: Batch) -> tuple[Packed, Ingested]:
            asked.append(batch)
            return super().bring(archive, batch)

    host = Liar([b"one", b"two", b"three"])
    host.listing = listing
    done = collect(host, Archive.create(tmp_path / "archive"), Wanted("liar"))
    assert len(done.captures) == 3, "all dumps come"
    images = [image for batch in asked for image in batch.images.values()]
    assert sum(image.size for image in images) <= limits.LARGEST_IMAGE
    assert honest["build_id"] in {image.build_id for image in images}, "what is small comes first"
    assert [warning for warning in done.warnings if warning.startswith("images stay on the host, 37 of them, ")]
