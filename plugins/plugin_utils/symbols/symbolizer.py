# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""From places in images to frames, by build-id. Places that no symbol covers are named by module and offset.

The files of an image are found here, where there is a network and a disk to write to, and read in the child process
(image_names.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path, PurePosixPath
from typing import TypeVar

from ..base.errors import ControllerError
from ..base.printable import printable
from ..model.frame import Frame, Kind
from ..model.location import JIT, LINKED, Location
from . import image_names, symcache
from .debuginfo import DebugFiles
from .elf_image import THREAD_LOCALS, VARIABLES, SymbolError
from .image_names import ImageFiles

__all__ = ["SymbolError", "Symbolizer"]

# (address, whether its memory is executable) of each place -> the frames there, the innermost first; empty if unknown.
JitNames = Callable[[Sequence[tuple[int, bool]]], list[tuple[Frame, ...]]]
# (path, build-id, SHA-256) of an image.
_Build = tuple[str, str, str]
_T = TypeVar("_T")


class Symbolizer:
    """Names places. Keeps what it has found, so one object should serve all dumps of a report.

    ``find_image`` gives the path of the image with a build-id and a SHA-256 (empty: its host said none), or None;
    ``symcaches`` is the directory for symcaches. ``debug_files`` finds the debug information of stripped images, by
    default on this machine and with debuginfod.
    ``warnings`` says what went wrong with an image, once; its frames then show module and offset.
    """

    def __init__(
        self, find_image: Callable[[str, str], Path | None], symcaches: Path, debug_files: DebugFiles | None = None
    ) -> None:
        self._find_image = find_image
        self._symcaches = symcaches
        self._files: dict[_Build, ImageFiles | None] = {}
        self._known: dict[_Build, dict[int, tuple[Frame, ...]]] = {}
        self.warnings: list[str] = []
        self._debug_files = debug_files or DebugFiles(symcaches / "debug", self.warnings.append)

    def frames(self, locations: Iterable[Location], jit: JitNames | None = None) -> list[tuple[Frame, ...]]:
        """The frames of each location, the innermost (inlined) first.

        ``jit`` names memory outside any file by its address in the process: compiled code, and the methods of
        interpreted frames, whose addresses are data.
        """
        locations = list(locations)
        outside = list({(place.offset, place.path == JIT): None for place in locations if not place.in_file})
        found = jit(outside) if jit is not None and outside else [()] * len(outside)
        named = {place: frames or _UNNAMED[place[1]] for place, frames in zip(outside, found, strict=True)}
        of_image = self._learn(locations)
        return [
            named[place.offset, place.path == JIT] if known is None else known[place.offset]
            for place, known in zip(locations, of_image, strict=True)
        ]

    def variables(
        self, path: str, build_id: str, sha256: str, addresses: Sequence[int], thread_local: bool = False
    ) -> list[str]:
        """The global variables of an image, or its thread-local ones, at linked addresses; "" where none is known."""
        types = THREAD_LOCALS if thread_local else VARIABLES
        found = self._asked((path, build_id, sha256), lambda files: image_names.variables(files, addresses, types))
        return [""] * len(addresses) if found is None else found

    def _learn(self, locations: Sequence[Location]) -> list[dict[int, tuple[Frame, ...]] | None]:
        """For each location the known frames of its image, by offset, with its own among them; None outside any file.
        Those that are new are looked up image by image."""
        new: dict[_Build, dict[int, None]] = {}
        of_image: list[dict[int, tuple[Frame, ...]] | None] = []
        for place in locations:
            if not place.in_file:
                of_image.append(None)
                continue
            build = (place.path, place.build_id, place.sha256)
            known = self._known.setdefault(build, {})
            of_image.append(known)
            if place.offset not in known:
                new.setdefault(build, {})[place.offset] = None
        for build, offsets in new.items():
            self._known[build].update(zip(offsets, self._named(build, list(offsets)), strict=True))
        return of_image

    def _named(self, build: _Build, offsets: list[int]) -> list[tuple[Frame, ...]]:
        found = self._asked(build, lambda files: image_names.named(files, offsets))
        return found or [(Frame("", _shown(build[0]), Kind.NATIVE, offset & ~LINKED),) for offset in offsets]

    def _asked(self, build: _Build, ask: Callable[[ImageFiles], list[_T]]) -> list[_T] | None:
        """What the files of a build answer, None if there are none that can be read."""
        name = _shown(build[0])
        if build not in self._files:
            self._files[build] = self._find(build)
        while (files := self._files[build]) is not None:
            try:
                return ask(files)
            except (ControllerError, OSError) as error:
                if (warning := f"{name}: {error}") not in self.warnings:
                    self.warnings.append(warning)
                # What else there is may be what cannot be read.
                alone = ImageFiles(name, files.image, tables=files.tables)
                self._files[build] = None if files == alone else alone
        return None

    def _find(self, build: _Build) -> ImageFiles | None:
        """The files of a build, None if there are none that can be read."""
        path, build_id, sha256 = build
        name = _shown(path)
        if not build_id:
            return None
        image = self._find_image(build_id, sha256)
        if image is None:
            wanted = f" and SHA-256 {sha256}" if sha256 else ""
            self.warnings.append(
                f"{name}: no image with build-id {build_id}{wanted} was found, so its frames have no names"
            )
            return None
        files = None
        try:
            found = image_names.described(image)
            if found.build_id != build_id:
                raise SymbolError(f"{image}: has build-id {found.build_id}, expected {build_id}")
            tables = found.tables
            files = ImageFiles(name, image, tables=tables)
            debug = None if found.has_debug_info else self._debug_files.find(build_id, path)
            if debug is not None:
                tables += image_names.described(debug).tables
                files = files._replace(debug=debug, tables=tables)
            if debug is not None or found.has_debug_info:
                made = symcache.found_or_made(build_id, sha256, debug or image, self._symcaches, tables)
                files = files._replace(symcache=made)
        except (ControllerError, OSError) as error:
            self.warnings.append(f"{name}: {error}")
        return files


def _shown(path: str) -> str:
    name = printable(path)
    return name if name.startswith("[") else PurePosixPath(name).name


# Places outside any file, by whether they are code.
_UNNAMED = {False: (Frame("", "", Kind.UNKNOWN),), True: (Frame("", "", Kind.JIT),)}
