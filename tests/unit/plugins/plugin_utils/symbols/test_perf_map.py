# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Perf maps, valid and invalid, and which of them names what."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.offheap.profiler.plugins.module_utils.formats import limits
from ansible_collections.offheap.profiler.plugins.plugin_utils.model.frame import Kind
from ansible_collections.offheap.profiler.plugins.plugin_utils.symbols import jit_symbols, perf_map
from ansible_collections.offheap.profiler.plugins.plugin_utils.symbols.perf_map import PerfMap, PerfMapError
from ansible_collections.offheap.profiler.plugins.plugin_utils.symbols.runtime_frames import frame_of

HOTSPOT = b"""\
0x00007f0f5f340b80 0x0000000000017340 Interpreter
0x00007f0f5f8d1520 0x0000000000000220 long java.util.zip.Inflater.inflateBytesBytes(long, byte[], int)
"""
CPYTHON = b"7f0f5f340b80 b py::serve_asset:/srv/my app.py\n"


def test_addresses_with_and_without_0x() -> None:
    hotspot, cpython = perf_map.parse(HOTSPOT), perf_map.parse(CPYTHON)
    assert hotspot.name(0x7F0F5F340B80) == "Interpreter"
    assert hotspot.name(0x7F0F5F8D1520 + 0x21F) == "long java.util.zip.Inflater.inflateBytesBytes(long, byte[], int)"
    assert hotspot.name(0x7F0F5F8D1520 + 0x220) is None, "the end is not in it"
    assert hotspot.name(0x7F0F5F340B80 - 1) is None
    assert cpython.name(0x7F0F5F340B8A) == "py::serve_asset:/srv/my app.py"
    assert cpython.name(0x7F0F5F340B8B) is None


def test_what_is_no_line_is_passed_over() -> None:
    text = b"\n\0\xff\n1000 10\n1000 10 \nzz 10 x\n1000 -1 x\n-1 10 x\n1000 0 empty\nffffffffffffffff 2 wraps\n"
    assert len(perf_map.parse(text)) == 0
    assert perf_map.parse(text + b"2000 10 good\n").name(0x2005) == "good"
    assert perf_map.parse(b"1000 10 whole\n1000 10 cut o").name(0x1000) == "whole", "still being written"


Entries = st.lists(
    st.tuples(
        st.integers(0, 60), st.integers(1, 30), st.text(st.characters(exclude_characters="\n"), min_size=1)
    ).filter(lambda entry: bool(entry[2].encode("utf-8", "replace").strip())),
    max_size=12,
)


@given(Entries, st.booleans(), st.integers(0, 100))
def test_the_later_line_is_right(entries: list[tuple[int, int, str]], prefixed: bool, address: int) -> None:
    prefix = "0x" if prefixed else ""
    text = "".join(f"{prefix}{start:x} {prefix}{size:x} {name}\n" for start, size, name in entries)
    covering = [name for start, size, name in entries if start <= address < start + size]
    expected = covering[-1].encode("utf-8", "replace").strip().decode() if covering else None
    assert perf_map.parse(text.encode("utf-8", "replace")).name(address) == expected


@given(st.binary(max_size=2000), st.integers(0, 1 << 64))
def test_any_bytes(text: bytes, address: int) -> None:
    found = perf_map.parse(text + b"\n" + HOTSPOT)
    assert found.name(0x7F0F5F340B80) is not None
    frame = next(iter(found.frames(address)), None)
    assert frame is None or (frame.label.isprintable() and len(frame.label) <= 1100)


@given(st.lists(st.tuples(st.integers(0, 1 << 16), st.integers(1, 1 << 12)), max_size=60))
def test_pieces_are_in_order_and_apart(spans: list[tuple[int, int]]) -> None:
    found = PerfMap([(start, start + size, b"%d" % number) for number, (start, size) in enumerate(spans)])
    covered = {address for start, size in spans for address in (start, start + size - 1)}
    assert all(found.name(address) is not None for address in covered)


def test_a_map_may_be_compressed_and_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain, packed = tmp_path / "plain", tmp_path / "packed"
    plain.write_bytes(HOTSPOT)
    packed.write_bytes(gzip.compress(HOTSPOT))
    assert len(perf_map.read(plain)) == len(perf_map.read(packed)) == 2
    packed.write_bytes(gzip.compress(HOTSPOT)[:-9])
    with pytest.raises(PerfMapError, match="packed"):
        perf_map.read(packed)
    monkeypatch.setattr(limits, "LARGEST_PERF_MAP", 10)
    with pytest.raises(PerfMapError, match="larger than 10 bytes"):
        perf_map.read(plain)
    monkeypatch.setattr(perf_map, "_MOST_ENTRIES", 1)
    with pytest.raises(PerfMapError, match="more than 1 pieces"):
        perf_map.parse(HOTSPOT)
    with pytest.raises(PerfMapError, match="gone"):
        perf_map.read(tmp_path / "gone")


@pytest.mark.parametrize(
    ("name", "label", "kind"),
    [
        (
            "long java.util.zip.Inflater.inflateBytesBytes(long, byte[], int, int, byte[], int, int)",
            "java.util.zip.Inflater.inflateBytesBytes",
            Kind.JAVA,
        ),
        ("void java.util.zip.Inflater.<init>(boolean)", "java.util.zip.Inflater.<init>", Kind.JAVA),
        ("byte[] Frontend.pack(java.util.Random, int)", "Frontend.pack", Kind.JAVA),
        ("void Frontend$$Lambda$1/0x00007f0f17000cd8.run()", "Frontend$$Lambda.run", Kind.JAVA),
        ("void Frontend$$Lambda/0x00007f9ccf000cd8.run()", "Frontend$$Lambda.run", Kind.JAVA),
        ("Interpreter", "Interpreter", Kind.JIT),
        ("StubRoutines (1)", "StubRoutines (1)", Kind.JIT),
        ("py::serve_asset:/srv/app.py", "serve_asset (app.py)", Kind.PYTHON),
        ("py::Shop.<lambda>:<string>", "Shop.<lambda> (<string>)", Kind.PYTHON),
        ("JS:*handle /srv/app.js:12:34", "handle (app.js:12)", Kind.JS),
        ("LazyCompile:~get size /srv/my app.js:1:2", "get size (my app.js:1)", Kind.JS),
        ("JS:^set size file:///srv/app.mjs:1:18", "set size (app.mjs:1)", Kind.JS),
        ("JS:*get size :1:20", "get size", Kind.JS),
        ("JS:*get /srv/my app.js:1:2", "get (my app.js:1)", Kind.JS),
        ("JS:*get node:url:1:2", "get (node:url:1)", Kind.JS),
        ("JS:~ :1:20", "(anonymous)", Kind.JS),
        ("JS:~ /srv/app.js:1:1", "(anonymous) (app.js:1)", Kind.JS),
        ("JS:^tick node:internal/process/task_queues:71:35", "tick (task_queues:71)", Kind.JS),
        ("Builtin:ArrayPrototypePush", "Builtin:ArrayPrototypePush", Kind.JIT),
        ("clear\x1b[2J", "clear\ufffd[2J", Kind.JIT),
    ],
)
def test_names(name: str, label: str, kind: Kind) -> None:
    frame = frame_of(name)
    assert (frame.label, frame.kind) == (label, kind)
    assert frame.signature == name.replace("\x1b", "\ufffd")


def test_the_nearest_map_is_asked_first(tmp_path: Path) -> None:
    early, late, broken = tmp_path / "early", tmp_path / "late", tmp_path / "broken"
    early.write_bytes(b"1000 10 first\n2000 10 gone\n")
    late.write_bytes(b"1000 10 second\n")
    broken.write_bytes(gzip.compress(b"x")[:5])
    warnings: list[str] = []
    maps = jit_symbols.JitMaps({early: 100.0, broken: 150.0, late: 200.0}, warnings.append)

    def names(time: float) -> list[str | None]:
        found = maps.at(time)([(address, True) for address in (0x1005, 0x2005, 0x3005)])
        return [frames[0].label if frames else None for frames in found]

    assert names(110.0) == ["first", "gone", None]
    assert names(190.0) == ["second", "gone", None]
    assert len(warnings) == 1 and "broken" in warnings[0]
    assert jit_symbols.JitMaps({}, warnings.append).at(1.0)([(0x1005, True)]) == [()]


def test_one_call_that_stands_for_several_methods() -> None:
    text = b"1000 100 void Shop.run()\n1050 1 [inlined] int Tin.open(byte[], int);void Shop.serve();void Shop.run()\n"
    found = perf_map.parse(text)
    assert [frame.label for frame in found.frames(0x1050)] == ["Tin.open", "Shop.serve", "Shop.run"]
    assert found.frames(0x1050)[2] == found.frames(0x104F)[0] == found.frames(0x1051)[0]
    assert perf_map.parse(b"1050 1 [inlined] ;;\n").frames(0x1050) == ()
