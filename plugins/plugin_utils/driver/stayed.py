# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""What came during a live trace and stayed, by code path, and for how long it has stayed by now.

One dump has no trend, but in a recording of async-profiler each allocation has an age. What a service has in use is
young; what it keeps is of every age up to that of the trace. The texts of memleak and perf have no ages, nor have the
agent's dumps.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ...module_utils.formats import values
from ...module_utils.formats.capture_facts import ASYNC_PROFILER, JEMALLOC, CaptureFacts
from ..archive.archive import read_dump
from ..base import child, libraries
from ..base.errors import ControllerError
from ..base.printable import printable
from ..model.frame import Frame, is_allocator_module
from ..model.raw import Told
from ..model.samples import BYTES
from ..model.stack_summary import render
from ..readers import detect, jfr
from .sources import Places, open_reader

_LONGEST = 1000


class StayedError(ControllerError):
    """What was parsed cannot be used. The message says why."""


@dataclass(frozen=True)
class Stayed:
    """A path in short, leaf first. ``bytes`` are live (perf's: came); half of them have ``age`` seconds or more, if
    that is known."""

    path: str
    bytes: int
    age: float | None


def stayed(dump: Path, facts: CaptureFacts, most: int) -> list[Stayed]:
    """The ``most`` largest paths of a trace's dump in the archive. Raises ControllerError."""
    if facts.source == JEMALLOC:
        return _sampled(dump, most)
    child.start(__name__, *libraries.DUMPS)
    answer = json.loads(child.call(_read, dump, facts.dump.sha256, facts.source, most, size=facts.dump.size))
    found = [Stayed(**one) for one in answer]
    for one in found:
        aged = one.age is None or values.is_number(one.age)
        if not (values.is_text(one.path, _LONGEST) and values.is_size(one.bytes) and aged):
            raise StayedError(f"{dump}: what was parsed makes no sense")
    return found


def _sampled(dump: Path, most: int) -> list[Stayed]:
    """Of an agent's dump, whose addresses are named by the images of its archive."""
    with open_reader([dump], Places()) as reader:
        samples = reader.read(dump).samples
    sizes: dict[tuple[Frame, ...], float] = {}
    for stack, size in zip(samples.each_stack_of_frames(), samples.values[BYTES].tolist(), strict=True):
        sizes[stack] = sizes.get(stack, 0.0) + size
    largest = sorted(sizes.items(), key=lambda one: -one[1])[:most]
    return [Stayed(printable(render(stack))[:_LONGEST], round(size), None) for stack, size in largest if size]


def _read(dump: Path, sha256: str, source: str, most: int) -> bytes:
    """In the child."""
    data = read_dump(dump, sha256)
    aged = source == ASYNC_PROFILER
    ages: dict[tuple[Frame, ...], list[tuple[float, int]]] = {}
    for stack, size, age in _recorded(data, dump) if aged else _listed(data, dump):
        own = tuple([frame for frame in stack if not is_allocator_module(frame)])
        ages.setdefault(own, []).append((max(age, 0.0), size))
    paths = [
        Stayed(printable(render(path))[:_LONGEST], sum(size for _age, size in parts), _median(parts) if aged else None)
        for path, parts in ages.items()
    ]
    paths.sort(key=lambda one: -one.bytes)
    return json.dumps([vars(one) for one in paths[:most]]).encode()


def _recorded(data: bytes, dump: Path) -> Iterable[tuple[Sequence[Frame], int, float]]:
    return jfr.each_live(jfr.allocations(data, str(dump), Told()))


def _listed(data: bytes, dump: Path) -> Iterable[tuple[Sequence[Frame], int, float]]:
    records = detect.parse(data, str(dump), Told())
    for stack, size in zip(records.stacks(), records.counts.bytes.tolist(), strict=True):
        yield [records.names[place] for place in stack], int(size), 0.0


def _median(parts: list[tuple[float, int]]) -> float:
    """The age that half of the bytes have reached."""
    left = sum(size for _age, size in parts) / 2
    for age, size in sorted(parts, reverse=True):
        left -= size
        if left <= 0:
            return age
    return 0.0
