# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""The headers of an ELF file: its segments, its sections, and the notes that say which build it is.

Nothing is mapped or loaded, and the file is not trusted: each header is read by offset, each offset and count is
checked against the file's size and a limit, and anything that does not fit raises ``ElfError``. The layouts
are those of the System V gABI ("Object Files") and of the GNU extension for build-ids.

This module is private to the collection.
"""

from __future__ import annotations

import os
import stat
import struct
from dataclasses import dataclass, field
from typing import Iterator, Literal, NamedTuple

from ansible_collections.offheap.profiler.plugins.module_utils.formats.errors import OffheapError

PT_LOAD, PT_DYNAMIC, PT_INTERP, _PT_NOTE, PT_TLS = 1, 2, 3, 4, 7
PF_X, PF_W = 1, 2
SHT_SYMTAB, _SHT_NOTE, SHT_NOBITS, SHT_DYNSYM = 2, 7, 8, 11
_NT_GNU_BUILD_ID = 3
_SHN_XINDEX = 0xFFFF

# Real files stay far below these limits, which bound what a crafted file can cost.
_MAX_STRING = 4096
_MAX_NOTES = 1 << 20
_MAX_SECTIONS = 1 << 17
_CHUNK = 1 << 20


class ElfError(OffheapError):
    """The file is not an ELF file, is damaged, or could not be read. The message says which."""


class Program(NamedTuple):
    """A segment. ``size`` is its size in the file."""

    type: int
    flags: int
    offset: int
    address: int
    size: int
    align: int


class Section(NamedTuple):
    """A section. ``name`` is the offset of its name in the table of section names."""

    name: int
    type: int
    offset: int
    size: int
    link: int
    entry_size: int


class _File:
    """An open file of known size, read by offset. Closed with its last reference."""

    def __init__(self, source: str | bytes | os.PathLike[str] | int, content: bytes | None) -> None:
        self._fd = -1
        self._content = content
        self.name = f"file descriptor {source}" if isinstance(source, int) else os.fsdecode(source)
        if content is not None:
            self.size = len(content)
            return
        try:
            if isinstance(source, int):
                self._fd = os.dup(source)
            else:
                # O_NONBLOCK: a FIFO in the file's place must not block us
                self._fd = os.open(source, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
            status = os.fstat(self._fd)
        except OSError as exc:
            raise self.error(exc.strerror or str(exc)) from exc
        except ValueError as exc:  # a NUL in the path
            raise self.error(str(exc)) from exc
        if not stat.S_ISREG(status.st_mode):
            raise self.error("not a regular file")
        self.size = status.st_size

    def __del__(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)

    def error(self, what: str) -> ElfError:
        return ElfError(f"{self.name}: {what}")

    def at(self, offset: int, length: int) -> bytes:
        """Exactly ``length`` bytes from ``offset``."""
        if offset < 0 or length < 0 or offset + length > self.size:
            raise self.error(f"{length} bytes at {offset} lie outside the file ({self.size} bytes)")
        if self._content is not None:
            return self._content[offset : offset + length]
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
        """The NUL-terminated string at ``offset``, without the NUL."""
        if not 0 <= offset < self.size:
            raise self.error(f"a string at {offset} lies outside the file")
        text, nul, _rest = self.at(offset, min(_MAX_STRING, self.size - offset)).partition(b"\0")
        if not nul:
            raise self.error(f"the string at {offset} does not end")
        return text


class _Layout(NamedTuple):
    """Structures of one class (32 or 64 bit) and byte order."""

    bits: int
    order: Literal["<", ">"]

    def header(self) -> struct.Struct:
        # type machine version entry phoff shoff flags ehsize phentsize phnum shentsize shnum shstrndx
        return struct.Struct(self.order + ("HHIQQQIHHHHHH" if self.bits == 64 else "HHIIIIIHHHHHH"))

    def program(self, raw: bytes) -> Program:
        if self.bits == 64:
            kind, flags, offset, address, _paddr, size, _memsz, align = struct.unpack(self.order + "IIQQQQQQ", raw)
        else:
            kind, offset, address, _paddr, size, _memsz, flags, align = struct.unpack(self.order + "IIIIIIII", raw)
        return Program(kind, flags, offset, address, size, align)

    def section(self, raw: bytes) -> Section:
        form = "IIQQQQIIQQ" if self.bits == 64 else "IIIIIIIIII"
        name, kind, _flags, _address, offset, size, link, _info, _align, entry = struct.unpack(self.order + form, raw)
        return Section(name, kind, offset, size, link, entry)

    @property
    def sizes(self) -> tuple[int, int]:
        """Size of a program header and of a section header."""
        return (56, 64) if self.bits == 64 else (32, 40)


@dataclass(frozen=True)
class Headers:
    """The headers of one file. ``type`` and ``machine`` are e_type and e_machine, ``order`` is "<" or ">".

    ``file`` reads what they point to: ``at`` and ``string`` raise ElfError for anything outside the file.
    """

    bits: int
    order: Literal["<", ">"]
    type: int
    machine: int
    programs: list[Program]
    sections: list[Section]
    file: _File = field(repr=False, compare=False)
    _names: int = field(repr=False, compare=False)

    def section_name(self, section: Section) -> bytes:
        """The name of a section, b"" if the file has no names. Raises ElfError."""
        if self._names >= len(self.sections) or self.sections[self._names].type == SHT_NOBITS:
            return b""
        names = self.sections[self._names]
        if section.name >= names.size:
            return b""
        return self.file.string(names.offset + section.name)

    def build_id(self) -> str | None:
        """The GNU build-id in lower-case hex: the note NT_GNU_BUILD_ID of owner "GNU". Raises ElfError."""
        # Sections first: the segments of a debug file that eu-strip made (Fedora's, RHEL's) say where the notes lay in
        # the program, and something else lies there.
        places = [(s.offset, s.size, 4) for s in self.sections if s.type == _SHT_NOTE]
        places += [(p.offset, p.size, p.align) for p in self.programs if p.type == _PT_NOTE]
        budget = _MAX_NOTES
        for offset, size, align in places:
            budget -= size
            if budget < 0:
                raise self.file.error(f"more than {_MAX_NOTES} bytes of notes")
            block = self.file.at(offset, size)
            step = 8 if align == 8 else 4
            place = 0
            while place + 12 <= len(block):
                owner_size, value_size, kind = struct.unpack_from(self.order + "III", block, place)
                value = _aligned(place + 12 + owner_size, step)
                owner = block[place + 12 : place + 12 + owner_size]
                if kind == _NT_GNU_BUILD_ID and owner == b"GNU\0":
                    build_id = block[value : value + value_size]
                    if len(build_id) != value_size:
                        raise self.file.error("the build-id is cut off")
                    return build_id.hex() if 4 <= value_size <= 64 else None
                place = _aligned(value + value_size, step)
        return None


def read(source: str | bytes | os.PathLike[str] | int, content: bytes | None = None) -> Headers:
    """The headers of a file, given as a path or as an open file descriptor, which stays open and unmoved.

    ``content``, if given, is read instead: an image packed inside that file. Raises ElfError.
    """
    file = _File(source, content)
    if file.size < 52 or file.at(0, 4) != b"\x7fELF":
        raise file.error("not an ELF file")
    ident = file.at(4, 2)
    if ident[0] not in (1, 2) or ident[1] not in (1, 2):
        raise file.error("unknown ELF class or byte order")
    layout = _Layout(64 if ident[0] == 2 else 32, "<" if ident[1] == 1 else ">")
    header = layout.header()
    kind, machine, _version, _entry, phoff, shoff, _flags, _ehsize, phsize, phnum, shsize, shnum, names = header.unpack(
        file.at(16, header.size)
    )
    programs = list(_programs(file, layout, phoff, phnum, phsize))
    sections = list(_sections(file, layout, shoff, shnum, shsize))
    if names == _SHN_XINDEX and sections:
        names = sections[0].link
    return Headers(layout.bits, layout.order, kind, machine, programs, sections, file, names)


def _programs(file: _File, layout: _Layout, offset: int, count: int, size: int) -> Iterator[Program]:
    if not count:
        return
    if size != layout.sizes[0]:
        raise file.error(f"program headers of {size} bytes")
    table = file.at(offset, count * size)
    for first in range(0, len(table), size):
        yield layout.program(table[first : first + size])


def _sections(file: _File, layout: _Layout, offset: int, count: int, size: int) -> Iterator[Section]:
    if not offset:
        return
    if size != layout.sizes[1]:
        raise file.error(f"section headers of {size} bytes")
    if not count:  # from 65280 sections on, the first section's size holds the count
        count = layout.section(file.at(offset, size)).size
    if count > _MAX_SECTIONS or count * size > file.size:
        raise file.error(f"{count} section headers are too many")
    for first in range(offset, offset + count * size, size):
        yield layout.section(file.at(first, size))


def _aligned(value: int, step: int) -> int:
    return -(-value // step) * step
