# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""What the services do that are watched: a script for each shape of tests/bench/shapes.py, in minutes instead of a day;
and which answers are right."""

from __future__ import annotations

import math
import zlib
from dataclasses import dataclass

import numpy as np

from ansible_collections.offheap.profiler.tests.bench.shapes import DAY, SHAPES, Objects

SPAN = 480  # seconds
# Until the profiler is there. What is allocated before is not seen.
LEAD = 5
# With what a JVM or Python puts before it, still in malloc's size class of 16 KiB.
BLOCK, GIVEN_OUT = 16000, 16 << 10
# What a shape of 300 MiB a day allocates here.
KEPT = 48 << 20
# Beside it, blocks a second that live for half a second.
SERVED = 10

LEAK, CANNOT, NONE = "leak", "cannot-tell", "no-leak"
BURSTS, GREW, FILLS = "bursts", "grew", "fills-up"


@dataclass(frozen=True)
class Watched:
    """A shape of ``SHAPES``, or none for what only a service can be.

    ``right`` are the answers that are true of it. Seconds after the start: ``since`` is when it begins to leak, and
    ``last`` when it last did. ``workers`` share the work, each for ``seconds``.
    """

    name: str
    right: tuple[str, ...]
    shape: str = ""
    since: float = 0.0
    last: float = 0.0
    workers: int = 0
    seconds: int = 0

    @property
    def languages(self) -> tuple[str, ...]:
        """Workers are forked by the C program."""
        return ("c",) if self.workers else ("c", "c++", "java", "python")


def _at(part: float) -> float:
    return LEAD + part * SPAN


WATCHED = (
    Watched("steady", (LEAK,)),
    *(Watched(f"begins-{part}", (LEAK,), since=_at(part)) for part in (0.5, 0.7)),
    *(Watched(f"begins-{part}", (LEAK, CANNOT), since=_at(part)) for part in (0.8, 0.9)),
    *(Watched(f"bursts-{number}", (BURSTS, LEAK), last=_at(1 - 0.5 / number)) for number in (3, 4, 8, 20)),
    Watched("pauses", (LEAK, BURSTS)),
    Watched("nights", (BURSTS, LEAK), last=_at((2 + 0.6) / 3)),
    Watched("stopped", (GREW,), last=_at(0.6)),
    *(Watched(f"churn-{part}", (LEAK,)) for part in ("1%", "2%", "10%")),
    Watched("doubling", (LEAK, CANNOT)),
    Watched("prefork", (LEAK,), workers=4),
    Watched("recycled", (CANNOT,), shape="steady", workers=2, seconds=60),
    *(Watched(f"cache-{mean:g}", (NONE, FILLS, CANNOT)) for mean in (0.02, 0.1, 0.5)),
    *(Watched(f"cache-{mean:g}", (NONE, FILLS, CANNOT, LEAK)) for mean in (1, 2, 5, 10)),
    Watched("replaced", (NONE, FILLS, CANNOT)),
    *(
        Watched(name, (NONE, FILLS, CANNOT))
        for name in ("ramp", "wave", "tail-1.2", "tail-0.9", "log", "root", "term-6h")
    ),
)


def _lines(objects: Objects, scale: float, first: int, path: int) -> list[tuple[float, str]]:
    found = []
    for number, (born, life) in enumerate(zip(objects.born.tolist(), objects.life.tolist(), strict=True), first):
        begins = LEAD + born * scale
        found.append((begins, f"+ {number} {BLOCK} {path}"))
        if math.isfinite(life):
            found.append((begins + life * scale, f"- {number} 0 {path}"))
    return found


def _doubling() -> list[tuple[float, str]]:
    """One block that is as large as the other shapes' in the end."""
    doublings = int(math.log2(KEPT / GIVEN_OUT))
    times = [LEAD + SPAN * 2.0 ** (number - doublings) for number in range(doublings)]
    return [(time, f"= 0 {BLOCK << number} 0") for number, time in enumerate(times, 1)]


def script(watched: Watched) -> str:
    """What the service does, in the words of players/player.c."""
    shape = SHAPES[watched.shape or watched.name]
    random = np.random.default_rng(zlib.crc32(watched.name.encode()))
    rate = shape.rate / (watched.workers or 1)
    if watched.seconds:
        rate *= SPAN / watched.seconds
    born_in_a_day = rate / 300 * KEPT / GIVEN_OUT
    of_shape = _lines(shape.objects(random, born_in_a_day), SPAN / DAY, 1, 0)
    lines = _doubling() if shape.name == "doubling" else of_shape
    if shape.name == "replaced":
        count = round(born_in_a_day * shape.mean)
        lines += [(0.0, f"+ {number} {BLOCK} 0") for number in range(500_000, 500_000 + count)]
        ends = LEAD + random.exponential(shape.mean * SPAN, count)
        lines += [(end, f"- {number} 0 0") for number, end in enumerate(ends.tolist(), 500_000)]
    served = np.sort(random.uniform(0, DAY, SERVED * SPAN))
    lines += _lines(Objects(served, np.full(len(served), 0.5 * DAY / SPAN)), SPAN / DAY, 600_000, 1)
    lines.sort(key=lambda line: line[0])
    return "".join(f"{time * 1000:.0f} {what}\n" for time, what in lines)
