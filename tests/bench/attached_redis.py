# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""What the agent costs redis, which keeps its own jemalloc: attached to it while it serves, and after it has detached.

Part of ``overhead.py``. The client sets and overwrites values of 1,000 bytes over a Unix socket.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import NamedTuple

REQUESTS, KEYS, BYTES, CLIENTS = 200_000, 50_000, 1_000, 20
_TICKS = os.sysconf("SC_CLK_TCK")
# The line of redis-benchmark that is nearest to p99.9.
_PERCENTILE = re.compile(r"^99\.9\d*% <= ([0-9.]+) milliseconds", re.MULTILINE)
Attached = Callable[[int], AbstractContextManager[None]]


class Served(NamedTuple):
    """CPU seconds of the server, and the milliseconds within which 999 of 1,000 requests were answered."""

    cpu: float
    slowest: float


def is_installed() -> bool:
    """Whether this machine has redis and its benchmark."""
    return all(map(shutil.which, ("redis-server", "redis-benchmark")))


def measure(directory: Path, attached: Attached, rounds: int) -> list[tuple[Served, Served, Served]]:
    """What the same requests took before, while and after the agent was attached, in each round."""
    done = []
    with _server(directory / "redis.sock") as pid:
        _requests(directory, pid)  # then all keys are there
        for _round in range(rounds):
            before = _requests(directory, pid)
            with attached(pid):
                during = _requests(directory, pid)
            done.append((before, during, _requests(directory, pid)))
    return done


def medians(done: list[tuple[Served, Served, Served]]) -> dict[str, tuple[float, float, float, float]]:
    """By CPU time and by the slowest requests: medians while attached and before, and the medians of the rounds' costs,
    attached and detached."""
    found = {}
    for name in Served._fields:
        rows = [tuple(getattr(one, name) for one in row) for row in done]
        before, during, _after = (statistics.median(column) for column in zip(*rows, strict=True))
        cost = statistics.median(2 * row[1] / (row[0] + row[2]) for row in rows)
        found[name] = (during, before, cost, statistics.median(row[2] / row[0] for row in rows))
    return found


@contextlib.contextmanager
def _server(path: Path) -> Iterator[int]:
    command = ["redis-server", "--port", "0", "--unixsocket", str(path), "--save", "", "--dir", str(path.parent)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as server:
        try:
            while not path.exists():
                if server.poll() is not None:
                    raise SystemExit("redis has ended")
                time.sleep(0.05)
            yield server.pid
        finally:
            server.kill()


def _requests(directory: Path, pid: int) -> Served:
    spent = _cpu(pid)
    command = ["redis-benchmark", "-s", str(directory / "redis.sock"), "-t", "set", "-n", str(REQUESTS)]
    command += ["-r", str(KEYS), "-d", str(BYTES), "-c", str(CLIENTS)]
    told = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    found = _PERCENTILE.search(told)
    if found is None:
        raise SystemExit(f"redis-benchmark says no percentile: {told[-500:]}")
    return Served(_cpu(pid) - spent, float(found[1]))


def _cpu(pid: int) -> float:
    """CPU seconds of a process (proc(5), stat)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS
