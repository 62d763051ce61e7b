# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""The whole job on a host of 64-bit ARM: the controller builds, and the Java method that leaks in the demo is named."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from ansible_collections.offheap.profiler.tests.integration.hosts import Lab, LabHost, wait_for
from ansible_collections.offheap.profiler.tests.integration.kernel.conftest import MACHINE, booted, controller_of

UNIT = "frontend"


@pytest.fixture(scope="module")
def arm() -> Iterator[Lab]:
    with booted("a", "--arm") as lab:
        yield lab


def _span(host: LabHost) -> int:
    """Seconds between the first complete dump and the last."""
    dumps = f"grep -ls ^MAPPED_LIBRARIES /var/lib/offheap/{UNIT}.service/*.heap"
    times = [int(time) for time in host.run(f"{dumps} | xargs -r stat -c %Y", check=False).stdout.split()]
    return max(times) - min(times) if times else 0


def test_the_demos_leak_is_named(arm: Lab, built_here: dict[str, Any]) -> None:
    host = arm.host(MACHINE)
    assert host.run("uname -m").stdout.strip() == "aarch64"
    with controller_of(arm) as user:
        host.run(f"systemctl start {UNIT}")
        before = host.listing()
        variables = {
            **built_here,
            "offheap_hosts": MACHINE,
            "offheap_units": [UNIT],
            "profiled_service_dump_seconds": 15,
            "profiled_service_healthy_seconds": 10,
        }
        user.playbook("enable-profiling.yml", extra_vars=variables).check()
        wait_for(lambda: _span(host) >= 120, "dumps of two minutes", timeout=600, interval=5)
        user.playbook("collect-profiles.yml", extra_vars={"offheap_hosts": MACHINE}).check()
        (report,) = user.playbook("report-leaks.yml").check().reports
        assert report["verdict"] == "leak", report["reason"]
        path = report["suspects"][0]["path"]
        assert any("Inflater" in name for name in path) and any("inflate" in name for name in path), path
        user.playbook("rollback.yml", extra_vars={"offheap_hosts": MACHINE, "rollback_purge": True}).check()
        assert host.listing() == before
