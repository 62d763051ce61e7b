# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""A slice of what a Python service does: JSON, and many small objects. Prints the seconds of each of the slices that it
is told to do, and at the end its resident memory in MiB."""

from __future__ import annotations

import json
import sys
import time

ROWS = json.dumps([{"id": n, "name": f"x{n}", "tags": ["a", "b", str(n)], "value": n * 1.5} for n in range(2000)])


def work() -> None:
    for _time in range(6):
        json.dumps(json.loads(ROWS))
    records = [(number, str(number)) for number in range(60000)]
    records.sort(key=lambda record: record[1])
    sum(float(number) * 1.1 for number in range(200000))


for _slice in range(int(sys.argv[1])):
    began = time.perf_counter()
    work()
    print(time.perf_counter() - began)
with open("/proc/self/statm", encoding="ascii") as statm:
    print(int(statm.read().split()[1]) * 4 / 1024)
