# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""From looks at one unit's memory to what grows and how fast."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import NamedTuple

from .look import Beside, Part, Process, Sample
from .rise import NONE, OF_TWO_LOOKS, SHORTEST, Rise, rise, since, together

# A younger process still loads classes, compiles and fills its caches.
_WARM = 600.0
_MIB = 1 << 20


class FileInMemory(NamedTuple):
    """Sizes in bytes; ``growth`` between the first look and the last."""

    path: str
    size: int
    growth: int


@dataclass(frozen=True)
class Growth:
    """What several looks at one process show. Sizes in bytes; what rises does so over ``seconds``.

    ``growth`` is that of what it holds, ``parts`` of its parts. ``processes`` of the unit were looked at twice, of
    which this one grows most; ``unit_growth`` is that of all, in the time of this one, ``unit_held`` what all hold, and
    ``limit`` what the unit may hold (None without a limit), of which it has ``charged``. ``beside`` is that of the
    parts of its control group, and ``host`` what the host's memory was at the last look. ``in_memory`` is the file in
    memory that grows most. ``problem`` says why there is nothing to judge.
    """

    name: str
    problem: str | None = None
    process: Process | None = None
    seconds: float = 0.0
    growth: Rise = NONE
    parts: Mapping[Part, Rise] = field(default_factory=dict)
    threads: int = 0
    direct: Rise | None = None
    deaths: tuple[str, ...] = ()
    processes: int = 0
    unit_growth: Rise = NONE
    unit_held: int = 0
    limit: int | None = None
    charged: int | None = None
    swapped: Rise = NONE
    beside: Mapping[Beside, Rise] = field(default_factory=dict)
    host: Mapping[str, int] = field(default_factory=dict)
    in_memory: FileInMemory | None = None

    @property
    def room(self) -> int | None:
        """What the unit's limit leaves it, or what the host has for whoever wants it; None where that is not known, or
        where swap takes what does not fit."""
        if self.process is not None and self.process.swap:
            return None
        if self.limit is None:
            return self.host.get("available")
        return max(self.limit - (self.unit_held if self.charged is None else self.charged), 0)

    @property
    def beyond_the_heap(self) -> int:
        """What the unit holds besides the Java heap of this process."""
        heap = self.process.parts[Part.JAVA_HEAP] if self.process and self.process.parts else 0
        return self.unit_held - heap

    @property
    def too_much(self) -> int:
        """By how much a Java heap that fills would exceed the limit, or the host's memory, with all else as it is now;
        0 if it fits."""
        limit = self.host.get("total") if self.limit is None else self.limit
        if self.process is None or not self.process.parts or self.process.max_heap is None or limit is None:
            return 0
        return max(self.beyond_the_heap + self.process.max_heap - limit, 0)

    @property
    def pid(self) -> int:
        return self.process.pid if self.process else 0

    @property
    def floor(self) -> float:
        """What is no more does not matter, whether it is chance or not."""
        return _floor(self.process.held) if self.process else 0.0

    @property
    def grows(self) -> bool:
        return self.growth.size > max(self.floor, self.growth.chance)

    @property
    def is_rough(self) -> bool:
        """Whether it has gained a tenth of what it holds, but not steadily: in a step, or rising and falling."""
        return self.process is not None and not self.grows and self.growth.size > 0.1 * self.process.held

    def per_hour(self, size: float) -> float:
        return size * 3600 / self.seconds if self.seconds else 0.0

    def rises(self, part: Part) -> bool:
        """Whether this part does, by more than chance and than what does not matter."""
        found = self.parts.get(part, NONE)
        return found.size > max(self.floor, found.chance)

    def leads(self, part: Part) -> bool:
        """Whether this part grows most of all, and is at least a third of the growth."""
        most = max((one.size for one in self.parts.values()), default=0.0)
        return self.grows and self.parts.get(part, NONE).size == most and most * 3 >= self.growth.size

    @property
    def filling(self) -> Rise:
        """What takes the room that is left: all processes, or what grows beside them and is not given back."""
        if self.grows:
            return self.unit_growth
        kept = (part for part in Beside if part is not Beside.FILES and self.leads_beside(part))
        return next((self.beside[part] for part in kept), NONE)

    def leads_beside(self, part: Beside) -> bool:
        """Whether no process grows and this part of the control group does, most of all. A log that is written, or a
        burst of requests, is noise."""
        most = max((one.size for one in self.beside.values()), default=0.0)
        found = self.beside.get(part, NONE)
        return not self.grows and found.size == most > max(_floor_beside(self.unit_held), found.chance)

    def idle(self, part: Part) -> bool:
        """Whether this part, which malloc keeps free, is at least 32 MiB and a quarter of the resident set."""
        if self.process is None or not self.process.parts:
            return False
        free = self.process.parts[part]
        return free >= 32 * _MIB and free * 4 >= self.process.rss


def growth(samples: Iterable[Sample]) -> Growth:
    """What grows in the unit, by its process that grows most: from the first look at it, once warm, to the last.

    A process that was started between two looks counts as another one. Samples are of one unit on one host.
    """
    ordered = sorted(samples, key=lambda sample: sample.order)
    last = max(ordered, key=partial(_late, ordered[-1].processes))
    if last.problem:
        return Growth(last.name, last.problem)
    found = [_of_process(process, last, ordered) for process in last.processes.values()]
    judged = [growth for growth in found if not growth.problem] or found
    if not judged:
        return Growth(last.name, f"{last.name} has no process")
    chosen = max(judged, key=lambda one: (one.grows, one.growth.size if one.grows else 0, _rss(one)))
    known = [growth for growth in found if growth.seconds]
    return replace(
        chosen,
        deaths=last.deaths,
        processes=len(known),
        unit_growth=together(one.growth.times(chosen.seconds / one.seconds) for one in known),
        unit_held=sum(process.held for process in last.processes.values()),
        limit=last.limit,
        charged=last.charged,
        host=last.host,
        in_memory=_grown_most(ordered[0].in_memory, last.in_memory),
    )


def _grown_most(before: Mapping[str, int], now: Mapping[str, int]) -> FileInMemory | None:
    grown = [FileInMemory(path, size, size - before.get(path, 0)) for path, size in now.items()]
    return max((file for file in grown if file.growth > 0), key=lambda file: file.growth, default=None)


def _rss(growth: Growth) -> int:
    return growth.process.rss if growth.process else 0


def _floor(held: int) -> float:
    """1 MiB, or half a percent of what a process holds if that is more: between two looks, a working one may grow by
    so much and be healthy."""
    return max(_MIB, 0.005 * held)


def _floor_beside(held: int) -> float:
    """The same of a part of the control group, which no process may show."""
    return max(4 * _MIB, 0.02 * held)


def _late(known: Collection[str], sample: Sample) -> tuple[float, float]:
    """What is larger of a later look: the age of its ``known`` processes, since a clock may be set back; its time."""
    return max((process.age for process in sample.processes.values() if process.key in known), default=-1), sample.time


def _of_process(now: Process, last: Sample, ordered: Sequence[Sample]) -> Growth:
    looks = [(sample, sample.processes[now.key]) for sample in ordered if now.key in sample.processes]
    looks.sort(key=lambda look: look[1].age)
    warm = [look for look in looks if look[1].age >= _WARM]
    looks = warm if len(warm) > 1 else looks
    readable = [look for look in looks if look[1].parts is not None]
    if len(looks) > 1 and (len(readable) < 2 or now.parts is None):
        why = next((item for item in now.not_readable if item.startswith("its memory map")), "its memory map")
        return Growth(last.name, f"not readable: {why}", now)
    if len(looks) < 2 or now.age - readable[0][1].age < SHORTEST:
        restarted = len(ordered) > 1
        why = "it was started between the looks" if restarted else "there is only one look at it"
        return Growth(last.name, f"{why}: look again later", now)
    usual, usual_beside = _floor(now.held) / OF_TWO_LOOKS, _floor_beside(now.held) / OF_TWO_LOOKS
    held = [process.held for _sample, process in readable]
    first = since([process.age for _sample, process in readable], held, usual)
    samples, processes = zip(*readable[first:], strict=True)
    times = [process.age for process in processes]
    direct = [process.direct for process in processes if process.direct is not None]
    return Growth(
        last.name,
        None,
        now,
        times[-1] - times[0],
        rise(times, [process.held for process in processes], usual, among=len(last.processes)),
        {part: rise(times, sizes, usual) for part, sizes in _divided(processes).items()},
        now.threads - processes[0].threads,
        rise(times, direct, usual) if len(direct) == len(times) else None,
        swapped=rise(times, [process.swap for process in processes], usual),
        beside={
            part: rise(times, [sample.beside[part] for sample in samples], usual_beside)
            for part in Beside
            if all(part in sample.beside for sample in samples)
        },
    )


def _divided(processes: Sequence[Process]) -> dict[Part, list[int]]:
    """The sizes of each part, look by look. Where one look could not tell what malloc keeps free, as of a heap that is
    swapped out, all of malloc's memory counts as in use in all."""
    sizes = {part: [process.parts[part] for process in processes if process.parts] for part in Part}
    if not all(process.malloc_known for process in processes):
        for part in (Part.MALLOC_FREE_HEAP, Part.MALLOC_FREE_ARENAS):
            sizes[Part.MALLOC_USED] = list(map(sum, zip(sizes[Part.MALLOC_USED], sizes[part], strict=True)))
            sizes[part] = [0] * len(processes)
    return sizes
