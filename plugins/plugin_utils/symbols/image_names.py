# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""What the files of one image say of places in it, asked for in the child process (base/child.py).

Functions with debug information (source lines, inlined calls) are looked up in a symcache, the file format of the
library ``symbolic``, made once per image; others are looked up in the image's own symbol tables.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from ..base import child, libraries
from ..base.printable import printable
from ..model import frame_table
from ..model.frame import Frame, Kind
from . import symcache
from .demangle import readable
from .elf_image import CODE, ElfImage, SymbolError, SymbolTable

symbolic = libraries.optional("symbolic")

#: in front of a type, the name of its table of virtual functions
VTABLE = "vtable for "
# Real processes have a few hundred images, a few of them large.
_KEPT_OPEN = 256


class ImageFiles(NamedTuple):
    """The files of one build, and the ``name`` that frames show: the image, a separate file with its ``debug``
    information, and a ``symcache``. ``tables`` are the bytes of tables in the first two."""

    name: str
    image: Path
    debug: Path | None = None
    symcache: Path | None = None
    tables: int = 0


class Described(NamedTuple):
    """An image: its build-id, whether it has debug information, and the bytes of its tables (ElfImage.tables)."""

    build_id: str | None
    has_debug_info: bool
    tables: int


def described(path: Path) -> Described:
    """What an image is. Raises ChildError, OSError."""
    build_id, has_debug_info, tables = json.loads(child.call(_described, path, size=0))
    # What is not on the disk, for it lies in holes, takes nobody's memory.
    stored = path.stat().st_blocks * 512
    return Described(None if build_id is None else str(build_id), bool(has_debug_info), min(int(tables), stored))


def named(files: ImageFiles, offsets: Sequence[int]) -> list[tuple[Frame, ...]]:
    """The frames at each offset in the image, the innermost (inlined) first. Raises ControllerError, OSError."""
    found = frame_table.unpacked(
        json.loads(child.call(_named, files, list(offsets), size=symcache.like_a_dump(files.tables)))
    )
    if len(found) != len(offsets):
        raise child.ChildError(f"{files.image}: got {len(found)} names for {len(offsets)} places")
    return found


def variables(files: ImageFiles, addresses: Sequence[int], types: tuple[int, ...]) -> list[str]:
    """The variables of these types (elf_image.py) that cover each linked address; "" where none does.

    Raises ControllerError, OSError.
    """
    found = json.loads(child.call(_variables, files, list(addresses), types, size=symcache.like_a_dump(files.tables)))
    if len(found) != len(addresses) or not all(isinstance(name, str) for name in found):
        raise child.ChildError(f"{files.image}: got no names for {len(addresses)} variables")
    return [printable(name) for name in found]


def _variables(files: ImageFiles, addresses: Sequence[int], types: tuple[int, ...]) -> bytes:
    table = _symbols(files, types)
    return json.dumps([_variable(table.lookup(address)) for address in addresses]).encode()


def _symbols(files: ImageFiles, types: tuple[int, ...] = CODE) -> SymbolTable:
    """Those of the debug file, or of the image where that has none."""
    table = SymbolTable() if files.debug is None else ElfImage(files.debug).symbols(types)
    return table if len(table) else ElfImage(files.image).symbols(types)


def _variable(symbol: bytes | None) -> str:
    """A table of virtual functions is told from a variable of its type's name."""
    table = VTABLE if symbol is not None and symbol.startswith(b"_ZTV") else ""
    return f"{table}{readable(symbol)}" if symbol else ""


def _described(path: Path) -> bytes:
    image = ElfImage(path)
    return json.dumps(Described(image.build_id, image.has_debug_info, image.tables)).encode()


def _named(files: ImageFiles, offsets: Sequence[int]) -> bytes:
    module = _opened(files)
    return json.dumps(frame_table.packed(map(module.frames, offsets))).encode()


@lru_cache(maxsize=_KEPT_OPEN)
def _opened(files: ImageFiles) -> _Module:
    return _Module(files)


class _Module:
    """One image, open."""

    def __init__(self, files: ImageFiles) -> None:
        self._name = files.name
        self._elf = ElfImage(files.image)
        self._symbols = _symbols(files)
        self._symcache = None if files.symcache is None else symcache.opened(files.symcache)

    def frames(self, file_offset: int) -> tuple[Frame, ...]:
        """Frames at an offset in the file."""
        address = self._elf.virtual_address(file_offset)
        if address is None:
            # objcopy leaves debug information alone without a word of where code lies in the program's file.
            if not any(executable and end > start for start, end, _address, executable in self._elf.segments):
                raise SymbolError(f"{self._elf.path}: is debug information alone: names take the program's file, too")
            return (Frame("", self._name, Kind.NATIVE, file_offset),)
        frames: list[Frame] = []
        if self._symcache is not None and address >= self._elf.load_address:
            try:
                locations = self._symcache.lookup(address - self._elf.load_address)
            except symbolic.SymbolicError:
                locations = []
            # Locations without any line come from a symbol table, where symbolic lets functions without a size claim
            # everything up to the next one. A call that a compiler made has no line either, beside others that do.
            if any(location.line for location in locations):
                frames = [self._frame(location, Kind.INLINED) for location in locations if location.symbol]
        symbol = self._symbols.lookup(address)
        if frames:
            # symbolic names a function by the symbol at its lowest address. If the function is split (hot and cold),
            # that may be another function's symbol: the one that covers this address is right.
            frames[-1] = _as_native(frames[-1], readable(symbol) if symbol else frames[-1].function)
            return tuple(frames)
        return (Frame(readable(symbol) if symbol else "", self._name, Kind.NATIVE, 0 if symbol else address),)

    def _frame(self, location: Any, kind: Kind) -> Frame:
        name = readable(location.symbol.encode("utf-8", "replace"))
        return Frame(name, self._name, kind, 0, printable(location.full_path or ""), location.line)


def _as_native(frame: Frame, function: str) -> Frame:
    return Frame(function, frame.module, Kind.NATIVE, frame.offset, frame.file, frame.line)
