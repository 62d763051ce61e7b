# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""An archive of a thousand captures and more: adding them, and ranking what leaks.

    archive.py [--captures 1000,3000,10000] [--only rows|report|fleet] [--output build/bench/archive.json]

Each capture has 2,000 stacks of 24 frames, a hundred captures are one process, each process is on a host of its own,
and one host in three leaks. Two processes at once add the captures, as Ansible's forks would; one ranks them.
``ingest`` is adding them and making their samples, which the first ranking would otherwise do; ``rank`` finds the
samples there. Seconds are wall-clock time, memory is the largest resident set of one process. There is no peer.

``rows`` is making the samples of one capture in the archive: its packed dump is read, checked, parsed and written as
Parquet. ``mb_per_second`` is megabytes of dump per second of CPU time, that of the child process included, the best of
several in one process. The peer is
``jeprof --collapsed`` of the same dump as a plain file, as a whole process, the best of several in turn with ours. Its
tools that look up symbols are replaced by /bin/true, since samples have no names either. ``child-cost`` is the same CPU
time beside that without the child, the limits off. ``--only rows`` measures nothing else and takes some seconds.

``fleet`` is the first report on 200 hosts with 2,680 captures of 92 kB, whose samples it makes, and the next one.

Exits with status 1 if the ranking or the report does not find the leak where it is, if ranking or reporting 10,000
captures takes more than a minute or 4 GiB, if the report says nothing in its first two seconds, if one on the fleet
takes more than ten, or if the samples of a dump of 2 MB are made at less than 40 MB per second, or if the child makes
them take a tenth longer.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / ".cache" / "collections"))

from ansible_collections.offheap.profiler.plugins.module_utils.formats.capture_facts import CaptureFacts
from ansible_collections.offheap.profiler.plugins.plugin_utils.archive.archive import Archive
from ansible_collections.offheap.profiler.plugins.plugin_utils.archive.capture import Arrived
from ansible_collections.offheap.profiler.plugins.plugin_utils.base import child
from ansible_collections.offheap.profiler.plugins.plugin_utils.base.progress import Progress
from ansible_collections.offheap.profiler.plugins.plugin_utils.columns import sample_cache
from ansible_collections.offheap.profiler.plugins.plugin_utils.leaks import hints, ranking
from ansible_collections.offheap.profiler.plugins.plugin_utils.leaks.scope import Scope
from ansible_collections.offheap.profiler.plugins.plugin_utils.leaks.verdict import Answer
from ansible_collections.offheap.profiler.plugins.plugin_utils.model.sampling import unbias
from ansible_collections.offheap.profiler.plugins.plugin_utils.report import files
from ansible_collections.offheap.profiler.plugins.plugin_utils.report.host_report import Limits
from ansible_collections.offheap.profiler.plugins.plugin_utils.symbols.elf_image import ElfImage
from ansible_collections.offheap.profiler.tests.bench import unconfined

STACKS, DEPTH, SITES, PER_PROCESS = 2000, 24, 3000, 100
REPORT_HOSTS = 50
# The fleet: hosts from and to, and the captures of each.
FLEET, FLEET_SECONDS = ((0, 80, 14), (80, 200, 13)), 10.0
INTERVAL, BASE, DAY = 524288, 0x7F3A10000000, 86400.0
START, STEP = 1761234000.0, 900.0
OBJECT = 4096
BUILD_ID = "00112233445566778899"
# Sampled objects of the leak in each capture: about half a MiB, every quarter of an hour.
LEAKED = 1
MOST_SECONDS, MOST_MEMORY, FIRST_WORD = 60.0, 4 << 30, 2.0
# The dumps whose samples are made, by number of stacks; and how often.
ROWS, ROWS_ROUNDS, LEAST_RATE = {"92kB": 215, "2MB": 4600}, 5, 40.0
NO_SYMBOLS = "--tools=" + ",".join(f"{tool}:/bin/true" for tool in ("addr2line", "nm", "c++filt", "objdump"))


class Captures:
    """Makes the dumps of hosts. The text of the stacks is made once; dumps differ only in their numbers."""

    def __init__(self, image: Path, stacks: int = STACKS) -> None:
        self._code = BASE + min(start for start, _end in ElfImage(image).symbols().ranges())
        chosen = random.Random(4)
        self._stacks: list[bytes] = []
        for number in range(stacks):
            site, walk = number % SITES, []
            for _frame in range(DEPTH):
                walk.append(b" 0x%x" % (self._code + 16 * site + 5))
                site = (site * 7919 + chosen.randrange(4) * 104729 + 1) % SITES
            self._stacks.append(b"@" + b"".join(walk))
        self._size = [1 + int(chosen.paretovariate(1.1)) for _stack in range(stacks)]

    def dump(self, host: int, sequence: int) -> bytes:
        """The dump with this number; every third host leaks through the first stack, the rest is gradually replaced."""
        chosen = random.Random(host * 100003 + sequence)
        counts = [max(1, round(chosen.gauss(size, min(size, 9) ** 0.5 / 3))) for size in self._size]
        if host % 3 == 0:
            counts[0] = 2 + LEAKED * sequence
        total = sum(counts)
        lines = [
            b"heap_v2/%d\n  t*: %d: %d [0: 0]\n  t0: %d: %d [0: 0] main\n"
            % (INTERVAL, total, total * OBJECT, total, total * OBJECT)
        ]
        for stack, count in zip(self._stacks, counts, strict=True):
            size = count * OBJECT
            lines.append(b"%s\n  t*: %d: %d [0: 0]\n  t0: %d: %d [0: 0]\n" % (stack, count, size, count, size))
        end = self._code + 16 * SITES
        lines.append(b"\nMAPPED_LIBRARIES:\n%x-%x r-xp 00000000 08:01 12 /usr/lib/libservice.so\n" % (BASE, end))
        return b"".join(lines)


def facts(content: bytes, host: int, sequence: int) -> CaptureFacts:
    written = {
        "format": 1,
        "host": f"app{host}",
        "unit": "service.service",
        "dump": {
            "name": f"jeprof.12.{sequence}.i{sequence}.heap",
            "size": len(content),
            "sha256": hashlib.sha256(content).hexdigest(),
            "time": START + STEP * sequence,
        },
        "process": {
            "pid": 12,
            "key": f"12-{host:08x}",
            "boot_id": None,
            "start_time": START,
            "exe": "/usr/bin/service",
            "cmdline": ["service"],
        },
        "images": [{"path": "/usr/lib/libservice.so", "build_id": BUILD_ID, "size": 100}],
    }
    return CaptureFacts.from_json(written)


def image(directory: Path) -> Path:
    """A library with a function of 16 bytes at each of the sites."""
    source, library = directory / "service.s", directory / "libservice.so"
    functions = (
        f".globl site{n}\n.type site{n},@function\nsite{n}: .skip 16,0x90\n.size site{n},16\n" for n in range(SITES)
    )
    source.write_text(".text\n.balign 4096\n" + "".join(functions))
    flags = ["-shared", "-nostdlib", f"-Wl,--build-id=0x{BUILD_ID}", "-Wl,-z,noseparate-code"]
    subprocess.run(["gcc", *flags, "-o", library, source], check=True)
    return library


def ingest(root: Path, hosts: range, per_process: int, stacks: int, with_samples: bool) -> None:
    """Add the captures of some hosts and print the seconds this took without making the dumps."""
    archive = Archive.create(root)
    with tempfile.TemporaryDirectory() as made:
        library = image(Path(made))
        captures = Captures(library, stacks)
        archive.add_image(BUILD_ID, library.name, library)
    spent = 0.0
    for host in hosts:
        with archive.incoming() as aside:
            arrived = []
            for sequence in range(per_process):
                content = captures.dump(host, sequence)
                (aside / f"dump-{sequence}").write_bytes(content)
                arrived.append(Arrived(facts(content, host, sequence), aside / f"dump-{sequence}"))
            started = time.perf_counter()
            for capture, _added in archive.add_captures(arrived, aside):
                if with_samples:
                    sample_cache.of(archive, capture)
            spent += time.perf_counter() - started
    print(json.dumps({"seconds": spent}))


def rank(root: Path) -> None:
    started = time.perf_counter()
    archive = Archive.open(root)
    warnings: list[str] = []
    leaks, watched = ranking.rank(archive, warnings.append, Scope())
    seconds = time.perf_counter() - started
    found = [
        {"growth": leak.growth, "error": leak.error, "hosts": sorted(leak.hosts), "watched": leak.watched}
        for leak in leaks
    ]
    print(json.dumps({"seconds": seconds, "leaks": found, "processes": len(watched)}))


def report(root: Path, dest: Path) -> None:
    """What leak_report does, with progress."""
    began = time.perf_counter()
    told: list[float] = []
    warnings: list[str] = []
    progress = Progress(lambda _text: told.append(time.perf_counter() - began))
    limits = Limits(hints=hints.load([]))
    found = files.make(Archive.open(root), Scope(), limits, dest, True, False, warnings.append, None, progress)
    seconds = time.perf_counter() - began
    leaking = sorted(one.host for one, _paths in found.reports if one.verdict.answer is Answer.LEAK)
    size = Path(found.fleet["page"]).stat().st_size
    print(json.dumps({"seconds": seconds, "first": told[0], "leaking": leaking, "size": size, "warnings": warnings}))


def processor_time() -> float:
    """Seconds of this process and of the child that parses for it."""
    children = [Path(f"/proc/{process.pid}/schedstat").read_text() for process in child._running]
    return time.process_time() + sum(int(text.split()[0]) for text in children) / 1e9


def make_rows(root: Path) -> None:
    """Make the samples of the only capture several times, and print the least CPU time of one."""
    archive = Archive.open(root)
    (capture,) = archive.captures()
    best = float("inf")
    with tempfile.TemporaryDirectory() as passing:
        for _time in range(10):
            started = processor_time()
            sample_cache.of(archive, capture, Path(passing))
            best = min(best, processor_time() - started)
    print(json.dumps({"seconds": best}))


def started(*arguments: object, script: str = __file__, **environment: str) -> subprocess.Popen[bytes]:
    """``environment`` is added."""
    command = [sys.executable, str(Path(script).resolve()), *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, env={**os.environ, **environment})


def finished(process: subprocess.Popen[bytes]) -> tuple[dict[str, Any], int]:
    """(what it printed, its largest resident set in bytes)"""
    assert process.stdout is not None
    output = process.stdout.read()
    _pid, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{process.args!r} failed")
    return json.loads(output), usage.ru_maxrss * 1024


def row(case: str, metric: str, unit: str, ours: float) -> dict[str, Any]:
    """There is no peer, so the ratio is our own number."""
    ours = round(ours, 3)
    return {"case": case, "metric": metric, "unit": unit, "ours": ours, "peer": None, "peer_name": None, "ratio": ours}


def measure_rows(name: str, stacks: int, root: Path) -> tuple[list[dict[str, Any]], list[str]]:
    """The row for making the samples of a dump with so many stacks, and the promises that it breaks."""
    archive = Archive.create(root / "archive")
    content = Captures(image(root), stacks).dump(0, 0)
    plain = root / "plain.heap"
    plain.write_bytes(content)
    with archive.incoming() as aside:
        (aside / "dump").write_bytes(content)
        archive.add_captures([Arrived(facts(content, 0, 0), aside / "dump")], aside)
    jeprof = [os.environ.get("OFFHEAP_JEPROF", "jeprof"), NO_SYMBOLS, "--collapsed", "/bin/true", str(plain)]
    ours = free = peer = float("inf")
    for _round in range(ROWS_ROUNDS):
        ours = min(ours, finished(started("rows", archive.root))[0]["seconds"])
        free = min(free, finished(started("rows", archive.root, **unconfined.ENVIRONMENT))[0]["seconds"])
        before = os.times()
        subprocess.run(jeprof, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        after = os.times()
        peer = min(peer, after.children_user + after.children_system - before.children_user - before.children_system)
    rates = [len(content) / 1e6 / seconds for seconds in (ours, peer)]
    found = {**row(f"rows-{name}", "mb_per_second", "MB/s", rates[0]), "peer": round(rates[1], 3)}
    found |= {"peer_name": "jeprof --collapsed", "ratio": round(rates[0] / rates[1], 2)}
    cost = {**row(f"rows-{name}", "child-cost", "s", ours), "peer": round(free, 3)}
    cost |= {"peer_name": "the same without the child", "ratio": round(ours / free, 3)}
    broken = []
    if name == "2MB" and rates[0] < LEAST_RATE:
        broken.append(f"rows-{name}: {rates[0]:.1f} MB per second, not {LEAST_RATE:g}")
    if ours > unconfined.MOST_COST * free:
        broken.append(f"rows-{name}: the child makes it take {ours / free:.2f} times as long")
    return [found, cost], broken


def bring(
    root: Path, shares: Sequence[tuple[int, int, int]], stacks: int = STACKS, with_samples: bool = True
) -> list[tuple[dict[str, Any], int]]:
    """Add the captures of hosts from and to, so many of each, by a process for each share; what ``finished`` tells."""
    processes = [started("ingest", root, *share, stacks, int(with_samples)) for share in shares]
    return [finished(process) for process in processes]


def measure(count: int, directory: Path) -> tuple[list[dict[str, Any]], list[str]]:
    """The rows for an archive of so many captures, and the promises that it breaks."""
    root = directory / str(count)
    hosts = max(count // PER_PROCESS, 2)
    brought = bring(root, [(0, hosts // 2, count // hosts), (hosts // 2, hosts, count // hosts)])
    told, memory = finished(started("rank", root))
    size = sum(file.stat().st_size for file in root.rglob("*") if file.is_file())
    name = f"{count // 1000}k"
    seconds = max(output["seconds"] for output, _memory in brought)
    rows = [
        row(f"ingest-{name}", "seconds", "s", seconds),
        row(f"ingest-{name}", "peak-MB", "MB", max(peak for _output, peak in brought) / 1e6),
        row(f"ingest-{name}", "size-MB", "MB", size / 1e6),
        row(f"rank-{name}", "seconds", "s", told["seconds"]),
        row(f"rank-{name}", "peak-MB", "MB", memory / 1e6),
    ]
    broken = []
    leaking = sorted(f"app{host}" for host in range(0, hosts, 3))
    rate = unbias(LEAKED, LEAKED * OBJECT, INTERVAL)[1] / STEP * DAY * len(leaking)
    if [leak["hosts"] for leak in told["leaks"]] != [leaking]:
        broken.append(f"{name}: the leak of {len(leaking)} hosts was not found; found {told['leaks']}")
    elif abs(told["leaks"][0]["growth"] - rate) > told["leaks"][0]["error"]:
        broken.append(f"{name}: the true rate is {rate:.0f} bytes a day, not {told['leaks'][0]}")
    if count >= 10000 and (told["seconds"] > MOST_SECONDS or memory > MOST_MEMORY):
        broken.append(f"{name}: ranking took {told['seconds']:.0f} s and {memory / 2**20:.0f} MiB")
    return rows, broken


def measure_report(count: int, directory: Path) -> tuple[list[dict[str, Any]], list[str]]:
    """The rows for the report on an archive of so many captures, and the promises that it breaks."""
    root = directory / "archive"
    each = count // REPORT_HOSTS
    bring(root, [(0, REPORT_HOSTS // 2, each), (REPORT_HOSTS // 2, REPORT_HOSTS, each)])
    told, memory = finished(started("report", root, directory / "report"))
    name = f"report-{count // 1000}k"
    rows = [
        row(name, "seconds", "s", told["seconds"]),
        row(name, "first-word", "s", told["first"]),
        row(name, "peak-MB", "MB", memory / 1e6),
        row(name, "page-MB", "MB", told["size"] / 1e6),
    ]
    broken = []
    if told["leaking"] != sorted(f"app{host}" for host in range(0, REPORT_HOSTS, 3)) or told["warnings"]:
        broken.append(f"{name}: found leaks on {told['leaking']}, warnings: {told['warnings'][:3]}")
    if told["seconds"] > MOST_SECONDS or memory > MOST_MEMORY:
        broken.append(f"{name}: took {told['seconds']:.0f} s and {memory / 2**20:.0f} MiB")
    if told["first"] > FIRST_WORD:
        broken.append(f"{name}: the first word came after {told['first']:.1f} s")
    return rows, broken


def measure_fleet(directory: Path) -> tuple[list[dict[str, Any]], list[str]]:
    """The rows for the first report on a fleet and for the next one, and the promises that they break."""
    root = directory / "archive"
    bring(root, FLEET, ROWS["92kB"], with_samples=False)
    rows, broken = [], []
    for case in ("report-fleet", "report-fleet-again"):
        told, memory = finished(started("report", root, directory / "report"))
        rows += [row(case, "seconds", "s", told["seconds"]), row(case, "peak-MB", "MB", memory / 1e6)]
        if told["seconds"] > FLEET_SECONDS:
            broken.append(f"{case}: took {told['seconds']:.1f} s")
    return rows, broken


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--captures", default="1000,3000,10000")
    parser.add_argument("--only", choices=["rows", "report", "fleet"])
    parser.add_argument("--output", type=Path, default=ROOT / "build" / "bench" / "archive.json")
    arguments = parser.parse_args()
    rows: list[dict[str, Any]] = []
    broken: list[str] = []
    counts = [int(count) for count in arguments.captures.split(",")]
    measures = []
    if arguments.only in (None, "rows"):
        measures += [partial(measure_rows, name, stacks) for name, stacks in ROWS.items()]
    if arguments.only is None:
        measures += [partial(measure, count) for count in counts]
    if arguments.only in (None, "report"):
        measures.append(partial(measure_report, max(counts)))
    if arguments.only in (None, "fleet"):
        measures.append(partial(measure_fleet))
    for measured in measures:
        with tempfile.TemporaryDirectory(prefix="offheap-bench-") as directory:
            more, failed = measured(Path(directory))
        for line in more:
            print(f"{line['case']:14} {line['metric']:8} {line['ours']:10.1f} {line['unit']}", flush=True)
        rows += more
        broken += failed
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    arguments.output.write_text(json.dumps({"rows": rows}, indent=1) + "\n")
    for promise in broken:
        print(promise, file=sys.stderr)
    return 1 if broken else 0


if __name__ == "__main__":
    unconfined.heed()
    if sys.argv[1:2] == ["ingest"]:
        first, end, per_process, stacks, with_samples = map(int, sys.argv[3:])
        ingest(Path(sys.argv[2]), range(first, end), per_process, stacks, bool(with_samples))
    elif sys.argv[1:2] == ["rows"]:
        make_rows(Path(sys.argv[2]))
    elif sys.argv[1:2] == ["report"]:
        report(Path(sys.argv[2]), Path(sys.argv[3]))
    elif sys.argv[1:2] == ["rank"]:
        rank(Path(sys.argv[2]))
    else:
        sys.exit(main())
