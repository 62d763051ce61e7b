# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""What an ELF file says about itself: how it is started, what it needs, and which build it is.

Nothing is mapped or loaded and nothing is believed: each header is read by its offset, each offset and count is
held against the size of the file and against a limit, and whatever does not fit raises C(ElfError). The layouts
are those of the System V gABI ("Object Files", "Program Loading and Dynamic Linking") and of the GNU extensions
for symbol versions and build-ids.

This module is private to the collection.
"""

from __future__ import annotations

import os
import re
import stat
import struct
from dataclasses import dataclass, field
from typing import Iterable, Iterator, NamedTuple

from ansible_collections.offheap.profiler.plugins.module_utils.formats.errors import OffheapError

ET_EXEC = 2
ET_DYN = 3
#: e_machine of the platforms that offheap knows by name
MACHINES = {3: "i386", 21: "ppc64", 22: "s390x", 40: "arm", 62: "x86_64", 183: "aarch64", 243: "riscv"}

_PT_LOAD, _PT_DYNAMIC, _PT_INTERP, _PT_NOTE = 1, 2, 3, 4
_PF_X = 1
_SHT_SYMTAB, _SHT_NOTE, _SHT_DYNSYM = 2, 7, 11
_DT_NEEDED, _DT_HASH, _DT_STRTAB, _DT_SYMTAB, _DT_STRSZ = 1, 4, 5, 6, 10
_DT_FLAGS_1, _DT_VERNEED, _DT_VERNEEDNUM = 0x6FFFFFFB, 0x6FFFFFFE, 0x6FFFFFFF
_DF_1_PIE = 0x08000000
_NT_GNU_BUILD_ID = 3

# Real files stay far below all of these; they bound what a made-up file can cost.
_MAX_STRING = 4096
_MAX_NOTES = 1 << 20
_MAX_DYNAMIC = 1 << 20
_MAX_VERSIONS = 1 << 16
_MAX_SECTIONS = 1 << 17
_MAX_SYMBOLS = 1 << 30
_CHUNK = 1 << 20

_GLIBC_VERSION = re.compile(rb"GLIBC_(\d{1,4})\.(\d{1,4})(?:\.(\d{1,4}))?\Z")


class ElfError(OffheapError):
    """The file is not an ELF file, is damaged, or could not be read. The message says which."""


class _Program(NamedTuple):
    type: int
    flags: int
    offset: int
    address: int
    size: int
    align: int


class _Section(NamedTuple):
    type: int
    offset: int
    size: int
    link: int


class _Dynamic(NamedTuple):
    """The dynamic section: single-valued tags by number, DT_NEEDED as a list of string offsets."""

    tags: dict[int, int]
    needed: list[int]


class _File:
    """An open file of known size, read by offset. Closed with its last reference."""

    def __init__(self, source: str | bytes | os.PathLike[str] | int) -> None:
        self._fd = -1
        self.name = f"file descriptor {source}" if isinstance(source, int) else os.fsdecode(source)
        try:
            if isinstance(source, int):
                self._fd = os.dup(source)
            else:
                # O_NONBLOCK: a FIFO in the place of the file must not hold us up
                self._fd = os.open(source, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
            status = os.fstat(self._fd)
        except (OSError, ValueError) as exc:
            raise ElfError(f"cannot open {self.name}: {exc}") from exc
        if not stat.S_ISREG(status.st_mode):
            raise ElfError(f"{self.name} is not a regular file")
        self.size = status.st_size

    def __del__(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)

    def error(self, what: str) -> ElfError:
        return ElfError(f"{self.name}: {what}")

    def at(self, offset: int, length: int) -> bytes:
        """Exactly C(length) bytes from C(offset)."""
        if offset < 0 or length < 0 or offset + length > self.size:
            raise self.error(f"{length} bytes at {offset} lie outside of the file ({self.size} bytes)")
        parts = []
        while length:
            try:
                part = os.pread(self._fd, min(length, _CHUNK), offset)
            except OSError as exc:
                raise self.error(f"cannot read: {exc}") from exc
            if not part:
                raise self.error("ended while it was read")
            parts.append(part)
            offset += len(part)
            length -= len(part)
        return b"".join(parts)

    def string(self, offset: int) -> bytes:
        """The NUL-terminated string at C(offset), without the NUL."""
        if not 0 <= offset < self.size:
            raise self.error(f"a string at {offset} lies outside of the file")
        text, nul, _rest = self.at(offset, min(_MAX_STRING, self.size - offset)).partition(b"\0")
        if not nul:
            raise self.error(f"the string at {offset} does not end")
        return text


class _Layout(NamedTuple):
    """Structures of one class (32 or 64 bit) and byte order."""

    bits: int
    order: str

    def header(self) -> struct.Struct:
        # type machine version entry phoff shoff flags ehsize phentsize phnum shentsize shnum shstrndx
        return struct.Struct(self.order + ("HHIQQQIHHHHHH" if self.bits == 64 else "HHIIIIIHHHHHH"))

    def program(self, raw: bytes) -> _Program:
        if self.bits == 64:
            kind, flags, offset, address, _paddr, size, _memsz, align = struct.unpack(self.order + "IIQQQQQQ", raw)
        else:
            kind, offset, address, _paddr, size, _memsz, flags, align = struct.unpack(self.order + "IIIIIIII", raw)
        return _Program(kind, flags, offset, address, size, align)

    def section(self, raw: bytes) -> _Section:
        form = "IIQQQQIIQQ" if self.bits == 64 else "IIIIIIIIII"
        _name, kind, _flags, _address, offset, size, link, _info, _align, _entry = struct.unpack(self.order + form, raw)
        return _Section(kind, offset, size, link)

    def dynamic(self) -> struct.Struct:
        return struct.Struct(self.order + ("qQ" if self.bits == 64 else "iI"))

    def symbol(self) -> tuple[struct.Struct, int]:
        """The symbol entry, and the position of st_shndx in it (st_name is always first)."""
        if self.bits == 64:
            return struct.Struct(self.order + "IBBHQQ"), 3
        return struct.Struct(self.order + "IIIBBH"), 5

    @property
    def sizes(self) -> tuple[int, int]:
        """Size of a program header and of a section header."""
        return (56, 64) if self.bits == 64 else (32, 40)


@dataclass(frozen=True)
class Elf:
    """The facts of one file. C(machine) and C(type) are e_machine and e_type (see C(MACHINES), C(ET_DYN))."""

    bits: int
    machine: int
    type: int
    interpreter: str | None
    needed: list[str]
    build_id: str | None
    is_static: bool
    glibc_needed: tuple[int, ...] | None
    has_executable_load: bool
    _file: _File = field(repr=False, compare=False)
    _layout: _Layout = field(repr=False, compare=False)
    _symbol_tables: list[tuple[int, int, int, int]] = field(repr=False, compare=False)

    @property
    def machine_name(self) -> str:
        return MACHINES.get(self.machine, f"machine {self.machine}")

    def defines(self, names: Iterable[str]) -> bool:
        """Whether the file itself defines one of the symbols, by .dynsym or .symtab.

        Raises ElfError when a table does not fit into the file.
        """
        wanted = [os.fsencode(name) + b"\0" for name in names if name]
        entry, shndx = self._layout.symbol()
        for offset, size, strings, strings_size in self._symbol_tables:
            places = _places(self._file, strings, strings_size, wanted)
            if not places:
                continue
            count = size // entry.size
            if count > _MAX_SYMBOLS:
                raise self._file.error(f"{count} symbols are more than any real file has")
            step = _CHUNK // entry.size
            for first in range(0, count, step):
                block = self._file.at(offset + first * entry.size, min(step, count - first) * entry.size)
                if any(symbol[0] in places and symbol[shndx] for symbol in entry.iter_unpack(block)):
                    return True
        return False


def _places(file: _File, start: int, size: int, wanted: list[bytes]) -> dict[int, bytes]:
    """Offsets in a string table at which a wanted name (with its NUL) begins; linkers let names share tails."""
    found: dict[int, bytes] = {}
    longest = max((len(name) for name in wanted), default=0)
    for first in range(0, size, _CHUNK):
        block = file.at(start + first, min(_CHUNK + longest, size - first))
        for name in wanted:
            place = block.find(name)
            while place >= 0:
                found[first + place] = name
                place = block.find(name, place + 1)
    return found


def read(source: str | bytes | os.PathLike[str] | int) -> Elf:
    """Read the headers of a file, given as a path or as an open file descriptor (which stays open and unmoved).

    Raises ElfError for everything that is not a sound ELF file.
    """
    file = _File(source)
    if file.size < 52 or file.at(0, 4) != b"\x7fELF":
        raise file.error("not an ELF file")
    ident = file.at(4, 2)
    if ident[0] not in (1, 2) or ident[1] not in (1, 2):
        raise file.error("unknown ELF class or byte order")
    layout = _Layout(64 if ident[0] == 2 else 32, "<" if ident[1] == 1 else ">")
    header = layout.header()
    kind, machine, _version, _entry, phoff, shoff, _flags, _ehsize, phsize, phnum, shsize, shnum, _strndx = (
        header.unpack(file.at(16, header.size))
    )
    programs = list(_programs(file, layout, phoff, phnum, phsize))
    sections = list(_sections(file, layout, shoff, shnum, shsize))
    dynamic = _dynamic(file, layout, programs)
    interpreter = next((file.string(p.offset) for p in programs if p.type == _PT_INTERP), None)
    static_pie = bool(dynamic.tags.get(_DT_FLAGS_1, 0) & _DF_1_PIE)
    return Elf(
        bits=layout.bits,
        machine=machine,
        type=kind,
        interpreter=None if interpreter is None else os.fsdecode(interpreter),
        needed=_needed(file, programs, dynamic),
        build_id=_build_id(file, layout, programs, sections),
        is_static=interpreter is None and (kind == ET_EXEC or (kind == ET_DYN and static_pie)),
        glibc_needed=_glibc_needed(file, layout, programs, dynamic),
        has_executable_load=any(p.type == _PT_LOAD and p.flags & _PF_X for p in programs),
        _file=file,
        _layout=layout,
        _symbol_tables=_symbol_tables(file, layout, programs, sections, dynamic),
    )


def _programs(file: _File, layout: _Layout, offset: int, count: int, size: int) -> Iterator[_Program]:
    if not count:
        return
    if size != layout.sizes[0]:
        raise file.error(f"program headers of {size} bytes")
    table = file.at(offset, count * size)
    for first in range(0, len(table), size):
        yield layout.program(table[first : first + size])


def _sections(file: _File, layout: _Layout, offset: int, count: int, size: int) -> Iterator[_Section]:
    if not offset:
        return
    if size != layout.sizes[1]:
        raise file.error(f"section headers of {size} bytes")
    if not count:  # 65280 sections or more: the first section's size says how many
        count = layout.section(file.at(offset, size)).size
    if count > _MAX_SECTIONS or count * size > file.size:
        raise file.error(f"{count} section headers are too many")
    for first in range(offset, offset + count * size, size):
        yield layout.section(file.at(first, size))


def _offset(file: _File, programs: list[_Program], address: int) -> int:
    """Where in the file a virtual address lies."""
    for program in programs:
        if program.type == _PT_LOAD and program.address <= address < program.address + program.size:
            return program.offset + address - program.address
    raise file.error(f"address {address:#x} is in no segment")


def _dynamic(file: _File, layout: _Layout, programs: list[_Program]) -> _Dynamic:
    found = _Dynamic({}, [])
    entry = layout.dynamic()
    for program in programs:
        if program.type != _PT_DYNAMIC:
            continue
        if program.size > _MAX_DYNAMIC:
            raise file.error(f"a dynamic section of {program.size} bytes")
        for tag, value in entry.iter_unpack(file.at(program.offset, program.size // entry.size * entry.size)):
            if not tag:
                break
            if tag == _DT_NEEDED:
                found.needed.append(value)
            else:
                found.tags.setdefault(tag, value)
        break
    return found


def _needed(file: _File, programs: list[_Program], dynamic: _Dynamic) -> list[str]:
    if not dynamic.needed:
        return []
    strings = _offset(file, programs, dynamic.tags.get(_DT_STRTAB, 0))
    return [os.fsdecode(file.string(strings + offset)) for offset in dynamic.needed]


def _glibc_needed(file: _File, layout: _Layout, programs: list[_Program], dynamic: _Dynamic) -> tuple[int, ...] | None:
    """The newest GLIBC_x.y that a symbol of the file asks for (records Verneed and Vernaux)."""
    if _DT_VERNEED not in dynamic.tags:
        return None
    need, name = struct.Struct(layout.order + "HHIII"), struct.Struct(layout.order + "IHHII")
    strings = _offset(file, programs, dynamic.tags.get(_DT_STRTAB, 0))
    place = _offset(file, programs, dynamic.tags[_DT_VERNEED])
    newest: tuple[int, ...] | None = None
    seen = 0
    for _index in range(min(dynamic.tags.get(_DT_VERNEEDNUM, 0), _MAX_VERSIONS)):
        _version, count, _file_name, first, following = need.unpack(file.at(place, need.size))
        entry = place + first
        for _name_index in range(count):
            seen += 1
            if seen > _MAX_VERSIONS:
                raise file.error(f"more than {_MAX_VERSIONS} symbol versions")
            _hash, _flags, _other, text, step = name.unpack(file.at(entry, name.size))
            match = _GLIBC_VERSION.match(file.string(strings + text))
            if match:
                version = tuple(int(part) for part in match.groups() if part is not None)
                newest = version if newest is None else max(newest, version)
            if not step:
                break
            entry += step
        if not following:
            break
        place += following
    return newest


def _build_id(file: _File, layout: _Layout, programs: list[_Program], sections: list[_Section]) -> str | None:
    """The GNU build-id in lower-case hex: the note NT_GNU_BUILD_ID of owner "GNU"."""
    places = [(p.offset, p.size, p.align) for p in programs if p.type == _PT_NOTE]
    places += [(s.offset, s.size, 4) for s in sections if s.type == _SHT_NOTE]
    budget = _MAX_NOTES
    for offset, size, align in places:
        budget -= size
        if budget < 0:
            raise file.error(f"more than {_MAX_NOTES} bytes of notes")
        block = file.at(offset, size)
        step = 8 if align == 8 else 4
        place = 0
        while place + 12 <= len(block):
            owner_size, value_size, kind = struct.unpack_from(layout.order + "III", block, place)
            value = _aligned(place + 12 + owner_size, step)
            owner = block[place + 12 : place + 12 + owner_size]
            if kind == _NT_GNU_BUILD_ID and owner == b"GNU\0":
                build_id = block[value : value + value_size]
                if len(build_id) != value_size:
                    raise file.error("the build-id is cut off")
                return build_id.hex() if 4 <= value_size <= 64 else None
            place = _aligned(value + value_size, step)
    return None


def _aligned(value: int, step: int) -> int:
    return -(-value // step) * step


def _symbol_tables(
    file: _File, layout: _Layout, programs: list[_Program], sections: list[_Section], dynamic: _Dynamic
) -> list[tuple[int, int, int, int]]:
    """(offset, size) of each symbol table and of its strings; without section headers what the loader sees."""
    tables = []
    for section in sections:
        if section.type in (_SHT_SYMTAB, _SHT_DYNSYM):
            if section.link >= len(sections):
                raise file.error("a symbol table without strings")
            strings = sections[section.link]
            tables.append((section.offset, section.size, strings.offset, strings.size))
    if tables or not {_DT_SYMTAB, _DT_STRTAB, _DT_STRSZ} <= set(dynamic.tags):
        return tables
    symbols, strings_at = (_offset(file, programs, dynamic.tags[tag]) for tag in (_DT_SYMTAB, _DT_STRTAB))
    if _DT_HASH in dynamic.tags:
        count = struct.unpack(layout.order + "I", file.at(_offset(file, programs, dynamic.tags[_DT_HASH]) + 4, 4))[0]
        size = count * layout.symbol()[0].size
    else:
        size = max(0, strings_at - symbols)  # every linker puts the strings right behind the symbols
    return [(symbols, size, strings_at, dynamic.tags[_DT_STRSZ])]
