# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""What packaged services do to themselves, and the agent can be reached nevertheless: they clear their environment,
change their user before they fork, or run under a filter of system calls."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.offheap.profiler.plugins.module_utils.agent import client
from ansible_collections.offheap.profiler.plugins.module_utils.host import cgroup
from ansible_collections.offheap.profiler.tests.agent.conftest import FOREIGN, service_program
from ansible_collections.offheap.profiler.tests.agent.service import Service, wait_for
from ansible_collections.offheap.profiler.tests.agent.test_unwind import read_stacks, share

Start = Callable[..., Service]
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
needs_this_machine = pytest.mark.skipif(
    FOREIGN, reason="what it starts is of this machine, and an emulator filters its own calls"
)
NOBODY = 65534


@pytest.fixture(scope="session")
def hard_cases() -> Path:
    return service_program("hard_cases")


def answer(service: Service, pid: int, command: str = "status") -> dict[str, Any] | None:
    """What the agent of a process says; nothing before it can be reached."""
    for agent in service.agents():
        if agent.pid == pid:
            try:
                with client.Connection(agent) as connection:
                    return connection.request(command)
            except client.AgentGone:
                return None
    return None


@needs_this_machine
@pytest.mark.parametrize("mode", ["bare", "open"])
def test_a_service_that_starts_itself_again_without_an_environment(mode: str, start: Start, hard_cases: Path) -> None:
    service = start(hard_cases, mode, str(hard_cases), "leak")

    def leaks() -> bool:
        found = answer(service, service.pid)
        return bool(found and Path(f"/proc/{service.pid}/cmdline").read_bytes().endswith(b"leak\0"))

    wait_for("the agent of the second program", leaks)
    assert service.ask("dump")["ok"]


@needs_this_machine
def test_a_start_program_that_clears_the_environment(start: Start, hard_cases: Path) -> None:
    service = start("/usr/bin/env", "-i", "sh", "-c", f"exec env -i {hard_cases} leak", executable=hard_cases)
    wait_for("the agent", lambda: answer(service, service.pid))
    assert service.ask("dump")["ok"]


@needs_this_machine
def test_a_service_that_becomes_a_program_which_starts_it_again_without_an_environment(
    start: Start, hard_cases: Path
) -> None:
    service = start(hard_cases, "bare", "/usr/bin/env", "-i", str(hard_cases), "leak")

    def leaks() -> bool:
        return bool(
            answer(service, service.pid)
            and Path(f"/proc/{service.pid}/cmdline").read_bytes().split(b"\0")[1:2] == [b"leak"]
        )

    wait_for("the agent of the third program", leaks)
    assert service.ask("dump")["ok"]


@needs_this_machine
@pytest.mark.parametrize("unset", [0, 1])
def test_a_service_that_writes_its_title_over_its_environment(start: Start, hard_cases: Path, unset: int) -> None:
    service = start(hard_cases, "title", unset=unset)
    wait_for("its title", lambda: Path(f"/proc/{service.pid}/cmdline").read_bytes().startswith(b"   "))
    assert service.ask("dump")["ok"]


@needs_this_machine
def test_another_program_gets_the_environment_that_it_is_given(start: Start, hard_cases: Path) -> None:
    service = start(hard_cases, "child", "/usr/bin/env")
    assert service.result() == (0, "")


@needs_this_machine
@pytest.mark.parametrize(("settings", "kept"), [({"unset": 1}, False), ({}, True), ({"unset": 1, "children": 1}, True)])
def test_what_the_service_starts_is_not_preloaded(
    start: Start, hard_cases: Path, settings: dict[str, int], kept: bool
) -> None:
    service = start(hard_cases, "shell", "env; tr '\\0' ' ' </proc/$PPID/environ", **settings)
    status, said = service.result()
    env, _newline, of_parent = said.rpartition("\n")
    assert status == 0 and "PATH=" in env
    assert ("LD_PRELOAD=" in env, "MALLOC_CONF=" in env, "OFFHEAP_UNIT=" in env) == (kept,) * 3
    assert "LD_PRELOAD=" in of_parent and "OFFHEAP_UNIT=" in of_parent, (
        "what the process was started with is still told"
    )


@needs_this_machine
def test_what_the_service_spawns_is_not_preloaded(start: Start, hard_cases: Path) -> None:
    """The process that asks for it is not the one that becomes it."""
    status, env = start(hard_cases, "spawn", "/usr/bin/env", unset=1).result()
    assert status == 0 and "PATH=" in env and "LD_PRELOAD=" not in env and "OFFHEAP_UNIT=" not in env


@needs_this_machine
def test_a_service_whose_children_are_not_preloaded_starts_itself_again(start: Start, hard_cases: Path) -> None:
    service = start(hard_cases, "mild", str(hard_cases), "leak", unset=1)
    wait_for("the agent", lambda: answer(service, service.pid))
    wait_for("the second program", lambda: b"leak" in Path(f"/proc/{service.pid}/cmdline").read_bytes()[-6:])
    assert service.ask("dump")["ok"]


@needs_this_machine
def test_an_environment_with_another_preload_stays_as_it_is(start: Start, hard_cases: Path) -> None:
    service = start("/usr/bin/env", "-i", "LD_PRELOAD=", "/usr/bin/env", executable=hard_cases)
    assert service.result() == (0, "LD_PRELOAD=\n")


@needs_root
@needs_this_machine
def test_a_child_of_a_process_that_has_changed_its_user(
    start: Start, hard_cases: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cgroup, "belongs_to", lambda pid, unit: True)
    service = start(hard_cases, "user", str(NOBODY), children=1)
    assert service.process.stdout
    child = int(service.process.stdout.readline())
    found = wait_for("the child's agent", lambda: answer(service, child))
    assert found["pid"] == child
    (agent,) = [agent for agent in service.agents() if agent.pid == child]
    assert agent.path == f"@offheap/tried.service/{child}"


@needs_root
@needs_this_machine
def test_a_service_that_is_another_user_for_a_time_writes_as_the_owner_of_its_spool(
    start: Start, hard_cases: Path
) -> None:
    service = start(hard_cases, "meanwhile", str(NOBODY))

    def of_all_threads(line: str) -> set[str]:
        found = Path(f"/proc/{service.pid}/task").glob("*/status")
        return {one.split()[2] for status in found for one in status.read_text().splitlines() if one.startswith(line)}

    wait_for("the other user", lambda: of_all_threads("Uid:") == {str(NOBODY)})
    done = service.ask("dump")
    assert done["ok"], done
    assert Path(done["path"]).stat().st_uid == 0
    assert of_all_threads("Uid:") == {str(NOBODY)}


def test_a_name_that_is_no_file_is_looked_up_for_processes_of_the_unit_only(
    start: Start, hard_cases: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = start(hard_cases, "leak", socket_dir="/does/not/exist")
    monkeypatch.setattr(cgroup, "belongs_to", lambda pid, unit: unit == "tried.service" and pid == service.pid)
    assert wait_for("the agent", lambda: answer(service, service.pid))
    monkeypatch.setattr(cgroup, "belongs_to", lambda pid, unit: False)
    assert service.agents() == []


@needs_this_machine
def test_a_filter_that_is_known_to_be_mild_leaves_descriptors_separate(start: Start, hard_cases: Path) -> None:
    service = start(hard_cases, "mild", str(hard_cases), "leak", may_unshare=1)
    wait_for("the filtered program", lambda: Path(f"/proc/{service.pid}/cmdline").read_bytes().endswith(b"leak\0"))
    found = wait_for("its agent", lambda: answer(service, service.pid))
    assert found["descriptors"] == "private"


@needs_this_machine
def test_a_filter_that_the_service_adds_itself_is_not_trusted(start: Start, hard_cases: Path) -> None:
    service = start(hard_cases, "late", children=1, may_unshare=1)
    assert service.process.stdout
    child = int(service.process.stdout.readline())
    assert wait_for("the child's agent", lambda: answer(service, child))["descriptors"] == "shared"


@needs_this_machine
@pytest.mark.parametrize("children", [0, 1])
def test_a_child_that_is_forked_in_a_thread_with_the_least_stack(start: Start, hard_cases: Path, children: int) -> None:
    """The handler of fork runs on it, whether the child is to have an agent or not."""
    assert start(hard_cases, "small", children=children).result() == (0, "0\n")


@needs_this_machine
def test_a_service_whose_main_thread_has_ended(start: Start, hard_cases: Path) -> None:
    """What the process is in /proc is that thread, of which nothing is left."""
    service = start(hard_cases, "ended", start_delay=1)
    wait_for("the end of the main thread", lambda: not Path(f"/proc/{service.pid}/maps").read_bytes())
    service.wait_until_active()
    wait_for("samples", lambda: service.ask("dump")["objects"] > 20)
    told = Path(service.ask("dump")["path"])
    sidecar = json.loads(told.with_name(f"{told.name}.json").read_text())
    assert sidecar["exe"] == str(hard_cases) and sidecar["cmdline"] == [str(hard_cases), "ended"]
    assert sidecar["memory"]["rss"] > 0 and str(hard_cases) in [image["path"] for image in sidecar["images"]]
    whole = share(read_stacks(told), lambda names: "hard_cases" in names and names[-1] == "libc.so.6")
    assert whole > 0.9
