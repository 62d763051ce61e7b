# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Debug information outside an image's code: split off by build-id, packed in the image, and from a real debuginfod.

debuginfod, eu-strip and xz are Debian's; if they are missing, the tests fail.
"""

from __future__ import annotations

import lzma
import shutil
import socket
import struct
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from ansible_collections.offheap.profiler.plugins.module_utils.formats import elf_headers
from ansible_collections.offheap.profiler.plugins.module_utils.formats.maps import Mapping
from ansible_collections.offheap.profiler.plugins.plugin_utils.model.location import Locations, locate
from ansible_collections.offheap.profiler.plugins.plugin_utils.symbols import elf_image
from ansible_collections.offheap.profiler.plugins.plugin_utils.symbols.debuginfo import DebugFiles
from ansible_collections.offheap.profiler.plugins.plugin_utils.symbols.elf_image import ElfImage, SymbolError
from ansible_collections.offheap.profiler.plugins.plugin_utils.symbols.symbolizer import Symbolizer

PROGRAM = """\
#include <stdlib.h>
static inline __attribute__((always_inline)) void *pack(int n) { return malloc(n); }
static __attribute__((noinline)) void *hidden(int n) { void *p = pack(n); __asm__ volatile(""); return p; }
__attribute__((visibility("default"))) void *shown(int n) { void *p = hidden(n); __asm__ volatile(""); return p; }
"""
BASE = 0x7F0000000000
PATH = "/usr/lib/libshop.so"


class Split:
    """A library, stripped, with its debug file; ``address`` is a return address in ``hidden`` when mapped at BASE."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        whole = directory / "whole.so"
        (directory / "shop.c").write_text(PROGRAM)
        subprocess.run(
            ["gcc", "-g", "-O1", "-fPIC", "-shared", "-Wl,--build-id", "-o", whole, "shop.c"], check=True, cwd=directory
        )
        self.whole = ElfImage(whole)
        self.build_id = self.whole.build_id or ""
        self.stripped = directory / "libshop.so"
        debug = directory / "debug" / ".build-id" / self.build_id[:2]
        debug.mkdir(parents=True)
        self.debug = debug / f"{self.build_id[2:]}.debug"
        subprocess.run(["eu-strip", "-f", self.debug, "-o", self.stripped, whole], check=True)
        listing = subprocess.run(["nm", whole], check=True, capture_output=True, text=True).stdout
        start = next(int(line.split()[0], 16) for line in listing.splitlines() if line.endswith(" hidden"))
        offset = next(at for at in range(whole.stat().st_size) if self.whole.virtual_address(at) == start)
        self.address = BASE + offset + 10

    def mini(self) -> Path:
        """The stripped library with a packed symbol table, as Fedora's builds have it."""
        path, table = self.directory / "mini.so", self.directory / "table"
        command = ["objcopy", "-S", "--keep-symbol=hidden", str(self.whole.path), str(table)]
        subprocess.run(command, check=True)
        (self.directory / "table.xz").write_bytes(lzma.compress(table.read_bytes()))
        packed = f".gnu_debugdata={self.directory / 'table.xz'}"
        subprocess.run(["objcopy", "--add-section", packed, self.stripped, path], check=True)
        return path

    def place(self) -> Locations:
        """Where ``address`` lies when the library is mapped from its first byte."""
        mapping = Mapping(BASE, BASE + (1 << 20), "r-xp", 0, PATH, False)
        return locate([self.address], [mapping], {PATH: self.build_id})

    def names(self, image: Path, debug_files: DebugFiles, symcaches: Path) -> tuple[list[str], list[str]]:
        """(the frames' names at ``address``, warnings)"""
        symbolizer = Symbolizer(lambda _build_id, _sum: image, symcaches, debug_files)
        (frames,) = symbolizer.frames(self.place())
        return [frame.label for frame in frames], symbolizer.warnings


@pytest.fixture(scope="module")
def split(tmp_path_factory: pytest.TempPathFactory) -> Split:
    return Split(tmp_path_factory.mktemp("split"))


def _files(cache: Path, warnings: list[str], *urls: str, directories: tuple[Path, ...] = ()) -> DebugFiles:
    return DebugFiles(cache, warnings.append, urls, directories)


def test_without_debug_information_a_static_function_has_no_name(split: Split, tmp_path: Path) -> None:
    names, warnings = split.names(split.stripped, _files(tmp_path, []), tmp_path)
    assert names[0].startswith("libshop.so+0x") and warnings == []


def test_a_debug_file_by_build_id_names_it(split: Split, tmp_path: Path) -> None:
    files = _files(tmp_path, [], directories=(split.directory / "debug",))
    assert split.names(split.stripped, files, tmp_path) == (["pack", "hidden"], [])


@pytest.mark.parametrize("name", ["usr/lib/libshop.so.debug", "usr/lib/libshop.so"])
def test_a_debug_file_by_path_names_it_if_it_is_of_its_build(split: Split, tmp_path: Path, name: str) -> None:
    directory = tmp_path / "debug"
    (directory / "usr" / "lib").mkdir(parents=True)
    files = _files(tmp_path, [], directories=(directory,))
    shutil.copyfile(split.debug, directory / name)
    assert files.find("00" * 20, PATH) is None
    assert split.names(split.stripped, files, tmp_path) == (["pack", "hidden"], [])


def test_a_path_leads_to_no_debug_file_outside_the_directory(split: Split, tmp_path: Path) -> None:
    shutil.copyfile(split.debug, tmp_path / "libshop.so")
    (tmp_path / "debug").mkdir()
    files = _files(tmp_path / "kept", [], directories=(tmp_path / "debug",))
    paths = ("/../libshop.so", "../libshop.so", f"/{'x' * 5000}", f"/{split.debug}\0", str(split.debug))
    assert [files.find(split.build_id, path) for path in paths] == [None] * len(paths)


def test_a_programs_debug_file_says_its_build_in_a_section(tmp_path: Path) -> None:
    """eu-strip leaves the segments as they were; a program's notes, unlike a library's, no longer lie there."""
    (tmp_path / "main.c").write_text("int main(void) { return 0; }\n")
    command = ["gcc", "-g", "-Wl,--build-id", "-o", "whole", "main.c"]
    subprocess.run(command, check=True, cwd=tmp_path)
    build_id = ElfImage(tmp_path / "whole").build_id or ""
    debug = tmp_path / ".build-id" / build_id[:2] / f"{build_id[2:]}.debug"
    debug.parent.mkdir(parents=True)
    subprocess.run(["eu-strip", "-f", debug, "-o", tmp_path / "stripped", tmp_path / "whole"], check=True)
    assert _files(tmp_path, [], directories=(tmp_path,)).find(build_id, "/srv/app") == debug


def test_a_debug_file_in_place_of_the_image_is_told(split: Split, tmp_path: Path) -> None:
    subprocess.run(["objcopy", "--only-keep-debug", split.whole.path, tmp_path / "only.debug"], check=True)
    names, warnings = split.names(tmp_path / "only.debug", _files(tmp_path, []), tmp_path)
    assert names[0].startswith("libshop.so+0x")
    assert len(warnings) == 1 and "take the program's file" in warnings[0]


def test_what_the_debug_file_has_no_symbols_of_is_named_by_the_image(tmp_path: Path) -> None:
    (tmp_path / "kept.c").write_text("int kept[4] = {1}; int *go(void) { return kept; }\n")
    image, debug = tmp_path / "libkept.so", tmp_path / "usr" / "lib" / "libshop.so.debug"
    debug.parent.mkdir(parents=True)
    command: list[str | Path] = ["gcc", "-shared", "-nostdlib", "-fPIC", "-Wl,--build-id", "-o", image, "kept.c"]
    subprocess.run(command, check=True, cwd=tmp_path)
    subprocess.run(["objcopy", "--only-keep-debug", "-N", "kept", "-N", "go", image, debug], check=True)
    listing = subprocess.run(["nm", image], check=True, capture_output=True, text=True).stdout
    address = next(int(line.split()[0], 16) for line in listing.splitlines() if line.endswith(" kept"))
    files = _files(tmp_path, [], directories=(tmp_path,))
    symbolizer = Symbolizer(lambda _build_id, _sum: image, tmp_path, files)
    assert files.find(ElfImage(image).build_id or "", PATH) == debug
    assert symbolizer.variables(PATH, ElfImage(image).build_id or "", "", [address + 5]) == ["kept"]
    assert symbolizer.warnings == []


def test_what_a_damaged_debug_file_cannot_name_the_image_does(tmp_path: Path) -> None:
    (tmp_path / "kept.c").write_text("int kept[4] = {1}; int *go(void) { return kept; }\n")
    image, debug = tmp_path / "libkept.so", tmp_path / "usr" / "lib" / "libshop.so"
    debug.parent.mkdir(parents=True)
    command: list[str | Path] = ["gcc", "-g", "-shared", "-nostdlib", "-fPIC", "-Wl,--build-id", "-o", debug, "kept.c"]
    subprocess.run(command, check=True, cwd=tmp_path)
    subprocess.run(["objcopy", "-g", debug, image], check=True)
    listing = subprocess.run(["nm", image], check=True, capture_output=True, text=True).stdout
    address = next(int(line.split()[0], 16) for line in listing.splitlines() if line.endswith(" kept"))
    damaged = bytearray(debug.read_bytes())
    (sections,), size, count = struct.unpack_from("<Q", damaged, 0x28), *struct.unpack_from("<HH", damaged, 0x3A)
    for at in range(sections, sections + size * count, size):
        if damaged[at + 4] == elf_headers.SHT_SYMTAB:
            struct.pack_into("<Q", damaged, at + 0x18, 1 << 40)  # where its symbols are
    debug.write_bytes(damaged)
    symbolizer = Symbolizer(lambda _build_id, _sum: image, tmp_path, _files(tmp_path, [], directories=(tmp_path,)))
    for _time in range(2):
        assert symbolizer.variables(PATH, ElfImage(image).build_id or "", "", [address + 5]) == ["kept"]
    assert any("point outside the file" in warning for warning in symbolizer.warnings)
    assert len(symbolizer.warnings) == len(set(symbolizer.warnings))


def test_a_packed_symbol_table_names_it(split: Split, tmp_path: Path) -> None:
    assert split.names(split.mini(), _files(tmp_path, []), tmp_path) == (["hidden"], [])


def test_a_packed_symbol_table_that_is_damaged_or_a_bomb_is_refused(
    split: Split, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(elf_image, "_MAX_UNPACKED", 1 << 20)
    for name, content in (("damaged", b"\xfd7zXZ\0no"), ("bomb", lzma.compress(bytes(4 << 20), preset=0))):
        (tmp_path / name).write_bytes(content)
        image = tmp_path / f"{name}.so"
        section = f".gnu_debugdata={tmp_path / name}"
        subprocess.run(["objcopy", "--add-section", section, split.stripped, image], check=True)
        with pytest.raises(SymbolError, match="gnu_debugdata"):
            ElfImage(image).symbols()


@pytest.fixture(scope="module")
def debuginfod(split: Split, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    directory = tmp_path_factory.mktemp("debuginfod")
    with socket.socket() as chosen:
        chosen.bind(("127.0.0.1", 0))
        port = chosen.getsockname()[1]
    command = ["debuginfod", "-p", str(port), "-d", str(directory / "index.sqlite"), "-F", str(split.directory)]
    with (directory / "log").open("wb") as log, subprocess.Popen(command, stdout=log, stderr=log) as server:
        url = f"http://127.0.0.1:{port}"
        try:
            for _attempt in range(100):
                try:
                    with urllib.request.urlopen(f"{url}/buildid/{split.build_id}/debuginfo", timeout=5):
                        break
                except OSError:
                    time.sleep(0.2)
            else:
                pytest.fail(f"debuginfod does not serve: {(directory / 'log').read_text()[-2000:]}")
            yield url
        finally:
            server.terminate()


def test_a_debuginfod_server_names_it_and_is_asked_once(split: Split, debuginfod: str, tmp_path: Path) -> None:
    warnings: list[str] = []
    files = _files(tmp_path / "debug", warnings, debuginfod)
    assert split.names(split.stripped, files, tmp_path) == (["pack", "hidden"], [])
    kept = _files(tmp_path / "debug", warnings)
    assert kept.find(split.build_id, PATH) == tmp_path / "debug" / ".build-id" / split.build_id[:2] / split.debug.name
    assert files.find("00" * 20, PATH) is None and warnings == []


def test_the_servers_are_those_of_the_environment(
    split: Split, debuginfod: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DEBUGINFOD_URLS", f"{debuginfod}/ {debuginfod}")
    symbolizer = Symbolizer(lambda _build_id, _sum: split.stripped, tmp_path)
    (frames,) = symbolizer.frames(split.place())
    assert [frame.label for frame in frames] == ["pack", "hidden"]


def test_words_for_other_clients_are_no_servers_and_no_password_is_shown(tmp_path: Path) -> None:
    """As Fedora sets it for each login."""
    warnings: list[str] = []
    files = _files(tmp_path, warnings, "ima:enforcing", "https://me:secret@debug.example.org/", "ima:ignore")
    assert files.find("00" * 20, PATH) is None
    (told,) = warnings
    assert told.startswith("https://…@debug.example.org/ of DEBUGINFOD_URLS") and "without a password" in told


def test_a_server_that_lies_or_fails_is_left_out_with_a_word(split: Split, tmp_path: Path) -> None:
    class Liar(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"\x7fELF no such thing")

        def log_message(self, *_arguments: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Liar) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        warnings: list[str] = []
        url = f"http://127.0.0.1:{server.server_address[1]}"
        files = _files(tmp_path, warnings, url, "file:///etc/passwd", "http://127.0.0.1:1")
        assert files.find(split.build_id, PATH) is None
        assert [warning.partition(" of ")[0] for warning in warnings] == [
            url,
            "file:///etc/passwd",
            "http://127.0.0.1:1",
        ]
        assert "another build" in warnings[0]
        assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
        server.shutdown()
