# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Which image an address lies in, and where, by the memory map of its process.

All addresses are return addresses: the call to locate ends one byte before.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from collections.abc import Mapping as Dictionary
from dataclasses import dataclass, field
from pathlib import PurePosixPath
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

#: in place of a path: for code that a runtime has compiled, and for memory that holds no code
JIT, NOWHERE = "[jit]", ""
#: in an offset: the rest is the address that the linker gave the place, not where it lies in the file
LINKED = 1 << 62


class Location(NamedTuple):
    """A place in an image: ``offset`` is the file offset of the call's last byte (or its linked address: LINKED).

    Memory outside any file has the path JIT if it is executable, else NOWHERE; ``offset`` is then the address.
    Locations with the same ``key``, and the same names, are the same. ``address``, where the place lay in the first
    process seen, is not part of it, nor is the image's ``sha256``, empty if its host did not say it.
    """

    path: str
    build_id: str
    offset: int
    address: int
    sha256: str = ""

    @property
    def key(self) -> tuple[str, int]:
        return (self.build_id or self.path, self.offset)

    @property
    def shown(self) -> int:
        """The offset, as it is shown to people and to other tools."""
        return self.offset & ~LINKED

    @property
    def in_file(self) -> bool:
        return self.path not in (JIT, NOWHERE)


@dataclass(frozen=True)
class Locations:
    """Locations in columns: ``images`` holds (path, build-id), ``image`` the index of each location's image.

    ``sums`` are the SHA-256 of images, by build-id, that the facts of a capture say.
    """

    images: list[tuple[str, str]]
    image: Integers
    offset: Offsets
    address: Offsets
    sums: Dictionary[str, str] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.image)

    def __iter__(self) -> Iterator[Location]:
        images = [(path, build_id, self.sums.get(build_id, "")) for path, build_id in self.images]
        for image, offset, address in zip(
            self.image.tolist(), self.offset.tolist(), self.address.tolist(), strict=True
        ):
            path, build_id, sha256 = images[image]
            yield Location(path, build_id, offset, address, sha256)


def locate(addresses: Sequence[int], mappings: Iterable[Mapping], build_ids: Dictionary[str, str]) -> Locations:
    """Where each address lies. ``build_ids`` (hexadecimal) are by path, each of the path's first executable mapping."""
    ordered = sorted(mappings, key=lambda mapping: mapping.start)
    files = _files(ordered, build_ids)
    images = [*(_image(mapping, files) for mapping in ordered), (NOWHERE, "")]
    starts = np.array([mapping.start for mapping in ordered], dtype=np.uint64)
    # The last entry is for addresses outside all mappings; position -1, before the first mapping, leads there too.
    ends = np.array([*(mapping.end for mapping in ordered), 0], dtype=np.uint64)
    shifts = np.array([*map(_shift, ordered), 0], dtype=np.uint64)
    returns = np.array(addresses, dtype=np.uint64)
    calls = returns - (returns > 0)
    position = np.searchsorted(starts, calls, side="right") - 1
    position[calls >= ends[position]] = len(ordered)
    used, image = np.unique(position, return_inverse=True)
    return Locations([images[at] for at in used.tolist()], image, calls + shifts[position], returns)


def _files(ordered: Iterable[Mapping], build_ids: Dictionary[str, str]) -> dict[tuple[str, bool], str]:
    """Build-ids by path and whether the file was deleted: a path may mean an old file and what has replaced it."""
    deleted: dict[str, bool] = {}
    for mapping in ordered:
        if mapping.executable:
            deleted.setdefault(mapping.path, mapping.deleted)
    return {(path, deleted[path]): build_id for path, build_id in build_ids.items() if path in deleted}


def _image(mapping: Mapping, files: Dictionary[tuple[str, bool], str]) -> tuple[str, str]:
    """(path, build-id)"""
    if mapping.path.startswith("[v"):
        return mapping.path, ""
    # Code lies in executable pages. An address in any other page is data, perhaps an interpreter's method.
    if not mapping.executable:
        return NOWHERE, ""
    if mapping.file_less or mapping.path.startswith(("[", "anon_inode:")):
        return JIT, ""
    if not mapping.path.startswith("/"):  # as a foreign profile may say it: a name, and nothing to open
        return PurePosixPath(mapping.path).name or JIT, files.get((mapping.path, mapping.deleted), "")
    path = mapping.path.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    return path, files.get((mapping.path, mapping.deleted), "")


def _shift(mapping: Mapping) -> int:
    """What to add to an address to get the file offset, modulo 2^64; 0 for memory outside any file."""
    path, _build_id = _image(mapping, {})
    return (mapping.offset - mapping.start) % (1 << 64) if path not in (JIT, NOWHERE) else 0
