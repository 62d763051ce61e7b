# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Services that keep their allocator: the agent alone is preloaded, and names what they keep by its rate.

One has glibc's malloc under a transient user, one a tcmalloc that its unit preloads, which would be refused under
jemalloc. redis has Debian's jemalloc, and what it keeps is what its client sets. rspamd dies under another malloc.
"""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.offheap.profiler.plugins.plugin_utils.archive.archive import Archive
from ansible_collections.offheap.profiler.tests.integration import builds
from ansible_collections.offheap.profiler.tests.integration.hosts import Lab, LabHost, wait_for
from ansible_collections.offheap.profiler.tests.integration.playbooks import Controller, PlaybookResult

RunPlaybook = Callable[..., PlaybookResult]
HOST = "app2"
TCMALLOC, JEMALLOC = "libtcmalloc_minimal.so.4", "libjemalloc.so.2"
PLAIN, BROUGHT, REDIS, CLIENT = "grow@slow-leak.service", "brought.service", "redis-server.service", "client.service"
RSPAMD = "rspamd.service"
UNITS = {
    BROUGHT: f"[Service]\nUser=app\nEnvironment=LD_PRELOAD={TCMALLOC}\nExecStart=/usr/local/bin/grow slow-leak\n",
    CLIENT: "[Service]\nExecStart=/usr/local/bin/client\n",
}
#: sets 20 keys of 1,000 bytes ten times a second
SETS = """#!/bin/sh
value=$(head -c 1000 /dev/zero | tr '\\0' x)
number=0
while sleep 0.1; do
    for key in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do
        number=$((number + 1))
        echo "SET key$number $value"
    done
done | redis-cli >/dev/null
"""
LEAKED = 10 * 2000  # bytes, twenty times a second at most
DAY, DUMPS = 86_400, 16


@dataclass(frozen=True)
class Seen:
    """What was reported of each unit, and how fast redis took keys (bytes a second)."""

    before: list[str]
    first_dumps: dict[str, list[str]]
    reports: dict[str, dict[str, Any]]
    mapped: dict[str, set[str]]
    archive: Archive
    rate: float
    rolled_back: str
    after: list[str]
    left: dict[str, dict[str, str]]


@pytest.fixture(scope="module")
def on(lab: Lab, quiet_lab: Lab, host: Callable[[str], LabHost]) -> Iterator[LabHost]:
    """The host with all three running, and redis' client."""
    found = host(HOST)
    lab.command("install", HOST, "redis-server", "libtcmalloc-minimal4", "rspamd")
    files = {f"/etc/systemd/system/{unit}": text for unit, text in UNITS.items()}
    for path, text in {**files, "/usr/local/bin/client": SETS}.items():
        found.run(f"echo {base64.b64encode(text.encode()).decode()} | base64 -d > {path}")
    found.run(
        f"chmod 755 /usr/local/bin/client; systemctl daemon-reload; systemctl start {PLAIN} {BROUGHT} {REDIS} {RSPAMD}"
    )
    yield found
    found.run(
        f"systemctl stop {CLIENT} {PLAIN} {BROUGHT} {REDIS} {RSPAMD}; rm -f /usr/local/bin/client {' '.join(files)}"
    )
    found.run("systemctl daemon-reload; rm -rf /var/lib/offheap /opt/offheap; systemctl reset-failed")


@pytest.fixture(scope="module")
def variables(controller: Controller) -> dict[str, Any]:
    return {
        "jemalloc_method": "cross",
        "offheap_cache": str(controller.directory / "cache"),
        "offheap_hosts": HOST,
        "offheap_archive": str(controller.directory / "own" / "archive"),
        "offheap_report": str(controller.directory / "own" / "report"),
        "offheap_report_min_span": 30,
        "offheap_units": [PLAIN, BROUGHT, REDIS, RSPAMD],
        "profiled_service_allocator": "own",
        "profiled_service_malloc_conf": {"lg_prof_sample": 13},
        "profiled_service_agent_settings": {"start_delay": 0},
        "profiled_service_dump_seconds": 3,
        "profiled_service_healthy_seconds": 4,
    }


@pytest.fixture(scope="module")
def seen(on: LabHost, playbook: RunPlaybook, controller: Controller, variables: dict[str, Any]) -> Seen:
    properties = ("ActiveState", "Environment", "DropInPaths", "MainPID")
    before = on.listing()
    with builds.sharing_crossed(controller.directory / "cache"):
        enabled = playbook("enable-profiling.yml", extra_vars=variables).check()
    units = [task.result["units"] for task in enabled.tasks if task.result.get("units")][-1]  # the first only look
    on.run(f"systemctl start {CLIENT}")
    keys, began = size(on), time.monotonic()
    mapped = {unit: on.mapped(unit) for unit in (PLAIN, BROUGHT, REDIS, RSPAMD)}
    for unit in (PLAIN, BROUGHT, REDIS):
        wait_for(lambda unit=unit: dumps(on, unit) >= DUMPS, f"{DUMPS} dumps of {unit}", timeout=240)  # type: ignore[misc]
    rate = (size(on) - keys) / (time.monotonic() - began) * 1000
    playbook("collect-profiles.yml", extra_vars=variables).check()
    run = playbook("report-leaks.yml", extra_vars=variables).check()
    back = playbook("rollback.yml", extra_vars={**variables, "rollback_purge": True, "rollback_discard": True}).check()
    return Seen(
        before,
        {unit["unit"]: unit["dumps"] for unit in units},
        {report["unit"]: report for report in run.reports},
        mapped,
        Archive.open(Path(variables["offheap_archive"])),
        rate,
        back.stdout,
        on.listing(),
        {unit: on.show(unit, *properties) for unit in mapped},
    )


def size(on: LabHost) -> int:
    """How many keys redis has."""
    return int(on.run("redis-cli DBSIZE").stdout)


def dumps(on: LabHost, unit: str) -> int:
    return len(on.run(f"ls /var/lib/offheap/{unit}/ | grep 'heap$'", check=False).stdout.split())


def test_each_keeps_its_allocator_and_has_the_agent(seen: Seen) -> None:
    for unit, own in ((PLAIN, ""), (BROUGHT, TCMALLOC), (REDIS, JEMALLOC), (RSPAMD, "")):
        assert seen.first_dumps[unit], "it was seen to write one before it was left alone"
        names = {path.rpartition("/")[2] for path in seen.mapped[unit] if not path.startswith("/usr/lib/")}
        assert "liboffheap.so" in names and JEMALLOC not in names
        theirs = [path for path in seen.mapped[unit] if "malloc" in path]
        assert len(theirs) == bool(own) and all(own.partition(".so")[0] in path for path in theirs), theirs


def test_what_each_keeps_is_named_with_its_rate(seen: Seen) -> None:
    for unit in (PLAIN, BROUGHT):
        report = seen.reports[unit]
        assert report["verdict"] == "leak", report["reason"]
        assert "grow" in json.dumps(report["suspects"][0])
        assert 0.75 * 20 * LEAKED * DAY < report["growth_bytes_per_day"] < 1.1 * 20 * LEAKED * DAY
    report = seen.reports[REDIS]
    assert report["verdict"] == "leak", report["reason"]
    assert "redis-server" in json.dumps(report["suspects"]) or "sds" in json.dumps(report["suspects"])
    assert report["growth_bytes_per_day"] == pytest.approx(seen.rate * DAY, rel=0.3)


def test_the_lives_come_with_them(seen: Seen) -> None:
    for unit in (PLAIN, BROUGHT, REDIS):
        captures = list(seen.archive.captures(unit, HOST))
        assert len(captures) > DUMPS / 2
        assert all(capture.lives is not None for capture in captures)


def test_rollback_leaves_the_host_as_before(seen: Seen) -> None:
    assert [line for line in seen.after if "offheap" in line] == [line for line in seen.before if "offheap" in line]
    for unit, shown in seen.left.items():
        assert shown["ActiveState"] == "active" and "offheap" not in shown["Environment"] + shown["DropInPaths"]
        assert f"{unit} is rolled back, and was restarted without the profiler" in seen.rolled_back
    assert seen.left[BROUGHT]["Environment"] == f"LD_PRELOAD={TCMALLOC}"
