# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""What a controller asks a target to pack: dumps, images, perf maps, lives, holders, each under a name in the tar file.

This module is private to the collection.
"""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

from ansible_collections.offheap.profiler.plugins.module_utils.formats import values
from ansible_collections.offheap.profiler.plugins.module_utils.formats.errors import OffheapError

_LONGEST = 16384


class RequestError(OffheapError):
    """The request is malformed. The message names the first wrong field."""


class Identity(NamedTuple):
    """Identifies a file, to detect whether it has changed since. Times in nanoseconds since the epoch.

    Each number is a count (values.is_size), whatever the file system or the file's owner has made of it.
    """

    inode: int
    size: int
    mtime_ns: int

    @classmethod
    def of(cls, status: os.stat_result) -> Identity:
        return cls(status.st_ino & values.MOST, status.st_size, min(max(status.st_mtime_ns, 0), values.MOST))


@dataclass(frozen=True)
class SpooledDump:
    """A dump in a unit's spool, as it was when listed."""

    unit: str
    name: str
    identity: Identity

    @classmethod
    def from_json(cls, data: Any) -> SpooledDump:
        """Raises RequestError."""
        return cls(_text(data, "unit"), _text(data, "name"), _identity(data))


@dataclass(frozen=True)
class DumpMember(SpooledDump):
    """A dump to pack as ``member``."""

    member: str

    @classmethod
    def from_json(cls, data: Any) -> DumpMember:
        """Raises RequestError."""
        return cls(_text(data, "unit"), _text(data, "name"), _identity(data), _text(data, "member"))


@dataclass(frozen=True)
class ImageMember:
    """An image to pack as ``member``, from the first path in ``sources`` that still holds the build."""

    member: str
    build_id: str
    size: int
    sources: list[str]

    @classmethod
    def from_json(cls, data: Any) -> ImageMember:
        """Raises RequestError."""
        sources = _field(data, "sources")
        _must("sources", isinstance(sources, list) and all(isinstance(source, str) for source in sources))
        size = _field(data, "size")
        _must("size", values.is_size(size))
        return cls(_text(data, "member"), _text(data, "build_id"), size, sources)


@dataclass(frozen=True)
class MapMember:
    """A perf map to pack as ``member``: the file beside a dump or, without ``identity``, a running process's."""

    member: str
    unit: str
    name: str
    identity: Identity | None
    pid: int
    key: str

    @classmethod
    def from_json(cls, data: Any) -> MapMember:
        """Raises RequestError."""
        beside = None if _field(data, "identity") is None else _identity(data)
        pid = _field(data, "pid")
        _must("pid", values.is_size(pid))
        return cls(_text(data, "member"), _text(data, "unit"), _text(data, "name"), beside, pid, _text(data, "key"))


@dataclass(frozen=True)
class PackRequest:
    """The requested contents of one tar file. A member of ``lives`` or ``holders`` lies beside the dump it names."""

    dumps: list[DumpMember]
    images: list[ImageMember]
    maps: list[MapMember]
    lives: list[DumpMember] = field(default_factory=list)
    holders: list[DumpMember] = field(default_factory=list)

    @property
    def size(self) -> int:
        """Bytes of everything whose size is known; of maps, only those beside a dump."""
        known = sum(image.size for image in self.images)
        known += sum(file.identity.size for file in (*self.dumps, *self.lives, *self.holders))
        return known + sum(beside.identity.size for beside in self.maps if beside.identity)

    def to_json(self) -> dict[str, Any]:
        """The form that is sent; the reverse of ``from_json``."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Any) -> PackRequest:
        """Raises RequestError."""
        parts = {name: _field(data, name) for name in ("dumps", "images", "maps", "lives", "holders")}
        for name, part in parts.items():
            _must(name, isinstance(part, list))
        return cls(
            [DumpMember.from_json(entry) for entry in parts["dumps"]],
            [ImageMember.from_json(entry) for entry in parts["images"]],
            [MapMember.from_json(entry) for entry in parts["maps"]],
            [DumpMember.from_json(entry) for entry in parts["lives"]],
            [DumpMember.from_json(entry) for entry in parts["holders"]],
        )


def _must(name: str, right: bool) -> None:
    if not right:
        raise RequestError(f"{name} in the request is invalid")


def _field(data: Any, name: str) -> Any:
    _must(name, isinstance(data, dict) and name in data)
    return data[name]


def _text(data: Any, name: str) -> str:
    value = _field(data, name)
    _must(name, values.is_text(value, _LONGEST))
    return str(value)


def _identity(data: Any) -> Identity:
    value = _field(data, "identity")
    _must(
        "identity",
        isinstance(value, (list, tuple))
        and len(value) == 3
        and all(isinstance(part, int) and not isinstance(part, bool) for part in value),
    )
    return Identity(*value)
