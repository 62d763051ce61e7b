# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Work on many hosts: bounded, and a failing host stops no other."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any, cast

import pytest

from ansible_collections.offheap.profiler.console import each_host
from ansible_collections.offheap.profiler.console.connect import ConnectError, Connector
from ansible_collections.offheap.profiler.console.target import Target
from ansible_collections.offheap.profiler.plugins.plugin_utils.fetch.host_session import HostError, Session


class Connections:
    """Stands in for a Connector and counts concurrent sessions. The lab tests real connections."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.inside = self.most = 0

    @contextlib.contextmanager
    def session(self, target: Target) -> Iterator[Any]:
        if target.name.startswith("dead"):
            raise ConnectError("nothing listens")
        with self._lock:
            self.inside += 1
            self.most = max(self.most, self.inside)
        try:
            yield object()
        finally:
            with self._lock:
                self.inside -= 1

    def hang_up(self) -> None:
        """Nothing to close."""


def run(targets: list[Target], work: Any, **options: Any) -> Iterator[each_host.Outcome[str]]:
    for outcomes in each_host.run(targets, cast(Connector, Connections()), work, **options):
        yield from outcomes


def hosts(count: int) -> list[Target]:
    return [Target(f"host{number}", "x") for number in range(count)]


def test_each_host_once_and_no_more_at_once_than_allowed() -> None:
    connections = Connections()
    barrier = threading.Barrier(4, timeout=10)

    def work(target: Target, _session: Session) -> str:
        barrier.wait()
        return target.name

    outcomes = [
        outcome for some in each_host.run(hosts(12), cast(Connector, connections), work, at_once=4) for outcome in some
    ]
    assert sorted(str(outcome.result) for outcome in outcomes) == sorted(target.name for target in hosts(12))
    assert connections.most == 4


def test_failures_are_told_and_stop_nobody() -> None:
    def work(target: Target, _session: Session) -> str:
        if target.name == "host1":
            raise HostError("no such unit")
        return "done"

    targets = [*hosts(3), Target("dead", "x")]
    outcomes = {outcome.target.name: outcome for outcome in run(targets, work)}
    assert {name: outcome.error for name, outcome in outcomes.items()} == {
        "host0": "", "host1": "no such unit", "host2": "", "dead": "nothing listens"
    }  # fmt: skip


def test_a_fault_of_our_own_is_not_hidden() -> None:
    def work(_target: Target, _session: Session) -> str:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        list(run(hosts(2), work))


def test_a_bug_that_one_host_brings_out_stops_no_other() -> None:
    def work(target: Target, _session: Session) -> str:
        return {"host0": "zero", "host2": "two"}[target.name]

    told: list[str | None] = []
    with pytest.raises(KeyError, match="host1"):
        told.extend(outcome.result for outcome in run(hosts(3), work))
    assert sorted(filter(None, told)) == ["two", "zero"]
