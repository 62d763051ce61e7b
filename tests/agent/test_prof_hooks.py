# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Each sampled allocation is told at its beginning and its end, by the jemalloc that we build.

A ledger kept by the hooks and jemalloc's own count of what is in use agree in the end, whatever threads did to each
other's blocks in between; and no address is handed out again before its end was told.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ansible_collections.offheap.profiler.tests.agent.conftest import preloaded, service_program

# Its ledger begins before sampling; sums in the dump are not unbiased, so they can be compared.
CONF = "prof:true,prof_active:false,prof_unbias:false"


@pytest.mark.parametrize("lg_sample", [0, 12, 16])
# One arena without caches hands each address out again at once.
@pytest.mark.parametrize("conf", ["narenas:1,tcache:false", "narenas:4"])
def test_births_less_deaths_is_what_lives(jemalloc: Path, tmp_path: Path, lg_sample: int, conf: str) -> None:
    dump = tmp_path / "dump"
    command = [str(service_program("prof_hooks")), "4", "30000", str(dump)]
    done = preloaded(jemalloc, command, f"{CONF},{conf},lg_prof_sample:{lg_sample}", 120)
    assert (done.returncode, done.stderr) == (0, "")
    said = {name: int(number) for name, number in re.findall(r"(\w+) (\d+)", done.stdout)}
    assert said["births"] - said["deaths"] == said["living"] > 0
    assert said["deaths"] > 100 and said["refused"] > 100
    totals = re.search(r"^  t\*: (\d+): (\d+) \[", dump.read_text(), re.MULTILINE)
    assert totals and [said["living"], said["bytes"]] == [int(total) for total in totals.groups()]
    assert said["after"] == 0, "a hook that was taken out was called"
