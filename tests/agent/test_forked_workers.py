# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Workers that do the same are sampled each in its own way, by the jemalloc that we build; by an unpatched one they
are not.

Each worker forgets as many blocks. How many of these are sampled is a number of its own for each, or the sum over all
would be off by more than its interval says.
"""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest

from ansible_collections.offheap.profiler.tests.agent.conftest import preloaded, service_program

WORKERS, BLOCKS, LG_SAMPLE = 16, 40_000, 16
# The size class of 1,000 bytes, by which jemalloc samples.
SIZE = 1024


@pytest.fixture(scope="session")
def forked_workers() -> Path:
    return service_program("forked_workers")


def sampled(program: Path, library: Path, directory: Path) -> list[int]:
    """How many of the forgotten blocks were sampled in each worker."""
    command = [str(program), str(WORKERS), str(BLOCKS), str(directory)]
    assert preloaded(library, command, f"prof:true,lg_prof_sample:{LG_SAMPLE}").returncode == 0
    stacks = [re.findall(r"^@ .*\n  t\*: (\d+): (\d+) \[", path.read_text(), re.M) for path in directory.iterdir()]
    # jemalloc rounds the sizes so that their unbiased sum is right.
    return [sum(int(count) for count, size in one if abs(int(size) / int(count) - SIZE) < 1) for one in stacks]


def test_each_has_samples_of_its_own(forked_workers: Path, jemalloc: Path, tmp_path: Path) -> None:
    found = sampled(forked_workers, jemalloc, tmp_path)
    assert len(found) == WORKERS and len(set(found)) > WORKERS / 2, found
    probability = 1 - math.exp(-SIZE / (1 << LG_SAMPLE))
    expected = WORKERS * BLOCKS * probability
    # Beyond five standard deviations, chance is out of the question.
    assert abs(sum(found) - expected) < 5 * math.sqrt(expected * (1 - probability))


def test_an_unpatched_jemalloc_samples_all_alike(
    forked_workers: Path, unpatched_jemalloc: Path, tmp_path: Path
) -> None:
    found = sampled(forked_workers, unpatched_jemalloc, tmp_path)
    assert len(found) == WORKERS and len(set(found)) == 1, found
