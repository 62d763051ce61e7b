# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Boots the lab for the matrix of faults, in an order that a seed repeats, and sums up what held.

OFFHEAP_FAULTS_SEED is the seed; 0, the default, keeps the order of the table.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from ansible_collections.offheap.profiler.tests.faults.batch import Batch, RunPlaybook, Seen
from ansible_collections.offheap.profiler.tests.faults.fault import Fault
from ansible_collections.offheap.profiler.tests.integration.conftest import (  # noqa: F401  # pylint: disable=unused-import
    booted_lab,
    collection,
    controller,
    host,
    lab,
    library,
    playbook,
    quiet_lab,
)
from ansible_collections.offheap.profiler.tests.integration.hosts import Lab, LabHost
from ansible_collections.offheap.profiler.tests.integration.playbooks import PlaybookResult

SEED = int(os.environ.get("OFFHEAP_FAULTS_SEED", "0"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        item.add_marker("lab")
    if SEED:
        random.Random(SEED).shuffle(items)


@pytest.fixture(scope="session")
def installed(
    quiet_lab: Lab,  # noqa: F811
    playbook: Callable[..., PlaybookResult],  # noqa: F811
    host: Callable[[str], LabHost],  # noqa: F811
    library: dict[str, Any],  # noqa: F811
) -> dict[str, str]:
    """The library and the agent on the hosts."""
    wanted = {**library, "offheap_units": ["legacy"], "offheap_serial": "100%", "profiled_service_healthy_seconds": 1}
    playbook("enable-profiling.yml", extra_vars=wanted).check()
    playbook("rollback.yml").check()
    found = host("app1").run("ls /opt/offheap/jemalloc/*/lib/libjemalloc.so.2 /opt/offheap/agent/*/liboffheap.so")
    path, agent = sorted(found.stdout.split(), key=lambda path: "/agent/" in path)
    return {"profiled_service_library": path, "profiled_service_agent": agent}


@pytest.fixture(scope="session")
def tried(
    request: pytest.FixtureRequest,
    playbook: RunPlaybook,  # noqa: F811
    host: Callable[[str], LabHost],  # noqa: F811
    installed: dict[str, str],
    tmp_path_factory: pytest.TempPathFactory,
) -> Callable[[Fault], Seen]:
    """What came of a row. The chosen rows of one action are tried when the first of them is asked for."""
    chosen = [item.callspec.params["fault"] for item in request.session.items if hasattr(item, "callspec")]
    seen: dict[Fault, Seen] = {}

    def ask(fault: Fault) -> Seen:
        if fault not in seen:
            place = (fault.do, fault.host)
            together = [one for one in chosen if (one.do, one.host) == place and not one.is_alone]
            archive = tmp_path_factory.mktemp("faults") / "archive"
            batch = [fault] if fault.is_alone else together
            seen.update(Batch(batch, host(fault.host), playbook, archive, installed).try_out())
        return seen[fault]

    return ask


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """How many faults of each kind held."""
    held: Counter[str] = Counter()
    tried: Counter[str] = Counter()
    for outcome in ("passed", "failed", "error"):
        for report in terminalreporter.getreports(outcome):
            kind = dict(getattr(report, "user_properties", [])).get("kind")
            if kind is None or (outcome == "passed" and report.when != "call"):
                continue
            tried[str(kind)] += 1
            held[str(kind)] += outcome == "passed"
    terminalreporter.section(f"faults (seed {SEED})")
    for kind, count in sorted(tried.items()):
        terminalreporter.write_line(f"{kind:12} {held[kind]} of {count} held")
    terminalreporter.write_line(f"{'all':12} {held.total()} of {tried.total()} held")
