# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Simulated looks at services: healthy ones, and ones in which one kind of memory grows.

Each class of memory has a size of its own, drawn from a wide distribution, and breathes from look to look: what load
holds of malloc's and of other anonymous memory up to 1.5 % of it (standard deviation), everything else 0.1 %. Half of a
deviation stays until the next look. In one look of ten, a request holds up to 1 % more. With two looks nobody can tell
breath from growth, so there such services are quiet (0.05 %).
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

MIB = 1 << 20
CLASSES = (
    "java-heap code-cache metaspace thread-stacks malloc-heap glibc-arenas malloc-mmapped other-malloc mapped-files"
    " shared-memory jit unknown"
).split()
_BREATHING = {"malloc-heap", "glibc-arenas", "malloc-mmapped", "other-malloc", "unknown"}
_BESIDE = ("files", "kernel", "sockets", "shared-memory")
_INTERVALS = (60.0, 600.0, 3600.0, 86400.0)
_LOOKS = (2, 4, 5, 8, 15, 40)
_STAYS = 0.5
# From so many looks on, their own scatter says how surely something grows.
ENOUGH = 5

Looks = list[dict[str, Any]]


@dataclass
class Service:
    """A service that is looked at ``looks`` times, ``interval`` seconds apart, and older than ten minutes all the time.

    ``sizes`` are bytes by class, ``beside`` those of the control group that are in no process, ``free`` what malloc
    keeps free (heap, arenas). Each rises by its ``rises`` in all, in this ``shape`` over the time watched (0 to 1), and
    ``swapped`` bytes leave memory meanwhile. ``more`` is what else a look says of the process, or at all.
    """

    random: random.Random
    looks: int = 0
    interval: float = 0.0
    sizes: dict[str, float] = field(default_factory=dict)
    rises: dict[str, float] = field(default_factory=dict)
    shape: Callable[[float], float] = lambda at: at
    more: Callable[[float], dict[str, Any]] = lambda at: {}
    beside: dict[str, float] = field(default_factory=dict)
    beside_rises: dict[str, float] = field(default_factory=dict)
    free: dict[str, float] = field(default_factory=dict)
    free_rises: dict[str, float] = field(default_factory=dict)
    limit: int | None = None
    swapped: float = 0.0

    def __post_init__(self) -> None:
        self.looks = self.looks or self.random.choice(_LOOKS)
        self.interval = self.random.choice(_INTERVALS)
        self.sizes = {name: min(self.random.lognormvariate(3.0, 1.2), 2000.0) * MIB for name in CLASSES}
        self.beside = {name: self.random.lognormvariate(3.0, 1.2) * MIB for name in _BESIDE}
        breath = self.random.uniform(0.001, 0.015) if self.looks >= ENOUGH else 0.0005
        self.breath = {name: breath if name in _BREATHING else min(breath, 0.001) for name in CLASSES}

    @property
    def held(self) -> float:
        return sum(self.sizes.values())

    @property
    def watched(self) -> float:
        return self.interval * (self.looks - 1)

    def history(self) -> Looks:
        """What native_memory_info would have returned at each look."""
        off = dict.fromkeys(CLASSES, 0.0)
        found = []
        for number in range(self.looks):
            at = number / (self.looks - 1)
            grown = {name: size + self.rises.get(name, 0.0) * self.shape(at) for name, size in self.sizes.items()}
            for name in CLASSES:
                fresh = self.random.gauss(0.0, self.breath[name]) * (1 - _STAYS**2) ** 0.5
                off[name] = off[name] * _STAYS + fresh if number else self.random.gauss(0.0, self.breath[name])
                grown[name] *= 1 + off[name]
            if self.looks >= ENOUGH and self.random.random() < 0.1:
                grown["malloc-mmapped"] += self.random.uniform(0.0, 0.01) * self.held
            found.append(self._look(number, at, grown))
        return found

    def _look(self, number: int, at: float, sizes: dict[str, float]) -> dict[str, Any]:
        free = {
            kind: self.free.get(kind, 0.0) + self.free_rises.get(kind, 0.0) * self.shape(at)
            for kind in ("heap", "arenas")
        }
        wobble = 1 + self.random.uniform(-0.1, 0.1)
        swap = {name: self.swapped * at if name == "unknown" else 0.0 for name in CLASSES}
        resident = {name: max(round(size - swap[name]), 0) for name, size in sizes.items()}
        more = self.more(at)
        process: dict[str, Any] = {
            "pid": 50,
            "start": 7,
            "rss": sum(resident.values()),
            "age": 1000.0 + number * self.interval,
            "threads": 10,
            "arenas": 1,
            "classes": {name: {"resident": size, "swap": round(swap[name])} for name, size in resident.items()},
            "swap": round(sum(swap.values())),
            "hugetlb": 0,
            "malloc": {kind: {"free": round(size * wobble)} for kind, size in free.items()},
            "jvm": None,
            "not_readable": [],
            **more.get("process", {}),
        }
        parts = {
            name: round((size + self.beside_rises.get(name, 0.0) * self.shape(at)) * (1 + self.random.gauss(0.0, 0.01)))
            for name, size in self.beside.items()
        }
        return {
            "name": "a.service",
            "time": 1e9 + number * self.interval,
            "boot_id": "b",
            "problem": None,
            "processes": [process],
            "cgroup": {"limit": self.limit, "parts": parts},
            **more.get("look", {}),
        }
