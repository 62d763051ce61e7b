# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""A leak below CPython 3.13, with a /tmp of its own: the function that allocates has its name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from ansible_collections.offheap.profiler.tests.integration.hosts import LabHost, wait_for
from ansible_collections.offheap.profiler.tests.integration.playbooks import Controller, PlaybookResult

HOST = "app3"
DUMPS = 18


@pytest.fixture(scope="module")
def reported(
    lab: object, playbook: Callable[..., PlaybookResult], host: Callable[[str], LabHost], controller: Controller
) -> Iterator[PlaybookResult]:
    """The service enabled, its dumps collected and reported."""
    directory = controller.directory / "python"
    variables: dict[str, Any] = {
        "offheap_units": ["pyleak"],
        "offheap_archive": str(directory / "archive"),
        "offheap_report": str(directory / "report"),
        "offheap_cache": str(controller.directory / "cache"),
        "offheap_serial": ["100%"],
        "profiled_service_healthy_seconds": 3,
        "profiled_service_malloc_conf": {"lg_prof_sample": 14},
        "profiled_service_dump_seconds": 4,
        "profiled_service_agent_settings": {"start_delay": 1},
        "jemalloc_version": "5.3.0",
        "jemalloc_source": "{{ lab_sources }}/jemalloc-5.3.0.tar.bz2",
        "jemalloc_build_host": "app1",
    }
    host(HOST).run("systemctl start pyleak")
    # All hosts, since the one with a compiler builds what is not in the cache yet.
    host("app1").run("systemctl start pyleak")
    playbook("enable-profiling.yml", extra_vars=variables, limit=f"app1,{HOST}").check()

    def dumps() -> bool:
        return int(host(HOST).run("ls /var/lib/offheap/pyleak.service/*.heap | wc -l").stdout) >= DUMPS

    wait_for(dumps, f"{DUMPS} dumps", timeout=240, interval=2)
    playbook("collect-profiles.yml", extra_vars=variables, limit=HOST).check()
    yield playbook("report-leaks.yml", extra_vars=variables).check()
    playbook("rollback.yml", limit=f"app1,{HOST}")
    for name in ("app1", HOST):
        host(name).run("systemctl stop pyleak; rm -rf /var/lib/offheap/pyleak.service")


def test_the_function_that_leaks_has_a_name(reported: PlaybookResult) -> None:
    reports = next(task.result["reports"] for task in reported.tasks if "reports" in task.result)
    report = next(report for report in reports if report["unit"] == "pyleak.service" and report["host"] == HOST)
    assert report["verdict"] == "leak", report["reason"]
    paths = [suspect["path"] for suspect in report["suspects"]]
    assert all("_PyEval_EvalFrameDefault" in path for path in paths)
    window = next(path for path in paths if "inflate" in path)
    # zlib, the interpreter, and the first function in Python: the walk ends there, since Debian's CPython is built
    # without frame pointers.
    assert window.index("inflate") < window.index("_PyEval_EvalFrameDefault") < window.index("unpack (pyleak)")
    assert any("serve_asset (pyleak)" in path for path in paths)
    assert "inflate ← unpack (pyleak)" in reported.stdout
