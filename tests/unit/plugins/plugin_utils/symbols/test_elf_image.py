# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
from __future__ import annotations

import subprocess
from pathlib import Path

import numpy
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ansible_collections.offheap.profiler.plugins.plugin_utils.symbols.elf_image import (
    ElfImage,
    SymbolError,
    SymbolTable,
)

# Function "outer" contains another one, and a hole follows it; "unsized" has no size, so it covers nothing.
ASSEMBLY = """
.text
.globl outer, inner, __alias, unsized, last
.type outer,@function
.type inner,@function
.type __alias,@function
.type unsized,@function
.type last,@function
outer: .skip 10,0x90
__alias:
inner: .skip 10,0x90
.size inner,10
.size __alias,10
.skip 80,0x90
.size outer,100
.skip 20,0x90
unsized: .skip 30,0x90
last: .skip 30,0x90
.size last,30
.section .note.GNU-stack,"",@progbits
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("elf")
    (directory / "a.s").write_text(ASSEMBLY)
    path = directory / "liba.so"
    command = [
        "gcc",
        "-shared",
        "-nostdlib",
        "-Wl,--build-id=0x00112233445566778899aabbccddeeff",
        "-o",
        str(path),
        "a.s",
    ]
    subprocess.run(command, check=True, cwd=directory)
    return path


@pytest.mark.parametrize(
    ("offset", "name"),
    [
        (0, b"outer"),
        (9, b"outer"),
        (10, b"inner"),
        (19, b"inner"),
        (20, b"outer"),
        (99, b"outer"),
        (100, None),
        (119, None),
        (125, None),
        (150, b"last"),
        (179, b"last"),
        (180, None),
        (100000, None),
    ],
)
def test_a_symbol_covers_its_own_bytes_and_no_others(library: Path, offset: int, name: bytes | None) -> None:
    image = ElfImage(library)
    text = next(address for address in range(0, 1 << 20, 16) if image.symbols().lookup(address) == b"outer")
    assert image.symbols().lookup(text + offset) == name


def test_the_build_id_is_read(library: Path) -> None:
    assert ElfImage(library).build_id == "00112233445566778899aabbccddeeff"


def test_without_symtab_the_dynamic_symbols_count(library: Path, tmp_path: Path) -> None:
    stripped = tmp_path / "stripped.so"
    subprocess.run(["strip", "-o", stripped, library], check=True)
    assert len(ElfImage(stripped).symbols()) == len(ElfImage(library).symbols()) > 0


def test_file_offsets_become_addresses_by_the_program_headers(library: Path, tmp_path: Path) -> None:
    source = tmp_path / "main.c"
    source.write_text("int main(void) { return 0; }")
    program = tmp_path / "fixed"
    subprocess.run(["gcc", "-no-pie", "-o", program, source], check=True)
    image = ElfImage(program)
    assert image.load_address == 0x400000
    assert image.virtual_address(0) == 0x400000
    assert image.virtual_address(1 << 40) is None
    assert not image.has_debug_info
    subprocess.run(["gcc", "-g", "-o", program, source], check=True)
    assert ElfImage(program).has_debug_info


def test_a_missing_or_foreign_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(SymbolError, match="gone: No such file"):
        ElfImage(tmp_path / "gone")
    (tmp_path / "text").write_text("#!/bin/sh\nexit 0 # no image at all\n")
    with pytest.raises(SymbolError, match="text: not an ELF file"):
        ElfImage(tmp_path / "text")


@pytest.mark.slow
@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(data=st.data())
def test_a_damaged_image_gives_our_error_or_an_answer(library: Path, tmp_path: Path, data: st.DataObject) -> None:
    content = bytearray(library.read_bytes())
    # Everything else depends on the headers.
    sections = int.from_bytes(content[0x28:0x30], "little")
    spots = st.integers(0, 0x200) | st.integers(sections, len(content) - 1) | st.integers(0, len(content) - 1)
    for spot in data.draw(st.lists(spots, min_size=1, max_size=6)):
        content[spot] = data.draw(st.sampled_from([0, 1, 0x7F, 0x80, 0xFF]) | st.integers(0, 255))
    path = tmp_path / "damaged.so"
    path.write_bytes(content[: data.draw(st.integers(0, len(content))) if data.draw(st.booleans()) else None])
    try:
        image = ElfImage(path)
        image.virtual_address(0x1000)
        image.symbols().lookup(0x1000)
    except SymbolError:
        pass


def test_aliases_are_settled_by_binding_and_underscores() -> None:
    strings = b"\0__libc_malloc\0malloc\0weak\0"
    offsets = {name: strings.index(name) for name in (b"__libc_malloc", b"malloc", b"weak")}
    rows = [(16, 8, offsets[b"weak"], 2), (16, 8, offsets[b"__libc_malloc"], 1), (16, 8, offsets[b"malloc"], 1)]
    table = SymbolTable.from_entries(numpy.array(rows, dtype=numpy.uint64), strings)
    assert table.lookup(20) == b"malloc"
    assert table.lookup(15) is None


def test_symbols_of_32_bits_have_their_fields_in_another_order(tmp_path: Path) -> None:
    (tmp_path / "a.s").write_text(ASSEMBLY)
    subprocess.run(["as", "--32", "-o", "a.o", "a.s"], check=True, cwd=tmp_path)
    subprocess.run(["ld", "-m", "elf_i386", "-shared", "-o", "liba.so", "a.o"], check=True, cwd=tmp_path)
    symbols = ElfImage(tmp_path / "liba.so").symbols()
    start, end = symbols.ranges()[0]
    assert (end - start, symbols.lookup(start), symbols.lookup(start + 15)) == (100, b"outer", b"inner")
    assert symbols.lookup(start + 105) is None
