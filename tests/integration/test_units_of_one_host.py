# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Units that stand next to one another, or depend on one another: what happens to one is its own, or is seen to."""

from __future__ import annotations

import base64
import contextlib
import os
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.offheap.profiler.tests.integration.hosts import LabHost, wait_for
from ansible_collections.offheap.profiler.tests.integration.playbooks import PlaybookResult

pytestmark = pytest.mark.usefixtures("quiet_lab")

RunPlaybook = Callable[..., PlaybookResult]
TICKER = "[Service]\nType=notify\nUser=app\nExecStart=/usr/local/bin/ticker\n"
SLEEPER = "[Service]\nExecStart=sleep infinity\n"
FRAGILE = "[Service]\nUser=app\nExecStart=/usr/local/bin/fragile\n"
# Aborts before it is up when a jemalloc is mapped into it.
BROKEN = (
    "[Service]\nType=notify\nUser=app\nExecStart=/bin/sh -c"
    " 'grep -q jemalloc /proc/self/maps && kill -ABRT $$$$; exec /usr/local/bin/ticker'\n"
)
PAIR = {
    "db.service": f"[Unit]\nPartOf=switch.service\n{TICKER}",
    "switch.service": f"[Unit]\nRequires=db.service\nAfter=db.service\nPartOf=db.service\n{TICKER}",
}
SOCKET = "[Socket]\nListenStream=/run/base.sock\n"
TAKEN_ALONG = {
    "needs.service": f"[Unit]\nRequires=base.service\nAfter=base.service\n{SLEEPER}",
    "bound.service": f"[Unit]\nBindsTo=base.service\nAfter=base.service\n{SLEEPER}",
    "part.service": f"[Unit]\nPartOf=base.service\n{SLEEPER}",
    "far.service": f"[Unit]\nRequires=needs.service\nAfter=needs.service\n{SLEEPER}",
    "base.timer": "[Timer]\nOnActiveSec=1h\n",
}


@pytest.fixture(scope="module")
def variables(library: dict[str, Any]) -> dict[str, Any]:
    return {**library, "profiled_service_healthy_seconds": 3, "profiled_service_min_free_mib": 1}


@contextlib.contextmanager
def installed(host: LabHost, units: Mapping[str, str]) -> Iterator[None]:
    """Units that run, and are gone afterwards."""
    names = " ".join(units)
    for name, text in units.items():
        packed = base64.b64encode(text.encode()).decode()
        host.run(f"echo {packed} | base64 -d > /etc/systemd/system/{name}")
    try:
        # A socket is not started once its service runs.
        host.run(f"systemctl daemon-reload; for unit in {names}; do systemctl start $unit || exit; done")
        yield
    finally:
        host.run(f"cd /etc/systemd/system; systemctl stop {names}; rm -rf {names}", check=False)
        host.run("systemctl daemon-reload; systemctl reset-failed")


def states(host: LabHost, *units: str) -> dict[str, str]:
    return {unit: host.show(unit, "ActiveState")["ActiveState"] for unit in units}


def profiled(host: LabHost, *units: str) -> set[str]:
    return {unit for unit in units if any("/opt/offheap/jemalloc/" in path for path in host.mapped(unit))}


def roll_back(playbook: RunPlaybook, host: LabHost) -> None:
    playbook("rollback.yml", limit=host.name, extra_vars={"rollback_purge": True, "rollback_discard": True}).check()


def test_one_of_ten_crashes_at_its_start(
    playbook: RunPlaybook, host: Callable[[str], LabHost], variables: dict[str, Any]
) -> None:
    """Two of the others restart one another, as Open vSwitch's do."""
    app3 = host("app3")
    third = "ten-3.service"
    units = {**{f"ten-{number}.service": TICKER for number in range(1, 5)}, third: BROKEN, **PAIR}
    with installed(app3, units):
        before = app3.show(third, "DropInPaths", "Environment", "ActiveState")
        result = playbook("enable-profiling.yml", limit="app3", extra_vars={**variables, "offheap_units": list(units)})
        assert f"{third} did not stay healthy with the drop-in. It was rolled back" in result.failures("app3")
        assert profiled(app3, *units) == set(units) - {third}
        assert app3.show(third, "DropInPaths", "Environment", "ActiveState") == before
        assert set(states(app3, *units).values()) == {"active"}
        roll_back(playbook, app3)
        assert profiled(app3, *units) == set() and set(states(app3, *units).values()) == {"active"}


@pytest.mark.parametrize("base", [pytest.param(TICKER, marks=pytest.mark.soak_only), FRAGILE], ids=["well", "fragile"])
def test_what_a_restart_takes_along_runs_again(
    playbook: RunPlaybook, host: Callable[[str], LabHost], variables: dict[str, Any], base: str
) -> None:
    """After it is enabled, after it is put back, and after it is rolled back."""
    app3 = host("app3")
    with installed(app3, {"base.socket": SOCKET, "base.service": base, **TAKEN_ALONG}):
        along = ("base.socket", *TAKEN_ALONG)
        before = states(app3, "base.service", *along)
        assert set(before.values()) == {"active"}
        wanted = {**variables, "offheap_units": ["base"]}
        told = playbook("enable-profiling.yml", limit="app3", extra_vars=wanted, check=True).check()
        assert f"base.service: a restart takes these along: {', '.join(sorted(along))}." in told.stdout
        assert states(app3, "base.service", *along) == before
        result = playbook("enable-profiling.yml", limit="app3", extra_vars=wanted)
        assert (result.rc != 0) == (base == FRAGILE), result.failures()
        assert states(app3, "base.service", *along) == before
        assert profiled(app3, "base.service") == (set() if base == FRAGILE else {"base.service"})
        roll_back(playbook, app3)
        assert states(app3, "base.service", *along) == before


@pytest.mark.parametrize("how", ["SIGKILL", pytest.param("SIGINT", marks=pytest.mark.soak_only)])
def test_who_interrupts_and_rolls_back_has_the_old_state(
    playbook: RunPlaybook, host: Callable[[str], LabHost], variables: dict[str, Any], how: str
) -> None:
    """The run goes on upon the host: the rollback waits for it."""
    app3 = host("app3")
    before = app3.show("ticker", "DropInPaths", "Environment", "ActiveState")
    restarted = app3.show("ticker", "InvocationID")

    def interrupt(process: subprocess.Popen[bytes], _log: Path) -> None:
        wait_for(lambda: app3.show("ticker", "InvocationID") != restarted, "the restart", 120, 0.1)
        os.killpg(process.pid, signal.Signals[how])

    longer = {**variables, "offheap_units": ["ticker", "legacy"], "profiled_service_healthy_seconds": 10}
    result = playbook("enable-profiling.yml", limit="app3", extra_vars=longer, during=interrupt)
    assert result.rc != 0
    told = playbook("rollback.yml", limit="app3").check()
    assert "ticker.service is rolled back, and was restarted without the profiler" in told.stdout
    assert app3.show("ticker", "DropInPaths", "Environment", "ActiveState") == before
    assert profiled(app3, "ticker", "legacy") == set()
