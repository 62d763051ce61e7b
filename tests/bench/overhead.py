# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""What profiling costs: the same work under glibc's malloc, jemalloc, and jemalloc with the agent.

    overhead.py [--rounds N] [--repeats N] [--slices N] [--output build/bench/overhead.json]
                [--only costs|live|redis|instructions|cross|parts|latency|resident|exec|objects]

Each round runs all cases several times, in a new order each time. A run does the same slice of work several times; a
case's time in the round is that of its fastest slice, since other load on the machine, or an unlucky memory layout, can
only add to it. The cost is that time divided by the same round's time without preload, and the median over the rounds:
``throughput-cost`` in wall-clock time, which says little on a busy machine, and ``cpu-cost`` in CPU time.
``cost-over-jemalloc`` is the same beside jemalloc that does not profile. ``agent-adds`` is what the agent adds to the
cost of the same case without it: the median of the rounds' differences. Wall-clock time scatters by more than that, so
what the agent may add is decided by ``instructions``: those of a slice of the C program's work as callgrind counts
them, with the agent and without, the means of some runs.

``live-jvm`` is a live trace of a JVM: async-profiler, which records every MiB that is allocated, and every free. Its
program does nothing but make, use and end zlib streams of 24 KiB. With streams of 4 KiB, it frees so often that a trace
ends itself (``live-jvm-4KiB``: no promise). ``live-jvm-4KiB-without-frees`` shows what of that are frees; it could not
tell what stays.
``live-perf`` and ``live-memleak`` are live traces of the C program: the CPU time of a slice while it is traced, beside
that of the same process before and after. memleak has no promise: a trace by it ends itself where it costs much.
``live-heaptrack`` is what people attach today, which records every allocation.
``otel-memory`` is the C program under the library and the agent, while somebody attaches to the agent's probes: what
the kernel takes for each sample and its end, without the profiler's own work.
``attach-c`` is the same with the agent attached, which samples what glibc allocates, and ``attach-jvm`` of the JVM that
compresses, and ``attach-redis`` of redis, which has its own jemalloc; ``attach-c-detached`` is after it has put back
all that it changed. ``c-own`` and ``jvm-own`` are with the agent preloaded alone, beside no preload.

``cross`` is the library and the agent as the controller builds them, beside the same sources built by gcc; those for
aarch64 run under an emulator, whose time follows the number of instructions.

``parts`` is our library, with the agent, beside the same release without our patches, and beside one without the patch
that the ledger of lives needs.

``latency`` is how long a request takes at a fixed rate, in microseconds: 60 allocations and 60 frees in each of four
threads, while blocks of 20,000 stacks are held and a dump is taken each ten seconds; under glibc's malloc, jemalloc,
and jemalloc with the agent, with dumps and without, the medians of the rounds. ``resident`` is how much memory stays of
512 MiB of which three quarters are freed, on a machine that gives huge pages always, with the options that we set there
and without them. ``exec`` is how long a program takes that the service starts,
``/bin/true``: our variables have left its environment. ``objects`` is a Python program under the library and the agent,
at 512 KiB, whose small objects are allocated with malloc, beside the same with arenas of its own.

Exits with status 1 if a promise is not kept.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import os
import random
import re
import select
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any, NamedTuple

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(ROOT / ".cache" / "collections"))

from ansible_collections.offheap.profiler.plugins.module_utils.agent import client
from ansible_collections.offheap.profiler.plugins.module_utils.host import procfs
from ansible_collections.offheap.profiler.plugins.module_utils.tracing import attach_trace, inject, kernel_trace
from ansible_collections.offheap.profiler.plugins.module_utils.unit import drop_in
from ansible_collections.offheap.profiler.roles.jemalloc.files import reproduce
from ansible_collections.offheap.profiler.tests.agent import builds, probes
from ansible_collections.offheap.profiler.tests.bench import attached_redis
from ansible_collections.offheap.profiler.tests.unit.strategies import kernel_tools, recordings

PLAIN, JEMALLOC, OWN = "no preload", "jemalloc", "own"
# glibc adapts these as it goes. Then a JVM's slice takes 0.11 to 0.24 s, by chance.
STEADY = {
    "MALLOC_TRIM_THRESHOLD_": str(256 << 20),
    "MALLOC_TOP_PAD_": str(1 << 20),
    "MALLOC_MMAP_THRESHOLD_": str(16 << 20),
}
DORMANT = "prof:true,prof_active:false"
# case -> MALLOC_CONF (None: no preload), whether the agent is loaded, whether it switches sampling on
CASES: dict[str, tuple[str | None, bool, bool]] = {
    PLAIN: (None, False, False),
    JEMALLOC: ("", False, False),
    "dormant": (DORMANT, False, False),
    "dormant-agent": (DORMANT, True, False),
    "512KiB": ("prof:true,lg_prof_sample:19", False, False),
    "512KiB-agent": (f"{DORMANT},lg_prof_sample:19", True, True),
    "128KiB": ("prof:true,lg_prof_sample:17", False, False),
    "128KiB-agent": (f"{DORMANT},lg_prof_sample:17", True, True),
    OWN: ("", True, True),
}
# Live traces of a JVM, beside those.
TRACED = "start,nativemem=1m,jfr,jfropts=0x1f,loglevel=none"
LIVE = "live-jvm"
LIVE_JVM = {LIVE: TRACED, "live-jvm-4KiB": TRACED, "live-jvm-4KiB-without-frees": f"{TRACED},nofree"}
JVM, STEADY_JVM = "jvm", "jvm-24KiB"
# Live traces of the C program. memleak slows it so much that it gets little to do.
LIVE_PERF, LIVE_MEMLEAK, ATTACHED, ATTACHED_JVM = "live-perf", "live-memleak", "attach-c", "attach-jvm"
LIVE_HEAPTRACK, PROBED = "live-heaptrack", "otel-memory"
LIVE_ROUNDS = {
    LIVE_PERF: 1_200_000,
    LIVE_MEMLEAK: 20_000,
    LIVE_HEAPTRACK: 20_000,
    ATTACHED: 1_200_000,
    PROBED: 1_200_000,
}
LIVE_SLICES = 24
# Callgrind takes fifty times as long, so what it counts is less: the difference of so many slices.
COUNTED_ROUNDS, COUNTED_SLICES, COUNTED_RUNS = 60_000, (1, 9), 12
# Stacks that are held, requests a second of each of four threads, seconds; and seconds between dumps.
REQUESTS, DUMP_SECONDS = (20_000, 500, 35), 10
# What a dump may add to the slowest of a thousand requests.
DUMP_LATENCY = 1.1
# MiB that are allocated, and the seconds until jemalloc has given back what is free.
RESIDENT, HUGE_PAGES = (512, 12), Path("/sys/kernel/mm/transparent_hugepage/enabled")
PERCENTILES = ("p50", "p99", "p99.9")
# What the shortest of its runs records, in bytes, is several times this.
_RECORDED = 1 << 20
AGENTS = [case for case in CASES if f"{case}-agent" in CASES]
# The controller's pair and gcc's, compared where they do most.
CROSS = "512KiB-agent"
DORMANT_COST, SAMPLING_COST, AGENT_COST, LIVE_COST, CROSS_COST = 1.01, 1.03, 0.01, 1.03, 1.01
LIVE_COSTS = {LIVE_PERF: 1.02, ATTACHED: 1.10, ATTACHED_JVM: 1.02}
ATTACHED_REDIS, REDIS_COSTS = "attach-redis", {"cpu": 1.02, "slowest": 1.05}
DETACHED_COST, OWN_COSTS = 1.005, {"c": 1.10, "jvm": 1.02}
# What our patches, and the ledger, may add.
PART_COST, PART_INSTRUCTIONS = 1.005, 1.003
EXEC_COST, EXECS = 1.05, 1000


def find_jemalloc() -> Path:
    for path in Path("/usr/lib").glob("*/libjemalloc.so.2"):
        return path
    raise SystemExit("no jemalloc: apt-get install libjemalloc2")


class Pair(NamedTuple):
    """What is preloaded."""

    jemalloc: Path
    agent: Path


class Run(NamedTuple):
    wall: float
    cpu: float


class Bench:
    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.pair = Pair(find_jemalloc(), builds.agent())
        churn, emulated = directory / "churn", directory / "churn-aarch64"
        self.requests, self.spawn, self.kept = (directory / name for name in ("requests", "spawn", "resident"))
        for compiler, source, program in (
            ("gcc", "churn.c", churn),
            (builds.CROSS_GCC, "churn.c", emulated),
            ("gcc", "requests.c", self.requests),
            ("gcc", "spawn.c", self.spawn),
            ("gcc", "resident.c", self.kept),
        ):
            command = [compiler, "-O2", "-o", str(program), str(HERE / "overhead" / source), "-pthread"]
            subprocess.run(command, check=True)
        java = shutil.which("java")
        javac = shutil.which("javac")
        if not java or not javac:
            raise SystemExit("no JDK")
        subprocess.run([javac, "-d", str(directory), str(HERE / "overhead" / "Deflaters.java")], check=True)
        self.tracer = recordings.library(directory)
        flags = ["-XX:+PreserveFramePointer", "-XX:+UseSerialGC", "-Xms256m", "-Xmx256m", "-cp", str(directory)]
        deflaters = [os.path.realpath(java), *flags, "Deflaters"]
        self.workloads: dict[str, Callable[[int], list[str]]] = {
            JVM: lambda slices: [*deflaters, str(slices), "2000", "4096"],
            "c": lambda slices: [str(churn), str(slices), "1200000"],
        }
        self.steady = {STEADY_JVM: lambda slices: [*deflaters, str(slices), "400", "24576"]}
        self.emulated = {"c-aarch64": lambda slices: [str(emulated), str(slices), "300000"]}

    @functools.cached_property
    def headers(self) -> dict[str, str]:
        return kernel_tools.headers(self.directory)

    def environment(self, case: str, executable: str) -> dict[str, str]:
        conf, with_agent, sampling = CASES[PLAIN if case in LIVE_JVM else case]
        environment = {"PATH": os.environ["PATH"]}
        if conf is None:
            return {**environment, **STEADY}
        preload = self.pair[1:] if case == OWN else self.pair if with_agent else self.pair[:1]
        environment["LD_PRELOAD"] = ":".join(map(str, preload))
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
                OFFHEAP_UNSET="1",
            )
        if case == OWN:
            environment.update(STEADY, OFFHEAP_PREFIX=f"{self.directory}/jeprof")
        return environment

    def run(self, workload: str, case: str, slices: int) -> Run:
        """The fastest slice's wall-clock and CPU time (each its own minimum)."""
        command = {**self.workloads, **self.steady, **self.emulated}[workload](slices)
        if case in LIVE_JVM:
            command.insert(1, f"-agentpath:{self.tracer}={LIVE_JVM[case]},file={self.directory}/live.jfr")
        environment = self.environment(case, command[0])
        if workload in self.emulated:  # by a program of this machine
            command = [*builds.EMULATOR, "-E", f"LD_PRELOAD={environment.pop('LD_PRELOAD')}", *command]
        done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
        if done.stderr:
            raise SystemExit(f"{workload}-{case}: {done.stderr}")
        if LIVE_JVM.get(case) == TRACED and (self.directory / "live.jfr").stat().st_size < _RECORDED:
            raise SystemExit(f"{case}: the recording is too small for this work")
        wall, cpu = zip(*(map(float, line.split()) for line in done.stdout.splitlines()), strict=True)
        return Run(min(wall), min(cpu))

    def latency(self, case: str, between_dumps: int) -> list[float]:
        """The percentiles of a request, in microseconds. 0 seconds between dumps: there are none."""
        command = [str(self.requests), *map(str, REQUESTS), "0"]
        environment = {**self.environment(case, command[0]), "OFFHEAP_DUMP_SECONDS": str(between_dumps)}
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        with subprocess.Popen(command, env=environment, **pipes) as process:
            time.sleep(1)  # the agent begins meanwhile
            told = process.communicate("\n")[0]
        if process.returncode:
            raise SystemExit(f"latency-{case}: exit status {process.returncode}")
        dumps = list(self.directory.glob("jeprof.*.heap"))
        if between_dumps and len(dumps) < REQUESTS[2] // between_dumps - 1:
            raise SystemExit(f"latency-{case}: only {len(dumps)} dumps were taken")
        for dump in dumps:
            dump.unlink()
        return [float(word) for word in told.split()]

    def resident(self, options: str) -> float:
        """MiB that stay of what was allocated, three quarters of it freed: with sampling and these options of jemalloc,
        or without preload."""
        command = [str(self.kept), *map(str, RESIDENT)]
        environment = self.environment(PLAIN if options == PLAIN else "512KiB", command[0])
        if options and options != PLAIN:
            environment["MALLOC_CONF"] += f",{options}"
        done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
        return float(done.stdout)

    def exec(self, case: str) -> float:
        """Seconds that a program takes which a process of this case starts."""
        command = [str(self.spawn), str(EXECS)]
        environment = self.environment(case, command[0])
        return float(subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout)

    def objects(self, allocator: str, slices: int) -> tuple[float, float]:
        """Seconds of the fastest slice, and MiB that are resident, of a Python program with this PYTHONMALLOC."""
        command = [os.path.realpath(sys.executable), str(HERE / "overhead" / "small_objects.py"), str(slices)]
        environment = {**self.environment("512KiB-agent", command[0]), "PYTHONMALLOC": allocator}
        done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
        *seconds, resident = map(float, done.stdout.split())
        return min(seconds), resident

    def traced(self, case: str) -> tuple[float, float, float]:
        """CPU seconds of a slice of the program before, while and after it is traced."""
        endless = 1_000_000
        if case == ATTACHED_JVM:
            command = self.workloads[JVM](endless)
        else:
            command = [*self.workloads["c"](endless)[:-1], str(LIVE_ROUNDS[case])]
        with contextlib.ExitStack() as stack:
            environment = self.environment("512KiB-agent", command[0]) if case == PROBED else None
            started = subprocess.Popen(command, stdout=subprocess.PIPE, bufsize=0, env=environment)
            program = stack.enter_context(started)
            stack.callback(program.kill)
            lines = program.stdout
            assert lines is not None
            _slice(lines)  # a JVM compiles what it runs
            faults, began = procfs.page_faults(program.pid), time.monotonic()
            before = _slice(lines)
            rate = (procfs.page_faults(program.pid) - faults) / (time.monotonic() - began)
            tracer = {
                LIVE_PERF: lambda: self._perf(program.pid, rate),
                LIVE_MEMLEAK: lambda: self._memleak(program.pid),
                LIVE_HEAPTRACK: lambda: self._heaptrack(program.pid),
                ATTACHED: lambda: self.attached(program.pid),
                ATTACHED_JVM: lambda: self.attached(program.pid),
                PROBED: lambda: probes.attached(self.pair.agent),
            }[case]
            with tracer():
                _catch_up(lines)
                during = _slice(lines)
            _catch_up(lines)
            return before, during, _slice(lines)

    @contextlib.contextmanager
    def _perf(self, pid: int, rate: float) -> Iterator[None]:
        """perf, as a live trace runs it on a process with so many faults a second."""
        commands = kernel_trace.perf_commands("perf", pid, kernel_trace.fault_period(rate))
        record, script = (["nice", "-n19", *command] for command in commands)
        with contextlib.ExitStack() as stack:
            while True:
                tool = stack.enter_context(subprocess.Popen(record, stdout=subprocess.PIPE))
                text = stack.enter_context(subprocess.Popen(script, stdin=tool.stdout, stdout=subprocess.PIPE))
                stack.callback(tool.send_signal, signal.SIGINT)
                assert text.stdout is not None
                if text.stdout.readline():
                    break  # else a thread ended while it began
            threading.Thread(target=text.stdout.read, daemon=True).start()
            yield
            _check_runs(tool)

    @contextlib.contextmanager
    def _memleak(self, pid: int) -> Iterator[None]:
        """memleak, as a live trace runs it, once it has set its probes."""
        c_library = next(path for path in procfs.mapped_files(pid) if "/libc.so" in path)
        watching = kernel_trace.memleak_command("memleak-bpfcc", pid, c_library, 1, 1000)
        with subprocess.Popen(watching, stdout=subprocess.PIPE, env={**os.environ, **self.headers}) as tool:
            assert tool.stdout is not None
            while b"outstanding allocations" not in tool.stdout.readline():
                pass
            threading.Thread(target=tool.stdout.read, daemon=True).start()
            yield
            _check_runs(tool)
            tool.kill()

    @contextlib.contextmanager
    def _heaptrack(self, pid: int) -> Iterator[None]:
        """heaptrack, once gdb has brought it in, until gdb has stopped it."""
        command = ["heaptrack", "--output", str(self.directory / "heaptrack"), "--pid", str(pid)]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as tool:
            assert tool.stdout is not None
            while b"injection finished" not in tool.stdout.readline():
                _check_runs(tool)
            yield
            _check_runs(tool)
            tool.send_signal(signal.SIGINT)
            tool.stdout.read()

    @contextlib.contextmanager
    def attached(self, pid: int) -> Iterator[None]:
        """The agent's sampler, at one sample in 512 KiB."""
        settings = {
            "UNIT": "bench.service",
            "PREFIX": self.directory / "attached",
            "SOCKET_DIR": self.directory,
            "LG_SAMPLE": 19,
            "START_DELAY": 0,
        }
        text = "".join(f"OFFHEAP_{name}={value}\n" for name, value in settings.items())
        done = inject.have_library(pid, str(self.pair.agent), attach_trace.SYMBOL, text.encode())
        path = self.directory / f"{pid}.sock"
        while not path.exists():
            time.sleep(0.01)
        socket = client.AgentSocket(pid, str(path))
        with client.Connection(socket) as agent:
            if done.result or agent.request("status")["feeder"] != "sampler":
                raise SystemExit(f"{ATTACHED}: it is not sampled")
        yield
        with client.Connection(socket) as agent:  # the agent ends one that is silent for long
            agent.request("detach")

    def instructions(self, case: str) -> int:
        """Those of a number of slices of the C program."""
        counts = []
        for slices in COUNTED_SLICES:
            command = [*self.workloads["c"](slices)[:-1], str(COUNTED_ROUNDS)]
            callgrind = ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null", *command]
            environment = self.environment(case, command[0])
            done = subprocess.run(callgrind, env=environment, check=True, capture_output=True, text=True)
            found = re.search(r"Collected : (\d+)", done.stderr)
            if found is None:
                raise SystemExit(f"callgrind has counted nothing: {done.stderr}")
            counts.append(int(found[1]))
        return counts[1] - counts[0]


def _check_runs(tool: subprocess.Popen[bytes]) -> None:
    if tool.poll() is not None:
        raise SystemExit("the tool has ended by itself")


def _slice(lines: IO[bytes]) -> float:
    """The CPU seconds of a slice: the median, since the fastest of the traced ones may have met no probe."""
    return statistics.median(_seconds(lines) for _slice in range(LIVE_SLICES))


def _seconds(lines: IO[bytes]) -> float:
    line = lines.readline()
    if not line:
        raise SystemExit("the program has ended while it was traced")
    return float(line.split()[1])


def _catch_up(lines: IO[bytes]) -> None:
    """Read what was written before the probes were set, and the slice in which they were."""
    while select.select([lines], [], [], 0)[0]:
        os.read(lines.fileno(), 1 << 16)
    _seconds(lines)
    _seconds(lines)


def measure_live(bench: Bench, rounds: int) -> tuple[list[dict[str, Any]], list[str]]:
    """The rows of live traces of a running program, and the promises that they break."""
    rows, broken = [], []
    for case in (*LIVE_ROUNDS, ATTACHED_JVM):
        if case == LIVE_HEAPTRACK and not shutil.which("heaptrack"):
            print(f"{case}: not measured; apt-get install heaptrack gdb")
            continue
        slow = case in (LIVE_MEMLEAK, LIVE_HEAPTRACK)
        done = [bench.traced(case) for _round in range(rounds if slow else 4 * rounds)]
        cost = statistics.median(2 * during / (before + after) for before, during, after in done)
        before, during, after = (statistics.median(column) for column in zip(*done, strict=True))
        rows.append(_row(case, "throughput-cost", "s", during, before, "the same process untraced", cost))
        if cost > LIVE_COSTS.get(case, cost):
            broken.append(f"{case}: costs {cost:.3f}, not {LIVE_COSTS[case]}")
        if case in (ATTACHED, ATTACHED_JVM):
            left = statistics.median(after / before for before, _during, after in done)
            rows.append(_row(f"{case}-detached", "throughput-cost", "s", after, before, "the same before", left))
            if left > DETACHED_COST:
                broken.append(f"{case}-detached: costs {left:.4f}, not {DETACHED_COST}")
    return rows, broken


def measure_redis(bench: Bench, rounds: int) -> tuple[list[dict[str, Any]], list[str]]:
    """The rows of redis with the agent attached, and the promises that they break."""
    if not attached_redis.is_installed():
        print(f"{ATTACHED_REDIS}: not measured; apt-get install redis-server")
        return [], []
    rows, broken = [], []
    found = attached_redis.medians(attached_redis.measure(bench.directory, bench.attached, 4 * rounds))
    for name, metric, unit in (("cpu", "cpu-cost", "s"), ("slowest", "p99.9", "ms")):
        during, before, cost, left = found[name]
        rows.append(_row(ATTACHED_REDIS, metric, unit, during, before, "the same before and after", cost))
        rows.append(_row(f"{ATTACHED_REDIS}-detached", metric, unit, before * left, before, "the same before", left))
        if cost > REDIS_COSTS[name]:
            broken.append(f"{ATTACHED_REDIS}: {metric} is {cost:.3f}, not {REDIS_COSTS[name]}")
    return rows, broken


def measure_cross(bench: Bench, rounds: int, repeats: int, slices: int) -> tuple[list[dict[str, Any]], list[str]]:
    """The rows of the controller's builds, and the promises that they break."""
    rows, broken = [], []
    native = [Pair(builds.crossed("library"), builds.crossed("agent")), Pair(builds.library(), builds.agent())]
    platform = "glibc-aarch64-4096"
    emulated = [
        Pair(builds.crossed("library", platform), builds.crossed("agent", platform)),
        Pair(builds.library(builds.CROSS_GCC), builds.agent(builds.CROSS_GCC)),
    ]
    for workload in [*bench.workloads, *bench.emulated]:
        pairs = emulated if workload in bench.emulated else native
        ours, theirs, cost = _compared(bench, workload, pairs, (rounds, repeats, slices))
        rows.append(_row(f"{workload}-{CROSS}-cross", "throughput-cost", "s", ours, theirs, "built by gcc", cost))
        if cost > CROSS_COST:
            broken.append(f"{workload}-{CROSS}-cross: costs {cost:.3f} of what gcc's does, not {CROSS_COST}")
    return rows, broken


def _compared(
    bench: Bench, workload: str, pairs: Sequence[Pair], runs: tuple[int, int, int]
) -> tuple[float, float, float]:
    """The seconds of a workload with each of two pairs, and the median of the rounds' ratios."""
    rounds, repeats, slices = runs
    times: list[list[float]] = [[], []]
    for _round in range(rounds):
        done: list[list[float]] = [[], []]
        for _repeat in range(repeats):
            for bench.pair, own in zip(pairs, done, strict=True):
                own.append(bench.run(workload, CROSS, slices).wall)
        for all_rounds, own in zip(times, done, strict=True):
            all_rounds.append(min(own))
    cost = statistics.median(ours / theirs for ours, theirs in zip(*times, strict=True))
    return (*map(statistics.median, times), cost)


def measure_parts(bench: Bench, rounds: int, repeats: int, slices: int) -> tuple[list[dict[str, Any]], list[str]]:
    """The rows of our patches, and of the ledger alone: the same agent beside a jemalloc without them."""
    rows, broken = [], []
    whole = Pair(builds.library(), builds.agent())
    for part, without in (("patches", [path.stem for path in reproduce.patches()]), ("ledger", ["prof-hooks"])):
        pairs = (whole, whole._replace(jemalloc=builds.library_without(*without)))
        for workload in bench.workloads:
            ours, theirs, cost = _compared(bench, workload, pairs, (rounds, repeats, slices))
            rows.append(_row(f"{workload}-{CROSS}-{part}", "throughput-cost", "s", ours, theirs, f"no {part}", cost))
            if cost > PART_COST:
                broken.append(f"{workload}-{CROSS}-{part}: costs {cost:.4f}, not {PART_COST}")
        counts = []
        for bench.pair in pairs:
            counts.append(statistics.mean(_counted(bench, [CROSS] * COUNTED_RUNS)))
        cost = counts[0] / counts[1]
        rows.append(_row(f"c-{CROSS}-{part}", "instructions", "instructions", *counts, f"no {part}", cost))
        if cost > PART_INSTRUCTIONS:
            broken.append(f"c-{CROSS}-{part}: takes {cost:.4f} of the instructions, not {PART_INSTRUCTIONS}")
    return rows, broken


def _counted(bench: Bench, cases: Sequence[str]) -> list[int]:
    with ThreadPoolExecutor(os.cpu_count()) as pool:  # other load takes time, and no instructions
        return list(pool.map(bench.instructions, cases))


def measure_latency(bench: Bench, rounds: int) -> tuple[list[dict[str, Any]], list[str]]:
    """The rows of how long a request takes, and the promises that they break."""
    ours = f"{CROSS}, no dumps"
    cases: dict[str, tuple[str, int]] = {
        PLAIN: (PLAIN, 0),
        JEMALLOC: (JEMALLOC, 0),
        ours: (CROSS, 0),
        CROSS: (CROSS, DUMP_SECONDS),
    }
    bench.pair = Pair(builds.library(), builds.agent())
    found: dict[str, list[list[float]]] = {name: [] for name in cases}
    dice = random.Random(1)
    for _round in range(rounds):
        for name in dice.sample(list(cases), len(cases)):
            found[name].append(bench.latency(*cases[name]))
    middle = {name: [statistics.median(column) for column in zip(*found[name], strict=True)] for name in cases}
    rows, broken = [], []
    for at, percentile in enumerate(PERCENTILES):
        for peer in (PLAIN, JEMALLOC, ours):
            with_dumps, theirs = middle[CROSS][at], middle[peer][at]
            rows.append(_row(f"latency-{CROSS}", percentile, "us", with_dumps, theirs, peer, with_dumps / theirs))
    with_dumps, without = middle[CROSS][-1], middle[ours][-1]
    if with_dumps > DUMP_LATENCY * without:
        broken.append(f"latency-{CROSS}: p99.9 is {with_dumps:.0f} us, and {without:.0f} without dumps")
    return rows, broken


def measure_resident(bench: Bench, rounds: int) -> tuple[list[dict[str, Any]], list[str]]:
    """The row of what our options keep resident where the kernel gives huge pages always. Needs root."""
    bench.pair = Pair(builds.library(), builds.agent())
    before = re.findall(r"\[(.*)\]", HUGE_PAGES.read_text())[0]
    HUGE_PAGES.write_text("always")
    try:
        never = ",".join(f"{name}:{value}" for name, value in drop_in.huge_page_options().items())
        found: dict[str, list[float]] = {PLAIN: [], "": [], never: []}
        for _round in range(rounds):
            for options, sizes in found.items():
                sizes.append(bench.resident(options))
    finally:
        HUGE_PAGES.write_text(before)
    middle = {options: statistics.median(sizes) for options, sizes in found.items()}
    rows = [
        _row("huge-pages", "rss", "MiB", middle[never], middle[peer], name, middle[never] / middle[peer])
        for peer, name in ((PLAIN, PLAIN), ("", "without our options"))
    ]
    broken = [] if middle[never] <= middle[""] else [f"huge-pages: {never} keeps more resident"]
    return rows, broken


def measure_exec(bench: Bench, rounds: int, repeats: int) -> tuple[list[dict[str, Any]], list[str]]:
    """The row of what starting a program costs, and the promise that it breaks."""
    times: list[list[float]] = [[], []]
    for _round in range(rounds):
        runs = [[bench.exec(case) for case in (CROSS, PLAIN)] for _repeat in range(repeats)]
        for all_rounds, own in zip(times, zip(*runs, strict=True), strict=True):
            all_rounds.append(min(own))
    cost = statistics.median(ours / theirs for ours, theirs in zip(*times, strict=True))
    ours, theirs = map(statistics.median, times)
    rows = [_row(f"exec-{CROSS}", "wall", "s", ours, theirs, PLAIN, cost)]
    return rows, [f"exec-{CROSS}: costs {cost:.3f}, not {EXEC_COST}"] if cost > EXEC_COST else []


def measure_objects(bench: Bench, rounds: int, slices: int) -> tuple[list[dict[str, Any]], list[str]]:
    """The rows of what it costs that Python allocates small objects with malloc; nothing is promised."""
    runs = [[bench.objects(allocator, slices) for allocator in ("malloc", "pymalloc")] for _round in range(rounds)]
    rows = []
    for number, (metric, unit) in enumerate((("wall", "s"), ("resident", "MiB"))):
        ours, theirs = ([of_round[at][number] for of_round in runs] for at in range(2))
        ratio = statistics.median(own / other for own, other in zip(ours, theirs, strict=True))
        both = statistics.median(ours), statistics.median(theirs)
        rows.append(_row("python-objects", metric, unit, *both, "python's own arenas", ratio))
    return rows, []


def measure_instructions(bench: Bench) -> tuple[list[dict[str, Any]], list[str]]:
    """The rows of what the agent adds in instructions, and the promises that it breaks."""
    rows, broken = [], []
    for case in AGENTS:
        pair = (f"{case}-agent", case)
        counted = _counted(bench, pair * COUNTED_RUNS)
        ours, own = (statistics.mean(counted[at::2]) for at in range(2))
        rows.append(
            _row(f"c-{case}-agent", "instructions", "instructions", ours, own, f"{case} without the agent", ours / own)
        )
        if ours / own - 1 > AGENT_COST:
            broken.append(f"c-{case}-agent: the agent adds {ours / own - 1:.4f} of the instructions, not {AGENT_COST}")
    counted = _counted(bench, (OWN, PLAIN) * COUNTED_RUNS)
    ours, own = (statistics.mean(counted[at::2]) for at in range(2))
    rows.append(_row(f"c-{OWN}", "instructions", "instructions", ours, own, PLAIN, ours / own))
    return rows, broken


def _row(case: str, metric: str, unit: str, ours: float, peer: float, name: str, ratio: float) -> dict[str, Any]:
    told = {"case": case, "metric": metric, "unit": unit, "ours": round(ours, 4), "peer": round(peer, 4)}
    return {**told, "peer_name": name, "ratio": round(ratio, 4)}


def measure(bench: Bench, rounds: int, repeats: int, slices: int) -> dict[str, dict[str, list[Run]]]:
    """Seconds, by workload and case, of each round."""
    times: dict[str, dict[str, list[Run]]] = {name: {case: [] for case in CASES} for name in bench.workloads}
    times[JVM].update({case: [] for case in LIVE_JVM if case != LIVE})
    times[STEADY_JVM] = {PLAIN: [], LIVE: []}
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
                name, own = case if case in LIVE_JVM else f"{workload}-{case}", statistics.median(seconds)
                rows.append(_row(name, metric, "s", own, statistics.median(plain), PLAIN, costs[case]))
                if metric == "throughput-cost" and case not in (PLAIN, JEMALLOC, *LIVE_JVM):
                    idle = [run.wall for run in cases[JEMALLOC]]
                    over = statistics.median(ours / theirs for ours, theirs in zip(seconds, idle, strict=True))
                    rows.append(_row(name, "cost-over-jemalloc", "s", own, statistics.median(idle), JEMALLOC, over))
            if metric == "throughput-cost":
                added = {case: _added(cases, case, kind) for case in AGENTS if case in cases}
                rows += [_row_of_added(workload, case, cases, added[case]) for case in added]
                broken += promises(workload, costs)
                for case, cost in added.items():
                    print(f"{workload}-{case}-agent: the agent adds {cost:+.3f}")
    rows = [row for row in rows if not row["case"].endswith(PLAIN)]
    return rows, broken


def _row_of_added(workload: str, case: str, cases: dict[str, list[Run]], added: float) -> dict[str, Any]:
    ours, own = (statistics.median(run.wall for run in cases[name]) for name in (f"{case}-agent", case))
    return _row(f"{workload}-{case}-agent", "agent-adds", "s", ours, own, f"{case} without the agent", added)


def _added(cases: dict[str, list[Run]], case: str, kind: str) -> float:
    """What the agent adds to the cost of the same case without it: the median of the rounds' differences."""
    runs = zip(*(cases[name] for name in (f"{case}-agent", case, PLAIN)), strict=True)
    return statistics.median(
        (getattr(ours, kind) - getattr(own, kind)) / getattr(plain, kind) for ours, own, plain in runs
    )


def promises(workload: str, costs: dict[str, float]) -> list[str]:
    return [
        f"{workload}-{case}: costs {costs[case]:.3f}, not {limit}"
        for case, limit in (
            ("dormant", DORMANT_COST),
            ("512KiB-agent", SAMPLING_COST),
            (LIVE, LIVE_COST),
            (OWN, OWN_COSTS.get(workload, float("inf"))),
        )
        if costs.get(case, 0.0) > limit
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--repeats", type=int, default=6)
    parser.add_argument("--slices", type=int, default=8)
    parts = ["costs", "live", "redis", "instructions", "cross", "parts", "latency", "resident", "exec", "objects"]
    parser.add_argument("--only", choices=parts)
    parser.add_argument("--output", type=Path, default=ROOT / "build" / "bench" / "overhead.json")
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    broken: list[str] = []
    with tempfile.TemporaryDirectory() as name:
        bench = Bench(Path(name))
        runs = (options.rounds, options.repeats, options.slices)
        measured = {
            "costs": lambda: report(measure(bench, *runs)),
            "live": lambda: measure_live(bench, options.rounds),
            "redis": lambda: measure_redis(bench, options.rounds),
            "instructions": lambda: measure_instructions(bench),
            "cross": lambda: measure_cross(bench, *runs),
            "parts": lambda: measure_parts(bench, *runs),
            "latency": lambda: measure_latency(bench, options.rounds),
            "resident": lambda: measure_resident(bench, options.rounds),
            "exec": lambda: measure_exec(bench, options.rounds, options.repeats),
            "objects": lambda: measure_objects(bench, options.rounds, options.slices),
        }
        for part in [options.only] if options.only else parts:
            more, others = measured[part]()
            rows += more
            broken += others
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
