# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""What an ELF file says about itself: how it is started, what it needs, and which build it is.

As in elf_headers.py, nothing is mapped or loaded, and the file is not trusted. The layouts are those of the System V
gABI ("Program Loading and Dynamic Linking").

This module is private to the collection.
"""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass, field
from typing import Iterable, Iterator, NamedTuple

from ansible_collections.offheap.profiler.plugins.module_utils.formats import elf_headers
from ansible_collections.offheap.profiler.plugins.module_utils.formats.elf_headers import (
    PT_DYNAMIC,
    PT_INTERP,
    PT_LOAD,
    PT_TLS,
    SHT_DYNSYM,
    SHT_SYMTAB,
    ElfError,
    Headers,
)

__all__ = ["ET_DYN", "ET_EXEC", "MACHINES", "Elf", "ElfError", "read"]

ET_EXEC = 2
ET_DYN = 3
#: e_machine of the platforms that offheap knows by name
MACHINES = {3: "i386", 21: "ppc64", 22: "s390x", 40: "arm", 62: "x86_64", 183: "aarch64", 243: "riscv"}

_DT_NEEDED, _DT_HASH, _DT_STRTAB, _DT_SYMTAB, _DT_STRSZ, _DT_FLAGS = 1, 4, 5, 6, 10, 30
_DT_FLAGS_1 = 0x6FFFFFFB
_STT_FUNC = 2
_DF_1_PIE, _DF_STATIC_TLS = 0x08000000, 0x10
# What a file calls for thread-local storage whose place is found when it is used: everywhere, on i386.
_TLS_CALLS = ("__tls_get_addr", "___tls_get_addr")

# Real files stay far below these limits, which bound what a crafted file can cost.
_MAX_DYNAMIC = 1 << 20
_MAX_SYMBOLS = 1 << 30
_CHUNK = 1 << 20
_PAGE = 0xFFFF  # the largest one of the platforms


class _Dynamic(NamedTuple):
    """The dynamic section: single-valued tags by number, DT_NEEDED as a list of string offsets."""

    tags: dict[int, int]
    needed: list[int]


@dataclass(frozen=True)
class Elf:
    """The facts of one file. ``machine`` and ``type`` are e_machine and e_type (see ``MACHINES``, ``ET_DYN``)."""

    bits: int
    machine: int
    type: int
    interpreter: str | None
    needed: list[str]
    build_id: str | None
    is_static: bool
    _thread_storage: bool = field(repr=False)  # it has some, and nothing says that its place is found at the start
    _headers: Headers = field(repr=False, compare=False)
    _symbol_tables: list[tuple[int, int, int, int]] = field(repr=False, compare=False)

    @property
    def runs_on_musl(self) -> bool:
        """Whether its loader is musl's."""
        return "ld-musl" in (self.interpreter or "")

    @property
    def machine_name(self) -> str:
        return MACHINES.get(self.machine, f"machine {self.machine}")

    def has_section(self, name: str) -> bool:
        """Whether it has a section of that name. Raises ElfError."""
        return any(self._headers.section_name(section) == os.fsencode(name) for section in self._headers.sections)

    def defines(self, names: Iterable[str]) -> bool:
        """Whether the file itself defines one of the symbols, in .dynsym or .symtab.

        Raises ElfError when a table does not fit into the file.
        """
        return self._has(names, defined=True)

    def functions(self, names: Iterable[str]) -> dict[str, int]:
        """The addresses, in the file's own terms, of those of the functions that the file itself defines.

        Raises ElfError when a table does not fit into the file.
        """
        wanted = [os.fsencode(name) + b"\0" for name in names if name]
        found: dict[str, int] = {}
        for place, kind, shndx, value in self._symbols(wanted):
            if shndx and value and kind & 0xF == _STT_FUNC:
                found.setdefault(os.fsdecode(place[:-1]), value)
        return found

    def address_of_offset(self, offset: int) -> int:
        """The address, in the file's own terms, of what is loaded from there. Raises ElfError."""
        for program in self._headers.programs:
            if program.type == PT_LOAD and program.offset & ~_PAGE <= offset < program.offset + program.size:
                return program.address + offset - program.offset
        raise self._headers.file.error(f"nothing is loaded from {offset:#x}")

    def finds_thread_storage_late(self) -> bool:
        """Whether the place of its thread-local storage is found when a thread uses it, not when the process starts.

        Raises ElfError when a table does not fit into the file.
        """
        return self._thread_storage or self._has(_TLS_CALLS, defined=False)

    def _has(self, names: Iterable[str], defined: bool) -> bool:
        wanted = [os.fsencode(name) + b"\0" for name in names if name]
        return any(bool(shndx) is defined for _name, _kind, shndx, _value in self._symbols(wanted))

    def _symbols(self, wanted: list[bytes]) -> Iterator[tuple[bytes, int, int, int]]:
        """Name, st_info, st_shndx and st_value of the symbols with these names, each of which ends with a NUL."""
        entry, info, shndx, value = _symbol(self._headers)
        for offset, size, strings, strings_size in self._symbol_tables:
            places = _places(self._headers, strings, strings_size, wanted)
            if not places:
                continue
            count = size // entry.size
            if count > _MAX_SYMBOLS:
                raise self._headers.file.error(f"{count} symbols are more than any real file has")
            step = _CHUNK // entry.size
            for first in range(0, count, step):
                block = self._headers.file.at(offset + first * entry.size, min(step, count - first) * entry.size)
                for symbol in entry.iter_unpack(block):
                    if symbol[0] in places:
                        yield places[symbol[0]], symbol[info], symbol[shndx], symbol[value]


def _places(headers: Headers, start: int, size: int, wanted: list[bytes]) -> dict[int, bytes]:
    """Offsets in a string table at which a wanted name (with its NUL) begins; linkers let names share tails."""
    found: dict[int, bytes] = {}
    longest = max((len(name) for name in wanted), default=0)
    for first in range(0, size, _CHUNK):
        block = headers.file.at(start + first, min(_CHUNK + longest, size - first))
        for name in wanted:
            place = block.find(name)
            while place >= 0:
                found[first + place] = name
                place = block.find(name, place + 1)
    return found


def read(source: str | bytes | os.PathLike[str] | int) -> Elf:
    """Read the facts of a file, given as a path or as an open file descriptor (which stays open and unmoved).

    Raises ElfError for anything that is not a sound ELF file.
    """
    headers = elf_headers.read(source)
    dynamic = _dynamic(headers)
    interpreter = next((headers.file.string(p.offset) for p in headers.programs if p.type == PT_INTERP), None)
    static_pie = bool(dynamic.tags.get(_DT_FLAGS_1, 0) & _DF_1_PIE)
    return Elf(
        bits=headers.bits,
        machine=headers.machine,
        type=headers.type,
        interpreter=None if interpreter is None else os.fsdecode(interpreter),
        needed=_needed(headers, dynamic),
        build_id=headers.build_id(),
        is_static=interpreter is None and (headers.type == ET_EXEC or (headers.type == ET_DYN and static_pie)),
        _thread_storage=any(p.type == PT_TLS for p in headers.programs)
        and not dynamic.tags.get(_DT_FLAGS, 0) & _DF_STATIC_TLS,
        _headers=headers,
        _symbol_tables=_symbol_tables(headers, dynamic),
    )


def _symbol(headers: Headers) -> tuple[struct.Struct, int, int, int]:
    """The symbol entry, and the positions of st_info, st_shndx and st_value in it (st_name is always first)."""
    if headers.bits == 64:
        return struct.Struct(headers.order + "IBBHQQ"), 1, 3, 4
    return struct.Struct(headers.order + "IIIBBH"), 3, 5, 1


def _offset(headers: Headers, address: int) -> int:
    """The file offset of a virtual address."""
    for program in headers.programs:
        if program.type == PT_LOAD and program.address <= address < program.address + program.size:
            return program.offset + address - program.address
    raise headers.file.error(f"address {address:#x} is in no segment")


def _dynamic(headers: Headers) -> _Dynamic:
    found = _Dynamic({}, [])
    entry = struct.Struct(headers.order + ("qQ" if headers.bits == 64 else "iI"))
    for program in headers.programs:
        if program.type != PT_DYNAMIC:
            continue
        if program.size > _MAX_DYNAMIC:
            raise headers.file.error(f"the dynamic section of {program.size} bytes is too large")
        for tag, value in entry.iter_unpack(headers.file.at(program.offset, program.size // entry.size * entry.size)):
            if not tag:
                break
            if tag == _DT_NEEDED:
                found.needed.append(value)
            else:
                found.tags.setdefault(tag, value)
        break
    return found


def _needed(headers: Headers, dynamic: _Dynamic) -> list[str]:
    if not dynamic.needed:
        return []
    strings = _offset(headers, dynamic.tags.get(_DT_STRTAB, 0))
    return [os.fsdecode(headers.file.string(strings + offset)) for offset in dynamic.needed]


def _symbol_tables(headers: Headers, dynamic: _Dynamic) -> list[tuple[int, int, int, int]]:
    """(offset, size) of each symbol table and of its strings; without section headers, what the loader sees."""
    tables = []
    for section in headers.sections:
        if section.type in (SHT_SYMTAB, SHT_DYNSYM):
            if section.link >= len(headers.sections):
                raise headers.file.error("a symbol table has no strings")
            strings = headers.sections[section.link]
            tables.append((section.offset, section.size, strings.offset, strings.size))
    if tables or not {_DT_SYMTAB, _DT_STRTAB, _DT_STRSZ} <= set(dynamic.tags):
        return tables
    symbols, strings_at = (_offset(headers, dynamic.tags[tag]) for tag in (_DT_SYMTAB, _DT_STRTAB))
    if _DT_HASH in dynamic.tags:
        count = struct.unpack(headers.order + "I", headers.file.at(_offset(headers, dynamic.tags[_DT_HASH]) + 4, 4))[0]
        size = count * _symbol(headers)[0].size
    else:
        size = max(0, strings_at - symbols)  # every linker puts the strings right after the symbols
    return [(symbols, size, strings_at, dynamic.tags[_DT_STRSZ])]
