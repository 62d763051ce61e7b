# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""What it costs a process to be asked who holds its memory.

    holders_look.py [--rounds N] [--output build/bench/holders.json]

``holders-2GiB`` is a process with 2 GiB in nine million blocks, of which each page has some of a list, some of a table,
and some that nobody holds; ``holders-redis`` is redis with 1.9 GiB in 900,000 keys. How long a look takes, how much the
process grows while it lasts, and how much of that stays (``faults_in``: what was not there before it was looked at).
``holders-requests`` is the slowest of a hundred requests, of overhead/requests.c, which four threads of a process that
holds 1 GiB answer at a fixed rate while one look follows another, beside the same while another process keeps a
processor busy, and beside nothing. ``holders-requests-small`` is the same in a process that holds some MiB, where a
look is little more than the dump that it begins with, beside one dump after another. All are the medians of the rounds.

Exits with status 1 if a promise is not kept.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(ROOT / ".cache" / "collections"))

from ansible_collections.offheap.profiler.plugins.module_utils.agent.client import AgentGone
from ansible_collections.offheap.profiler.tests.agent import builds
from ansible_collections.offheap.profiler.tests.agent.service import Service

HELD = 2048  # MiB
KEYS = (900_000, "key", 2000)  # of redis: how many, what they begin with, and bytes of each value
# Stacks that are held, requests a second of each of four threads, and seconds.
REQUESTS = (1000, 500, 20)
LARGE, SMALL = 1024, 0  # MiB that the process holds beside these
# Seconds, MiB, MiB, and the part of the slowest requests' time.
SECONDS, MEMORY, FAULTED, SLOWER = 3.0, 64.0, 1.0, 1.05
_MILLISECONDS = 10_000


def _begin(service: Service) -> None:
    """Sends the line that the program waits for, once the agent looks."""
    service.wait_until_active()
    assert service.process.stdin
    service.process.stdin.write(b"\n")
    service.process.stdin.flush()


def _started(directory: Path, program: Path, *arguments: str, **settings: Any) -> Service:
    own = Path(tempfile.mkdtemp(dir=directory, prefix="r"))
    return Service(own, builds.agent(), builds.library(), program, arguments, settings)


def _resident(service: Service) -> float:
    """MiB."""
    status = Path(f"/proc/{service.pid}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) / 1024


@contextlib.contextmanager
def _synthetic(directory: Path, program: Path) -> Iterator[Service]:
    service = _started(directory, program, str(HELD), conf="lg_prof_sample:19", popen={"stdin": subprocess.PIPE})
    try:
        _begin(service)
        assert service.process.stdout and service.process.stdout.readline() == b"ready\n"
        yield service
    finally:
        service.kill()


@contextlib.contextmanager
def _redis(directory: Path) -> Iterator[Service]:
    path = directory / "redis.sock"
    arguments = ["--port", "0", "--unixsocket", str(path), "--save", "", "--enable-debug-command", "local"]
    service = _started(directory, Path("/usr/bin/redis-server"), *arguments, conf="lg_prof_sample:19")
    try:
        service.wait_until_active()
        populate = ["redis-cli", "-s", str(path), "DEBUG", "POPULATE", *map(str, KEYS)]
        told = subprocess.run(populate, check=True, capture_output=True, text=True).stdout
        if told != "OK\n":
            raise SystemExit(f"redis says {told!r}")
        yield service
    finally:
        service.kill()


def look(service: Service, rounds: int) -> list[tuple[float, float, float]]:
    """Seconds, MiB at most, and MiB that stay, of each look."""
    time.sleep(1.5)  # what is younger than a second is not looked at
    service.ask("holders", milliseconds=_MILLISECONDS)  # and what the first look needs for good
    done = []
    for _round in range(rounds):
        before, most, over = _resident(service), [0.0], threading.Event()

        def watch(most: list[float] = most, over: threading.Event = over) -> None:
            while not over.wait(0.005):
                most[0] = max(most[0], _resident(service))

        watching = threading.Thread(target=watch)
        watching.start()
        answer = service.ask("holders", milliseconds=_MILLISECONDS)["holders"]
        over.set()
        watching.join()
        if not answer["complete"]:
            raise SystemExit(f"a look did not come to its end: {answer}")
        done.append((answer["duration"], most[0] - before, _resident(service) - before))
    return done


def requests(directory: Path, program: Path, holds: int, ask: Callable[[Service], object] | None) -> float:
    """The microseconds within which 99 of 100 requests were answered, while this is asked again and again.

    The process holds so many MiB beside what it needs for them.
    """
    arguments = [*map(str, REQUESTS), str(holds)]
    popen = {"stdin": subprocess.PIPE}
    service = _started(directory, program, *arguments, conf="lg_prof_sample:19", keep_files=2, popen=popen)
    try:
        _begin(service)
        while ask is not None and service.process.poll() is None:
            try:
                ask(service)
            except (OSError, AgentGone, AssertionError):  # it has ended meanwhile
                service.process.wait(timeout=10)
        told = service.process.communicate(timeout=REQUESTS[2] + 60)[0]
        return float(told.split()[1])
    finally:
        service.kill()


def _look(service: Service) -> None:
    service.ask("holders", milliseconds=_MILLISECONDS)


def _dump(service: Service) -> None:
    service.ask("dump")


def _neighbour(_service: Service) -> None:
    """A process of its own, which takes a processor as a look does."""
    subprocess.run(["timeout", "1", "dd", "if=/dev/zero", "of=/dev/null", "bs=64k"], capture_output=True, check=False)


def _row(case: str, metric: str, unit: str, ours: float, peer: float, name: str) -> dict[str, Any]:
    told = {"case": case, "metric": metric, "unit": unit, "ours": round(ours, 4), "peer": round(peer, 4)}
    return {**told, "peer_name": name, "ratio": round(ours / peer, 4)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--output", type=Path, default=ROOT / "build" / "bench" / "holders.json")
    options = parser.parse_args()
    asked: dict[str, tuple[int, Callable[[Service], object] | None]] = {
        "look": (LARGE, _look),
        "neighbour": (LARGE, _neighbour),
        "nothing": (LARGE, None),
        "small look": (SMALL, _look),
        "small dump": (SMALL, _dump),
    }
    slowest: dict[str, list[float]] = {name: [] for name in asked}
    with tempfile.TemporaryDirectory(prefix="r", dir="/tmp") as scratch:
        directory = Path(scratch)
        held, served = directory / "held_blocks", directory / "requests"
        for program, source in ((held, "held_blocks.c"), (served, "requests.c")):
            command = ["gcc", "-O2", "-o", str(program), str(HERE / "overhead" / source), "-pthread"]
            subprocess.run(command, check=True)
        looks: dict[str, list[float]] = {}
        for case, started in (("holders-2GiB", _synthetic(directory, held)), ("holders-redis", _redis(directory))):
            with started as service:
                looks[case] = [statistics.median(column) for column in zip(*look(service, options.rounds), strict=True)]
        for _round in range(options.rounds):
            for name, (holds, ask) in asked.items():
                slowest[name].append(requests(directory, served, holds, ask))
    looking, beside, alone, small, dumping = (statistics.median(slowest[name]) for name in asked)
    rows = []
    for case, (seconds, most, stays) in looks.items():
        rows += [
            _row(case, "seconds", "s", seconds, SECONDS, "promise"),
            _row(case, "memory", "MiB", most, MEMORY, "promise"),
            _row(case, "faults_in", "MiB", stays, FAULTED, "promise"),
        ]
    rows += [
        _row("holders-requests", "p99", "us", looking, alone, "no look"),
        _row("holders-requests", "p99", "us", looking, beside, "a busy neighbour"),
        _row("holders-requests-small", "p99", "us", small, dumping, "dumps alone"),
    ]
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps({"rows": rows}, indent=1) + "\n", encoding="utf-8")
    broken = [row for row in rows if row["ratio"] > (SLOWER if row["metric"] == "p99" else 1.0)]
    for row in rows:
        mark = "  not kept" if row in broken else ""
        told = f"{row['case']:22} {row['metric']:10} {row['ours']:>9} {row['unit']}"
        print(f"{told}, {row['peer_name']} {row['peer']}{mark}")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
