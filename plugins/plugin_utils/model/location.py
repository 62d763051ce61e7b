# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Where in which image an address lies, by the memory map of its process.

All addresses are those of returns: the call ends one byte before, and it is the call that is looked for.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from collections.abc import Mapping as Dictionary
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from ...module_utils.formats.maps import Mapping
from ..base import libraries

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Integers = NDArray[np.int64]
    Offsets = NDArray[np.uint64]
else:
    np = libraries.optional("numpy")

#: what stands for a path: of code that a runtime has compiled, and of what is no code
JIT, NOWHERE = "[jit]", ""


class Location(NamedTuple):
    """A place in an image: ``offset`` is the position in the file of the call's last byte.

    Memory of no file has the path JIT where it is executable, else NOWHERE; ``offset`` is then the address.
    ``address`` is where it lay in the process that was seen first, and no part of ``key``, which is what makes
    locations the same.
    """

    path: str
    build_id: str
    offset: int
    address: int

    @property
    def key(self) -> tuple[str, int]:
        return (self.build_id or self.path, self.offset)

    @property
    def in_file(self) -> bool:
        return self.path not in (JIT, NOWHERE)


@dataclass(frozen=True)
class Locations:
    """Locations in columns: ``images`` are (path, build-id), ``image`` has the position in them of each location."""

    images: list[tuple[str, str]]
    image: Integers
    offset: Offsets
    address: Offsets

    def __len__(self) -> int:
        return len(self.image)

    def __iter__(self) -> Iterator[Location]:
        for image, offset, address in zip(
            self.image.tolist(), self.offset.tolist(), self.address.tolist(), strict=True
        ):
            path, build_id = self.images[image]
            yield Location(path, build_id, offset, address)


def locate(addresses: Sequence[int], mappings: Iterable[Mapping], build_ids: Dictionary[str, str]) -> Locations:
    """Where each of the addresses lies. ``build_ids`` (hexadecimal) are by mapped path, with " (deleted)" if so."""
    ordered = sorted(mappings, key=lambda mapping: mapping.start)
    images = [*(_image(mapping, build_ids) for mapping in ordered), (NOWHERE, "")]
    starts = np.array([mapping.start for mapping in ordered], dtype=np.uint64)
    # The last one is for what lies in no mapping; before the first mapping, the position -1 leads there too.
    ends = np.array([*(mapping.end for mapping in ordered), 0], dtype=np.uint64)
    shifts = np.array([*map(_shift, ordered), 0], dtype=np.uint64)
    returns = np.array(addresses, dtype=np.uint64)
    calls = returns - (returns > 0)
    position = np.searchsorted(starts, calls, side="right") - 1
    position[calls >= ends[position]] = len(ordered)
    used, image = np.unique(position, return_inverse=True)
    return Locations([images[at] for at in used.tolist()], image, calls + shifts[position], returns)


def _image(mapping: Mapping, build_ids: Dictionary[str, str]) -> tuple[str, str]:
    """(path, build-id)"""
    if mapping.path.startswith("[v"):
        return mapping.path, ""
    # Native code is in executable pages of a file. An address in any other is data: an interpreter's method, perhaps.
    if not mapping.executable:
        return NOWHERE, ""
    if mapping.file_less or not mapping.path.startswith("/"):
        return JIT, ""
    path = mapping.path.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    return path, build_ids.get(mapping.path + (" (deleted)" if mapping.deleted else ""), "")


def _shift(mapping: Mapping) -> int:
    """From an address to the position in the file, modulo 2^64; memory of no file keeps its addresses."""
    path, _build_id = _image(mapping, {})
    return (mapping.offset - mapping.start) % (1 << 64) if path not in (JIT, NOWHERE) else 0
