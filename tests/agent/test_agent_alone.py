# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""The agent preloaded alone: the process keeps its allocator, and the agent draws the samples."""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.offheap.profiler.plugins.module_utils.agent import client
from ansible_collections.offheap.profiler.plugins.module_utils.memory import process as memory
from ansible_collections.offheap.profiler.tests.agent.conftest import (
    EMULATED,
    FOREIGN,
    PROGRAMS,
    compiled,
    service_program,
)
from ansible_collections.offheap.profiler.tests.agent.service import Service, wait_for
from ansible_collections.offheap.profiler.tests.agent.test_sampler import Taken, plugin, program

Start = Callable[..., Service]
#: how libraries with another allocator are called
ALLOCATORS = {"jemalloc": "libjemalloc.so.2", "tcmalloc": "libtcmalloc_minimal.so.4", "libc": ""}

wiped = pytest.mark.skipif(EMULATED, reason="qemu 7.2 says that it wipes memory in forked children, and does not")
needs_this_machine = pytest.mark.skipif(FOREIGN, reason="what it starts is of this machine")


@pytest.fixture
def own(start: Start, library: Path, tmp_path: Path) -> Start:
    """Starts a program with the agent alone; ``beside`` is preloaded behind it."""

    def run(path: Path | str, *arguments: str, beside: tuple[Path, ...] = (), **settings: Any) -> Service:
        given = {"prefix": tmp_path / "spool" / "jeprof", "lg_sample": 0, **settings}
        given["environment"] = {"MALLOC_CONF": "", **given.get("environment", {})}
        return start(path, *arguments, preload=[library, *beside], **given)

    return run


class Told:
    """attached.c under the agent, which does what it is told."""

    def __init__(self, own: Start, library: Path, **settings: Any) -> None:
        self._path = program()
        self.service = own(self._path, str(library), str(plugin()), popen={"stdin": subprocess.PIPE}, **settings)
        if not {"start_delay", "start"} & set(settings):
            self.service.wait_until_active()

    def do(self, command: str) -> str:
        return self.service.do(command)

    def dump(self) -> Taken:
        return Taken(self.service.ask("dump")["path"], self.service.pid, self._path)


@needs_this_machine
def test_triage_sees_that_it_is_profiled(own: Start) -> None:
    service = own(service_program("workload"), "leak", "30")
    service.wait_until_active()
    assert memory.look(service.pid, 1.0)["profiled"] is True
    assert memory.look(os.getpid(), 1.0)["profiled"] is False


def test_a_leak_beside_a_churn_is_named_with_its_rate(own: Start, library: Path) -> None:
    told = Told(own, library, lg_sample=12)
    told.do("leak 8000 1000")
    taken = told.dump()
    living, size, ever = taken.of("leak_here")
    assert (size, ever) == (living * 1000, living)
    likely = 1 - math.exp(-1000 / 4096)
    assert living == pytest.approx(8000 * likely, abs=4 * math.sqrt(8000 * likely))
    came = taken.of("churn_here")
    assert came[:2] == (0, 0)
    assert came[2] == pytest.approx(32000 * likely, abs=4 * math.sqrt(32000 * likely))
    taken.assert_is_consistent()


@wiped
@pytest.mark.parametrize("allocator", ALLOCATORS)
def test_every_birth_and_death_is_counted_in_whatever_allocator(own: Start, library: Path, allocator: str) -> None:
    """Threads that come and go, libraries that are opened later, children that are forked."""
    name = ALLOCATORS[allocator]
    beside = tuple(Path("/usr/lib").glob(f"*/{name}")) if name else ()
    if name and not beside:
        pytest.skip(f"there is no {name} here")
    told = Told(own, library, beside=beside)
    assert told.do("churn 1000") == "0", "a child failed"
    taken = told.dump()
    taken.assert_is_consistent()
    assert taken.of("serve")[2] == 4 * 8 * 1000
    assert taken.of("serve")[0] == int(told.do("living"))
    before = told.service.ask("status")["entries"]
    assert told.do("open") == "1"
    wait_for("its entries", lambda: told.service.ask("status")["entries"] > before)
    told.do("plugin")
    assert 7000 in told.dump().book.size
    told.do("free")
    assert told.dump().of("serve")[:2] == (0, 0)
    mapped = Path(f"/proc/{told.service.pid}/maps").read_text()
    assert ("jemalloc" in mapped, "tcmalloc" in mapped) == (allocator == "jemalloc", allocator == "tcmalloc")
    assert told.service.stderr() == ""


@needs_this_machine
def test_a_service_whose_loader_is_audited(own: Start, library: Path) -> None:
    audit = compiled("libaudit.so", [PROGRAMS / "audit.c"], "-O2", "-shared", "-fPIC")
    told = Told(own, library, environment={"LD_AUDIT": str(audit)})
    told.do("leak 10 1000")
    assert told.do("churn 100") == "0"
    taken = told.dump()
    taken.assert_is_consistent()
    assert taken.of("leak_here") == (10, 10_000, 10)


def test_a_dump_says_who_drew_the_samples(own: Start, library: Path) -> None:
    told = Told(own, library)
    beside = json.loads(Path(f"{told.service.ask('dump')['path']}.json").read_text())
    assert beside["feeder"] == "sampler" and beside["jemalloc"]["version"] is None


def test_entries_lead_to_the_agent_before_main_unless_it_is_dormant(own: Start, library: Path) -> None:
    told = Told(own, library, start_delay=3600)
    assert told.service.ask("status")["entries"] >= 8 and not told.service.ask("status")["active"]
    told.service.kill()
    told = Told(own, library, start="dormant")
    assert told.service.ask("status")["entries"] == 0
    told.service.ask("activate")
    told.do("leak 10 1000")
    assert told.dump().of("leak_here") == (10, 10_000, 10)


def test_it_came_with_the_process_and_stays(own: Start, library: Path) -> None:
    told = Told(own, library)
    with pytest.raises(client.AgentError, match="was not attached"):
        told.service.ask("detach")
    told.do("leak 10 1000")
    assert told.dump().of("leak_here")[0] == 10


@wiped
@pytest.mark.parametrize("mode", ["threads", "forks"])
def test_a_service_whose_threads_and_children_come_and_go(own: Start, workload: Path, mode: str) -> None:
    service = own(workload, mode, "5", lg_sample=12)
    service.wait_until_active()
    while service.process.poll() is None:
        try:
            service.ask("dump")
        except (client.AgentError, AssertionError):
            break  # it has ended
    status, said = service.result()
    assert (status, service.stderr()) == (0, "") and int(said.split()[1]) > 0


@wiped
def test_each_worker_draws_samples_of_its_own(own: Start, workload: Path) -> None:
    service = own(workload, "family", children=1, lg_sample=12)
    assert service.process.stdout
    children = [int(word) for word in service.process.stdout.readline().split()]
    assert len(children) == 4
    for pid in (service.pid, *children):
        with client.Connection(service.agent(pid)) as agent:
            wait_for("samples", lambda agent=agent: agent.request("dump")["objects"] > 20)


FORKED, BLOCKS, LG_SAMPLE = 8, 20_000, 14


@wiped
def test_forked_workers_do_not_draw_alike(own: Start) -> None:
    """Each forgets as many blocks: as many samples in each would say that all have drawn the same numbers."""
    path, pipe = service_program("waiting_workers"), subprocess.PIPE
    service = own(path, str(FORKED), str(BLOCKS), children=1, lg_sample=LG_SAMPLE, popen={"stdin": pipe})
    assert service.process.stdin and service.process.stdout
    service.wait_until_active()
    service.process.stdin.write(b"!")
    service.process.stdin.flush()
    workers = [int(word) for word in service.process.stdout.readline().split()]
    with contextlib.ExitStack() as stack:
        agents = [stack.enter_context(client.Connection(service.agent(pid))) for pid in workers]
        wait_for("samples in all", lambda: all(agent.request("status")["active"] for agent in agents))
        service.process.stdin.write(b"!" * FORKED)
        service.process.stdin.flush()
        assert service.process.stdout.read(FORKED) == b"." * FORKED
        found = [int(agent.request("dump")["objects"]) for agent in agents]
    probability = 1 - math.exp(-1000 / (1 << LG_SAMPLE))
    expected = FORKED * BLOCKS * probability
    assert abs(sum(found) - expected) < 5 * math.sqrt(expected), found
    assert len(set(found)) > FORKED / 2, found


@needs_this_machine
def test_its_own_settings_of_malloc_stay_in_what_it_starts(own: Start, tmp_path: Path) -> None:
    """With another allocator they would be ours, and leave the environment with our other variables."""
    hard_cases = service_program("hard_cases")
    service = own(hard_cases, "shell", "env", unset=1, environment={"MALLOC_CONF": "narenas:1"})
    status, said = service.result()
    assert status == 0 and "MALLOC_CONF=narenas:1" in said
    assert not re.search("LD_PRELOAD=|OFFHEAP_UNIT=|OFFHEAP_PREFIX=", said)


@needs_this_machine
def test_a_service_that_starts_itself_again_is_profiled_again(own: Start) -> None:
    hard_cases = service_program("hard_cases")
    service = own(hard_cases, "mild", str(hard_cases), "leak", unset=1)
    wait_for("the second program", lambda: b"leak" in Path(f"/proc/{service.pid}/cmdline").read_bytes()[-6:])

    def samples() -> int:
        with contextlib.suppress(client.AgentGone):  # the first program's
            return int(service.ask("dump")["objects"])
        return 0

    wait_for("its samples", samples)
    assert service.ask("status")["feeder"] == "sampler"
