# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""An ELF file as a place to look names up: load segments, build-id, symbol tables with honest ranges.

A symbol claims an address only inside [st_value, st_value + st_size). Tools that take the nearest symbol below
blame, say, ``inflateBackEnd`` for what a static function of a stripped libz did.

Formats: System V ABI (ELF-32 and ELF-64), "Elf Header", "Program Header", "Symbol Table", "Note Section". The file
comes from a host that is not trusted: every table is checked to lie in the file and to be of bearable size.
"""

from __future__ import annotations

import io
import lzma
import struct
from array import array
from bisect import bisect_right
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Literal

from ..base import libraries
from ..base.errors import ControllerError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Entries = NDArray[np.uint64]
else:
    np = libraries.optional("numpy")

_PT_LOAD, _PT_NOTE = 1, 4
_PF_X = 1
_SHT_SYMTAB, _SHT_NOTE, _SHT_NOBITS, _SHT_DYNSYM = 2, 7, 8, 11
# What may be code: STT_NOTYPE, STT_FUNC, STT_GNU_IFUNC.
_CODE = (0, 2, 10)
_SYMBOL_64 = [("name", "u4"), ("info", "u1"), ("other", "u1"), ("section", "u2"), ("value", "u8"), ("size", "u8")]
_SYMBOL_32 = [("name", "u4"), ("value", "u4"), ("size", "u4"), ("info", "u1"), ("other", "u1"), ("section", "u2")]
_NT_GNU_BUILD_ID = 3
_MAX_SEGMENTS = 1024
_MAX_SECTIONS = 65535
_MAX_NOTES = 1 << 20
_MAX_TABLE = 512 << 20
# The packed symbol table of a stripped image, as Fedora has it: a few per cent of the image.
_MAX_PACKED = 64 << 20
_MAX_UNPACKED = 256 << 20
_UNPACKING_MEMORY = 256 << 20
# How many symbols below an address are asked whether they cover it: nested ones are rare and not deep.
_NESTING = 64


class SymbolError(ControllerError):
    """An image cannot be used to name addresses. The message says which file and why."""


Section = tuple[int, int, int, int, int, int]


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

        Of several names for one function a global one wins over a weak or local one, then the one with the fewest
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
        end = self._strings.find(b"\0", start)
        return self._strings[start:end] if end >= 0 else b""


class ElfImage:
    """An ELF file that has been checked. Raises SymbolError, from every method, if the file is not what it says."""

    def __init__(self, path: Path, content: bytes | None = None) -> None:
        """C(content), where given, is what is read instead of the file: an image that was packed inside of it."""
        self.path = path
        self._content = content
        try:
            with self._open() as stream:
                self._size = stream.seek(0, 2)
                self._read_headers(stream)
        except OSError as error:
            raise SymbolError(f"{path}: {error.strerror or error}") from error
        except struct.error as error:
            raise SymbolError(f"{path}: ends inside its ELF headers") from error

    def _open(self) -> BinaryIO:
        return self.path.open("rb") if self._content is None else io.BytesIO(self._content)

    def _read_headers(self, stream: BinaryIO) -> None:
        ident = self._read(stream, 0, 16)
        if ident[:4] != b"\x7fELF" or ident[4] not in (1, 2) or ident[5] not in (1, 2):
            raise SymbolError(f"{self.path}: not an ELF file")
        self._wide = ident[4] == 2
        self._order: Literal["<", ">"] = "<" if ident[5] == 1 else ">"
        header = self._unpack("HHIQQQIHHHHHH" if self._wide else "HHIIIIIHHHHHH", stream, 16)
        program_offset, section_offset = header[4], header[5]
        program_size, programs, section_size, sections, names = header[8:13]
        self._loads: list[tuple[int, int, int, bool]] = []
        self.build_id: str | None = None
        for index in range(min(programs, _MAX_SEGMENTS)):
            self._add_segment(stream, program_offset + index * program_size)
        self._sections: list[Section] = []
        self._debug_data: Section | None = None
        for index in range(min(sections, _MAX_SECTIONS) if section_offset else 0):
            self._sections.append(self._section(stream, section_offset + index * section_size))
        self.has_debug_info = False
        if names < len(self._sections):
            self._look_at_names(stream, self._sections[names])
        for _name, kind, offset, size, *_rest in self._sections if self.build_id is None else ():
            # Files of separate debug information have the note, and no segment that loads it.
            if kind == _SHT_NOTE and self.build_id is None and size <= _MAX_NOTES:
                self.build_id = self._find_build_id(self._read(stream, offset, size))

    def _add_segment(self, stream: BinaryIO, position: int) -> None:
        if self._wide:
            kind, flags, offset, address, _physical, size = self._unpack("IIQQQQ", stream, position)
        else:
            kind, offset, address, _physical, size, _memory, flags = self._unpack("IIIIIII", stream, position)
        if kind == _PT_LOAD:
            self._loads.append((offset, offset + size, address, bool(flags & _PF_X)))
        elif kind == _PT_NOTE and self.build_id is None and size <= _MAX_NOTES:
            self.build_id = self._find_build_id(self._read(stream, offset, size))

    def _find_build_id(self, notes: bytes) -> str | None:
        position = 0
        while position + 12 <= len(notes):
            name_size, size, kind = struct.unpack_from(self._order + "III", notes, position)
            start = position + 12 + (name_size + 3 & ~3)
            if kind == _NT_GNU_BUILD_ID and notes[position + 12 : position + 12 + name_size] == b"GNU\0":
                return notes[start : start + size].hex()
            position = start + (size + 3 & ~3)
        return None

    def _section(self, stream: BinaryIO, position: int) -> Section:
        """(offset of the name, type, offset, size, link, entry size)"""
        layout = "IIQQQQIIQQ" if self._wide else "IIIIIIIIII"
        name, kind, _flags, _address, offset, size, link, _info, _align, entry = self._unpack(layout, stream, position)
        return name, kind, offset, size, link, entry

    def _look_at_names(self, stream: BinaryIO, names: Section) -> None:
        strings = self._read(stream, names[2], names[3]) if names[1] != _SHT_NOBITS else b""
        for section in self._sections:
            title = strings[section[0] : section[0] + 16].split(b"\0", 1)[0]
            if section[1] != _SHT_NOBITS and title in (b".debug_info", b".zdebug_info"):
                self.has_debug_info = True
            elif section[1] != _SHT_NOBITS and title == b".gnu_debugdata":
                self._debug_data = section

    def virtual_address(self, file_offset: int) -> int | None:
        """Where the byte at ``file_offset`` is linked to lie, None if no segment loads it."""
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

    def symbols(self) -> SymbolTable:
        """The functions of .symtab; of a stripped image those of .dynsym and of .gnu_debugdata (MiniDebugInfo)."""
        try:
            with self._open() as stream:
                entries, strings = self._functions(stream, _SHT_SYMTAB)
                if not len(entries):
                    entries, strings = self._functions(stream, _SHT_DYNSYM)
                    more, names = self._packed_functions(stream)
                    entries = np.concatenate([entries, more + np.array([0, 0, len(strings), 0], dtype=np.uint64)])
                    strings += names
        except OSError as error:
            raise SymbolError(f"{self.path}: {error.strerror or error}") from error
        return SymbolTable.from_entries(entries, strings)

    def _packed_functions(self, stream: BinaryIO) -> tuple[Entries, bytes]:
        """Those of the small ELF image, packed with xz, that a stripped image may carry."""
        if self._debug_data is None or self._content is not None:
            return np.zeros((0, 4), dtype=np.uint64), b""
        if self._debug_data[3] > _MAX_PACKED:
            raise SymbolError(f"{self.path}: its .gnu_debugdata is too large")
        packed = self._read(stream, self._debug_data[2], self._debug_data[3])
        try:
            unpacker = lzma.LZMADecompressor(lzma.FORMAT_XZ, _UNPACKING_MEMORY)
            content = unpacker.decompress(packed, _MAX_UNPACKED + 1)
        except (lzma.LZMAError, MemoryError) as error:
            raise SymbolError(f"{self.path}: its .gnu_debugdata does not unpack: {error}") from error
        if len(content) > _MAX_UNPACKED:
            raise SymbolError(f"{self.path}: its .gnu_debugdata unpacks to more than {_MAX_UNPACKED >> 20} MiB")
        if not unpacker.eof:
            raise SymbolError(f"{self.path}: its .gnu_debugdata is cut off")
        inner = ElfImage(self.path, content)
        with inner._open() as unpacked:
            return inner._functions(unpacked, _SHT_SYMTAB)

    def _functions(self, stream: BinaryIO, wanted: int) -> tuple[Entries, bytes]:
        """(start, size, offset of the name in the strings, binding) of each function of a kind of table."""
        for section in self._sections:
            if section[1] == wanted:
                found = self._symbol_table(stream, section)
                if len(found[0]):
                    return found
        return np.zeros((0, 4), dtype=np.uint64), b""

    def _symbol_table(self, stream: BinaryIO, section: Section) -> tuple[Entries, bytes]:
        _name, _kind, offset, size, link, entry_size = section
        layout = np.dtype(_SYMBOL_64 if self._wide else _SYMBOL_32).newbyteorder(self._order)
        if entry_size != layout.itemsize or link >= len(self._sections):
            raise SymbolError(f"{self.path}: its symbol table is malformed")
        data = self._read(stream, offset, size - size % layout.itemsize)
        strings = self._read(stream, self._sections[link][2], self._sections[link][3])
        rows = np.frombuffer(data, layout)
        wanted = (rows["section"] != 0) & (rows["size"] != 0) & np.isin(rows["info"] & 15, _CODE)
        # A name outside of its own table must not end up in another one.
        rows = rows[wanted & (rows["name"] < len(strings))]
        columns = (rows["value"], rows["size"], rows["name"], rows["info"] >> 4)
        entries = np.stack([column.astype(np.uint64) for column in columns], axis=1)
        return entries, strings

    def _unpack(self, layout: str, stream: BinaryIO, position: int) -> tuple[int, ...]:
        layout = self._order + layout
        return struct.unpack(layout, self._read(stream, position, struct.calcsize(layout)))

    def _read(self, stream: BinaryIO, position: int, size: int) -> bytes:
        if size > _MAX_TABLE or position + size > self._size:
            raise SymbolError(f"{self.path}: its headers point outside the file or to a table that is too large")
        stream.seek(position)
        return stream.read(size)
