# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Who holds what lives, as the agent writes it beside a dump (``<dump>.holders``), read and checked.

The file belongs to the service's user, who may have put anything there. Whatever it is, ``parse`` returns facts that
agree with each other, or raises HoldersError. docs/archive_format.md describes the format.

This module is private to the collection.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ansible_collections.offheap.profiler.plugins.module_utils.formats import values
from ansible_collections.offheap.profiler.plugins.module_utils.formats.errors import OffheapError

FORMAT = 1
ROOTS = ("global", "thread_local", "stack", "thread", "mapped", "java_heap", "epoll")
_MOST_FILES, _MOST_NODES, _MOST_STACKS, _MOST_FRAMES, _MOST_WAYS, _MOST_TYPES = 1024, 1 << 16, 64, 1 << 12, 1 << 12, 8
#: sizes that are told of one stack; one that has so many may have more
MOST_SIZES = 16
_MOST_BINS = 128
_MOST_AGE = 10**6
# Steps of a way, of the agent's 24 at most: each of many ways is followed to its root, which must not take long.
_DEEPEST = 32
_LONGEST = 4096


class HoldersError(OffheapError):
    """The file is not what the agent writes. The message says what is wrong."""


@dataclass(frozen=True)
class Place:
    """An address in a file, as its symbols have it; in thread-local memory, behind the start of the file's."""

    file: str
    at: int


@dataclass(frozen=True)
class Node:
    """A step of a way to blocks: a root, or blocks of one size and type.

    ``kind`` is one of ROOTS, or "block". ``parent`` is the number of the node before, None of a root. ``many`` says
    that blocks of this kind point to each other. ``place`` is a variable, or a type's table of virtual functions.
    ``thread`` and ``name`` are a thread's number and name; ``name`` may also be that of mapped memory.
    """

    kind: str
    parent: int | None = None
    size: int = 0
    many: bool = False
    place: Place | None = None
    thread: int | None = None
    name: str = ""


@dataclass(frozen=True)
class StackHolders:
    """What one stack has allocated and what lives of it, by who holds it. ``frames`` are addresses, leaf first.

    ``looked`` samples were old enough, and lived all the time; of these ``lost`` have no holder, each of ``held`` is a
    node and how many it leads to, and ``otherwise`` are held by less common ways. ``types`` are tables of virtual
    functions, ``sizes`` those of its blocks, up to MOST_SIZES.
    """

    frames: tuple[int, ...]
    living: int
    bytes: int
    looked: int
    lost: int
    held: tuple[tuple[int, int], ...]
    otherwise: int
    types: tuple[tuple[Place, int], ...]
    sizes: tuple[int, ...] = ()


@dataclass(frozen=True)
class Holders:
    """One look. ``time`` is in seconds since the epoch, ``duration`` in seconds, ``read`` and ``swapped`` in bytes.

    ``complete`` says that all that could hold a block was read, ``blocks_known`` that the allocator could be asked
    which block an address lies in: without, blocks that nobody sampled are mapped memory. ``others`` are samples of all
    stacks but ``stacks``: how many were looked at, and how many have no holder. ``sizes`` are sizes of small blocks,
    how many of each live, and to how many a way leads; empty where the allocator does not tell.
    """

    dump: str
    time: float
    duration: float
    complete: bool
    blocks_known: bool
    read: int
    swapped: int
    nodes: tuple[Node, ...]
    stacks: tuple[StackHolders, ...]
    others: tuple[int, int]
    reached: int = 0
    living: int = 0
    interval: int = 0
    sizes: tuple[tuple[int, int, int], ...] = ()


def parse(text: bytes) -> Holders:
    """The look in a file. Raises HoldersError."""
    try:
        data = values.parsed(text.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise HoldersError("it is not JSON") from error
    _must("format", isinstance(data, dict) and data.get("format") == FORMAT)
    files = _list(data, "files", _MOST_FILES)
    _must("files", all(values.is_text(path, _LONGEST) for path in files))
    nodes: list[Node] = []
    depths: list[int] = []
    for entry in _list(data, "nodes", _MOST_NODES):
        node = _node(entry, files, len(nodes))
        depths.append(0 if node.parent is None else depths[node.parent] + 1)
        _must("parent", depths[-1] <= _DEEPEST)
        nodes.append(node)
    stacks = tuple(_stack(entry, files, len(nodes)) for entry in _list(data, "stacks", _MOST_STACKS))
    others = _field(data, "others")
    looked, lost = _count(others, "looked"), _count(others, "lost")
    _must("others", lost <= looked)
    time, duration = _field(data, "time"), _field(data, "duration")
    _must("time", values.is_time(time) and values.is_number(duration) and 0 <= duration <= _MOST_AGE)
    swapped, failed = _count(data, "swapped"), _count(data, "failed")
    return Holders(
        dump=_text(data, "dump"),
        time=float(time),
        duration=float(duration),
        complete=_flag(data, "in_time") and _flag(data, "room") and not swapped and not failed,
        blocks_known=_flag(data, "blocks_known"),
        read=_count(data, "read"),
        swapped=swapped,
        nodes=tuple(nodes),
        stacks=stacks,
        others=(looked, lost),
        reached=_count(data, "reached"),
        living=_count(data, "living_blocks") if "living_blocks" in data else 0,
        interval=_count(data, "interval") if "interval" in data else 0,
        sizes=_sizes(data) if "sizes" in data else (),
    )


def _node(entry: Any, files: list[Any], number: int) -> Node:
    kind = _field(entry, "kind")
    place = _place(entry, files) if "file" in entry else None
    if kind == "block":
        parent = _count(entry, "parent")
        _must("parent", parent < number)  # so that no way is a circle
        return Node(kind, parent, _count(entry, "size"), _flag(entry, "many"), place)
    _must("kind", kind in ROOTS)
    _must("file", place is not None or kind not in ("global", "thread_local"))
    name = _text(entry, "name") if "name" in entry else ""
    return Node(kind, place=place, thread=_count(entry, "thread") if "thread" in entry else None, name=name)


def _place(entry: Any, files: list[Any]) -> Place:
    number = _count(entry, "file")
    _must("file", number < len(files))
    return Place(str(files[number]), _count(entry, "at"))


def _sizes(data: Any) -> tuple[tuple[int, int, int], ...]:
    found = []
    for one in _list(data, "sizes", _MOST_BINS):
        _must("sizes", isinstance(one, list) and len(one) == 3 and all(values.is_size(number) for number in one))
        found.append((one[0], one[1], one[2]))
    return tuple(found)


def _stack(entry: Any, files: list[Any], nodes: int) -> StackHolders:
    frames = _list(entry, "frames", _MOST_FRAMES)
    _must("frames", all(isinstance(one, int) and not isinstance(one, bool) and 0 <= one < 1 << 64 for one in frames))
    held = []
    for pair in _list(entry, "held", _MOST_WAYS):
        _must("held", isinstance(pair, list) and len(pair) == 2 and all(values.is_size(one) for one in pair))
        _must("held", pair[0] < nodes)
        held.append((pair[0], pair[1]))
    types = [(_place(one, files), _count(one, "samples")) for one in _list(entry, "types", _MOST_TYPES)]
    sizes = _list(entry, "sizes", MOST_SIZES) if "sizes" in entry else []
    _must("sizes", all(values.is_size(size) for size in sizes))
    found = StackHolders(
        tuple(frames),
        _count(entry, "living"),
        _count(entry, "bytes"),
        _count(entry, "looked"),
        _count(entry, "lost"),
        tuple(held),
        _count(entry, "held_otherwise"),
        tuple(types),
        tuple(sizes),
    )
    _must("looked", found.lost + sum(samples for _node, samples in held) + found.otherwise == found.looked)
    return found


def _must(name: str, right: bool) -> None:
    if not right:
        raise HoldersError(f"{name} is invalid")


def _field(data: Any, name: str) -> Any:
    _must(name, isinstance(data, dict) and name in data)
    return data[name]


def _list(data: Any, name: str, most: int) -> list[Any]:
    found = _field(data, name)
    _must(name, isinstance(found, list) and len(found) <= most)
    return list(found)


def _count(data: Any, name: str) -> int:
    found = _field(data, name)
    _must(name, values.is_size(found))
    return int(found)


def _flag(data: Any, name: str) -> bool:
    found = _field(data, name)
    _must(name, isinstance(found, bool))
    return bool(found)


def _text(data: Any, name: str) -> str:
    found = _field(data, name)
    _must(name, values.is_text(found, _LONGEST))
    return str(found)
