# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""An ELF file to look names up in: load segments, build-id, symbol tables with honest ranges.

A symbol claims an address only inside [st_value, st_value + st_size). Tools that take the nearest symbol below an
address blame, say, ``inflateBackEnd`` for what a static function of a stripped libz did.

Formats: System V ABI (ELF-32 and ELF-64), "Elf Header", "Program Header", "Symbol Table", "Note Section". The file
comes from a host that is not trusted: every table must lie in the file and have a bearable size.
"""

from __future__ import annotations

import io
import lzma
from array import array
from bisect import bisect_right
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from ...module_utils.formats import elf_headers
from ...module_utils.formats.elf_headers import ElfError, Section
from ..base import libraries
from ..base.errors import ControllerError
from ..model.location import LINKED

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Entries = NDArray[np.uint64]
else:
    np = libraries.optional("numpy")

#: types of symbols. What may be code: STT_NOTYPE, STT_FUNC, STT_GNU_IFUNC; and STT_OBJECT, STT_TLS
CODE, VARIABLES, THREAD_LOCALS = (0, 2, 10), (1,), (6,)
_SYMBOL_64 = [("name", "u4"), ("info", "u1"), ("other", "u1"), ("section", "u2"), ("value", "u8"), ("size", "u8")]
_SYMBOL_32 = [("name", "u4"), ("value", "u4"), ("size", "u4"), ("info", "u1"), ("other", "u1"), ("section", "u2")]
_MAX_TABLE = 512 << 20
# How the names of sections with debug information begin.
_DEBUG = (b".debug_", b".zdebug_", b".gnu_debugdata")
# The packed symbol table of a stripped image, as Fedora has it: a few per cent of the image.
_MAX_PACKED = 64 << 20
_MAX_UNPACKED = 256 << 20
_UNPACKING_MEMORY = 256 << 20
# How many symbols below an address are tried for covering it: nested ones are rare and not deep.
_NESTING = 64
# In bytes; the longest of 211,689 mangled names of Debian, LLVM and OpenJDK has 815. A longer one is none.
_LONGEST_NAME = 1 << 16


class SymbolError(ControllerError):
    """An image cannot be used to name addresses. The message says which file and why."""


class SymbolTable:
    """Functions of symbol tables, by address."""

    def __init__(self) -> None:
        self._starts = array("Q")
        self._ends = array("Q")
        self._names = array("Q")
        self._bindings = array("B")
        self._strings = b""

    @classmethod
    def from_entries(cls, entries: Entries, strings: bytes) -> SymbolTable:
        """From rows of (start, size, offset of the name in ``strings``, binding) in any order, unsigned 64 bit."""
        table = cls()
        starts, sizes, names, bindings = entries[np.argsort(entries[:, 0])].T
        table._starts.frombytes(starts.tobytes())
        table._ends.frombytes((starts + np.minimum(sizes, ~starts)).tobytes())  # at most 2^64 - 1
        table._names.frombytes(names.tobytes())
        table._bindings.frombytes(bindings.astype(np.uint8).tobytes())
        table._strings = strings
        return table

    def __len__(self) -> int:
        return len(self._starts)

    def ranges(self) -> list[tuple[int, int]]:
        """Where each function starts and ends, by address."""
        return list(zip(self._starts, self._ends, strict=True))

    def lookup(self, address: int) -> bytes | None:
        """The name of the innermost function that covers the address, None if none does.

        If a function has several names, a global one wins over a weak or local one, then the one with the fewest
        leading underscores: ``malloc`` rather than ``__libc_malloc``.
        """
        position = bisect_right(self._starts, address)
        best: tuple[tuple[int, int, int, bytes], bytes] | None = None
        for candidate in range(position - 1, max(position - 1 - _NESTING, -1), -1):
            start = self._starts[candidate]
            if best is not None and -best[0][0] > start:
                break
            if address < self._ends[candidate]:
                name = self._name(candidate)
                underscores = len(name) - len(name.lstrip(b"_"))
                rank = (-start, self._bindings[candidate] != 1, underscores, name)
                if name and (best is None or rank < best[0]):
                    best = (rank, name)
        return best[1] if best else None

    def _name(self, position: int) -> bytes:
        start = self._names[position]
        end = self._strings.find(b"\0", start, start + _LONGEST_NAME)
        return self._strings[start:end] if end >= 0 else b""


class ElfImage:
    """An ELF file that has been checked. Every method raises SymbolError if the file is not what it says."""

    def __init__(self, path: Path, content: bytes | None = None) -> None:
        """``content``, if given, is read instead of the file: an image that was packed inside it."""
        self.path = path
        self._content = content
        try:
            self._read_headers()
        except ElfError as error:
            raise SymbolError(str(error)) from error

    def _open(self) -> BinaryIO:
        return self.path.open("rb") if self._content is None else io.BytesIO(self._content)

    def _read_headers(self) -> None:
        headers = elf_headers.read(self.path, self._content)
        self._size = headers.file.size
        self._wide, self._order = headers.bits == 64, headers.order
        self._loads = [
            (part.offset, part.offset + part.size, part.address, bool(part.flags & elf_headers.PF_X))
            for part in headers.programs
            if part.type == elf_headers.PT_LOAD
        ]
        self.build_id = headers.build_id()
        self._sections = headers.sections
        kept = {
            headers.section_name(section): section
            for section in reversed(headers.sections)
            if section.type != elf_headers.SHT_NOBITS
        }
        self.has_debug_info = b".debug_info" in kept or b".zdebug_info" in kept
        self._debug_data = kept.get(b".gnu_debugdata")
        read = [section.size for name, section in kept.items() if name.startswith(_DEBUG)]
        for section in headers.sections:
            if section.type in (elf_headers.SHT_SYMTAB, elf_headers.SHT_DYNSYM):
                names = headers.sections[section.link : section.link + 1]
                read += [table.size for table in [section, *names]]
        #: bytes of symbol tables, with their names, and of debug information, as its headers say: what is read of it
        self.tables = min(sum(read), headers.file.size)

    def virtual_address(self, file_offset: int) -> int | None:
        """The linked address of the byte at ``file_offset``, None if no segment loads it. It may be that (LINKED)."""
        if file_offset & LINKED:
            return file_offset ^ LINKED
        found = None
        for start, end, address, executable in self._loads:
            if start <= file_offset < end:
                found = file_offset - start + address
                if executable:
                    break
        return found

    @property
    def segments(self) -> list[tuple[int, int, int, bool]]:
        """What is loaded: (file offset, its end, address, whether it is code)."""
        return list(self._loads)

    @property
    def load_address(self) -> int:
        """The address of the first load segment: what symcaches count from."""
        return self._loads[0][2] if self._loads else 0

    def symbols(self, types: tuple[int, ...] = CODE) -> SymbolTable:
        """The functions, or symbols of other types, of .symtab; for a stripped image, those of .dynsym and
        .gnu_debugdata (MiniDebugInfo)."""
        try:
            with self._open() as stream:
                entries, strings = self._functions(stream, elf_headers.SHT_SYMTAB, types)
                if not len(entries):
                    entries, strings = self._functions(stream, elf_headers.SHT_DYNSYM, types)
                    more, names = self._packed_functions(stream, types)
                    entries = np.concatenate([entries, more + np.array([0, 0, len(strings), 0], dtype=np.uint64)])
                    strings += names
        except OSError as error:
            raise SymbolError(f"{self.path}: {error.strerror or error}") from error
        return SymbolTable.from_entries(entries, strings)

    def _packed_functions(self, stream: BinaryIO, types: tuple[int, ...]) -> tuple[Entries, bytes]:
        """The functions of the small ELF image, packed with xz, that a stripped image may carry."""
        if self._debug_data is None or self._content is not None:
            return np.zeros((0, 4), dtype=np.uint64), b""
        if self._debug_data.size > _MAX_PACKED:
            raise SymbolError(f"{self.path}: its .gnu_debugdata is too large")
        packed = self._read(stream, self._debug_data.offset, self._debug_data.size)
        try:
            unpacker = lzma.LZMADecompressor(lzma.FORMAT_XZ, _UNPACKING_MEMORY)
            content = unpacker.decompress(packed, _MAX_UNPACKED + 1)
        except (lzma.LZMAError, MemoryError) as error:
            raise SymbolError(f"{self.path}: its .gnu_debugdata cannot be unpacked: {error}") from error
        if len(content) > _MAX_UNPACKED:
            raise SymbolError(f"{self.path}: its .gnu_debugdata unpacks to more than {_MAX_UNPACKED >> 20} MiB")
        if not unpacker.eof:
            raise SymbolError(f"{self.path}: its .gnu_debugdata is cut off")
        inner = ElfImage(self.path, content)
        with inner._open() as unpacked:
            return inner._functions(unpacked, elf_headers.SHT_SYMTAB, types)

    def _functions(self, stream: BinaryIO, wanted: int, types: tuple[int, ...]) -> tuple[Entries, bytes]:
        """(start, size, offset of the name, binding) of each function in a table of this kind, and its strings."""
        for section in self._sections:
            if section.type == wanted:
                found = self._symbol_table(stream, section, types)
                if len(found[0]):
                    return found
        return np.zeros((0, 4), dtype=np.uint64), b""

    def _symbol_table(self, stream: BinaryIO, section: Section, types: tuple[int, ...]) -> tuple[Entries, bytes]:
        layout = np.dtype(_SYMBOL_64 if self._wide else _SYMBOL_32).newbyteorder(self._order)
        if section.entry_size != layout.itemsize or section.link >= len(self._sections):
            raise SymbolError(f"{self.path}: its symbol table is malformed")
        data = self._read(stream, section.offset, section.size - section.size % layout.itemsize)
        names = self._sections[section.link]
        strings = self._read(stream, names.offset, names.size)
        rows = np.frombuffer(data, layout)
        wanted = (rows["section"] != 0) & (rows["size"] != 0) & np.isin(rows["info"] & 15, types)
        # A name outside its own table must not end up in another one.
        rows = rows[wanted & (rows["name"] < len(strings))]
        columns = (rows["value"], rows["size"], rows["name"], rows["info"] >> 4)
        entries = np.stack([column.astype(np.uint64) for column in columns], axis=1)
        return entries, strings

    def _read(self, stream: BinaryIO, position: int, size: int) -> bytes:
        if size > _MAX_TABLE or position + size > self._size:
            raise SymbolError(f"{self.path}: its headers point outside the file or to a table that is too large")
        stream.seek(position)
        return stream.read(size)
