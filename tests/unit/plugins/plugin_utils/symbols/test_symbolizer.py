# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from ansible_collections.offheap.profiler.plugins.module_utils.formats.maps import Mapping
from ansible_collections.offheap.profiler.plugins.plugin_utils.model.frame import Kind
from ansible_collections.offheap.profiler.plugins.plugin_utils.model.location import Locations, locate
from ansible_collections.offheap.profiler.plugins.plugin_utils.symbols import symbolizer as symbols
from ansible_collections.offheap.profiler.plugins.plugin_utils.symbols.elf_image import ElfImage
from ansible_collections.offheap.profiler.plugins.plugin_utils.symbols.jit_symbols import JitMaps

PROGRAM = """\
#include <cstdlib>
namespace shop {
struct Cart { void *item; };
inline __attribute__((always_inline)) void *pack(int size) { return std::malloc(size); }
__attribute__((noinline)) void serve(Cart &cart, int size) { cart.item = pack(size); asm volatile("" ::: "memory"); }
static __attribute__((noinline)) void hidden(Cart &cart) { serve(cart, 100); asm volatile("" ::: "memory"); }
}
int main() { shop::Cart cart; shop::hidden(cart); return cart.item == nullptr; }
"""
BASE = 0x7F0000000000
PROGRAM_PATH = "/opt/shop/program"


@dataclass
class Built:
    """A program, and the addresses (as linked) that the calls in its functions return to."""

    path: Path
    image: ElfImage
    returns: dict[str, int]

    @property
    def build_id(self) -> str:
        assert self.image.build_id
        return self.image.build_id


def _build(directory: Path, name: str, *options: str, strip: bool = False, text: str = PROGRAM) -> Built:
    (directory / "program.cpp").write_text(text)
    path = directory / name
    subprocess.run(
        ["g++", "-O1", "-fno-optimize-sibling-calls", *options, "-o", path, "program.cpp"], check=True, cwd=directory
    )
    listing = subprocess.run(["objdump", "-d", "-C", path], check=True, capture_output=True, text=True).stdout
    returns: dict[str, int] = {}
    function, called = "", False
    for line in listing.splitlines():
        if head := re.match(r"[0-9a-f]+ <(.*)>:$", line):
            function, called = head[1], False
        elif code := re.match(r" +([0-9a-f]+):", line):
            if called:
                returns.setdefault(function.split("(", 1)[0], int(code[1], 16))
            called = "\tcall" in line
    if strip:
        subprocess.run(["strip", path], check=True)
    return Built(path, ElfImage(path), returns)


@pytest.fixture(scope="module")
def with_lines(tmp_path_factory: pytest.TempPathFactory) -> Built:
    return _build(tmp_path_factory.mktemp("lines"), "program", "-g")


def _mapping(start: int, size: int, permissions: str, offset: int, path: str) -> Mapping:
    return Mapping(start, start + size, permissions, offset, path, False)


def _in_program(built: Built, addresses: list[int], build_id: str = "") -> Locations:
    """Where addresses lie; the program is mapped in one piece at BASE, from its first byte."""
    mapping = Mapping(BASE, BASE + (1 << 20), "r-xp", 0, PROGRAM_PATH, False)
    return locate(addresses, [mapping], {PROGRAM_PATH: build_id or built.build_id})


def _address(built: Built, function: str) -> int:
    """Where the return address in ``function`` lies when the file is mapped at BASE."""
    linked = built.returns[function]
    offset = next(
        offset for offset in range(built.path.stat().st_size) if built.image.virtual_address(offset) == linked
    )
    return BASE + offset


def _symbolizer(tmp_path: Path, *built: Built) -> symbols.Symbolizer:
    images = {one.build_id: one.path for one in built}
    return symbols.Symbolizer(lambda build_id, _sum: images.get(build_id), tmp_path / "symcaches")


def test_debug_information_gives_lines_and_inlined_calls(with_lines: Built, tmp_path: Path) -> None:
    symbolizer = _symbolizer(tmp_path, with_lines)
    places = _in_program(with_lines, [_address(with_lines, name) for name in ("shop::serve", "shop::hidden", "main")])
    serve, hidden, main = symbolizer.frames(places)
    assert [(frame.function, frame.kind, frame.line) for frame in serve] == [
        ("shop::pack", Kind.INLINED, 4),
        ("shop::serve", Kind.NATIVE, 5),
    ]
    assert serve[0].file.endswith("program.cpp")
    assert [frame.function for frame in (*hidden, *main)] == ["shop::hidden", "main"]
    assert symbolizer.warnings == []
    assert (tmp_path / "symcaches" / f"{with_lines.build_id}.symcache").exists()
    assert len(list((tmp_path / "symcaches").iterdir())) == 1


def test_a_call_without_a_line_keeps_its_caller(tmp_path: Path) -> None:
    """As a compiler's own code has it, and macros of generated code."""
    zero = PROGRAM.replace("cart.item = pack(size)", '\n# 0 "program.cpp"\ncart.item = pack(size)')
    built = _build(tmp_path, "program", "-g", text=zero)
    (serve,) = _symbolizer(tmp_path, built).frames(_in_program(built, [_address(built, "shop::serve")]))
    assert [(frame.function, frame.kind, frame.line) for frame in serve] == [
        ("shop::pack", Kind.INLINED, 4),
        ("shop::serve", Kind.NATIVE, 0),
    ]


def test_a_symcache_that_is_there_is_used_and_a_damaged_one_replaced(with_lines: Built, tmp_path: Path) -> None:
    places = _in_program(with_lines, [_address(with_lines, "shop::serve")])
    first = _symbolizer(tmp_path, with_lines).frames(places)
    cache = tmp_path / "symcaches" / f"{with_lines.build_id}.symcache"
    written = cache.stat().st_mtime_ns
    assert _symbolizer(tmp_path, with_lines).frames(places) == first
    assert cache.stat().st_mtime_ns == written
    cache.write_bytes(b"rubbish")
    assert _symbolizer(tmp_path, with_lines).frames(places) == first
    assert cache.stat().st_size > 100


@pytest.mark.parametrize("options", [[], ["-no-pie"], ["-static-pie"], ["-g", "-no-pie"]])
def test_symbol_tables_give_demangled_functions_wherever_the_program_is_linked_to(
    tmp_path: Path, options: list[str]
) -> None:
    built = _build(tmp_path, "program", *options)
    places = _in_program(built, [_address(built, name) for name in ("shop::serve", "shop::hidden", "main")])
    frames = _symbolizer(tmp_path, built).frames(places)
    assert [group[-1].function for group in frames] == ["shop::serve", "shop::hidden", "main"]


def test_a_stripped_program_gives_module_and_offset(tmp_path: Path) -> None:
    built = _build(tmp_path, "program", strip=True)
    symbolizer = _symbolizer(tmp_path, built)
    places = _in_program(built, [_address(built, "shop::hidden")])
    # The address before the return address: that of the call.
    assert symbolizer.frames(places)[0][0].label == f"program+{built.returns['shop::hidden'] - 1:#x}"
    assert symbolizer.warnings == []


def test_without_its_image_a_library_gives_module_and_offset_and_one_warning(with_lines: Built, tmp_path: Path) -> None:
    symbolizer = _symbolizer(tmp_path)
    for _dump_number in range(2):
        places = _in_program(with_lines, [BASE + 0x1235, BASE + 0x2000])
        labels = [group[0].label for group in symbolizer.frames(places)]
        assert labels == ["program+0x1234", "program+0x1fff"]
    assert len(symbolizer.warnings) == 1
    assert "no image with build-id" in symbolizer.warnings[0]


def test_files_of_one_build_each_have_their_own_names(with_lines: Built, tmp_path: Path) -> None:
    """Whoever is first, their lines and functions are not kept for the other, in no cache."""
    forged = tmp_path / "forged"
    forged.write_bytes(with_lines.path.read_bytes().replace(b"serve", b"forge").replace(b"pack", b"evil"))
    images = {"aa" * 32: with_lines.path, "bb" * 32: forged}
    places = _in_program(with_lines, [_address(with_lines, "shop::serve")])
    for _again in range(2):
        symbolizer = symbols.Symbolizer(lambda _build_id, sha256: images.get(sha256), tmp_path / "symcaches")
        names = {}
        for sha256 in ("bb" * 32, "aa" * 32, "cc" * 32):
            (frames,) = symbolizer.frames(replace(places, sums={with_lines.build_id: sha256}))
            names[sha256] = [frame.function for frame in frames]
        assert names == {
            "bb" * 32: ["shop::evil", "shop::forge"],
            "aa" * 32: ["shop::pack", "shop::serve"],
            "cc" * 32: [""],
        }
        (warning,) = symbolizer.warnings
        assert f"{with_lines.build_id} and SHA-256 {'cc' * 32}" in warning


def test_an_image_of_another_build_is_not_believed(with_lines: Built, tmp_path: Path) -> None:
    symbolizer = symbols.Symbolizer(lambda _build_id, _sum: with_lines.path, tmp_path)
    places = _in_program(with_lines, [_address(with_lines, "main")], build_id="ab" * 20)
    frames = symbolizer.frames(places)
    assert frames[0][0].function == ""
    assert "expected " + "ab" * 20 in symbolizer.warnings[0]


def test_damaged_debug_information_costs_only_the_lines(with_lines: Built, tmp_path: Path) -> None:
    content = bytearray(with_lines.path.read_bytes())
    headers = subprocess.run(["readelf", "-SW", with_lines.path], check=True, capture_output=True, text=True).stdout
    for section in (".debug_info", ".debug_abbrev", ".debug_line"):
        found = re.search(rf"{re.escape(section)} +PROGBITS +\w+ (\w+) (\w+)", headers)
        assert found
        start, size = int(found[1], 16), int(found[2], 16)
        content[start : start + size] = b"\xff" * size
    damaged = tmp_path / "damaged"
    damaged.write_bytes(content)
    symbolizer = symbols.Symbolizer(lambda _build_id, _sum: damaged, tmp_path / "symcaches")
    places = _in_program(with_lines, [_address(with_lines, "main")])
    assert [frame.function for frame in symbolizer.frames(places)[0]] == ["main"]
    assert not list((tmp_path / "symcaches").glob(".*")), "a half-made symcache was left behind"


def test_rubbish_in_place_of_an_image_is_a_warning(with_lines: Built, tmp_path: Path) -> None:
    (tmp_path / "rubbish").write_bytes(b"\x7fELF\x02\x01\x01" + b"\xff" * 500)
    symbolizer = symbols.Symbolizer(lambda _build_id, _sum: tmp_path / "rubbish", tmp_path)
    places = _in_program(with_lines, [BASE + 0x1235])
    assert symbolizer.frames(places)[0][0].label == "program+0x1234"
    assert len(symbolizer.warnings) == 1


def test_memory_of_no_file_gets_no_invented_name(with_lines: Built, tmp_path: Path) -> None:
    mappings = [
        _mapping(0x1000, 0x1000, "r-xp", 0, ""),
        _mapping(0x2000, 0x1000, "rwxp", 0, "/memfd:doublemapper"),
        _mapping(0x3000, 0x1000, "rw-p", 0, ""),
        _mapping(0x4000, 0x1000, "rw-p", 0, "[heap]"),
        _mapping(0x5000, 0x1000, "r-xp", 0, "[vdso]"),
        _mapping(0x6000, 0x1000, "r-xp", 0x2000, "/usr/lib/My App/b c.so"),
    ]
    addresses = [0x1100, 0x2100, 0x3100, 0x4100, 0x5101, 0x6101, 0x9000, 0, 1, 0x6000]
    frames = _symbolizer(tmp_path).frames(locate(addresses, mappings, {}))
    labels = [group[0].label for group in frames]
    # Addresses are those of calls, one before the return address; offsets count from the would-be start of the file.
    assert labels == [
        "[jit]",
        "[jit]",
        "[unmapped]",
        "[unmapped]",
        "[vdso]+0x100",
        "b c.so+0x2100",
        "[unmapped]",
        "[unmapped]",
        "[unmapped]",
        "[vdso]+0xfff",
    ]


def test_a_stripped_libz_is_named_where_it_is_truly_covered(tmp_path: Path) -> None:
    """Static functions of a stripped library lie between exported ones, and the nearest of these must not be blamed."""
    library = next(path for path in sorted(Path("/usr/lib").glob("*/libz.so.1")) if path.exists()).resolve()
    image = ElfImage(library)
    assert image.build_id
    listing = subprocess.run(
        ["readelf", "--dyn-syms", "-W", library], check=True, capture_output=True, text=True
    ).stdout
    functions = [
        (int(value, 16), int(size), name.split("@")[0])
        for value, size, name in re.findall(r"([0-9a-f]{16}) +(\d+) FUNC +GLOBAL +DEFAULT +\d+ (\S+)", listing)
    ]
    start, size, _name = next(entry for entry in functions if entry[2] == "inflate")
    back_start, back_size, _name = next(entry for entry in functions if entry[2] == "inflateBackEnd")
    hole = back_start + back_size + 64
    assert not any(first <= hole < first + length for first, length, _name in functions)
    addresses = [BASE + start + size // 2, BASE + hole + 1]
    places = locate(addresses, [_mapping(BASE, 1 << 20, "r-xp", 0, str(library))], {str(library): image.build_id})
    symbolizer = symbols.Symbolizer(lambda _build_id, _sum: library, tmp_path)
    frames = symbolizer.frames(places)
    assert [group[0].label for group in frames] == ["inflate", f"{library.name}+{hole:#x}"]


def _map(directory: Path, text: bytes) -> symbols.JitNames:
    path = directory / f"{len(text)}.map"
    path.write_bytes(text)
    return JitMaps({path: 0.0}, print).at(0.0)


def test_compiled_code_is_named_by_the_map_and_nothing_else_is(tmp_path: Path) -> None:
    mappings = [
        _mapping(0x1000, 0x1000, "r-xp", 0, ""),
        _mapping(0x2000, 0x1000, "rwxp", 0, "/memfd:doublemapper"),
        _mapping(0x3000, 0x1000, "rw-p", 0, ""),
        _mapping(0x4000, 0x1000, "r-xp", 0, "/usr/lib/libz.so.1"),
    ]
    text = b"0x0 0x10000 int j.Inflater.inflate(byte[])\n0x1800 0x100 void Shop.serve(int)\n0x1900 0x800 Interpreter\n"
    addresses = [0x1801, 0x1800, 0x1900, 0x1901, 0x2200, 0x3100, 0x4100, 0x20000]
    places = locate(addresses, mappings, {})
    frames = [group[0] for group in _symbolizer(tmp_path).frames(places, _map(tmp_path, text))]
    assert [frame.label for frame in frames] == [
        "Shop.serve",
        "j.Inflater.inflate",
        "Shop.serve",
        "Interpreter",
        "j.Inflater.inflate",
        "[unmapped]",
        "libz.so.1+0xff",
        "[unmapped]",
    ], "return addresses belong to the call before"
    assert frames[0].signature == "void Shop.serve(int)"
    assert [frame.kind for frame in frames[:4]] == [Kind.JAVA, Kind.JAVA, Kind.JAVA, Kind.JIT]
    nothing = _symbolizer(tmp_path).frames(locate([0x1100], mappings, {}), _map(tmp_path, b""))
    assert nothing[0][0].label == "[jit]"


def test_what_an_interpreter_runs_is_named_where_the_map_has_just_that_address(tmp_path: Path) -> None:
    mappings = [
        _mapping(0x3000, 0x1000, "rw-p", 0, ""),
        _mapping(0x4000, 0x1000, "rw-p", 0, "/jdk/lib/server/classes.jsa"),
    ]
    text = b"3000 100 void Code.cannotBeHere()\n3100 1 void Thread.run()\n4100 1 void Main.main()\n"
    places = locate([0x3011, 0x3101, 0x4101, 0x4111], mappings, {})
    frames = [group[0].label for group in _symbolizer(tmp_path).frames(places, _map(tmp_path, text))]
    assert frames == ["[unmapped]", "Thread.run", "Main.main", "[unmapped]"]
