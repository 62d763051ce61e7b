# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Dump to text and to collapsed stacks: this library against jeprof, as whole processes, in turn; and how long large
profiles of other tools take.

    analysis.py [--rounds N] [--only SOURCE ...] [--output build/bench/analysis.json]

Times are medians of wall-clock seconds, but for what is called best. A warm run finds symcaches, a cold one an empty
directory; jeprof caches nothing, so both are compared with the same jeprof runs. ``child-cost`` is a warm run beside
one that parses in its own process, without the limits. Memory is the largest resident set of the process and its
children. With ``--only`` these sources' profiles are all that is read. Exits with status 1 if a promise is not kept.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(ROOT / ".cache" / "collections"))

from ansible_collections.offheap.profiler.tests.bench import unconfined

FORMS = ("text", "collapsed")
WARM_SPEEDUP, COLD_SPEEDUP, MEMORY_PER_BYTE = 30.0, 4.0, 20.0
# Ten times the stacks may take ten times as long, plus some noise.
GROWTH_TOLERANCE = 1.25
# Megabytes of a source's file (of pprof, a million samples), and the seconds and MiB that reading it may take.
SOURCES = {
    "pprof": (64, 5.0),
    "perf": (200, 10.0),
    "collapsed": (250, 5.0),
    "gperftools": (50, 10.0),
    "memray": (50, 10.0),
}
TOLD = {"collapsed": "live:bytes:1"}
SOURCE_MEMORY = 512.0
# By the best run of each, since pprof uses all processors, and the machine may be shared.
PPROF_SPEEDUP = 4.0
# The first run compiles this library's modules, like the first run of an installed collection.
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


@dataclass
class Runs:
    """Measurements of one command: wall-clock seconds and CPU seconds of each run, and peak memory in bytes."""

    seconds: list[float] = field(default_factory=list)
    processor: list[float] = field(default_factory=list)
    memory: int = 0

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)

    @property
    def best(self) -> float:
        return min(self.seconds)

    def add(self, command: list[str], more: Mapping[str, str] = MappingProxyType({})) -> None:
        """``more`` joins the environment."""
        environment = {**ENVIRONMENT, **more}
        started = time.perf_counter()
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=environment) as process:
            assert process.stderr is not None
            errors = process.stderr.read()
            _pid, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
        self.seconds.append(time.perf_counter() - started)
        self.processor.append(usage.ru_utime + usage.ru_stime)
        self.memory = max(self.memory, usage.ru_maxrss * 1024)
        if process.returncode:
            raise SystemExit(f"{' '.join(command)}: {errors.decode(errors='replace')}")


@dataclass(frozen=True)
class Dump:
    path: Path
    stacks: int
    size: int
    program: str
    libjvm: str

    @classmethod
    def write(cls, directory: Path, stacks: int) -> Dump:
        # In its own process: until they exec, children count the memory of this one as theirs.
        path = directory / f"{stacks}.heap"
        command = [sys.executable, str(HERE / "jvm_dump.py"), str(path), str(stacks)]
        facts = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
        return cls(path, stacks, facts["size"], facts["program"], facts["libjvm"])

    def ours(self, form: str, symcaches: Path) -> list[str]:
        return [sys.executable, str(HERE / "read_heap.py"), form, str(self.path), self.libjvm, str(symcaches)]

    def jeprof(self, form: str) -> list[str]:
        return [os.environ.get("OFFHEAP_JEPROF", "jeprof"), f"--{form}", self.program, str(self.path)]


def measure(dump: Dump, rounds: int, directory: Path, warm_only: bool = False) -> dict[str, Runs]:
    """Runs by name: text-warm, text-unconfined, text-cold, text-jeprof and so on."""
    runs: dict[str, Runs] = {}
    warm = directory / "warm"
    warm.mkdir(exist_ok=True)
    for form in FORMS:
        Runs().add(dump.ours(form, warm))  # fills the symcaches
    for number in range(rounds):
        for form in FORMS:
            runs.setdefault(f"{form}-warm", Runs()).add(dump.ours(form, warm))
            if warm_only:
                continue
            runs.setdefault(f"{form}-unconfined", Runs()).add(dump.ours(form, warm), unconfined.ENVIRONMENT)
            runs.setdefault(f"{form}-jeprof", Runs()).add(dump.jeprof(form))
            cold = directory / "cold"
            cold.mkdir()
            runs.setdefault(f"{form}-cold", Runs()).add(dump.ours(form, cold))
            shutil.rmtree(cold)
        print(f"{dump.stacks} stacks, round {number + 1} of {rounds}", file=sys.stderr, flush=True)
    return runs


def row(case: str, metric: str, unit: str, ours: float, peer: float | None, by: str = "jeprof") -> dict[str, Any]:
    """The ratio says how many times the peer's figure is ours."""
    return {
        "case": case,
        "metric": metric,
        "unit": unit,
        "ours": round(ours, 3),
        "peer": None if peer is None else round(peer, 3),
        "peer_name": None if peer is None else by,
        "ratio": None if peer is None else round(peer / ours, 2),
    }


def compare(dump: Dump, rounds: int, directory: Path) -> tuple[list[dict[str, Any]], list[str]]:
    """The rows of the dump of 20,000 stacks, and the promises that it breaks."""
    runs = measure(dump, rounds, directory)
    rows: list[dict[str, Any]] = []
    broken: list[str] = []
    for form in FORMS:
        peer = runs[f"{form}-jeprof"]
        for state, least in (("warm", WARM_SPEEDUP), ("cold", COLD_SPEEDUP)):
            ours = runs[f"{form}-{state}"]
            case = f"{form}-20k-{state}"
            rows.append(row(case, "speedup", "s", ours.median, peer.median))
            # The steadier figure on a busy machine.
            processor = (statistics.median(ours.processor), statistics.median(peer.processor))
            rows.append(row(case, "processor_time", "s", *processor))
            rows.append(row(case, "peak_memory", "MiB", ours.memory / 2**20, peer.memory / 2**20))
            rows.append(row(case, "peak_memory_per_byte", "B/B", ours.memory / dump.size, peer.memory / dump.size))
            if peer.median < least * ours.median:
                broken.append(f"{case}: {peer.median / ours.median:.1f} times faster than jeprof, not {least:g}")
            if ours.memory > min(MEMORY_PER_BYTE * dump.size, peer.memory):
                broken.append(f"{case}: {ours.memory / 2**20:.0f} MiB is more than jeprof or 20 times the file")
        confined, free = runs[f"{form}-warm"].median, runs[f"{form}-unconfined"].median
        cost = {"peer_name": "the same without the child", "ratio": round(confined / free, 3)}
        rows.append(row(f"{form}-20k-warm", "child-cost", "s", confined, free) | cost)
        if confined > unconfined.MOST_COST * free:
            broken.append(f"{form}-20k-warm: the child makes it take {confined / free:.2f} times as long")
    return rows, broken


def growth(dumps: list[Dump], rounds: int, directory: Path) -> tuple[list[dict[str, Any]], list[str]]:
    """Rows of our times by number of stacks; each is compared with linear growth from the next smaller one."""
    rows: list[dict[str, Any]] = []
    broken: list[str] = []
    before: dict[str, tuple[int, float]] = {}
    for dump in dumps:
        runs = measure(dump, rounds, directory, warm_only=True)
        for form in FORMS:
            seconds = runs[f"{form}-warm"].median
            case = f"{form}-{dump.stacks // 1000}k-warm"
            linear = None
            if form in before:
                linear = before[form][1] * dump.stacks / before[form][0]
                if seconds > GROWTH_TOLERANCE * linear:
                    broken.append(f"{case}: {seconds:.2f} s is more than linear growth allows ({linear:.2f} s)")
            rows.append(row(case, "growth", "s", seconds, linear, "linear"))
            memory = runs[f"{form}-warm"].memory / 2**20
            rows.append(row(case, "peak_memory", "MiB", memory, MEMORY_PER_BYTE * dump.size / 2**20, "20 x file"))
            before[form] = (dump.stacks, seconds)
    return rows, broken


def sources(names: Iterable[str], rounds: int, directory: Path) -> tuple[list[dict[str, Any]], list[str]]:
    """Rows of reading other tools' files, pprof's beside pprof itself, and the promises that they break."""
    rows: list[dict[str, Any]] = []
    broken: list[str] = []
    symcaches = directory / "none"
    symcaches.mkdir()
    for name in names:
        megabytes, most = SOURCES[name]
        path = directory / name
        subprocess.run([sys.executable, str(HERE / "source_files.py"), name, str(path), str(megabytes)], check=True)
        ours, peer = Runs(), Runs()
        for number in range(rounds):
            read = [sys.executable, str(HERE / "read_heap.py"), "text", str(path), str(directory), str(symcaches)]
            ours.add([*read, TOLD.get(name, "")])
            if name == "pprof" and shutil.which("go"):
                peer.add(["go", "tool", "pprof", "-top", "-sample_index=inuse_space", str(path)])
            print(f"{megabytes} MB of {name}, round {number + 1} of {rounds}", file=sys.stderr, flush=True)
        path.unlink()
        theirs = peer.median if peer.seconds else None
        rows.append(row(f"read-{name}", "seconds", "s", ours.median, theirs, "go tool pprof -top"))
        rows.append(row(f"read-{name}", "peak_memory", "MiB", ours.memory / 2**20, None))
        if ours.best > most or ours.memory / 2**20 > SOURCE_MEMORY:
            broken.append(f"read-{name}: {ours.best:.1f} s and {ours.memory / 2**20:.0f} MiB")
        if peer.seconds:
            rows.append(row(f"read-{name}", "best_seconds", "s", ours.best, peer.best, "go tool pprof -top"))
            if peer.best < PPROF_SPEEDUP * ours.best:
                broken.append(
                    f"read-{name}: {peer.best / ours.best:.1f} times faster than pprof, not {PPROF_SPEEDUP:g}"
                )
    return rows, broken


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", nargs="+", choices=SOURCES, metavar="SOURCE")
    parser.add_argument("--output", type=Path, default=ROOT / "build" / "bench" / "analysis.json")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        parts = []
        if not options.only:
            parts.append(compare(Dump.write(directory, 20_000), options.rounds, directory))
            dumps = [Dump.write(directory, stacks) for stacks in (1_000, 10_000, 100_000)]
            parts.append(growth(dumps, options.rounds, directory))
        parts.append(sources(options.only or SOURCES, options.rounds, directory))
    rows = [line for part, _broken in parts for line in part]
    broken = [promise for _rows, promises in parts for promise in promises]
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps({"rows": rows}, indent=1) + "\n", encoding="utf-8")
    print(f"{'case':22} {'metric':22} {'ours':>9} {'peer':>9} {'ratio':>7}")
    for line in rows:
        peer, ratio = ("-" if line[key] is None else f"{line[key]:g}" for key in ("peer", "ratio"))
        print(f"{line['case']:22} {line['metric']:22} {line['ours']:>9g} {peer:>9} {ratio:>7} {line['unit']}")
    for promise in broken:
        print(f"not kept: {promise}")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
