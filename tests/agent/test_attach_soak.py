# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""The agent comes and goes a thousand times in a process that does all that it could disturb, and none of it is."""

from __future__ import annotations

import os
import platform
import subprocess
from pathlib import Path
from statistics import median

import pytest

from ansible_collections.offheap.profiler.plugins.module_utils.agent import client
from ansible_collections.offheap.profiler.plugins.module_utils.tracing import got_entries
from ansible_collections.offheap.profiler.plugins.module_utils.tracing.inject import have_library
from ansible_collections.offheap.profiler.tests.agent.conftest import PROGRAMS, compiled
from ansible_collections.offheap.profiler.tests.agent.service import tasks_of, wait_for

pytestmark = [
    pytest.mark.skipif(platform.machine() != "x86_64", reason="the program here is for x86_64"),
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root"),
]


def come_and_go(pid: int, library: Path, directory: Path) -> float:
    """For how long a thread was held (seconds)."""
    settings = {
        "UNIT": "crowd.service",
        "PREFIX": directory / "jeprof",
        "SOCKET_DIR": directory,
        "LG_SAMPLE": 16,
        "START_DELAY": 0,
    }
    text = "".join(f"OFFHEAP_{name}={value}\n" for name, value in settings.items())
    injected = have_library(pid, str(library), "offheap_attach", text.encode())
    assert injected.result == 0
    socket = directory / f"{pid}.sock"
    wait_for("its socket", socket.exists)
    with client.Connection(client.AgentSocket(pid, str(socket))) as connection:
        assert connection.request("detach")["left"] == 0
    assert got_entries.into(pid, str(library)) == 0, "nothing leads to it"
    wait_for("the end of its thread", lambda: "offheap" not in tasks_of(pid))
    return injected.held


@pytest.mark.parametrize("count", [20, pytest.param(1000, marks=pytest.mark.soak_only)])
def test_it_comes_and_goes_in_a_crowd(count: int, library: Path, tmp_path: Path) -> None:
    """Threads, forks, libraries that open and close, a thousand signals a second: crowd.c counts what went wrong."""
    crowd = compiled("crowd", [PROGRAMS / "crowd.c"], "-O2")
    with subprocess.Popen([crowd], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout and process.stdout.readline()
        held = sorted(come_and_go(process.pid, library, tmp_path) for _time in range(count))
        told, _errors = process.communicate("end\n", timeout=60)
    share = held[round(0.99 * (count - 1))]
    print(f"held {1000 * median(held):.1f} ms, {1000 * share:.1f} of 99 %, at most {1000 * held[-1]:.1f} ms; {told}")
    assert process.returncode == 0, told
    assert median(held) < 0.05
