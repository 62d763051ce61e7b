# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Whether verdicts are true at each of ten looks a day, by lives and by levels, for leaks of many shapes and for what
looks like one (shapes.py).

    looks.py [--processes N] [--jobs N] [--output build/bench/looks.json] [CASE ...]

Each process has 300 MiB a day or more in its path, and three healthy paths beside it, seen with a sample each 512 KiB
and each 64 KiB. Metrics are shares of the processes, over all looks together:

* ``wrong_no_leak``: "no leak" was said when 40 samples' worth was lost already since the first tenth of the time, and
  by levels as much as the limit that was stated, which lives need not be excused by.
  Of processes that take one another's place: nothing was said at the last look of what they keep until they end.
* ``false_alarm``: a leak was said of what is none, of a cache when it had been watched for its entries' mean life.
* ``x_false``: a leak's "entries live longer than X" was false of what is none.
* ``limit_wrong``: at the last look, of a cache it was said that it fits a limit a tenth below what it will hold, or
  that it does not fit one a tenth above.
* ``covered``: at the last look, the 95 % interval of the rate has the truth, or that of what a cache will hold.
* ``time_to_verdict``: the part of the day until a steady leak was told, the median, beside that of levels.
* ``told_in_time``: steady leaks that were told at the first look after the time that ``fab wait`` says.

Exits with status 1 if a promise is not kept by lives, or "no leak" is wrong by levels.
"""

from __future__ import annotations

import argparse
import functools
import json
import math
import sys
import zlib
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / ".cache" / "collections"))

from ansible_collections.offheap.profiler.plugins.plugin_utils.leaks import by_lives
from ansible_collections.offheap.profiler.plugins.plugin_utils.leaks.lives_verdict import (
    verdict_on,
    verdict_on_generations,
)
from ansible_collections.offheap.profiler.plugins.plugin_utils.leaks.own_numbers import OwnNumbers, with_own_numbers
from ansible_collections.offheap.profiler.plugins.plugin_utils.leaks.survey import LEAST_REPLACED
from ansible_collections.offheap.profiler.plugins.plugin_utils.leaks.trend import WARM_UP
from ansible_collections.offheap.profiler.plugins.plugin_utils.leaks.verdict import Answer, Verdict, judge
from ansible_collections.offheap.profiler.plugins.plugin_utils.leaks.waiting import until_told
from ansible_collections.offheap.profiler.plugins.plugin_utils.model.series import Series
from ansible_collections.offheap.profiler.tests.bench.shapes import (
    DAY,
    MIB,
    PATH,
    SHAPES,
    Process,
    Shape,
    Workers,
    process,
    processes,
)

LOOKS = 10
INTERVALS = (1 << 19, 1 << 16)
_ENOUGH = 40


@dataclass
class Told:
    """What was said of one process at any look, and at the last one."""

    wrong: bool = False
    alarm: bool = False
    x_false: bool = False
    limit_wrong: bool = False
    first: float = math.inf
    covered: bool | None = None


def _look(told: Told, shape: Shape, seen: Process | Workers, until: float, verdict: Verdict) -> None:
    lost = seen.lost(until) - seen.lost(WARM_UP * until)
    stated = max((limit.rate for limit in verdict.limits), default=0.0) * until / DAY
    told.wrong |= verdict.answer is Answer.NO_LEAK and lost >= max(_ENOUGH * seen.interval, stated)
    if not verdict.answer.leaks:
        return
    told.first = min(told.first, until / DAY)
    told.alarm |= not shape.leaks and until >= shape.mean * DAY
    if shape.name in ("steady", "prefork") and until == DAY:
        told.covered = abs(verdict.growth - shape.rate * MIB) <= verdict.error


def _told(name: str, interval: int, number: int) -> tuple[Told, Told]:
    """By lives, and by levels."""
    shape = SHAPES[name]
    random = np.random.default_rng([zlib.crc32(name.encode()), interval, number])
    if shape.generations > 1:
        return _told_of_generations(shape, random, interval)
    seen = processes(shape, random, interval)
    by, levels = Told(), Told()
    for look in range(1, LOOKS + 1):
        until = DAY * look / LOOKS
        series, lives = seen.series(until), seen.lives(until)
        verdict = verdict_on("1", series, lives)
        _look(by, shape, seen, until, verdict)
        _look(levels, shape, seen, until, judge("1", series))
        if shape.mean and not shape.term:
            found = by_lives.find(lives)
            by.x_false |= any(one.outlives > shape.mean * DAY for one in found.kept if one.key == PATH.key)
            for one in found.filling:
                if one.key == PATH.key and until == DAY:
                    to_come = shape.rate * MIB * shape.mean - seen.held(until)
                    by.covered = abs(one.size - to_come) <= one.error
            by.limit_wrong = any(_is_wrong_of_a_limit(verdict, series, shape, seen, until, part) for part in (0.9, 1.1))
    return by, levels


def _told_of_generations(shape: Shape, random: np.random.Generator, interval: int) -> tuple[Told, Told]:
    """The same of processes of which each takes the last one's place: whether what they keep until they end is told."""
    span = DAY / shape.generations
    each = [process(shape, random, interval) for _generation in range(shape.generations)]
    seen = [(one.series(span), one.lives(span)) for one in each]
    kept = sum(one.lost(span) - one.lost(WARM_UP * span) for one in each)
    by, levels = Told(), Told()
    for ended in range(LEAST_REPLACED, shape.generations + 1):
        by_levels = [(series, None) for series, _lives in seen[:ended]]
        for told, verdict in (
            (by, verdict_on_generations(seen[:ended])),
            (levels, verdict_on_generations(by_levels)),
        ):
            told.wrong = verdict is None and kept >= _ENOUGH * interval
            told.alarm |= verdict is not None and not shape.leaks
    return by, levels


def _is_wrong_of_a_limit(
    verdict: Verdict, series: Series, shape: Shape, seen: Process | Workers, until: float, part: float
) -> bool:
    """What is said beside a limit that is ``part`` of what the path will hold. The others hold as much as now."""
    left = part * shape.rate * MIB * shape.mean - seen.held(until)
    if left <= 0:  # it holds more for a moment, by chance
        return False
    told = with_own_numbers(verdict, series, OwnNumbers([{}] * len(series.times), "", left))
    return told.answer is Answer.OVERFLOWS if part > 1 else "; that fits " in told.reason


def _row(case: str, metric: str, unit: str, ours: float, promise: float, name: str = "promise") -> dict[str, Any]:
    ratio = round(ours / promise, 3) if promise else None
    return {
        "case": case,
        "metric": metric,
        "unit": unit,
        "ours": ours,
        "peer": promise,
        "peer_name": name,
        "ratio": ratio,
    }


def _share(flags: Sequence[bool]) -> float:
    return round(100 * sum(flags) / len(flags), 2)


def _rows(name: str, interval: int, told: Sequence[tuple[Told, Told]]) -> tuple[list[dict[str, Any]], list[str]]:
    """The rows of a case, and the promises that it breaks."""
    shape, rows, broken = SHAPES[name], [], []

    def promise(kind: str, metric: str, share: float, good: bool, promised: float) -> None:
        rows.append(_row(f"{name}/{interval >> 10}k/{kind}", metric, "%", share, promised))
        if not good:
            broken.append(f"{name}, one sample in {interval >> 10} KiB, by {kind}: {metric} is {share:g} %")

    for kind, each in (("lives", [one[0] for one in told]), ("levels", [one[1] for one in told])):
        if shape.leaks:
            wrong = _share([one.wrong for one in each])
            promise(kind, "wrong_no_leak", wrong, wrong <= 1, 1)
        else:
            alarm = _share([one.alarm for one in each])
            promise(kind, "false_alarm", alarm, alarm <= 1 or kind == "levels", 1)
        if known := [one.covered for one in each if one.covered is not None]:
            covered = _share(known)
            promise(kind, "covered", covered, kind == "levels" or 93 <= covered <= 97 or len(known) < 400, 95)
    if shape.mean and not shape.term and shape.generations == 1:
        x_false = _share([by.x_false for by, _levels in told])
        promise("lives", "x_false", x_false, x_false <= 1, 1)
        wrong = _share([by.limit_wrong for by, _levels in told])
        promise("lives", "limit_wrong", wrong, wrong <= 5, 5)
    if name == "steady":
        first, of_levels = (median([one[at].first for one in told]) for at in (0, 1))
        rows.append(_row(f"{name}/{interval >> 10}k", "time_to_verdict", "days", first, of_levels, "levels"))
        due = math.ceil(LOOKS * until_told(shape.rate * MIB, interval) / DAY) / LOOKS
        in_time = _share([one.first <= due for one, _levels in told])
        promise("lives", "told_in_time", in_time, in_time >= 95 or len(told) < 100, 95)
        if first > of_levels:
            broken.append(f"{name}: told after {first:g} days, by levels after {of_levels:g}")
    return rows, broken


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", choices=[[], *SHAPES], metavar="CASE")
    parser.add_argument("--processes", type=int, default=400)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--output", type=Path, default=ROOT / "build" / "bench" / "looks.json")
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    broken: list[str] = []
    with ProcessPoolExecutor(options.jobs) as pool:
        for name in options.cases or SHAPES:
            for interval in INTERVALS:
                told = list(pool.map(functools.partial(_told, name, interval), range(options.processes), chunksize=10))
                of_case = _rows(name, interval, told)
                for row in of_case[0]:
                    print(
                        f"{row['case']:28} {row['metric']:16} {row['ours']:>7g} {row['unit']}, {row['peer_name']}"
                        f" {row['peer']:g}",
                        flush=True,
                    )
                rows += of_case[0]
                broken += of_case[1]
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps({"rows": rows}, indent=1) + "\n", encoding="utf-8")
    for promise in broken:
        print(f"not kept: {promise}")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
