# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Threads that come and go are sampled as any others, by the jemalloc that we build; by an unpatched one they are not.

Each of 40,000 threads forgets one block. How many of these are sampled has a binomial distribution: a block of s bytes
is sampled with the probability p = 1 - exp(-s/R). The 95 % interval of the number of forgotten blocks, given that n
were sampled, holds those N for which n lies within 1.96 standard deviations of Np (Wilson's interval).
"""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest

from ansible_collections.offheap.profiler.tests.agent.conftest import preloaded, service_program

THREADS = 40_000
# The size class of 1,000 bytes, by which jemalloc samples.
SIZE = 1024


@pytest.fixture(scope="session")
def short_threads() -> Path:
    return service_program("short_threads")


def off_by(program: Path, library: Path, at_a_time: int, lg_sample: int, dump: Path) -> float:
    """How many standard deviations too many, or too few, of the forgotten blocks were sampled."""
    command = [str(program), str(THREADS), str(at_a_time), str(dump)]
    assert preloaded(library, command, f"prof:true,lg_prof_sample:{lg_sample}").returncode == 0
    stacks = re.findall(r"^@ .*\n  t\*: (\d+): (\d+) \[", dump.read_text(), re.MULTILINE)
    # jemalloc rounds the sizes so that their unbiased sum is right.
    sampled = sum(int(count) for count, size in stacks if abs(int(size) / int(count) - SIZE) < 1)
    probability = 1 - math.exp(-SIZE / (1 << lg_sample))
    expected = THREADS * probability
    return (sampled - expected) / math.sqrt(expected * (1 - probability))


@pytest.mark.parametrize("at_a_time", [1, 4, 16])
def test_they_are_sampled_without_bias(short_threads: Path, jemalloc: Path, tmp_path: Path, at_a_time: int) -> None:
    """Beyond five standard deviations, chance is out of the question."""
    assert abs(off_by(short_threads, jemalloc, at_a_time, 16, tmp_path / "dump")) < 5


def test_an_unpatched_jemalloc_is_blind_to_them(short_threads: Path, unpatched_jemalloc: Path, tmp_path: Path) -> None:
    """All threads sample at the same point of their lives: all forgotten blocks or, almost always, none."""
    assert abs(off_by(short_threads, unpatched_jemalloc, 1, 16, tmp_path / "dump")) > 5


@pytest.mark.soak
@pytest.mark.soak_only
def test_the_interval_covers_what_is_true(
    short_threads: Path, jemalloc: Path, tmp_path: Path, stress_seconds: float
) -> None:
    """In 95 of 100 runs."""
    runs = 100 if stress_seconds >= 600 else 1
    ways = [(at_a_time, lg_sample) for at_a_time in (1, 4, 16) for lg_sample in (16, 19)]
    inside = {
        way: sum(abs(off_by(short_threads, jemalloc, *way, tmp_path / "dump")) <= 1.96 for _run in range(runs))
        for way in ways
    }
    print(f"\ninside the 95 % interval, of {runs} runs each: {inside}")
    total = runs * len(ways)
    outside = total - sum(inside.values())
    so_many = range(outside, total + 1)
    assert sum(math.comb(total, count) * 0.05**count * 0.95 ** (total - count) for count in so_many) > 1e-3


@pytest.mark.soak
@pytest.mark.soak_only
def test_threads_that_free_while_they_end(jemalloc: Path, stress_seconds: float) -> None:
    """The program that kills an unpatched 5.3.1, for as long as a soak takes, with ``epoch`` in a loop beside it."""
    program = service_program("ending_threads")
    command = [str(program), str(round(stress_seconds))]
    assert preloaded(jemalloc, command, "prof:true", stress_seconds + 60).returncode == 0
