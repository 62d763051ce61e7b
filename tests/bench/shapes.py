# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Processes whose memory is known: when each sampled object is born and when it dies, for many shapes of leaks and of
what looks like one. A day of each, seen as levels (dumps) and as lives (books)."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ansible_collections.offheap.profiler.plugins.plugin_utils.leaks import workers
from ansible_collections.offheap.profiler.plugins.plugin_utils.model.frame import Frame
from ansible_collections.offheap.profiler.plugins.plugin_utils.model.lives import BUCKETS, Lives, youngest
from ansible_collections.offheap.profiler.plugins.plugin_utils.model.sampling import Measure, Sampling, Scheme
from ansible_collections.offheap.profiler.plugins.plugin_utils.model.series import Series, Stack, stack_of

MIB, DAY = 1 << 20, 86400.0
DUMPS = 60
SIZE = 1024.0
Numbers = NDArray[Any]
Random = np.random.Generator
FOREVER = math.inf


def dump_times() -> Numbers:
    result: Numbers = DAY * (np.arange(DUMPS) + 1) / DUMPS
    return result


PATH = stack_of((Frame("keep", "app"), Frame("handle", "app"), Frame("main", "app")))
OTHERS = [stack_of((Frame(name, "app"), Frame("main", "app"))) for name in ("serve", "load", "parse")]


@dataclass(frozen=True)
class Objects:
    """Sampled objects of one path: when each is born, and how long it lives (seconds)."""

    born: Numbers
    life: Numbers

    @functools.cached_property
    def died(self) -> Numbers:
        result: Numbers = self.born + self.life
        return result

    @functools.cached_property
    def bucket(self) -> NDArray[np.int64]:
        """Of each life, the bucket of its length."""
        bounds = np.array([youngest(bucket) for bucket in range(BUCKETS)])
        result: NDArray[np.int64] = np.searchsorted(bounds, self.life, side="right") - 1
        return result

    @functools.cached_property
    def at_dumps(self) -> Numbers:
        """How many are alive at each dump."""
        times = dump_times()
        born, died = (np.searchsorted(np.sort(each), times, side="right") for each in (self.born, self.died))
        result: Numbers = (born - died).astype(float)
        return result

    def alive(self, time: float) -> NDArray[np.bool_]:
        result: NDArray[np.bool_] = (self.born <= time) & (self.died > time)
        return result


@dataclass(frozen=True)
class Shape:
    """``objects`` of the path that it is about, from a random source and how many are born in a day at ``rate`` MiB.

    ``leaks`` says that what never dies is lost; ``mean`` is how long entries of a cache live on average, in days;
    ``term`` says that they all live for the same time, which nobody can know before it is over. ``workers`` share the
    rate. Of ``generations`` each ends after its part of the day, with all that it holds, and the next takes its place.
    """

    name: str
    objects: Callable[[Random, float], Objects]
    leaks: bool = False
    term: bool = False
    mean: float = 0.0
    rate: float = 300.0
    workers: int = 1
    generations: int = 1


def _times(random: Random, count: float, weight: Callable[[Numbers], Numbers] | None = None) -> Numbers:
    """The times of births, ``count`` on average, at a rate that is 1, or at most 1 by the part of the day."""
    found = random.uniform(0, DAY, random.poisson(count))
    if weight is not None:
        found = found[random.uniform(0, 1, len(found)) < weight(found / DAY)]
    return np.sort(found)


def _kept(weight: Callable[[Numbers], Numbers] | None = None) -> Callable[[Random, float], Objects]:
    def objects(random: Random, count: float) -> Objects:
        born = _times(random, count, weight)
        return Objects(born, np.full(len(born), FOREVER))

    return objects


def _bursts(number: int) -> Callable[[Random, float], Objects]:
    def objects(random: Random, count: float) -> Objects:
        starts = (np.arange(number) + 0.5) / number * DAY
        sizes = random.poisson(count / number, number)
        born = np.repeat(starts, sizes)
        born += random.uniform(0, 60, len(born))
        return Objects(np.sort(born), np.full(len(born), FOREVER))

    return objects


def _churn(part: float) -> Callable[[Random, float], Objects]:
    """A part of what lives for five minutes leaks; as much leaks as of the other shapes."""

    def objects(random: Random, count: float) -> Objects:
        born = _times(random, count / part)
        life = np.where(random.uniform(0, 1, len(born)) < part, FOREVER, random.exponential(300, len(born)))
        return Objects(born, life)

    return objects


def _cache(mean: float, weight: Callable[[Numbers], Numbers] | None = None) -> Callable[[Random, float], Objects]:
    def objects(random: Random, count: float) -> Objects:
        born = _times(random, count, weight)
        return Objects(born, random.exponential(mean * DAY, len(born)))

    return objects


def _tail(power: float) -> Callable[[Random, float], Objects]:
    def objects(random: Random, count: float) -> Objects:
        born = _times(random, count)
        return Objects(born, 60 * (1 + random.pareto(power, len(born))))

    return objects


def _doubling(random: Random, count: float) -> Objects:
    """One object by realloc, of as much as the other shapes leak by the end: the newest is the only one alive."""
    doublings = max(int(math.log2(max(count, 2))), 1)
    born: list[float] = []
    life: list[float] = []
    for at in range(doublings + 1):
        start, end = DAY * 2.0 ** (at - doublings) * (at > 0), DAY * 2.0 ** (at + 1 - doublings)
        size = 2**at
        born += [start] * size
        life += [end - start] * size
    return Objects(np.array(born), np.array(life))


def _term(hours: float) -> Callable[[Random, float], Objects]:
    def objects(random: Random, count: float) -> Objects:
        born = _times(random, count)
        return Objects(born, np.full(len(born), hours * 3600))

    return objects


def _from(start: float) -> Callable[[Numbers], Numbers]:
    return lambda part: 1.0 * (part > start)


def _wave(part: Numbers) -> Numbers:
    result: Numbers = (1.01 - np.cos(2 * math.pi * part / 3)) / 2.01
    return result


SHAPES = {
    shape.name: shape
    for shape in (
        Shape("steady", _kept(), leaks=True),
        *(Shape(f"begins-{at}", _kept(_from(at)), leaks=True) for at in (0.5, 0.7, 0.8, 0.9)),
        *(Shape(f"bursts-{number}", _bursts(number), leaks=True) for number in (3, 4, 8, 20)),
        Shape("pauses", _kept(lambda part: 1.0 * ((part < 1 / 3) | (part > 2 / 3))), leaks=True),
        Shape("nights", _kept(lambda part: 1.0 * ((part * 3 % 1 > 0.5) & (part * 3 % 1 < 0.6))), leaks=True, rate=900),
        Shape("stopped", _kept(lambda part: 1.0 * (part < 0.6)), leaks=True),
        *(Shape(f"churn-{part:.0%}", _churn(part), leaks=True) for part in (0.01, 0.02, 0.1)),
        Shape("doubling", _doubling, leaks=True),
        Shape("prefork", _kept(), leaks=True, workers=4),
        Shape("prefork-cache", _cache(0.1), mean=0.1, workers=4),
        *(Shape(f"cache-{mean:g}", _cache(mean), mean=mean) for mean in (0.02, 0.1, 0.5, 1, 2, 5, 10)),
        # What was there before sampling began dies unseen, and what takes its place is seen: a cache that fills.
        Shape("replaced", _cache(0.3), mean=0.3),
        Shape("ramp", _cache(1200 / DAY, lambda part: part), rate=3000),
        Shape("wave", _cache(3600 / DAY, _wave), rate=6000),
        Shape("tail-1.2", _tail(1.2), rate=3000),
        Shape("tail-0.9", _tail(0.9), rate=3000),
        Shape("log", _cache(7200 / DAY, lambda part: 1 / (1 + 20 * part)), rate=2000),
        Shape("root", _cache(7200 / DAY, lambda part: 0.05 / np.sqrt(np.maximum(part, 0.0025))), rate=4000),
        Shape("recycled", _kept(), leaks=True, generations=10),
        Shape("recycled-cache", _cache(0.01), mean=0.01, rate=3000, generations=10),
        Shape("term-6h", _term(6), mean=0.25, term=True, rate=1500),
    )
}


def _weight(interval: int) -> float:
    """The bytes that a sampled object stands for."""
    return SIZE / -math.expm1(-SIZE / interval)


@dataclass(frozen=True)
class Process:
    """A path of a shape beside three that are healthy, sampled once in ``interval`` bytes."""

    interval: int
    paths: list[Objects]

    def lost(self, time: float) -> float:
        """The bytes of the path that are never given back, by then."""
        path = self.paths[0]
        return float((np.isinf(path.life) & (path.born <= time)).sum()) * self.weight

    def held(self, time: float) -> float:
        """The bytes that the path holds, by what is sampled."""
        return float(self.paths[0].alive(time).sum()) * self.weight

    @property
    def weight(self) -> float:
        return _weight(self.interval)

    def series(self, until: float) -> Series:
        times = dump_times()
        times = times[times <= until]
        count = np.array([path.at_dumps[: len(times)] for path in self.paths]) * self.weight / SIZE
        sampling = Sampling(Scheme.POISSON, self.interval)
        return Series(times.tolist(), Measure.LIVE, sampling, [PATH, *OTHERS], count, count * SIZE)

    def lives(self, until: float) -> Lives:
        count = len(self.paths)
        births, deaths = np.zeros(count), np.zeros((count, BUCKETS))
        ages = np.zeros((count, BUCKETS))
        stack: list[NDArray[np.int64]] = []
        born: list[Numbers] = []
        for number, path in enumerate(self.paths):
            births[number] = (path.born <= until).sum()
            dead = path.died <= until
            deaths[number] = np.bincount(path.bucket[dead], minlength=BUCKETS)
            ages[number] = np.bincount(path.bucket[dead], path.life[dead], BUCKETS)
            mine = path.born[path.alive(until)]
            born.append(mine)
            stack.append(np.full(len(mine), number, np.int64))
        of_stack, times = np.concatenate(stack), np.concatenate(born)
        sampling = Sampling(Scheme.POISSON, self.interval)
        stacks: list[Stack] = [PATH, *OTHERS]
        return Lives(0.0, until, sampling, stacks, births, deaths, ages, of_stack, times, np.full(len(times), SIZE))


@dataclass(frozen=True)
class Workers:
    """Processes side by side, as one."""

    each: list[Process]

    @property
    def interval(self) -> int:
        return self.each[0].interval

    def lost(self, time: float) -> float:
        return sum(one.lost(time) for one in self.each)

    def held(self, time: float) -> float:
        return sum(one.held(time) for one in self.each)

    def series(self, until: float) -> Series:
        each = [one.series(until) for one in self.each]
        return workers.sum_of_series(each, workers.common_times(each))

    def lives(self, until: float) -> Lives:
        whole = workers.sum_of_lives([one.lives(until) for one in self.each])
        assert whole is not None, "all are sampled alike"
        return whole


def processes(shape: Shape, random: Random, interval: int) -> Process | Workers:
    """One process of this shape, or its workers."""
    if shape.workers == 1:
        return process(shape, random, interval)
    alike = replace(shape, rate=shape.rate / shape.workers)
    return Workers([process(alike, random, interval) for _worker in range(shape.workers)])


def process(shape: Shape, random: Random, interval: int) -> Process:
    def born_in_a_day(mib: float) -> float:
        return mib * MIB / _weight(interval)

    watched = 1 / shape.generations

    def beside() -> Iterator[Objects]:
        yield _cache(300 / DAY)(random, born_in_a_day(20000))
        start = random.uniform(0, 0.02 * watched * DAY, random.poisson(born_in_a_day(200)))
        yield Objects(np.sort(start), np.full(len(start), FOREVER))
        yield _cache(0.04 * watched)(random, born_in_a_day(1000))

    return Process(interval, [shape.objects(random, born_in_a_day(shape.rate)), *beside()])
