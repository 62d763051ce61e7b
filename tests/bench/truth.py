# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Whether verdicts are true: processes whose memory is known, seen through a sampling profiler, thousands of a shape.

    truth.py [--processes N] [--jobs N] [--output build/bench/truth.json] [CASE ...]

Each process has a heap of 2 GiB in 120 code paths and 97 dumps in a day. What the paths hold is drawn with a seed, then
sampled as jemalloc does: objects come and go, and each new one is sampled with its own luck. Metrics are shares of the
processes: ``false_alarm`` those called a leak that are none, ``detected`` those with the leak as the first suspect (of
sqrt: told to slow down), ``covered`` those of them whose interval has the true rate. ``limit_high`` and ``limit_low``
are the shares found of leaks as fast as the limit that "no leak" states, and a third as fast: in a path that is new,
and (limit-worst) in the one that it names because it changes most. Exits with status 1 if a promise is not kept.
"""

from __future__ import annotations

import argparse
import functools
import json
import math
import sys
import zlib
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / ".cache" / "collections"))

from ansible_collections.offheap.profiler.plugins.plugin_utils.leaks.trend import Shape
from ansible_collections.offheap.profiler.plugins.plugin_utils.leaks.verdict import Answer, Verdict, judge
from ansible_collections.offheap.profiler.plugins.plugin_utils.model.frame import Frame
from ansible_collections.offheap.profiler.plugins.plugin_utils.model.sampling import Measure, Sampling, Scheme
from ansible_collections.offheap.profiler.plugins.plugin_utils.model.series import Series, Stack, stack_of

MIB, DAY = 1 << 20, 86400.0
HEAP, PATHS, DUMPS, INTERVAL = 2048 * MIB, 120, 97, 1 << 19
LEAK = 60 * MIB
Numbers = NDArray[np.float64]
Random = np.random.Generator


@dataclass(frozen=True)
class Truth:
    """What a process holds: ``live[path, dump]`` bytes in objects of ``size[path]`` bytes, which live for
    ``lifetime[path]`` seconds on average and are replaced. The last path is the one that a case is about."""

    times: Numbers
    live: Numbers
    size: Numbers
    lifetime: Numbers

    @property
    def part(self) -> Numbers:
        """Times as parts of the whole (0 to 1)."""
        result: Numbers = self.times / self.times[-1]
        return result

    def scaled(self, factor: NDArray[np.floating[Any]]) -> Truth:
        return replace(self, live=self.live * factor)

    def with_last(self, live: Numbers) -> Truth:
        return replace(self, live=np.vstack([self.live[:-1], live]))


Change = Callable[[Truth, Random], Truth]


def steady(random: Random, span: float = DAY) -> Truth:
    """A heap that stays as it is; the last path is empty."""
    share = random.lognormal(0, 1.5, PATHS)
    live = np.append(HEAP * share / share.sum(), 0.0)
    size = random.choice([64.0, 1024.0, 16384.0, 262144.0, 2.0 * MIB], PATHS + 1)
    size[-1] = 4096
    lifetime = random.choice([60.0, 1800.0, 14400.0, math.inf], PATHS + 1)
    lifetime[-1] = math.inf
    return Truth(np.linspace(0, span, DUMPS), np.repeat(live[:, None], DUMPS, axis=1), size, lifetime)


def walk(truth: Truth, random: Random) -> Truth:
    """Load that wanders: by 15 % in a day for all paths, and by 10 % more for each."""
    shape = truth.live.shape
    paths = random.normal(0, 0.1 / math.sqrt(DUMPS), shape).cumsum(axis=1)
    return truth.scaled(np.exp(paths + random.normal(0, 0.15 / math.sqrt(DUMPS), DUMPS).cumsum()))


def daily(truth: Truth, random: Random) -> Truth:
    """Seven paths in ten follow the time of day, by 10 to 50 %."""
    count = len(truth.live)
    height = random.uniform(0.1, 0.5, count) * (random.random(count) < 0.7)
    wave = np.sin(2 * math.pi * (truth.times / DAY + random.random()))
    return truth.scaled(1 + height[:, None] * wave)


def breathing(truth: Truth, random: Random) -> Truth:
    """Half of the paths fill and are emptied again, by 10 to 50 %, each in its own time of 20 minutes to six hours."""
    count = len(truth.live)
    height = random.uniform(0.1, 0.5, count) * (random.random(count) < 0.5)
    turns = truth.times / np.exp(random.uniform(math.log(1200), math.log(21600), count))[:, None]
    return truth.scaled(1 - height[:, None] * ((turns + random.random(count)[:, None]) % 1))


def still(truth: Truth, _random: Random) -> Truth:
    return replace(truth, lifetime=np.full(len(truth.size), math.inf))


def churning(truth: Truth, _random: Random) -> Truth:
    return replace(truth, lifetime=np.append(np.full(PATHS, 60.0), math.inf))


def common_step(truth: Truth, random: Random) -> Truth:
    return truth.scaled(1 + random.uniform(0.1, 0.5) * (truth.part > random.random()))


def scattered_steps(truth: Truth, random: Random) -> Truth:
    """After a deploy, one path in five takes a step of 20 to 100 %, each when it is first used."""
    count = len(truth.live)
    height = random.uniform(0.2, 1.0, count) * (random.random(count) < 0.2)
    return truth.scaled(1 + height[:, None] * (truth.part > random.random(count)[:, None]))


def staircase(truth: Truth, random: Random) -> Truth:
    """Two to five steps of 20 to 100 MiB."""
    steps = random.uniform(20, 100, random.integers(2, 6)) * MIB
    return truth.with_last((steps[:, None] * (truth.part > random.random(len(steps))[:, None])).sum(axis=0))


def fill(truth: Truth, random: Random) -> Truth:
    """A cache that fills evenly until it is full, or ever slower."""
    if random.random() < 0.5:
        filled = np.minimum(truth.part / random.uniform(0.05, 0.85), 1)
    else:
        filled = 1 - np.exp(-truth.part / random.uniform(0.05, 0.33))
    return truth.with_last(random.uniform(50, 500) * MIB * filled)


def log(truth: Truth, random: Random) -> Truth:
    early = math.exp(random.uniform(math.log(30), math.log(1000)))
    return truth.with_last(random.uniform(100, 500) * MIB * np.log1p(early * truth.part) / math.log1p(early))


def sqrt(truth: Truth, random: Random) -> Truth:
    return truth.with_last(random.uniform(240, 1000) * MIB * np.sqrt(truth.part))


def leak(truth: Truth, random: Random) -> Truth:
    return truth.with_last(random.uniform(0, 200) * MIB + LEAK * truth.times / DAY)


HEALTHY: dict[str, list[Change]] = {
    "steady": [],
    "walk": [walk],
    "daily": [daily],
    "breathing": [breathing],
    "common-step": [common_step],
    "scattered-steps": [scattered_steps],
    "staircase": [staircase],
    "fill": [fill],
    "log": [log],
    "sqrt": [sqrt],
}
GROWING: dict[str, list[Change]] = {
    "leak-still": [still, leak],
    "leak-churning": [churning, leak],
    "leak-breathing": [breathing, leak],
    "leak-daily": [daily, leak],
}
LIMITS: dict[str, list[Change]] = {
    "limit-still": [still],
    "limit-churning": [churning],
    "limit-breathing": [breathing],
    "limit-worst": [breathing],
}


def sampled(truth: Truth, random: Random) -> Series:
    """The process as a profiler sees it that samples every INTERVAL bytes."""
    probability = 1 - np.exp(-truth.size / INTERVAL)
    objects = np.rint(truth.live / truth.size[:, None]).astype(np.int64)
    kept = np.exp(-np.diff(truth.times) / truth.lifetime[:, None])
    seen = np.zeros(objects.shape)
    seen[:, 0] = count = random.binomial(objects[:, 0], probability)
    for at in range(1, DUMPS):
        before, after = objects[:, at - 1], objects[:, at]
        surviving = np.minimum(before * kept[:, at - 1], after).astype(np.int64)
        count = random.binomial(count, np.divide(surviving, before, out=np.zeros(len(before)), where=before > 0))
        count = count + random.binomial(after - surviving, probability)
        seen[:, at] = count
    seen /= probability[:, None]
    return Series(
        times=truth.times.tolist(),
        measure=Measure.LIVE,
        sampling=Sampling(Scheme.POISSON, INTERVAL),
        stacks=_stacks(len(seen)),
        objects=seen,
        bytes=seen * truth.size[:, None],
    )


@functools.cache
def _stacks(count: int) -> list[Stack]:
    """Stacks that share functions as those of a service do: near the allocation, and near main."""
    random = np.random.default_rng(0)
    found = []
    for number in range(count - 1):
        names = [f"copy{random.integers(20)}", f"parse{random.integers(60)}", f"handle{number}"]
        found.append([*names, f"serve{random.integers(10)}", "main"])
    found.append(["keep", "remember", "handle", "serve0", "main"])
    return [stack_of(tuple(Frame(name, "app") for name in names)) for names in found]


@dataclass(frozen=True)
class Told:
    """What the verdict on one process was."""

    answer: Answer
    slows: bool
    first: bool
    covered: bool


def _told(verdict: Verdict, path: int, rate: float) -> Told:
    first = next(iter(verdict.suspects), None)
    found = first is not None and first.covers(_stacks(PATHS + 1)[path].frames)
    covered = found and first is not None and abs(first.growth - rate) <= first.error
    return Told(verdict.answer, verdict.shape is Shape.SLOWING, found, covered)


def _judged(name: str, number: int) -> list[Told]:
    """The verdict on process ``number`` of a case; of the limits' cases, those with a leak at the limit and a third."""
    random = np.random.default_rng([zlib.crc32(name.encode()), number])
    span = random.uniform(1 / 24, 1) * DAY if name == "daily" else DAY
    truth = steady(random, span)
    for shape in (HEALTHY | GROWING | LIMITS)[name]:
        truth = shape(truth, random)
    verdict = judge("1", sampled(truth, random))
    if name not in LIMITS:
        return [_told(verdict, PATHS, LEAK)]
    if not verdict.limits:
        return []
    limit = verdict.limits[-1 if name == "limit-worst" else 0]
    path = next((at for at, stack in enumerate(_stacks(PATHS + 1)) if stack.frames == limit.path), PATHS)
    told = []
    for rate in (limit.rate, limit.rate / 3):
        live = truth.live.copy()
        live[path] += rate * truth.times / DAY
        told.append(_told(judge("1", sampled(replace(truth, live=live), random)), path, rate))
    return told


def _row(case: str, metric: str, share: float, promise: float) -> dict[str, Any]:
    return {
        "case": case,
        "metric": metric,
        "unit": "%",
        "ours": round(100 * share, 2),
        "peer": 100 * promise,
        "peer_name": "promise",
        "ratio": round(share / promise, 3),
    }


def _rows(name: str, told: list[list[Told]]) -> tuple[list[dict[str, Any]], list[str]]:
    """The rows of a case, and the promises that it breaks."""
    told = [one for one in told if one]
    count = len(told)
    leaks = sum(one[0].answer is Answer.LEAK for one in told) / count
    first = sum(one[0].first for one in told) / count
    if name in LIMITS:
        third = sum(one[1].first for one in told) / count
        rows = [_row(name, "limit_high", first, 0.9), _row(name, "limit_low", third, 0.6)]
        kept = [first >= 0.9, third <= 0.6]
    elif name in GROWING:
        covered = sum(one[0].covered for one in told) / max(1, sum(one[0].first for one in told))
        rows = [_row(name, "detected", first, 0.99), _row(name, "covered", covered, 0.95)]
        kept = [first >= 0.99, 0.93 <= covered <= 0.97]
    else:
        rows, kept = [_row(name, "false_alarm", leaks, 0.01)], [leaks <= 0.01]
        if name == "sqrt":
            slows = sum(one[0].slows for one in told) / count
            rows.append(_row(name, "detected", slows, 0.99))
            kept.append(slows >= 0.99)
    broken = [f"{name}: {row['metric']} is {row['ours']:g} %" for row, good in zip(rows, kept, strict=True) if not good]
    return rows, broken


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", choices=[[], *HEALTHY, *GROWING, *LIMITS], metavar="CASE")
    parser.add_argument("--processes", type=int, default=2000)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--output", type=Path, default=ROOT / "build" / "bench" / "truth.json")
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    broken: list[str] = []
    with ProcessPoolExecutor(options.jobs) as pool:
        for name in options.cases or HEALTHY | GROWING | LIMITS:
            judged = functools.partial(_judged, name)
            told = list(pool.map(judged, range(options.processes), chunksize=25))
            of_case = _rows(name, told)
            for row in of_case[0]:
                print(f"{row['case']:18} {row['metric']:12} {row['ours']:>7g} %, promised {row['peer']:g}", flush=True)
            rows += of_case[0]
            broken += of_case[1]
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps({"rows": rows}, indent=1) + "\n", encoding="utf-8")
    for promise in broken:
        print(f"not kept: {promise}")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
