# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""The jemalloc that we build does not do to a service what release 5.3.0 does (docs/jemalloc_patches.md)."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from ansible_collections.offheap.profiler.plugins.module_utils.formats import elf
from ansible_collections.offheap.profiler.tests.agent import builds
from ansible_collections.offheap.profiler.tests.agent.conftest import EMULATED, FOREIGN, preloaded, service_program

CONF = "prof:true,lg_prof_sample:10"


def said_in(case: str, jemalloc: Path, *arguments: str) -> str:
    done = preloaded(jemalloc, [str(service_program("allocator_cases")), case, *arguments], CONF, 60)
    assert (done.returncode, done.stderr) == (0, ""), case
    return done.stdout


@pytest.mark.skipif(EMULATED, reason="the emulator needs memory of its own")
def test_a_first_allocation_without_memory(jemalloc: Path) -> None:
    assert said_in("no-memory", jemalloc) == "null 64 of 64\n"


def test_what_pvalloc_returns_can_be_freed(jemalloc: Path) -> None:
    assert said_in("pvalloc", jemalloc) == "usable 8192\n"


@pytest.mark.skipif(os.geteuid() != 0 or EMULATED, reason="only root may lock all memory, of a program of this machine")
def test_free_keeps_errno_where_memory_is_locked(jemalloc: Path) -> None:
    assert said_in("errno", jemalloc) == "changed 0\n"


def test_stacks_are_kept_to_a_depth_of_256(jemalloc: Path, tmp_path: Path) -> None:
    dump = tmp_path / "dump"
    said_in("depth", jemalloc, str(dump))
    depths = [len(line.split()) - 1 for line in dump.read_text().splitlines() if line.startswith("@")]
    assert max(depths) == 256


def test_threads_that_free_while_they_end(jemalloc: Path) -> None:
    """As jemalloc 5.3.1 does not survive it (malloc/proof.py)."""
    assert preloaded(jemalloc, [str(service_program("ending_threads"))], CONF, 60).returncode == 0


def test_its_thread_local_storage_is_placed_at_the_start(jemalloc: Path) -> None:
    """Else it would call a C library that calls it."""
    assert not elf.read(jemalloc).finds_thread_storage_late()


def stress(jemalloc: Path, seconds: int, modes: str, file: Path) -> None:
    """Of 5.3.0 without our patches, none of six runs of four seconds survived with either modes."""
    command = [str(service_program("prof_stress")), str(seconds), modes, str(file)]
    done = preloaded(jemalloc, command, CONF, seconds + 120)
    said = {name: int(number) for name, number in re.findall(r"(\w+) (\d+)", done.stdout)}
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    assert said["threads"] > 100 and said["resets"] > 10


@pytest.mark.parametrize("modes", ["r", "rade" if EMULATED else "radef"])  # the emulator itself dies in forks
def test_resets_while_threads_end(jemalloc: Path, tmp_path: Path, modes: str) -> None:
    stress(jemalloc, 4, modes, tmp_path / "dump")


@pytest.mark.soak_only
@pytest.mark.parametrize("run", range(10))
def test_resets_while_threads_end_for_long(jemalloc: Path, tmp_path: Path, run: int) -> None:
    stress(jemalloc, 20, "r" if run % 2 else "radef", tmp_path / "dump")


@pytest.mark.soak_only
@pytest.mark.skipif(os.geteuid() != 0 or FOREIGN, reason="a build of its own, for this machine, by root")
def test_threads_on_pages_of_64_kib_reserve_little() -> None:
    """The library as a host with such pages builds it: what it is told of huge pages counts, not what that host has."""
    size = re.fullmatch(r"VmSize:\s+(\d+) kB\n", said_in("threads", builds.library_for_large_pages()))
    assert size and int(size[1]) < 1 << 20
