# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""What sampling a large process costs its host, of 2,000 threads and 60,000 mappings, and what 300 small ones cost.

    triage.py [--rounds N] [--output build/bench/triage.json]

The module runs as under Ansible, in a process of its own, whose CPU time (with its children) and peak resident set are
measured. Exits with status 1 if a promise is not kept: 3 s of CPU for the large one, 1 s for the small ones, 64 MiB.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
COLLECTIONS = ROOT / ".cache" / "collections"
MODULE = "ansible_collections.offheap.profiler.plugins.modules.native_memory_info"
MOST_BYTES = 64 << 20

# Every other page is read-only, so that the kernel merges no mappings.
CROWD = """
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>
static void *stay(void *unused) { free(malloc(100)); for (;;) pause(); return unused; }
int main(int argc, char **argv) {
    int threads = atoi(argv[1]), mappings = atoi(argv[2]);
    pthread_attr_t small;
    pthread_t thread;
    (void)argc;
    pthread_attr_init(&small);
    pthread_attr_setstacksize(&small, 65536);
    for (int i = 0; i < threads; i++)
        if (pthread_create(&thread, &small, stay, NULL)) return 1;
    /* each thread has a stack and its guard page */
    for (int i = 2 * threads; i < mappings; i++) {
        char *page = mmap(NULL, 4096, i % 2 ? PROT_READ : PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (page == MAP_FAILED) return 1;
        if (i % 2 == 0) *page = 1;
    }
    puts("ready");
    fflush(stdout);
    for (;;) pause();
    return 0;
}
"""
# Captures the module's output, then prints what it measured and what that took.
RUN = """
import io, json, resource, sys
sys.path.insert(0, {collections!r})
from ansible.module_utils import basic
basic._ANSIBLE_ARGS = json.dumps({{"ANSIBLE_MODULE_ARGS": {{"pids": {pids}}}}}).encode()
basic._ANSIBLE_PROFILE = "legacy"
from {module} import main
out, sys.stdout = sys.stdout, io.StringIO()
try:
    main()
except SystemExit:
    pass
text, sys.stdout = sys.stdout.getvalue(), out
used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
processes = [process for sample in json.loads(text)["samples"] for process in sample["processes"]]
print(json.dumps({{
    "cpu": sum(u.ru_utime + u.ru_stime for u in used),
    "peak": max(u.ru_maxrss for u in used) * 1024,
    "processes": len(processes),
    "threads": sum(process["threads"] for process in processes),
    "mappings": sum(process["mappings"] for process in processes),
}}))
"""


class Case(NamedTuple):
    """Processes of CROWD, and what a look at them may take of CPU, in seconds."""

    name: str
    processes: int
    threads: int
    mappings: int
    most: float


class Cost(NamedTuple):
    cpu: float
    peak: int


CASES = (
    Case("2000 threads, 60000 mappings", 1, 2000, 60000, 3.0),
    Case("300 processes", 300, 2, 0, 1.0),
)


def look(case: Case, pids: list[int]) -> Cost:
    """One run of the module. Raises SystemExit if the processes are not as crowded as they should be."""
    code = RUN.format(collections=str(COLLECTIONS), pids=pids, module=MODULE)
    done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, check=True)
    told = json.loads(done.stdout)
    if told["processes"] != case.processes or told["threads"] <= case.threads or told["mappings"] < case.mappings:
        raise SystemExit(f"{case.name} should have been there: {told}")
    return Cost(told["cpu"], told["peak"])


def measured(case: Case, program: Path, rounds: int) -> list[dict[str, object]]:
    with contextlib.ExitStack() as stack:
        crowd = []
        for _process in range(case.processes):
            command = [str(program), str(case.threads), str(case.mappings)]
            process = stack.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE))
            stack.callback(process.kill)
            if not process.stdout or process.stdout.readline() != b"ready\n":
                raise SystemExit("this machine does not allow this many threads and mappings")
            crowd.append(process.pid)
        costs = [look(case, crowd) for _round in range(rounds)]
    cpu, peak = statistics.median(cost.cpu for cost in costs), max(cost.peak for cost in costs)
    return [
        {"case": case.name, "metric": "cpu", "unit": "s", "ours": cpu, "peer": case.most},
        {"case": case.name, "metric": "peak-rss", "unit": "bytes", "ours": peak, "peer": MOST_BYTES},
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--output", type=Path, default=ROOT / "build" / "bench" / "triage.json")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        source, program = Path(directory) / "crowd.c", Path(directory) / "crowd"
        source.write_text(CROWD)
        subprocess.run(["gcc", "-O1", "-Wall", "-Wextra", "-o", program, source, "-lpthread"], check=True)
        rows = [row for case in CASES for row in measured(case, program, arguments.rounds)]
    for row in rows:
        row.update(peer_name="promise", ratio=float(str(row["ours"])) / float(str(row["peer"])))
        print(f"{row['case']}: {row['metric']} {row['ours']} {row['unit']}, promised {row['peer']}")
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    arguments.output.write_text(json.dumps({"rows": rows}, indent=2) + "\n")
    return int(any(float(str(row["ratio"])) >= 1 for row in rows))


if __name__ == "__main__":
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    sys.exit(main())
