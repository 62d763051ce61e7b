# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Load: threads, forks, garbage collection, and dumps at 20 a second meanwhile, for OFFHEAP_SOAK_SECONDS."""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from ansible_collections.offheap.profiler.plugins.module_utils import agent as client
from ansible_collections.offheap.profiler.plugins.plugin_utils import heap_v2
from ansible_collections.offheap.profiler.tests.agent.service import Service

Start = Callable[..., Service]
pytestmark = pytest.mark.soak
KEEP = 20


def keep_dumping(service: Service, seconds: float) -> int:
    """A dump each 50 ms; the newest must always be whole and the spool within its budget."""
    service.wait_until_active(30)
    deadline, dumps = time.monotonic() + seconds, 0
    with service.connected(60) as connection:
        while time.monotonic() < deadline:
            began = time.monotonic()
            dump = connection.dump(str(service.spool))
            dumps += 1
            assert len(service.dumps()) <= KEEP
            if dumps % 20 == 1:
                heap_v2.parse(Path(dump.path).read_bytes(), dump.path)
                assert connection.request("status")["problem"] is None
            time.sleep(max(0.0, 0.05 - (time.monotonic() - began)))
    return dumps


@pytest.mark.parametrize("mode", ["threads", "forks", "stacks"])
def test_native(start: Start, workload: Path, soak_seconds: float, mode: str) -> None:
    service = start(workload, mode, str(soak_seconds + 600), conf="lg_prof_sample:14", keep_files=KEEP, stats_seconds=1)
    assert keep_dumping(service, soak_seconds) > soak_seconds
    service.process.terminate()  # it finishes what it is at
    status, output = service.result(90)
    assert status == 0 and int(output.split()[1]) > 0, output
    assert service.stderr() == ""


def test_children_that_have_agents_of_their_own(start: Start, workload: Path, soak_seconds: float) -> None:
    service = start(workload, "forks", str(soak_seconds), conf="lg_prof_sample:14", children=1, start_delay=0)
    status, output = service.result(soak_seconds + 60)
    assert status == 0 and int(output.split()[1]) > 0, output


def test_jvm_that_collects_and_unloads(start: Start, java_classes: Path, soak_seconds: float) -> None:
    java = Path(shutil.which("java") or "java").resolve()
    options = ("-XX:+PreserveFramePointer", "-Xmx48m", "-XX:ReservedCodeCacheSize=8m")
    service = start(java, *options, "-cp", str(java_classes), "ClassChurn", conf="lg_prof_sample:14", keep_files=KEEP)
    assert keep_dumping(service, soak_seconds + 2) > soak_seconds
    assert service.process.poll() is None
    counts = service.ask("status")["unwinder"]
    assert counts["continued"] > 0


def test_switching_on_and_off(start: Start, workload: Path, soak_seconds: float) -> None:
    service = start(workload, "threads", str(soak_seconds + 1), conf="lg_prof_sample:12")
    deadline = time.monotonic() + soak_seconds
    with contextlib.suppress(client.AgentGone), service.connected() as connection:
        while time.monotonic() < deadline:
            for command in ("activate", "deactivate", "activate", "reset", "stats"):
                connection.request(command)
    assert service.result(90)[0] == 0
