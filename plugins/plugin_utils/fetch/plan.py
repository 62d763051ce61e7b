# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""What to bring from a target, decided from its listing: checked, without what the archive has, in batches."""

from __future__ import annotations

import itertools
import posixpath
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from ...module_utils.formats import command_line, dump_name, jvm_memory, limits, sidecar, values
from ...module_utils.formats.capture_facts import ASYNC_PROFILER, JEMALLOC, CaptureFacts, CaptureFactsError
from ..archive.archive import Archive
from ..base.printable import printable
from .unpack_tar import TransferError

_KINDS = ("incomplete", "unreadable", "writing")
_MAX_REASON = 500
# What a spool may hold, by how the names of dumps begin. How a recording was sampled, it says itself.
_SOURCES = {
    dump_name.PREFIX: JEMALLOC,
    dump_name.TRACED: ASYNC_PROFILER,
    dump_name.MEMLEAK: dump_name.MEMLEAK,
    dump_name.PERF: dump_name.PERF,
    dump_name.PPROF: dump_name.PPROF,
    dump_name.GPERFTOOLS: dump_name.GPERFTOOLS,
}
#: bytes that one run takes from a host: some sixty spools and images full to their limits
MOST_BYTES = 16 << 30
#: captures that a host is asked for at once, unless told otherwise
MOST_CAPTURES = 5000
_REFUSED = (CaptureFactsError, sidecar.SidecarError, jvm_memory.JvmMemoryError)


@dataclass(frozen=True)
class Found:
    """A dump on the target: its facts for the archive, and what identifies the file when it is moved there.

    ``jit`` says that its process had compiled code, ``map_identity`` that a perf map lies beside it, ``lives_identity``
    and ``holders_identity`` that lives and holders do.
    """

    facts: CaptureFacts
    identity: tuple[int, ...]
    jit: bool = False
    map_identity: tuple[int, ...] | None = None
    lives_identity: tuple[int, ...] | None = None
    holders_identity: tuple[int, ...] | None = None

    @property
    def size(self) -> int:
        return self.facts.dump.size

    def mark(self) -> dict[str, Any]:
        """As the module's step "mark" expects it."""
        return {"unit": self.facts.unit, "name": self.facts.dump.name, "identity": list(self.identity)}

    @property
    def map_size(self) -> int:
        """Bytes of the map beside it."""
        return self.map_identity[1] if self.map_identity else 0

    @property
    def lives_size(self) -> int:
        """Bytes of the lives beside it."""
        return self.lives_identity[1] if self.lives_identity else 0

    @property
    def holders_size(self) -> int:
        """Bytes of the holders beside it."""
        return self.holders_identity[1] if self.holders_identity else 0

    @property
    def whole_size(self) -> int:
        """Bytes of the dump and of what lies beside it."""
        return self.size + self.map_size + self.lives_size + self.holders_size


@dataclass(frozen=True)
class WantedImage:
    """An image that the archive lacks, and where on the target it can be read."""

    build_id: str
    sha256: str
    path: str
    size: int
    sources: tuple[str, ...]

    @property
    def key(self) -> tuple[str, str]:
        """What tells it from others."""
        return self.build_id, self.sha256

    @property
    def basename(self) -> str:
        return posixpath.basename(self.path) or "image"


@dataclass
class Listing:
    """A target's listing, checked. ``free`` is the room for packing, in bytes."""

    captures: list[Found] = field(default_factory=list)
    images: list[WantedImage] = field(default_factory=list)
    missing_images: list[dict[str, str]] = field(default_factory=list)
    others: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    absent: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    left: int = 0
    free: int = 0


@dataclass
class Batch:
    """What goes into one transfer, by member name. ``maps``, ``lives`` and ``holders`` hold the dump that each
    belongs to."""

    dumps: dict[str, Found] = field(default_factory=dict)
    images: dict[str, WantedImage] = field(default_factory=dict)
    maps: dict[str, Found] = field(default_factory=dict)
    lives: dict[str, Found] = field(default_factory=dict)
    holders: dict[str, Found] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """Bytes before compression."""
        return sum(self.sizes().values())

    def sizes(self) -> dict[str, int]:
        """Size in bytes by member, without members that are created during packing."""
        sizes = {member: found.size for member, found in self.dumps.items()}
        sizes.update((member, image.size) for member, image in self.images.items())
        sizes.update((member, found.map_size) for member, found in self.maps.items() if found.map_identity)
        sizes.update((member, found.lives_size) for member, found in self.lives.items())
        sizes.update((member, found.holders_size) for member, found in self.holders.items())
        return sizes

    def made(self) -> set[str]:
        """Members of unknown size: maps that are requested from running processes."""
        return {member for member, found in self.maps.items() if not found.map_identity}

    def request(self) -> dict[str, Any]:
        """As the module's step "pack" expects it."""
        return {
            "dumps": [{"member": member, **found.mark()} for member, found in self.dumps.items()],
            "images": [
                {"member": member, "build_id": image.build_id, "size": image.size, "sources": list(image.sources)}
                for member, image in self.images.items()
            ],
            "maps": [
                {
                    "member": member,
                    **found.mark(),
                    "identity": list(found.map_identity) if found.map_identity else None,
                    "pid": found.facts.process.pid,
                    "key": found.facts.process.key,
                }
                for member, found in self.maps.items()
            ],
            "lives": [
                {"member": member, **found.mark(), "identity": list(found.lives_identity or ())}
                for member, found in self.lives.items()
            ],
            "holders": [
                {"member": member, **found.mark(), "identity": list(found.holders_identity or ())}
                for member, found in self.holders.items()
            ],
        }


def read_listing(
    data: dict[str, Any], host: str, max_dump: int, max_image: int, label: str = "", max_captures: int = MOST_CAPTURES
) -> Listing:
    """Check what the module's step "list" returned. ``host`` is our name for the target.

    ``label``, if any, becomes part of the facts. Raises TransferError for anything that the module would not have sent.
    """
    try:
        captures = _a_list(data, "captures")
        if len(captures) > max_captures:
            raise ValueError(f"{len(captures)} captures, and {max_captures} were asked for")
        images = [_image(image) for image in _a_list(data, "images")]
        processes = [_process(process) for process in _a_list(data, "processes")]
        listing = Listing(
            captures=[_found(entry, host, label, processes, images, max_dump) for entry in captures],
            others={kind: [_other(entry) for entry in _a_list(data["others"], kind)] for kind in _KINDS},
            counts={kind: _count(data["counts"][kind]) for kind in _KINDS},
            absent=[_text(unit) for unit in _a_list(data, "absent")],
            problems=[_text(problem) for problem in _a_list(data, "problems")],
            left=_count(data["left"]),
            free=_count(data["free"]),
        )
        if any(listing.counts[kind] and not listing.others[kind] for kind in _KINDS):
            raise ValueError("it counts dumps that it does not name")
        used = {index for entry in captures for index in entry["images"]}
        _sort_images(listing, [(images[index], data["images"][index]) for index in sorted(used)], max_image)
    except (KeyError, IndexError, TypeError, ValueError, AttributeError, *_REFUSED) as exc:
        raise TransferError(f"the host sent an invalid listing: {type(exc).__name__}: {exc}") from exc
    return listing


def read_marked(data: dict[str, Any]) -> tuple[int, list[str]]:
    """Check the answer to marking: (number of dumps out of the way, problems). Raises TransferError."""
    try:
        return _count(data["collected"]), [_text(problem) for problem in _a_list(data, "problems")]
    except (KeyError, TypeError, ValueError) as exc:
        raise TransferError(f"the host did not say what it marked: {type(exc).__name__}: {exc}") from exc


def _a_list(data: dict[str, Any], key: str) -> list[Any]:
    if not isinstance(data[key], list):
        raise ValueError(f"{key} is not a list")
    return list(data[key])


def _count(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 1 << 62:
        raise ValueError("a number is out of range")
    return value


def _text(value: object) -> str:
    """Text to show to people: short and printable."""
    if not isinstance(value, str):
        raise ValueError("a text is not a string")
    return printable(value[:_MAX_REASON])


def _other(entry: dict[str, Any]) -> dict[str, Any]:
    size = entry["size"]
    return {
        "unit": _text(entry["unit"]),
        "name": _text(entry["name"]),
        "size": None if size is None else _count(size),
        "reason": _text(entry["reason"]),
    }


def _image(entry: dict[str, Any]) -> dict[str, Any]:
    """As capture.json has it."""
    image = {key: entry[key] for key in ("path", "build_id", "size")}
    if image["build_id"] is None:
        image["reason"] = entry["reason"]
    elif entry["sha256"] is None:
        raise ValueError("an image has no checksum")
    else:
        image["sha256"] = entry["sha256"]
    return image


def _found(
    entry: dict[str, Any], host: str, label: str, processes: list[Any], images: list[dict[str, Any]], max_dump: int
) -> Found:
    identity = tuple(_count(part) for part in _a_list(entry, "identity"))
    if len(identity) != 3 or identity[1] > min(max_dump, limits.LARGEST_DUMP):
        raise ValueError("a dump's size is out of range")
    process = processes[_count(entry["process"])]
    if not values.is_time(entry["time"]) or not values.is_time(process["start_time"] or 0):
        raise ValueError("a time is out of range")
    facts = {
        "format": 1,
        "host": host,
        "unit": entry["unit"],
        "dump": {"name": entry["name"], "size": identity[1], "sha256": entry["sha256"], "time": entry["time"]},
        "process": {key: process[key] for key in ("pid", "key", "boot_id", "start_time", "exe", "cmdline")},
        "images": [images[_count(index)] for index in _a_list(entry, "images")],
    }
    if label:
        facts["label"] = label
    if entry.get("agent") is not None:
        facts["agent"] = sidecar.AgentFacts.from_json(entry["agent"]).to_json()
    elif entry.get("agent_problem") is not None:
        facts["agent"] = {"problem": _text(entry["agent_problem"])}
    if entry.get("jvm") is not None:
        facts["jvm"] = jvm_memory.JvmMemory.from_json(entry["jvm"]).to_json()
    perf_map = _beside(entry, "map", limits.LARGEST_PERF_MAP)
    lives = _beside(entry, "lives", limits.LARGEST_LIVES)
    holders = _beside(entry, "holders", limits.LARGEST_HOLDERS)
    checked = CaptureFacts.from_json(facts)
    parts = dump_name.parse(checked.dump.name)
    if parts is not None:
        checked = replace(checked, source=_SOURCES[parts.prefix])
    return Found(checked, identity, entry.get("jit") is True, perf_map, lives, holders)


def _beside(entry: dict[str, Any], key: str, largest: int) -> tuple[int, ...] | None:
    """The identity of a file beside a dump."""
    if entry.get(key) is None:
        return None
    found = tuple(_count(part) for part in _a_list(entry, key))
    if len(found) != 3 or not 0 < found[1] <= largest:
        raise ValueError(f"the size of a dump's {key} is out of range")
    return found


def _process(found: dict[str, Any]) -> dict[str, Any]:
    """As it was sent, but without secrets: the host may not have taken them out. What is no command line is refused."""
    words = found["cmdline"]
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        return found
    return {**found, "cmdline": command_line.known_words(words)}


def _sort_images(listing: Listing, images: list[tuple[dict[str, Any], dict[str, Any]]], max_image: int) -> None:
    """Split images into those to bring and those that cannot be brought, each once."""
    wanted: dict[tuple[str, str], WantedImage] = {}
    missing: dict[tuple[str, str], dict[str, str]] = {}
    for image, entry in images:
        reason = image.get("reason")
        if image["build_id"] is not None and image["size"] > max_image:
            reason = f"larger than max_image ({max_image} bytes)"
        if reason is not None:
            path, reason = _text(image["path"]), _text(reason)
            missing.setdefault((path, reason), {"path": path, "reason": reason})
        else:
            sources = [source for source in (entry["source"], image["path"]) if isinstance(source, str)]
            one = WantedImage(
                image["build_id"], image["sha256"], image["path"], image["size"], tuple(dict.fromkeys(sources))
            )
            wanted.setdefault(one.key, one)
    listing.images = list(wanted.values())
    listing.missing_images = list(missing.values())


def without_known(listing: Listing, archive: Archive | None) -> tuple[list[Found], list[Found], list[WantedImage]]:
    """New dumps, dumps that the archive has already, and images that it lacks. Without an archive everything is new."""
    if archive is None:
        return listing.captures, [], listing.images
    new: list[Found] = []
    known: list[Found] = []
    for found in listing.captures:
        (known if archive.has(found.facts) else new).append(found)
    lacking = set(archive.missing_images(image.key for image in listing.images))
    return new, known, [image for image in listing.images if image.key in lacking]


def smallest(images: list[WantedImage], limit: int) -> list[WantedImage]:
    """As many of the images as ``limit`` bytes hold, the smallest first."""
    ordered = sorted(images, key=lambda image: image.size)
    sizes = itertools.accumulate(image.size for image in ordered)
    return [image for image, so_far in zip(ordered, sizes, strict=True) if so_far <= limit]


def batches(dumps: list[Found], images: list[WantedImage], limit: int) -> Iterator[Batch]:
    """Transfers of at most ``limit`` bytes before compression; anything larger goes alone. Images go first.

    A dump's lives and holders go with it, and its perf map: the one beside it or, for the last dump of each process, a
    current one.
    """
    batch = Batch()
    size = 0
    items: list[Found | WantedImage] = [*images, *dumps]
    newest = {found.facts.process.key: found for found in dumps}
    for item in items:
        its_size = item.whole_size if isinstance(item, Found) else item.size
        if (batch.dumps or batch.images) and size + its_size > limit:
            yield batch
            batch, size = Batch(), 0
        if isinstance(item, Found):
            if item.map_identity or (item.jit and newest[item.facts.process.key] is item):
                batch.maps[f"maps/{len(batch.dumps)}"] = item
            if item.lives_identity:
                batch.lives[f"lives/{len(batch.dumps)}"] = item
            if item.holders_identity:
                batch.holders[f"holders/{len(batch.dumps)}"] = item
            batch.dumps[f"dumps/{len(batch.dumps)}"] = item
        else:
            batch.images[f"images/{len(batch.images)}"] = item
        size += its_size
    if batch.dumps or batch.images:
        yield batch
