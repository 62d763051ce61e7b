# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""From places in images to frames, by build-id. Places that no symbol covers are named by module and offset.

Functions with debug information (source lines, inlined calls) are looked up in a symcache, the file format of the
library ``symbolic``, made once per image; others are looked up in the image's own symbol tables.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path, PurePosixPath
from typing import Any

from ..base import libraries
from ..base.printable import printable
from ..model.frame import Frame, Kind
from ..model.location import JIT, Location
from . import symcache
from .debuginfo import DebugFiles
from .demangle import readable
from .elf_image import ElfImage, SymbolError, SymbolTable

symbolic = libraries.optional("symbolic")

__all__ = ["SymbolError", "Symbolizer"]

# (address, whether its memory is executable) -> the frames there, the innermost first; empty if unknown.
JitNames = Callable[[int, bool], tuple[Frame, ...]]


class Symbolizer:
    """Names places. Keeps what it has read, so one object should serve all dumps of a report.

    ``find_image`` gives the path of the image with a build-id, or None; ``symcaches`` is the directory for symcaches.
    ``debug_files`` finds the debug information of stripped images, by default on this machine and with debuginfod.
    ``warnings`` says what went wrong with an image, once; its frames then show module and offset.
    """

    def __init__(
        self, find_image: Callable[[str], Path | None], symcaches: Path, debug_files: DebugFiles | None = None
    ) -> None:
        self._find_image = find_image
        self._symcaches = symcaches
        self._modules: dict[tuple[str, str], _Module] = {}
        self.warnings: list[str] = []
        self._debug_files = debug_files or DebugFiles(symcaches / "debug", self.warnings.append)

    def frames(self, locations: Iterable[Location], jit: JitNames | None = None) -> list[tuple[Frame, ...]]:
        """The frames of each location, the innermost (inlined) first.

        ``jit`` names memory outside any file by its address in the process: compiled code, and the methods of
        interpreted frames, whose addresses are data.
        """
        return [self._frames(location, jit) for location in locations]

    def _frames(self, location: Location, jit: JitNames | None) -> tuple[Frame, ...]:
        if not location.in_file:
            is_code = location.path == JIT
            found = jit(location.offset, is_code) if jit is not None else ()
            return found or (_JIT if is_code else _UNMAPPED)
        build = (location.path, location.build_id)
        module = self._modules.get(build)
        if module is None:
            module = self._modules[build] = self._open(*build)
        return module.frames(location.offset)

    def _open(self, path: str, build_id: str) -> _Module:
        name = printable(path)
        name = name if name.startswith("[") else PurePosixPath(name).name
        if not build_id:
            return _Module(name)
        image = self._find_image(build_id)
        if image is None:
            self.warnings.append(
                f"{name}: no image with build-id {build_id} in the archive, so its frames have no names"
            )
            return _Module(name)
        module = _Module(name)
        try:
            elf = ElfImage(image)
            if elf.build_id != build_id:
                raise SymbolError(f"{image}: has build-id {elf.build_id}, expected {build_id}")
            module = _Module(name, elf, elf.symbols())
            beside = None if elf.has_debug_info else self._debug_files.find(build_id)
            if beside is not None:
                image, full = beside, ElfImage(beside)
                module = _Module(name, elf, full.symbols() or elf.symbols())
            if beside is not None or elf.has_debug_info:
                module.symcache = self._symcache(build_id, image)
        except SymbolError as error:
            self.warnings.append(f"{name}: {error}")
        return module

    def _symcache(self, build_id: str, image: Path) -> Any:
        return symcache.open_or_make(build_id, image, self._symcaches)


class _Module:
    """One image, or just its name if it is missing, with the frames found in it so far."""

    def __init__(self, name: str, elf: ElfImage | None = None, symbols: SymbolTable | None = None) -> None:
        self.name = name
        self.symcache: Any = None
        self._elf = elf
        self._symbols = symbols
        self._known: dict[int, tuple[Frame, ...]] = {}

    def frames(self, file_offset: int) -> tuple[Frame, ...]:
        """Frames at an offset in the file."""
        frames = self._known.get(file_offset)
        if frames is None:
            frames = self._known[file_offset] = self._look_up(file_offset)
        return frames

    def _look_up(self, file_offset: int) -> tuple[Frame, ...]:
        address = self._elf.virtual_address(file_offset) if self._elf is not None else None
        if self._elf is None or address is None:
            return (Frame("", self.name, Kind.NATIVE, file_offset),)
        frames: list[Frame] = []
        if self.symcache is not None and address >= self._elf.load_address:
            try:
                locations = self.symcache.lookup(address - self._elf.load_address)
            except symbolic.SymbolicError:
                locations = []
            for location in locations:
                # A location without a line comes from a symbol table, where symbolic lets functions without a size
                # claim everything up to the next one.
                if location.line and location.symbol:
                    frames.append(self._frame(location, Kind.INLINED))
        symbol = self._symbols.lookup(address) if self._symbols is not None else None
        if frames:
            # symbolic names a function by the symbol at its lowest address. If the function is split (hot and cold),
            # that may be another function's symbol: the one that covers this address is right.
            frames[-1] = _as_native(frames[-1], readable(symbol) if symbol else frames[-1].function)
            return tuple(frames)
        return (Frame(readable(symbol) if symbol else "", self.name, Kind.NATIVE, 0 if symbol else address),)

    def _frame(self, location: Any, kind: Kind) -> Frame:
        name = readable(location.symbol.encode("utf-8", "replace"))
        return Frame(name, self.name, kind, 0, printable(location.full_path or ""), location.line)


def _as_native(frame: Frame, function: str) -> Frame:
    return Frame(function, frame.module, Kind.NATIVE, frame.offset, frame.file, frame.line)


_UNMAPPED = (Frame("", "", Kind.UNKNOWN),)
_JIT = (Frame("", "", Kind.JIT),)
