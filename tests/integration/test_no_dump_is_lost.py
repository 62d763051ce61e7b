# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""What a service has dumped stays until somebody collects it, whatever happens to the host."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from ansible_collections.offheap.profiler.tests.integration import small_services
from ansible_collections.offheap.profiler.tests.integration.hosts import LabHost, wait_for
from ansible_collections.offheap.profiler.tests.integration.playbooks import PlaybookResult

# It takes some reboots until a pid comes again.
pytestmark = [pytest.mark.usefixtures("quiet_lab"), pytest.mark.soak_only]

HOST = "app1"


@pytest.fixture(scope="module")
def variables(library: dict[str, Any]) -> dict[str, Any]:
    return {
        **library,
        "profiled_service_healthy_seconds": 3,
    }


@pytest.fixture
def unit(host: Callable[[str], LabHost], playbook: Callable[..., PlaybookResult]) -> Iterator[str]:
    with small_services.installed(host(HOST), "again") as name:
        yield name
        purge = {"rollback_purge": True, "rollback_discard": True}
        playbook("rollback.yml", limit=HOST, extra_vars=purge).check()


def reboot(on: LabHost, unit: str) -> None:
    """Reboot the host, and wait until the unit runs again."""
    started = "cut -d' ' -f22 /proc/1/stat"
    before = on.run(started).stdout
    on.run("systemctl reboot", check=False)

    def is_back() -> bool:
        return on.run(started, check=False).stdout not in ("", before) and on.main_pid(unit) > 0

    wait_for(is_back, f"{on.name} rebooted with {unit} running")


def test_a_reboot_and_the_same_pid_again(
    playbook: Callable[..., PlaybookResult], host: Callable[[str], LabHost], unit: str, variables: dict[str, Any]
) -> None:
    on = host(HOST)
    spool = f"/var/lib/offheap/{unit}"

    def kept() -> dict[str, str]:
        """Checksums of the dumps by their names."""
        lines = on.run(f"cd {spool} && sha256sum *.heap").stdout.splitlines()
        return {name: checksum for checksum, name in (line.split("  ") for line in lines)}

    def dump_twice() -> None:
        for _dump in range(2):
            playbook("switch-profiling.yml", limit=HOST, extra_vars={"offheap_units": [unit], "state": "dump"}).check()

    playbook("enable-profiling.yml", limit=HOST, extra_vars={**variables, "offheap_units": [unit]}).check()
    pids = []
    before: dict[str, str] = {}
    for _boot in range(8):
        pids.append(on.main_pid(unit))
        dump_twice()
        after = kept()
        assert before.items() <= after.items() and len(after) >= len(before) + 2
        before = after
        if pids[-1] in pids[:-1]:
            break
        reboot(on, unit)
    assert len(set(pids)) < len(pids), "no pid came again"
    sidecars = on.run(f"cat {spool}/*.heap.json").stdout.splitlines()
    assert len(sidecars) == len(before) and {json.loads(line)["pid"] for line in sidecars} == set(pids)
