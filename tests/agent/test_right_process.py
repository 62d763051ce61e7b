# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Wrappers, children and strangers inherit the environment; only the process that is meant has an agent."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from ansible_collections.offheap.profiler.plugins.module_utils.agent import client
from ansible_collections.offheap.profiler.tests.agent.service import Service, parsed, wait_for

Start = Callable[..., Service]


def test_the_process_itself(start: Start, workload: Path) -> None:
    service = start(workload, "leak", "30")
    status = service.ask("status")
    assert status["pid"] == service.pid
    assert service.tasks() == ["workload", "offheap"]
    service.process.terminate()


def test_an_executable_behind_a_link(start: Start, workload: Path, tmp_path: Path) -> None:
    link = tmp_path / "current"
    link.symlink_to(workload)
    assert start(workload, "leak", "30", executable=link).ask("status")["ok"]


def test_an_executable_that_was_replaced_meanwhile(start: Start, workload: Path, tmp_path: Path) -> None:
    program = tmp_path / "program"
    shutil.copy(workload, program)
    service = start(
        "/bin/sh", "-c", f"exec 3<{program}; rm {program}; exec /proc/self/fd/3 leak 30", executable=program
    )
    assert service.ask("status")["exe"].endswith("program (deleted)")


@pytest.mark.parametrize("other", ["/bin/true", "", "/does/not/exist", "relative"])
def test_another_executable(start: Start, workload: Path, other: str) -> None:
    service = start(workload, "leak", "0.5", executable=other)
    time.sleep(0.3)
    assert service.tasks() == ["workload"]
    assert service.result()[0] == 0
    assert service.agents() == []
    assert service.stderr() == ""


def test_a_wrapper_that_becomes_the_service(start: Start, workload: Path) -> None:
    service = start("/bin/sh", "-c", f"sleep 0.3; exec {workload} leak 30", executable=workload)
    time.sleep(0.15)
    assert service.tasks() == ["sh"]
    assert service.agent().pid == service.pid


def test_a_service_that_becomes_another_program(start: Start, workload: Path) -> None:
    service = start(workload, "wrap", "/bin/sleep", "0.5")
    assert service.result()[0] == 0
    assert service.stderr() == ""


def test_a_service_that_starts_itself_again_in_the_same_process(start: Start, workload: Path) -> None:
    service = start(workload, "wrap", str(workload), "leak", "30")

    def dumped() -> bool:
        try:
            return bool(service.ask("dump")["ok"])
        except client.AgentGone:  # that of the first one
            return False

    wait_for("a dump of the second one", dumped)


def test_children_do_nothing(start: Start, workload: Path) -> None:
    service = start(workload, "family")
    assert service.process.stdout
    children = [int(word) for word in service.process.stdout.readline().split()]
    service.agent()
    time.sleep(0.5)
    assert len(children) == 4
    assert [agent.pid for agent in service.agents()] == [service.pid]
    assert [len(service.tasks(child)) for child in children] == [1, 1, 1, 1]
    service.ask("dump")
    assert {parsed(path)[1] for path in service.dumps()} == {service.pid}


def test_children_too_when_asked_for(start: Start, workload: Path) -> None:
    service = start(workload, "family", children=1)
    assert service.process.stdout
    children = [int(word) for word in service.process.stdout.readline().split()]
    for pid in (service.pid, *children):
        assert service.agent(pid).pid == pid
        wait_for("two threads", lambda pid=pid: len(service.tasks(pid)) == 2)


def test_a_daemon(start: Start, workload: Path) -> None:
    service = start(workload, "daemon", "6", children=1, start_delay=1)
    assert service.result()[0] == 0  # the first process has ended
    agent = wait_for("the daemon", lambda: [agent for agent in service.agents() if agent.pid != service.pid])[0]
    service.pid = agent.pid
    service.wait_until_active()
    wait_for("something that was sampled", lambda: service.ask("dump")["bytes"] > 0)
    wait_for("its end", lambda: agent not in service.agents())
    assert service.stderr() == ""


def test_a_daemon_without_children_leaves_the_second_process_alone(start: Start, workload: Path) -> None:
    service = start(workload, "daemon", "1")
    service.result()
    time.sleep(0.3)
    assert [agent.pid for agent in service.agents()] in ([], [service.pid])  # the first one's, if it was that quick


def test_the_socket_goes_with_the_process(start: Start, workload: Path) -> None:
    service = start(workload, "leak", "0.7")
    assert service.agent()
    assert service.result()[0] == 0
    assert service.agents() == []
