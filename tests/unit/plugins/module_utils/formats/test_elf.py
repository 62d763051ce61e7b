# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""ELF facts against readelf and the compiler, and what damaged files do."""

from __future__ import annotations

import contextlib
import os
import re
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ansible_collections.offheap.profiler.plugins.module_utils.formats import elf, elf_headers
from ansible_collections.offheap.profiler.tests.unit.fakes import programs

SOURCE = "int offheap_probe(void) { return 42; }\nint main(void) { return offheap_probe(); }\n"


def build(directory: Path, *flags: str, source: str = SOURCE) -> Path:
    code = directory / "probe.c"
    code.write_text(source)
    target = directory / "probe"
    subprocess.run(["gcc", "-o", target, code, *flags], check=True, cwd=directory)
    return target


def readelf(option: str, path: Path) -> str:
    return subprocess.run(["readelf", "-W", option, path], check=True, capture_output=True, text=True).stdout


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("elf"), "-Wl,--build-id=0x00112233445566778899aabbccddeeff", "-ldl", "-lm")


def test_dynamic_program(program: Path) -> None:
    facts = elf.read(program)
    assert facts.bits == 64
    assert facts.type == elf.ET_DYN
    assert facts.machine_name == os.uname().machine
    assert facts.build_id == "00112233445566778899aabbccddeeff"
    assert facts.interpreter is not None and "ld-linux" in facts.interpreter
    assert facts.needed == re.findall(r"\(NEEDED\).*\[(.*)\]", readelf("-d", program))
    assert not facts.is_static
    assert facts.defines(["offheap_probe"])
    assert facts.defines(["no_such_name", "main"])
    assert not facts.defines(["no_such_name"])
    assert not facts.defines([])
    assert not facts.defines(["__libc_start_main"]), "an undefined symbol is not a definition"


@pytest.mark.parametrize("path", ["/bin/bash", "/usr/bin/python3", "/lib/x86_64-linux-gnu/libc.so.6", "/bin/ls"])
def test_as_readelf_says(path: str) -> None:
    if not os.path.exists(path):
        pytest.skip(f"this machine has no {path}")
    facts = elf.read(path)
    notes = re.search(r"Build ID: ([0-9a-f]+)", readelf("-n", Path(path)))
    assert facts.build_id == (notes.group(1) if notes else None)


def test_open_descriptor_keeps_its_place(program: Path) -> None:
    with program.open("rb") as stream:
        stream.seek(7)
        facts = elf.read(stream.fileno())
        assert stream.tell() == 7
    program_again = elf.read(program)
    assert facts.build_id == program_again.build_id
    assert facts.defines(["main"]), "the facts hold their own descriptor"


def test_static_program(tmp_path: Path) -> None:
    facts = elf.read(build(tmp_path, "-static"))
    assert facts.is_static
    assert facts.interpreter is None
    assert facts.needed == []
    assert facts.defines(["malloc"])


def test_static_pie(tmp_path: Path) -> None:
    facts = elf.read(build(tmp_path, "-static-pie"))
    assert facts.type == elf.ET_DYN
    assert facts.is_static


def test_library_is_not_static(tmp_path: Path) -> None:
    facts = elf.read(
        build(tmp_path, "-shared", "-fPIC", "-nostdlib", source="int offheap_probe(void) { return 42; }\n")
    )
    assert not facts.is_static
    assert facts.defines(["offheap_probe"])


@pytest.mark.parametrize("style", ["both", "gnu", "sysv"])
def test_symbols_without_section_headers(tmp_path: Path, style: str) -> None:
    library = build(tmp_path, "-shared", "-fPIC", f"-Wl,--hash-style={style}", "-Wl,--build-id=0xfeedbeef")
    data = bytearray(library.read_bytes())
    struct.pack_into("<Q", data, 0x28, 0)  # e_shoff
    struct.pack_into("<HH", data, 0x3C, 0, 0)  # e_shnum, e_shstrndx
    library.write_bytes(data)
    facts = elf.read(library)
    assert facts.defines(["offheap_probe"])
    assert not facts.defines(["printf"])
    assert facts.build_id == "feedbeef"


def test_no_build_id(tmp_path: Path) -> None:
    assert elf.read(build(tmp_path, "-Wl,--build-id=none")).build_id is None


def minimal(bits: int, order: str) -> bytes:
    """An executable of one PT_LOAD and one build-id note, in any class and byte order."""
    note = struct.pack(order + "III4s8s", 4, 8, 3, b"GNU\0", bytes(range(8)))
    ident = b"\x7fELF" + bytes([bits // 32, 1 if order == "<" else 2, 1]) + bytes(9)
    if bits == 64:
        header = struct.pack(order + "HHIQQQIHHHHHH", 2, 22, 1, 0, 64, 0, 0, 64, 56, 2, 64, 0, 0)
        at = 64 + 2 * 56
        load = struct.pack(order + "IIQQQQQQ", 1, 5, 0, 0, 0, at, at, 4096)
        notes = struct.pack(order + "IIQQQQQQ", 4, 4, at, at, at, len(note), len(note), 4)
    else:
        header = struct.pack(order + "HHIIIIIHHHHHH", 2, 20, 1, 0, 52, 0, 0, 52, 32, 2, 40, 0, 0)
        at = 52 + 2 * 32
        load = struct.pack(order + "IIIIIIII", 1, 0, 0, 0, at, at, 5, 4096)
        notes = struct.pack(order + "IIIIIIII", 4, at, at, at, len(note), len(note), 4, 4)
    return ident + header + load + notes + note


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("bits", [32, 64])
def test_every_class_and_byte_order(tmp_path: Path, bits: int, order: str) -> None:
    path = tmp_path / "file"
    path.write_bytes(minimal(bits, order))
    facts = elf.read(path)
    assert (facts.bits, facts.type, facts.build_id) == (bits, elf.ET_EXEC, "0001020304050607")
    assert facts.is_static


@pytest.mark.parametrize(
    "content", [b"", b"\x7fELF", b"#!/bin/sh\n" * 20, b"\x7fELF" + bytes(200), b"\x7fELF\x09\x01" + bytes(99)]
)
def test_not_elf(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)
    with pytest.raises(elf.ElfError, match=re.escape(str(path))):
        elf.read(path)


def test_not_a_file(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    for path in (tmp_path / "absent", tmp_path, fifo, Path("/dev/zero")):
        with pytest.raises(elf.ElfError):
            elf.read(path)
    with pytest.raises(elf.ElfError):
        elf.read(987654)


def test_a_huge_sparse_file_costs_nothing(tmp_path: Path) -> None:
    path = tmp_path / "file"
    head = bytearray(minimal(64, "<"))
    struct.pack_into("<Q", head, 0x28, 4096)  # e_shoff: the sections are holes, and the first holds their count
    with path.open("wb") as stream:
        stream.write(head)
        stream.seek(4096)
        stream.write(struct.pack("<IIQQQQIIQQ", 0, 0, 0, 0, 0, 1 << 30, 0, 0, 0, 0))
        stream.truncate(1 << 40)
    with pytest.raises(elf.ElfError, match="section headers"):
        elf.read(path)


def check_only_elf_errors(path: Path) -> None:
    with contextlib.suppress(elf.ElfError):
        elf.read(path).defines(["malloc", "main"])


REAL = Path("/bin/true").read_bytes()


@settings(max_examples=400, deadline=2000)
@given(
    st.lists(st.tuples(st.integers(0, len(REAL) - 1), st.integers(0, 255)), max_size=6),
    st.lists(st.tuples(st.integers(16, 0x400), st.binary(min_size=1, max_size=8)), max_size=4),
    st.one_of(st.none(), st.integers(0, len(REAL))),
)
def test_damaged_files_raise_nothing_else(
    tmp_path_factory: pytest.TempPathFactory,
    flips: list[tuple[int, int]],
    header_writes: list[tuple[int, bytes]],
    cut: int | None,
) -> None:
    data = bytearray(REAL)
    for place, value in flips:
        data[place] = value
    for place, block in header_writes:
        data[place : place + len(block)] = block
    path = tmp_path_factory.getbasetemp() / "damaged"
    path.write_bytes(data[:cut])
    check_only_elf_errors(path)


@pytest.mark.skipif(sys.platform != "linux", reason="ELF files are Linux's")
def test_every_program_of_this_machine_is_read() -> None:
    directory = Path("/usr/bin")
    read = 0
    for path in sorted(directory.iterdir())[:400]:
        if path.is_file() and os.access(path, os.R_OK) and path.read_bytes()[:4] == b"\x7fELF":
            elf.read(path).defines(["malloc"])
            read += 1
    assert read


def test_names_of_sections_and_an_image_inside_of_a_file(tmp_path: Path) -> None:
    path = programs.compiled(tmp_path, "program")
    headers = elf_headers.read(path)
    names = [headers.section_name(section) for section in headers.sections]
    assert {b".text", b".symtab", b".dynsym", b".note.gnu.build-id"} <= set(names)
    packed = elf_headers.read("somewhere", path.read_bytes())
    assert packed == headers
    assert packed.build_id() == headers.build_id()
    assert headers.build_id() is not None
    with pytest.raises(elf_headers.ElfError, match="somewhere: "):
        elf_headers.read("somewhere", path.read_bytes()[:-100])
