# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Images and perf maps that take much to read, or are not what they claim to be: the next host's functions have their
names."""

from __future__ import annotations

import gzip
import struct
from dataclasses import replace
from pathlib import Path

import duckdb
import pytest

from ansible_collections.offheap.profiler.plugins.module_utils.formats.capture_facts import KnownImage
from ansible_collections.offheap.profiler.plugins.plugin_utils.archive import image_files
from ansible_collections.offheap.profiler.plugins.plugin_utils.archive.archive import Archive
from ansible_collections.offheap.profiler.plugins.plugin_utils.base import child
from ansible_collections.offheap.profiler.plugins.plugin_utils.base.child import Allowance
from ansible_collections.offheap.profiler.plugins.plugin_utils.columns.lake import Lake
from ansible_collections.offheap.profiler.plugins.plugin_utils.columns.series_reader import reading
from ansible_collections.offheap.profiler.plugins.plugin_utils.driver.analyze import analyze
from ansible_collections.offheap.profiler.plugins.plugin_utils.driver.formats import Request
from ansible_collections.offheap.profiler.plugins.plugin_utils.driver.sources import DumpReader, Images, Source
from ansible_collections.offheap.profiler.plugins.plugin_utils.leaks.scope import Scope
from ansible_collections.offheap.profiler.plugins.plugin_utils.leaks.survey import survey
from ansible_collections.offheap.profiler.plugins.plugin_utils.leaks.verdict import Answer
from ansible_collections.offheap.profiler.plugins.plugin_utils.model.location import JIT, Location
from ansible_collections.offheap.profiler.plugins.plugin_utils.symbols import image_names
from ansible_collections.offheap.profiler.plugins.plugin_utils.symbols.elf_image import ElfImage
from ansible_collections.offheap.profiler.plugins.plugin_utils.symbols.jit_symbols import JitMaps
from ansible_collections.offheap.profiler.plugins.plugin_utils.symbols.symbolizer import Symbolizer
from ansible_collections.offheap.profiler.tests.hostile.bounds import costs_at_most
from ansible_collections.offheap.profiler.tests.unit.fakes import duck
from ansible_collections.offheap.profiler.tests.unit.strategies import child_tricks, leaky_archives

BUILD_ID = "00112233445566778899"
_MIB = 1 << 20


def _image(path: Path, symbols: int) -> None:
    """An image with so many bytes of symbols and as many of their names: all of them holes in the file."""
    note = struct.pack("<III", 4, 10, 3) + b"GNU\0" + bytes.fromhex(BUILD_ID) + bytes(2)
    sections = [(0, 7, 64, len(note), 0, 0), (0, 2, 4096, symbols, 2, 24), (0, 3, 4096 + symbols, symbols, 0, 0)]
    at = 4096 + 2 * symbols
    layout = (3, 62, 1, 0, 0, at, 0, 64, 56, 0, 64, len(sections), 0)
    with path.open("wb") as stream:
        stream.write(b"\x7fELF\x02\x01\x01".ljust(16, b"\0") + struct.pack("<HHIQQQIHHHHHH", *layout) + note)
        stream.seek(at)
        for name, kind, offset, size, link, entry in sections:
            stream.write(struct.pack("<IIQQQQIIQQ", name, kind, 0, 0, offset, size, link, 0, 4, entry))


def test_an_image_with_gigantic_tables(tmp_path: Path) -> None:
    _image(tmp_path / "liar", 96 * _MIB // 24 * 24)
    images = {BUILD_ID: tmp_path / "liar", leaky_archives.image().build_id: leaky_archives.libz()}
    inside = leaky_archives.inside(b"inflate") - leaky_archives.BASE
    symbolizer = Symbolizer(lambda build_id, _sum: images.get(build_id), tmp_path)
    with costs_at_most(2, 16):
        frames = symbolizer.frames(
            [
                Location("/opt/liar.so", BUILD_ID, 4096, 0),
                Location("/usr/lib/libz.so.1", leaky_archives.image().build_id or "", inside, 0),
            ]
        )
    assert [found[-1].label for found in frames] == ["liar.so+0x1000", "inflate"]


@pytest.mark.parametrize("trick", ["spin", "hoard", "flood", "crash"])
def test_an_image_that_overwhelms_its_reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trick: str) -> None:
    """The image says what it is, and then takes all."""
    _image(tmp_path / "liar", 24)
    images = {BUILD_ID: tmp_path / "liar", leaky_archives.image().build_id: leaky_archives.libz()}
    monkeypatch.setattr(Allowance, "of", lambda _size: Allowance(1, 384 << 20, 1 << 20))
    monkeypatch.setattr(image_names, "_named", child_tricks.overwhelmed_by_liar)
    monkeypatch.setenv("TRICK", trick)
    child.end()  # the next one has this environment
    symbolizer = Symbolizer(lambda build_id, _sum: images.get(build_id), tmp_path)
    inside = leaky_archives.inside(b"inflate") - leaky_archives.BASE
    with costs_at_most(10, 16):
        frames = symbolizer.frames(
            [
                Location("/opt/liar.so", BUILD_ID, 4096, 0),
                Location("/usr/lib/libz.so.1", leaky_archives.image().build_id or "", inside, 0),
            ]
        )
    child.end()
    assert [found[-1].label for found in frames] == ["liar.so+0x1000", "inflate"]
    assert len(symbolizer.warnings) == 1 and symbolizer.warnings[0].startswith("liar.so: parsing it")


def _forged(directory: Path) -> Path:
    """A libz of the same build-id in which a function has another name."""
    forged = directory / leaky_archives.libz().name
    forged.write_bytes(leaky_archives.libz().read_bytes().replace(b"\0inflate\0", b"\0forgery\0"))
    assert ElfImage(forged).build_id == leaky_archives.image().build_id
    return forged


def _bring(archive: Archive, directory: Path, host: str, library: Path | None) -> None:
    """Captures of a host that leaks through its libz, and the library, which they say the sum of."""
    build_id = leaky_archives.image().build_id or ""
    sha256 = image_files.sha256_of(library) if library else leaky_archives.libz_sum()
    if library:
        archive.add_image(build_id, library.name, library)
    for number in range(8):
        content = leaky_archives.dump_text(20 + 5 * number, 30 + int(host[-1]))
        facts = leaky_archives.facts(content, host, number, leaky_archives.START + 300.0 * number)
        (directory / "dump").write_bytes(content)
        said = tuple(replace(image, sha256=sha256) for image in facts.images if isinstance(image, KnownImage))
        archive.add_capture(replace(facts, images=said), directory / "dump")


def _disassembled(source: Source, function: str, images: Images) -> str:
    analysis = analyze(Request(kind="disasm", function=function), source, None, images)
    return analysis.content.decode()


def _leaking(archive: Archive) -> tuple[dict[str, str], list[str]]:
    """The function that leaks on each host, and the warnings."""
    warnings: list[str] = []
    with reading(archive, warnings.append) as reader:
        hosts = list(survey(archive, reader, Scope(), warnings.append))
    assert [host.verdict.answer for host in hosts] == [Answer.LEAK] * len(hosts)
    return {host.host: host.verdict.suspects[0].path[0].label.partition("+")[0] for host in hosts}, warnings


@pytest.mark.parametrize("liar", ["app1", "app3"], ids=["read first", "read last"])
def test_a_library_that_claims_anothers_build_id(tmp_path: Path, liar: str) -> None:
    archive = Archive.create(tmp_path / "archive")
    (tmp_path / "forged").mkdir()
    _bring(archive, tmp_path, liar, _forged(tmp_path / "forged"))
    _bring(archive, tmp_path, "app2", None)
    libz, build_id = leaky_archives.libz().name, leaky_archives.image().build_id
    functions, warnings = _leaking(archive)
    assert functions == {liar: "forgery", "app2": libz}, "until its own is there, it has no names"
    assert [warning for warning in warnings if "no image with build-id" in warning]
    archive.add_image(build_id or "", libz, leaky_archives.libz())
    functions, warnings = _leaking(archive)
    assert functions == {liar: "forgery", "app2": "inflate"}
    (told,) = warnings
    first, second = sorted(["app2", liar])
    assert told.startswith(f"{libz} with build-id {build_id} differs between {first} and {second}, as if ")
    alone = DumpReader(Images(archive=archive), archive.symcaches)
    for capture in archive.captures():
        source, name = alone.read(capture.path), functions[capture.host]
        assert {frame.function for frame in source.samples.frames} & {"forgery", "inflate"} == {name}
        assert f"{name} in {leaky_archives.libz()}" in _disassembled(source, name, alone.images)
    lake = str(tmp_path / "lake")
    with reading(archive, warnings.append) as reader:
        Lake(lake).add(archive, reader, archive.captures(), warnings.append)
    with duckdb.connect() as connection:
        duck.open_tables(connection, lake)
        query = "SELECT DISTINCT host, path FROM captures JOIN points USING (capture) JOIN stacks USING (stack)"
        paths = connection.sql(query).fetchall()
    assert {host for host, path in paths if "forgery" in path} == {liar}
    assert {host for host, path in paths if "inflate" in path} == {"app2"}


def test_hosts_with_the_same_library_are_not_told_of(tmp_path: Path) -> None:
    archive = Archive.create(tmp_path / "archive")
    for host in ("app1", "app2"):
        _bring(archive, tmp_path, host, leaky_archives.libz())
    assert _leaking(archive) == ({"app1": "inflate", "app2": "inflate"}, [])
    assert len(archive.images()) == 1


def test_twelve_perf_maps_of_the_largest_size(tmp_path: Path) -> None:
    text = gzip.compress(b"".join(b"%x 1 a.B.c()\n" % (number << 4) for number in range(200_000)), 1)
    maps = {}
    for number in range(12):
        maps[tmp_path / f"{number}.map.gz"] = float(number)
        (tmp_path / f"{number}.map.gz").write_bytes(text)
    (tmp_path / "next.map").write_bytes(b"20 10 x.Y.z()\n")
    place, missing = Location(JIT, "", 0x20, 0), Location(JIT, "", 0x21, 0)
    symbolizer = Symbolizer(lambda _build_id, _sum: None, tmp_path)
    warnings: list[str] = []
    with costs_at_most(2, 8):
        liar = symbolizer.frames([place, missing], JitMaps(maps, warnings.append).at(3.0))
        following = symbolizer.frames([place], JitMaps({tmp_path / "next.map": 0.0}, warnings.append).at(0.0))
    assert [found[0].label for found in liar] == ["a.B.c", "[jit]"]
    assert following[0][0].label == "x.Y.z"
