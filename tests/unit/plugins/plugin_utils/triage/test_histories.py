# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""A hundred healthy and a hundred growing histories of each kind: at most one verdict of a hundred is wrong."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator

import pytest

from ansible_collections.offheap.profiler.plugins.plugin_utils.triage import growth as memory_growth
from ansible_collections.offheap.profiler.plugins.plugin_utils.triage import host_growth, rules
from ansible_collections.offheap.profiler.plugins.plugin_utils.triage.look import parse
from ansible_collections.offheap.profiler.plugins.plugin_utils.triage.rules import Diagnosis
from ansible_collections.offheap.profiler.tests.unit.plugins.plugin_utils.triage.histories import (
    ENOUGH,
    MIB,
    Looks,
    Service,
)

_EACH, _MOST_WRONG = 100, 1
_Change = Callable[[Service], None]


def _class(name: str, *others: str) -> _Change:
    """One class of memory grows by a tenth of what is held, or several, of which each seed takes one."""

    def change(service: Service) -> None:
        service.rises[service.random.choice([name, *others])] = _much(service)

    return change


def _much(service: Service) -> float:
    return service.random.uniform(0.1, 0.5) * service.held + 8 * MIB


def _threads(service: Service) -> None:
    service.rises["thread-stacks"] = _much(service)
    service.more = lambda at: {"process": {"threads": 10 + round(90 * at)}}


def _huge(service: Service) -> None:
    grown = _much(service)
    service.more = lambda at: {"process": {"hugetlb": round(grown * at)}}


def _direct(service: Service) -> None:
    grown = service.rises["malloc-mmapped"] = _much(service)
    service.more = lambda at: {"process": {"jvm": {"nmt": {"categories": {"Other": round(0.9 * grown * at)}}}}}


def _keeps_free(name: str, kind: str, arenas: int) -> _Change:
    """malloc keeps what was in use at a peak, which is half of all that the service holds then."""

    def change(service: Service) -> None:
        service.rises[name] = service.free_rises[kind] = service.held + 64 * MIB
        service.more = lambda at: {"process": {"arenas": arenas}}

    return change


def _beside(name: str) -> _Change:
    def change(service: Service) -> None:
        service.beside_rises[name] = _much(service)

    return change


def _swapped(service: Service) -> None:
    service.sizes["unknown"] += 0.2 * service.held + 16 * MIB
    service.swapped = 0.8 * service.sizes["unknown"]


def _heap(fits: bool) -> _Change:
    """A heap that may double, and a limit for it and the rest: a tenth too small, or a tenth too large."""

    def change(service: Service) -> None:
        largest = 2 * service.sizes["java-heap"]
        whole = service.held + largest / 2
        service.limit = round(whole * (1.1 if fits else 0.9))
        service.more = lambda at: {"process": {"jvm": {"flags": {"MaxHeapSize": str(round(largest))}}}}

    return change


def _breathes(name: str) -> _Change:
    """Half of what is held is of this class, and it breathes as much as any."""

    def change(service: Service) -> None:
        service.sizes[name] = service.held
        if service.looks >= ENOUGH:
            service.breath[name] = service.random.uniform(0.001, 0.015)

    return change


def _threads_come_and_go(service: Service) -> None:
    _breathes("thread-stacks")(service)
    service.more = lambda at: {"process": {"threads": service.random.randint(5, 15)}}


def _has_huge_pages(service: Service) -> None:
    reserved = round(service.held)
    service.more = lambda at: {"process": {"hugetlb": reserved}}


def _has_buffers(service: Service) -> None:
    _breathes("malloc-mmapped")(service)
    service.more = lambda at: {"process": {"jvm": {"nmt": {"categories": {"Other": round(service.held / 3)}}}}}


def _keeps_little(name: str, kind: str, arenas: int) -> _Change:
    """What malloc keeps free is a fifth of what is held, more or less by a tenth of itself."""

    def change(service: Service) -> None:
        service.sizes[name] = service.held
        service.free[kind] = 0.2 * service.held
        service.more = lambda at: {"process": {"arenas": arenas}}

    return change


def _nothing(service: Service) -> None:
    """It stays as it is."""


# What grows and the verdict on it, and what it looks like where that does not.
_KINDS: dict[str, tuple[_Change, _Change]] = {
    "does-not-fit": (_heap(fits=False), _heap(fits=True)),
    "java-heap": (_class("java-heap"), _breathes("java-heap")),
    "metaspace": (_class("metaspace"), _breathes("metaspace")),
    "threads": (_threads, _threads_come_and_go),
    "stacks": (_class("thread-stacks"), _breathes("thread-stacks")),
    "mapped-files": (_class("mapped-files"), _breathes("mapped-files")),
    "shared-memory": (_class("shared-memory"), _breathes("shared-memory")),
    "huge-pages": (_huge, _has_huge_pages),
    "direct-buffers": (_direct, _has_buffers),
    "malloc-arenas": (_keeps_free("glibc-arenas", "arenas", 16), _keeps_little("glibc-arenas", "arenas", 16)),
    "fragmentation": (_keeps_free("malloc-heap", "heap", 1), _keeps_little("malloc-heap", "heap", 1)),
    "native-growth": (
        _class("malloc-heap", "glibc-arenas", "malloc-mmapped", "other-malloc"),
        _breathes("other-malloc"),
    ),
    "other-memory": (_class("unknown"), _breathes("unknown")),
    "page-cache": (_beside("files"), _nothing),
    "kernel-memory": (_beside("kernel"), _nothing),
    "sockets": (_beside("sockets"), _nothing),
    "swapped": (_swapped, _nothing),
}
_SHAPES: dict[str, Callable[[float], float]] = {
    "fills up in the first third": lambda at: min(3 * at, 1.0),
    "shrinks": lambda at: -0.5 * at,
}


def _services(name: str, change: _Change, least: int = 2) -> Iterator[Service]:
    seed = 0
    for _number in range(_EACH):
        while True:
            service = Service(random.Random(f"{name} {seed}"))
            seed += 1
            if service.looks >= least:
                break
        change(service)
        yield service


def _verdict(looks: Looks) -> str:
    return rules.judge(memory_growth.growth(map(parse, looks)), "app1").diagnosis.value


def _wrong(name: str, change: _Change, right: str, least: int = 2) -> Counter[str]:
    found = Counter(_verdict(service.history()) for service in _services(name, change, least))
    assert found.total() == _EACH
    del found[right]
    return found


def test_shared_memory_in_no_process_is_told() -> None:
    wrong = _wrong("beside", _beside("shared-memory"), Diagnosis.SHARED_MEMORY.value)
    assert wrong.total() <= _MOST_WRONG, wrong


@pytest.mark.parametrize("kind", _KINDS)
def test_what_grows_is_told(kind: str) -> None:
    wrong = _wrong(f"{kind} grows", _KINDS[kind][0], kind)
    assert wrong.total() <= _MOST_WRONG, wrong


@pytest.mark.parametrize("kind", _KINDS)
def test_what_does_not_grow_is_left_alone(kind: str) -> None:
    wrong = _wrong(f"{kind} stays", _KINDS[kind][1], Diagnosis.NOT_GROWING.value)
    assert wrong.total() <= _MOST_WRONG, wrong


@pytest.mark.parametrize("shape", _SHAPES)
def test_what_grows_no_more_is_left_alone(shape: str) -> None:
    def change(service: Service) -> None:
        service.shape = _SHAPES[shape]
        for name in ("malloc-heap", "unknown"):
            service.rises[name] = service.sizes[name]

    wrong = _wrong(shape, change, Diagnosis.NOT_GROWING.value, least=15)
    assert wrong.total() <= _MOST_WRONG, wrong


@pytest.mark.parametrize(("rise", "right"), [(0.2, "native-growth"), (0.0, "not-growing")])
def test_one_of_twenty_processes(rise: float, right: str) -> None:
    """All breathe, and one of them grows, or none."""
    found = Counter[str]()
    for number in range(_EACH):
        processes = [Service(random.Random(f"{number} {pid}"), looks=5 + number % 11) for pid in range(20)]
        processes[0].rises["malloc-heap"] = rise * processes[0].held
        histories = []
        for pid, service in enumerate(processes):
            service.interval = processes[0].interval
            histories.append(service.history())
            for one in histories[-1]:
                one["processes"][0]["pid"] = pid + 1
        looks = [
            {**units[0], "processes": [one["processes"][0] for one in units]} for units in zip(*histories, strict=True)
        ]
        found[_verdict(looks)] += 1
    del found[right]
    assert found.total() <= _MOST_WRONG, found


@pytest.mark.parametrize("grows", [True, False])
def test_a_host_whose_memory_goes_elsewhere(grows: bool) -> None:
    wrong = 0
    for service in _services(f"host {grows}", _nothing):
        total = service.random.uniform(2, 64) * 1024 * MIB
        fall = 0.05 * total + 100 * MIB if grows else 0.0
        scatter = 0.002 * total if service.looks >= ENOUGH else 0.0005 * total

        def host(at: float, service=service, total=total, fall=fall, scatter=scatter) -> dict[str, object]:  # type: ignore[no-untyped-def]
            breath = service.random.gauss(0.0, scatter)
            sizes = {"total": total, "available": total / 2 - fall * at + breath, "slab": total / 20 + fall * at}
            return {"look": {"host": {name: round(size) for name, size in sizes.items()}}}

        service.more = host
        wrong += (host_growth.judge([parse(look) for look in service.history()], "app1") is None) == grows
    assert wrong <= _MOST_WRONG


def test_the_rate_is_within_its_interval() -> None:
    """Of looks enough to tell the scatter. Looks are alike where they follow one another, so it is in 93 of 100."""
    inside = 0
    for service in _services("rates", _class("malloc-heap"), ENOUGH):
        found = memory_growth.growth(map(parse, service.history()))
        rate = service.rises["malloc-heap"] / service.watched
        inside += abs(found.growth.size / found.seconds - rate) <= found.growth.error / found.seconds
    assert inside >= 89
