# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""HotSpot's own description of its data, read from a running JVM's memory without touching the JVM.

libjvm exports tables for debuggers (vmStructs.hpp): ``gHotSpotVMStructs`` gives the offset of each field of each type,
or its address if it is static; ``gHotSpotVMTypes`` gives the sizes of types. All these differ from release to release.
The memory belongs to the service, so all of it is hostile: every read can fail, and no size is trusted.

This module is private to the collection.
"""

from __future__ import annotations

import os
import struct
from typing import Iterator

from ansible_collections.offheap.profiler.plugins.module_utils.formats.errors import OffheapError

_PT_DYNAMIC = 2
_DT_STRTAB, _DT_SYMTAB, _DT_GNU_HASH = 5, 6, 0x6FFFFEF5
_MOST_ENTRIES = 20_000
_LONGEST_NAME = 256
_TEXT_STEP = 64
_SYMBOL = 24  # bytes of an Elf64_Sym


class VmError(OffheapError):
    """The memory does not hold what it should. The message says what is missing."""


class LayoutError(VmError):
    """This release does not say where its data lies: what was not found now never will be."""


class Memory:
    """The memory of a process, through an open ``/proc/<pid>/mem``."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def read(self, address: int, size: int) -> bytes:
        """Exactly ``size`` bytes. Raises VmError."""
        try:
            found = os.pread(self._fd, size, address) if 0 < address < 1 << 63 else b""
        except OSError as exc:
            raise VmError(f"cannot read memory at {address:#x}: {exc.strerror}") from exc
        if len(found) != size:
            raise VmError(f"there is no memory at {address:#x}")
        return found

    def number(self, address: int, size: int = 8) -> int:
        """An unsigned number of ``size`` bytes."""
        return int.from_bytes(self.read(address, size), "little")

    def text(self, address: int) -> str:
        """A text that ends with a NUL."""
        found = b""
        while len(found) < _LONGEST_NAME:
            # Not beyond the page: the next one may not be mapped.
            part = self.read(address + len(found), _TEXT_STEP - (address + len(found)) % _TEXT_STEP)
            found += part
            if b"\0" in part:
                return found.partition(b"\0")[0].decode("ascii", "replace")
        raise VmError(f"the text at {address:#x} does not end")


class Library:
    """The exported symbols of a 64-bit library, found in the loader's hash table (DT_GNU_HASH)."""

    def __init__(self, memory: Memory, base: int) -> None:
        """``base`` is where the file's first byte is mapped. Raises VmError."""
        self._memory, self._base = memory, base
        header = memory.read(base, 64)
        if header[:6] != b"\x7fELF\x02\x01":
            raise VmError("there is no 64-bit library where libjvm should be")
        start, size, count = (
            struct.unpack_from("<Q", header, 32)[0],
            *struct.unpack_from("<HH", header, 54),
        )
        dynamic: dict[int, int] = {}
        for number in range(count):
            entry = memory.read(base + start + number * size, 56)
            if struct.unpack_from("<I", entry)[0] == _PT_DYNAMIC:
                address, length = struct.unpack_from("<Q", entry, 16)[0], struct.unpack_from("<Q", entry, 40)[0]
                text = memory.read(base + address, min(length, 4096) // 16 * 16)
                dynamic = dict(struct.iter_unpack("<QQ", text))
        try:
            # glibc has turned them into addresses, musl leaves offsets
            self._names, self._symbols, self._hash = (
                dynamic[tag] if dynamic[tag] >= base else base + dynamic[tag]
                for tag in (_DT_STRTAB, _DT_SYMTAB, _DT_GNU_HASH)
            )
        except KeyError as exc:
            raise VmError("libjvm has no symbol table") from exc

    def address(self, name: str) -> int:
        """Where the symbol is. Raises VmError."""
        wanted = 5381
        for letter in name.encode("ascii"):
            wanted = (wanted * 33 + letter) & 0xFFFFFFFF
        buckets, first, bloom, _shift = struct.unpack("<4I", self._memory.read(self._hash, 16))
        table = self._hash + 16 + bloom * 8
        start = self._memory.number(table + wanted % buckets * 4, 4) if buckets else 0
        for number in range(start, start + _MOST_ENTRIES if start >= first else start):
            hashed = self._memory.number(table + (buckets + number - first) * 4, 4)
            if hashed | 1 == wanted | 1:
                symbol = self._memory.read(self._symbols + number * _SYMBOL, _SYMBOL)
                name_at, value = struct.unpack_from("<I", symbol)[0], struct.unpack_from("<Q", symbol, 8)[0]
                if self._memory.text(self._names + name_at) == name:
                    return int(self._base + value)
            if hashed & 1:
                break
        raise VmError(f"libjvm has no {name}")

    def number(self, name: str) -> int:
        """The 64-bit number at a symbol."""
        return self._memory.number(self.address(name))


class VmStructs:
    """Offsets and addresses of fields, and sizes of types."""

    def __init__(self, memory: Memory, base: int) -> None:
        """``base`` is where libjvm is mapped. Raises VmError."""
        library = Library(memory, base)
        self.memory = memory
        self._fields: dict[tuple[str, str], tuple[int, int]] = {}
        self._sizes: dict[str, int] = {}
        prefix = "gHotSpotVMStruct"
        type_at, field_at, offset_at, address_at = (
            library.number(f"{prefix}Entry{name}Offset") for name in ("TypeName", "FieldName", "Offset", "Address")
        )
        for entry in _entries(memory, library, prefix, type_at):
            names = tuple(memory.text(_word(entry, at)) for at in (type_at, field_at))
            self._fields[names[0], names[1]] = _word(entry, offset_at), _word(entry, address_at)
        prefix = "gHotSpotVMType"
        type_at, size_at = (library.number(f"{prefix}Entry{name}Offset") for name in ("TypeName", "Size"))
        for entry in _entries(memory, library, prefix, type_at):
            self._sizes[memory.text(_word(entry, type_at))] = _word(entry, size_at)

    def has(self, kind: str, field: str) -> bool:
        """Whether this release has such a field."""
        return (kind, field) in self._fields

    def offset(self, kind: str, field: str) -> int:
        """Where the field is in an object. Raises LayoutError when this release has none."""
        return self._field(kind, field)[0]

    def static(self, kind: str, field: str) -> int:
        """Where the static field is. Raises LayoutError when this release has none."""
        return self._field(kind, field)[1]

    def size(self, kind: str) -> int:
        """Bytes of an object. Raises LayoutError when this release does not say."""
        if kind not in self._sizes:
            raise LayoutError(f"this JVM does not say how large {kind} is")
        return self._sizes[kind]

    def get(self, address: int, kind: str, field: str, size: int = 8) -> int:
        """The unsigned number in a field of the object at an address."""
        return self.memory.number(address + self.offset(kind, field), size)

    def _field(self, kind: str, field: str) -> tuple[int, int]:
        if (kind, field) not in self._fields:
            raise LayoutError(f"this JVM does not say where {kind}::{field} is")
        return self._fields[kind, field]


def _entries(memory: Memory, library: Library, prefix: str, type_at: int) -> Iterator[bytes]:
    table, stride = library.number(f"{prefix}s"), library.number(f"{prefix}EntryArrayStride")
    if not 16 <= stride <= 256 or type_at > stride - 8:
        raise VmError("libjvm's tables are malformed")
    for number in range(_MOST_ENTRIES):
        entry = memory.read(table + number * stride, stride)
        if not _word(entry, type_at):
            return
        yield entry


def _word(entry: bytes, offset: int) -> int:
    return int.from_bytes(entry[offset : offset + 8], "little")
