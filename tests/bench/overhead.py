# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""What profiling costs: the same work under glibc's malloc, jemalloc, and jemalloc with the agent.

    overhead.py [--rounds N] [--repeats N] [--slices N] [--output build/bench/overhead.json]

Each round runs all cases several times, in a new order each time. A run does the same slice of work several times; a
case's time in the round is that of its fastest slice, since other load on the machine, or an unlucky memory layout, can
only add to it. The cost is that time divided by the same round's time without preload, and the median over the rounds:
``throughput-cost`` in wall-clock time, which says little on a busy machine, and ``cpu-cost`` in CPU time.
``agent-adds`` is what the agent adds to the cost of the same case without it: the median of the rounds' differences.
Exits with status 1 if a promise is not kept. OFFHEAP_TEST_JEMALLOC names a jemalloc other than the distribution's.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
PLAIN = "no preload"
DORMANT = "prof:true,prof_active:false"
# case -> MALLOC_CONF (None: no preload), whether the agent is loaded, whether it switches sampling on
CASES: dict[str, tuple[str | None, bool, bool]] = {
    PLAIN: (None, False, False),
    "jemalloc": ("", False, False),
    "dormant": (DORMANT, False, False),
    "dormant-agent": (DORMANT, True, False),
    "512KiB": ("prof:true,lg_prof_sample:19", False, False),
    "512KiB-agent": (f"{DORMANT},lg_prof_sample:19", True, True),
    "128KiB": ("prof:true,lg_prof_sample:17", False, False),
    "128KiB-agent": (f"{DORMANT},lg_prof_sample:17", True, True),
}
AGENTS = [case for case in CASES if f"{case}-agent" in CASES]
DORMANT_COST, SAMPLING_COST, AGENT_COST = 1.01, 1.03, 0.01


def find_jemalloc() -> Path:
    names = [os.environ.get("OFFHEAP_TEST_JEMALLOC"), *map(str, Path("/usr/lib").glob("*/libjemalloc.so.2"))]
    for name in names:
        if name and Path(name).exists():
            return Path(name)
    raise SystemExit("no jemalloc: apt-get install libjemalloc2, or set OFFHEAP_TEST_JEMALLOC")


class Run(NamedTuple):
    wall: float
    cpu: float


class Bench:
    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.jemalloc = find_jemalloc()
        build = ROOT / "build" / "agent"
        source = ROOT / "roles" / "jemalloc" / "files" / "agent"
        subprocess.run(["make", "-s", "-C", str(source), f"BUILD={build}"], check=True)
        self.agent = build / "liboffheap.so"
        churn = directory / "churn"
        subprocess.run(["gcc", "-O2", "-o", str(churn), str(HERE / "overhead" / "churn.c"), "-pthread"], check=True)
        java = shutil.which("java")
        javac = shutil.which("javac")
        if not java or not javac:
            raise SystemExit("no JDK")
        subprocess.run([javac, "-d", str(directory), str(HERE / "overhead" / "Deflaters.java")], check=True)
        flags = ["-XX:+PreserveFramePointer", "-XX:+UseSerialGC", "-Xms256m", "-Xmx256m", "-cp", str(directory)]
        self.workloads: dict[str, Callable[[int], list[str]]] = {
            "jvm": lambda slices: [os.path.realpath(java), *flags, "Deflaters", str(slices), "2000"],
            "c": lambda slices: [str(churn), str(slices), "1200000"],
        }

    def environment(self, case: str, executable: str) -> dict[str, str]:
        conf, with_agent, sampling = CASES[case]
        environment = {"PATH": os.environ["PATH"]}
        if conf is None:
            return environment
        environment["LD_PRELOAD"] = f"{self.jemalloc}:{self.agent}" if with_agent else str(self.jemalloc)
        environment["MALLOC_CONF"] = ",".join(filter(None, [conf, f"prof_prefix:{self.directory}/jeprof"]))
        if not conf:
            del environment["MALLOC_CONF"]
        if with_agent:
            environment.update(
                OFFHEAP_EXECUTABLE=executable,
                OFFHEAP_SOCKET_DIR=str(self.directory),
                OFFHEAP_START="active" if sampling else "dormant",
                OFFHEAP_START_DELAY="0",
                OFFHEAP_STATS_SECONDS="60",
            )
        return environment

    def run(self, workload: str, case: str, slices: int) -> Run:
        """The fastest slice's wall-clock and CPU time (each its own minimum)."""
        command = self.workloads[workload](slices)
        environment = self.environment(case, command[0])
        done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
        if done.stderr:
            raise SystemExit(f"{workload}-{case}: {done.stderr}")
        wall, cpu = zip(*(map(float, line.split()) for line in done.stdout.splitlines()), strict=True)
        return Run(min(wall), min(cpu))


def measure(bench: Bench, rounds: int, repeats: int, slices: int) -> dict[str, dict[str, list[Run]]]:
    """Seconds, by workload and case, of each round."""
    times: dict[str, dict[str, list[Run]]] = {name: {case: [] for case in CASES} for name in bench.workloads}
    dice = random.Random(1)
    for number in range(rounds):
        for workload, cases in times.items():
            runs: dict[str, list[Run]] = {case: [] for case in cases}
            for _repeat in range(repeats):
                for case in dice.sample(list(cases), len(cases)):
                    runs[case].append(bench.run(workload, case, slices))
            for case, done in runs.items():
                cases[case].append(Run(min(run.wall for run in done), min(run.cpu for run in done)))
        print(f"round {number + 1} of {rounds}", file=sys.stderr, flush=True)
    return times


def report(times: dict[str, dict[str, list[Run]]]) -> tuple[list[dict[str, Any]], list[str]]:
    rows: list[dict[str, Any]] = []
    broken: list[str] = []
    for workload, cases in times.items():
        for metric, kind in (("throughput-cost", "wall"), ("cpu-cost", "cpu")):
            plain = [getattr(run, kind) for run in cases[PLAIN]]
            costs: dict[str, float] = {}
            for case, runs in cases.items():
                seconds = [getattr(run, kind) for run in runs]
                costs[case] = statistics.median(ours / theirs for ours, theirs in zip(seconds, plain, strict=True))
                rows.append(
                    {
                        "case": f"{workload}-{case}",
                        "metric": metric,
                        "unit": "s",
                        "ours": round(statistics.median(seconds), 4),
                        "peer": round(statistics.median(plain), 4),
                        "peer_name": PLAIN,
                        "ratio": round(costs[case], 4),
                    }
                )
            if metric == "throughput-cost":
                added = {case: _added(cases, case, kind) for case in AGENTS}
                rows += [_row_of_added(workload, case, cases, added[case]) for case in AGENTS]
                broken += promises(workload, costs, added)
    rows = [row for row in rows if not row["case"].endswith(PLAIN)]
    return rows, broken


def _row_of_added(workload: str, case: str, cases: dict[str, list[Run]], added: float) -> dict[str, Any]:
    ours, own = (statistics.median(run.wall for run in cases[name]) for name in (f"{case}-agent", case))
    return {
        "case": f"{workload}-{case}-agent",
        "metric": "agent-adds",
        "unit": "s",
        "ours": round(ours, 4),
        "peer": round(own, 4),
        "peer_name": f"{case} without the agent",
        "ratio": round(added, 4),
    }


def _added(cases: dict[str, list[Run]], case: str, kind: str) -> float:
    """What the agent adds to the cost of the same case without it: the median of the rounds' differences."""
    runs = zip(*(cases[name] for name in (f"{case}-agent", case, PLAIN)), strict=True)
    return statistics.median(
        (getattr(ours, kind) - getattr(own, kind)) / getattr(plain, kind) for ours, own, plain in runs
    )


def promises(workload: str, costs: dict[str, float], added: dict[str, float]) -> list[str]:
    broken = [
        f"{workload}-{case}: costs {costs[case]:.3f}, not {limit}"
        for case, limit in (("dormant", DORMANT_COST), ("512KiB-agent", SAMPLING_COST))
        if costs[case] > limit
    ]
    for case, cost in added.items():
        print(f"{workload}-{case}-agent: the agent adds {cost:+.3f}")
        if cost > AGENT_COST:
            broken.append(f"{workload}-{case}-agent: the agent adds {cost:.3f}, not {AGENT_COST}")
    return broken


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--repeats", type=int, default=6)
    parser.add_argument("--slices", type=int, default=8)
    parser.add_argument("--output", type=Path, default=ROOT / "build" / "bench" / "overhead.json")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        rows, broken = report(measure(Bench(Path(name)), options.rounds, options.repeats, options.slices))
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps({"rows": rows}, indent=1) + "\n", encoding="utf-8")
    print(f"{'case':22} {'metric':16} {'seconds':>9} {'peer':>11} {'ratio':>7}")
    for row in rows:
        print(f"{row['case']:22} {row['metric']:16} {row['ours']:>9.3f} {row['peer']:>11.3f} {row['ratio']:>7.3f}")
    for promise in broken:
        print(f"not kept: {promise}")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
