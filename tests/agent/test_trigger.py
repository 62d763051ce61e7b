# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Dumps that memory asks for: one exists from shortly before the end, and a service that breathes has few."""

from __future__ import annotations

import itertools
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.offheap.profiler.tests.agent.service import Service, wait_for

Start = Callable[..., Service]
MIB = 1 << 20
PYTHON = os.path.realpath(sys.executable)
# Grows by so many MiB a second until the kernel refuses, and says how much was resident then.
GROWING = """
import resource, sys, time
resource.setrlimit(resource.RLIMIT_AS, (int(sys.argv[1]), int(sys.argv[1])))
kept = []
try:
    while True:
        kept.append(b"x" * (1 << 18))
        time.sleep(0.25 / float(sys.argv[2]))
except MemoryError:
    print(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("RssAnon")), flush=True)
"""
# Holds between 40 and 120 MiB, again and again.
BREATHING = """
import time
while True:
    kept = [b"x" * (1 << 18) for _number in range(480)]
    time.sleep(0.15)
    del kept[160:]
    time.sleep(0.15)
"""
RESTING = "import time; time.sleep(60)"


def notes(service: Service) -> list[dict[str, Any]]:
    """The agent's note of each dump, in their order."""
    beside = [path.with_name(path.name + ".json") for path in service.dumps()]
    return [json.loads(path.read_text()) for path in beside if path.exists()]


def test_a_dump_from_shortly_before_the_kernel_refuses_memory(start: Start) -> None:
    arguments = ("-c", GROWING, str(1200 * MIB), "150")
    service = start(PYTHON, *arguments, dump_growth=20, conf="lg_prof_sample:16")
    peak = int(service.result(60)[1]) << 10
    taken = notes(service)
    assert {note["reason"] for note in taken} == {"growth"}
    assert taken[-1]["memory"]["rss_anon"] > 0.8 * peak
    assert 3 <= len(taken) <= 25, "each is a fifth larger than the one before"


def test_a_service_that_breathes_is_not_dumped_again_and_again(start: Start) -> None:
    service = start(PYTHON, "-c", BREATHING, dump_growth=20, conf="dirty_decay_ms:0,muzzy_decay_ms:0")
    highest = wait_for("the top", lambda: [note for note in notes(service) if note["memory"]["rss_anon"] > 100 * MIB])
    time.sleep(2.5)
    rss = [note["memory"]["rss_anon"] for note in notes(service)]
    assert len(rss) <= 12 and highest
    assert all(later > earlier for earlier, later in itertools.pairwise(rss)), rss


def test_without_sampling_or_without_growth_there_is_none(start: Start, workload: Path) -> None:
    dormant = start(PYTHON, "-c", GROWING, str(900 * MIB), "400", dump_growth=20, start="dormant")
    resting = start(PYTHON, "-c", RESTING, dump_growth=20, start_delay=1)  # it grows while it starts
    resting.wait_until_active()
    dormant.result(60)
    assert dormant.dumps() == [] and resting.dumps() == []


def test_dumps_take_a_small_part_of_the_time(start: Start) -> None:
    """The more a dump costs, the longer the agent rests after it."""
    service = start(PYTHON, "-c", GROWING, str(1200 * MIB), "300", dump_growth=1, conf="lg_prof_sample:8")
    service.result(60)
    taken = notes(service)
    for one, another in itertools.pairwise(taken):
        assert another["time"] - one["time"] >= 19 * one["duration"] - 0.01


@pytest.fixture
def group(tmp_path: Path) -> Path:
    """What the kernel tells of a cgroup. Few machines let a test have one with a controller for memory."""
    path = tmp_path / "group"
    path.mkdir()
    (path / "cgroup.events").touch()
    (path / "memory.events").write_text("low 0\nhigh 3\nmax 1\noom 0\noom_kill 0\noom_group_kill 0\n")
    (path / "memory.pressure").write_text(pressure(5000))
    return path


def pressure(stalled: int) -> str:
    average = "avg10=0.00 avg60=0.00 avg300=0.00 total="
    return f"some {average}{stalled}\nfull {average}0\n"


@pytest.fixture
def in_group(start: Start, group: Path) -> Service:
    """A service that sees these files as its cgroup's."""
    command = f"mount --bind {group} /sys/fs/cgroup && exec {PYTHON} -c '{RESTING}'"
    service = start("/usr/bin/unshare", "--mount", "/bin/sh", "-c", command, executable=PYTHON, dump_pressure=1)
    service.wait_until_active()
    time.sleep(1.5)
    assert service.dumps() == [], "what was before the agent began to look does not count"
    return service


def test_a_dump_when_the_cgroup_reaches_its_limit(in_group: Service, group: Path) -> None:
    for again in (4, 5):
        (group / "memory.events").write_text(f"low 0\nhigh {again}\nmax 1\noom 0\noom_kill 0\noom_group_kill 0\n")
        taken = wait_for("a dump", lambda: notes(in_group))
        time.sleep(1.5)
        assert [note["reason"] for note in taken] == ["memory-limit"], "the next one comes ten minutes later"


def test_a_dump_when_tasks_wait_for_memory(in_group: Service, group: Path) -> None:
    (group / "memory.pressure").write_text(pressure(5000 + 60_000))
    time.sleep(1.5)
    assert in_group.dumps() == [], "six parts of a hundred"
    (group / "memory.pressure").write_text(pressure(5000 + 60_000 + 900_000))
    taken = wait_for("a dump", lambda: notes(in_group))
    assert [note["reason"] for note in taken] == ["memory-pressure"]
