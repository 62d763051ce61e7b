# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Images and perf maps that take much to read: in the child process, and the next host's functions have their names."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path

import pytest

from ansible_collections.offheap.profiler.plugins.plugin_utils.base import child
from ansible_collections.offheap.profiler.plugins.plugin_utils.base.child import Allowance
from ansible_collections.offheap.profiler.plugins.plugin_utils.model.location import JIT, Location
from ansible_collections.offheap.profiler.plugins.plugin_utils.symbols import image_names
from ansible_collections.offheap.profiler.plugins.plugin_utils.symbols.jit_symbols import JitMaps
from ansible_collections.offheap.profiler.plugins.plugin_utils.symbols.symbolizer import Symbolizer
from ansible_collections.offheap.profiler.tests.hostile.bounds import costs_at_most
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
    symbolizer = Symbolizer(images.get, tmp_path)
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
    symbolizer = Symbolizer(images.get, tmp_path)
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


def test_twelve_perf_maps_of_the_largest_size(tmp_path: Path) -> None:
    text = gzip.compress(b"".join(b"%x 1 a.B.c()\n" % (number << 4) for number in range(200_000)), 1)
    maps = {}
    for number in range(12):
        maps[tmp_path / f"{number}.map.gz"] = float(number)
        (tmp_path / f"{number}.map.gz").write_bytes(text)
    (tmp_path / "next.map").write_bytes(b"20 10 x.Y.z()\n")
    place, missing = Location(JIT, "", 0x20, 0), Location(JIT, "", 0x21, 0)
    symbolizer = Symbolizer(lambda _build_id: None, tmp_path)
    warnings: list[str] = []
    with costs_at_most(2, 8):
        liar = symbolizer.frames([place, missing], JitMaps(maps, warnings.append).at(3.0))
        following = symbolizer.frames([place], JitMaps({tmp_path / "next.map": 0.0}, warnings.append).at(0.0))
    assert [found[0].label for found in liar] == ["a.B.c", "[jit]"]
    assert following[0][0].label == "x.Y.z"
