# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Packing and marking: what was requested goes into the tar file, and what has changed meanwhile stays."""

from __future__ import annotations

import io
import os
import shutil
import tarfile
from pathlib import Path

import pytest
import zstandard

from ansible_collections.offheap.profiler.plugins.module_utils.formats import elf
from ansible_collections.offheap.profiler.plugins.module_utils.formats.pack_request import (
    DumpMember,
    Identity,
    ImageMember,
    MapMember,
    PackRequest,
)
from ansible_collections.offheap.profiler.plugins.module_utils.host import places
from ansible_collections.offheap.profiler.plugins.module_utils.spool import steps

UNIT = "web.service"
NAMES = ("jeprof.12.0.i0.heap", "jeprof.12.1.i1.heap")


@pytest.fixture
def spool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(places, "SPOOLS", str(tmp_path / "spools"))
    directory = tmp_path / "spools" / UNIT
    directory.mkdir(parents=True)
    for name in NAMES:
        (directory / name).write_text(f"dump {name}")
        (directory / f"{name}.map").write_text(f"map {name}")
    return directory


def wanted(spool: Path, name: str) -> DumpMember:
    return DumpMember(UNIT, name, Identity.of(os.stat(spool / name)), f"member/{name}")


def packed(request: PackRequest) -> tuple[dict[str, bytes], dict[str, str]]:
    """Contents by member, and what was skipped and why."""
    written = io.BytesIO()
    answer = steps.stream_captures(request, written.write)
    unpacked = io.BytesIO(zstandard.ZstdDecompressor().decompressobj().decompress(written.getvalue()))
    with tarfile.open(fileobj=unpacked) as archive:
        found = {member.name: archive.extractfile(member) for member in archive}
        return {name: stream.read() for name, stream in found.items() if stream}, answer["skipped"]


def test_dumps_and_maps_beside_them(spool: Path) -> None:
    beside = Identity.of(os.stat(spool / f"{NAMES[0]}.map"))
    maps = [MapMember("member/map", UNIT, NAMES[0], beside, 12, "12-x")]
    contents, skipped = packed(PackRequest([wanted(spool, name) for name in NAMES], [], maps))
    assert contents == {
        **{f"member/{name}": f"dump {name}".encode() for name in NAMES},
        "member/map": f"map {NAMES[0]}".encode(),
    }
    assert skipped == {}


@pytest.mark.parametrize("kind", ["lives", "holders"])
def test_lives_and_holders_go_with_the_dump_that_they_lie_beside(spool: Path, kind: str) -> None:
    beside = spool / f"{NAMES[0]}.{kind}"
    beside.write_text("its own")
    own = DumpMember(UNIT, NAMES[0], Identity.of(beside.stat()), kind)
    gone = DumpMember(UNIT, NAMES[1], Identity.of(beside.stat()), "none")
    contents, skipped = packed(PackRequest([], [], [], **{kind: [own, gone]}))
    assert (contents, skipped) == ({kind: b"its own"}, {"none": "it is gone"})
    assert steps.mark([wanted(spool, NAMES[0])], delete=True)["collected"] == 1
    assert not beside.exists()


def test_what_changed_after_it_was_listed_is_skipped_and_stays(spool: Path) -> None:
    dumps = [wanted(spool, name) for name in NAMES]
    beside = Identity.of(os.stat(spool / f"{NAMES[0]}.map"))
    for name in (NAMES[0], f"{NAMES[0]}.map"):
        (spool / name).write_text("longer than it was at first, by far")
    request = PackRequest(dumps, [], [MapMember("map", UNIT, NAMES[0], beside, 12, "12-x")])
    contents, skipped = packed(request)
    assert set(contents) == {f"member/{NAMES[1]}"}
    assert skipped == dict.fromkeys((f"member/{NAMES[0]}", "map"), "it changed after it was listed")
    assert steps.mark(dumps, delete=True) == {"collected": 1, "problems": [], "changed": True}
    assert (spool / NAMES[0]).exists() and not (spool / NAMES[1]).exists()


def test_an_image_is_taken_where_the_build_is(spool: Path, tmp_path: Path) -> None:
    program = shutil.which("true") or "/bin/true"
    build_id, size = elf.read(program).build_id or "", os.stat(program).st_size
    other = tmp_path / "other"
    other.write_bytes(Path(program).read_bytes() + b"more")
    sources = [str(tmp_path / "gone"), str(other), program]
    contents, skipped = packed(PackRequest([], [ImageMember("image", build_id, size, sources)], []))
    assert contents["image"] == Path(program).read_bytes() and skipped == {}
    _contents, skipped = packed(PackRequest([], [ImageMember("image", build_id, size, sources[:2])], []))
    assert skipped == {"image": "it was replaced by another build"}
    other.write_text("no program")
    _contents, skipped = packed(PackRequest([], [ImageMember("image", build_id, size, sources[:2])], []))
    assert "not an ELF" in skipped["image"]
