# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Leaks below CPython 3.13 and Node 20, each with a /tmp of its own: the functions that allocate have their names."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from ansible_collections.offheap.profiler.tests.integration.hosts import LabHost, wait_for
from ansible_collections.offheap.profiler.tests.integration.playbooks import Controller, PlaybookResult

HOST = "app3"
UNITS = ("pyleak", "nodeleak")
# Node frees in sweeps, so that a leak shows by its low points alone: several of them have to be seen.
DUMPS = 45


@pytest.fixture(scope="module")
def reported(
    lab: object, playbook: Callable[..., PlaybookResult], host: Callable[[str], LabHost], controller: Controller
) -> Iterator[PlaybookResult]:
    """The services enabled, their dumps collected and reported."""
    directory = controller.directory / "scripts"
    variables: dict[str, Any] = {
        # The host that builds what is not in the cache yet is an old one, without Node.
        "offheap_units": f"{{{{ {list(UNITS)} if inventory_hostname == '{HOST}' else ['pyleak'] }}}}",
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
    host(HOST).run(f"systemctl start {' '.join(UNITS)}")
    host("app1").run("systemctl start pyleak")
    playbook("enable-profiling.yml", extra_vars=variables, limit=f"app1,{HOST}").check()

    for unit in UNITS:

        def dumps(unit: str = unit) -> bool:
            return int(host(HOST).run(f"ls /var/lib/offheap/{unit}.service/*.heap | wc -l").stdout) >= DUMPS

        wait_for(dumps, f"{DUMPS} dumps of {unit}", timeout=360, interval=2)
    playbook("collect-profiles.yml", extra_vars=variables, limit=HOST).check()
    yield playbook("report-leaks.yml", extra_vars=variables).check()
    playbook("rollback.yml", limit=f"app1,{HOST}")
    for name in ("app1", HOST):
        spools = " ".join(f"/var/lib/offheap/{unit}.service" for unit in UNITS)
        host(name).run(f"systemctl stop {' '.join(UNITS)}; rm -rf {spools}")


def _report(reported: PlaybookResult, unit: str) -> dict[str, Any]:
    reports = next(task.result["reports"] for task in reported.tasks if "reports" in task.result)
    report: dict[str, Any] = next(one for one in reports if one["unit"] == f"{unit}.service" and one["host"] == HOST)
    assert report["verdict"] == "leak", report["reason"]
    return report


def test_python(reported: PlaybookResult) -> None:
    report = _report(reported, "pyleak")
    paths = [suspect["path"] for suspect in report["suspects"]]
    assert all("_PyEval_EvalFrameDefault" in path for path in paths)
    window = next(path for path in paths if "inflate" in path)
    # zlib, the interpreter, and the first function in Python: the walk ends there, since Debian's CPython is built
    # without frame pointers.
    assert window.index("inflate") < window.index("_PyEval_EvalFrameDefault") < window.index("unpack (pyleak)")
    assert any("serve_asset (pyleak)" in path for path in paths)
    assert "inflate ← unpack (pyleak)" in reported.stdout


def test_node(reported: PlaybookResult, host: Callable[[str], LabHost]) -> None:
    path = _report(reported, "nodeleak")["path"]
    functions = [label.partition(":")[0] for label in path if "(nodeleak:" in label]
    assert functions == ["receive (nodeleak", "keepUpload (nodeleak", "handleRequest (nodeleak", "run (nodeleak"], path
    # between Node's own code in C++ on both sides
    first, last = (next(label for label in order if "(nodeleak:" in label) for order in (path, path[::-1]))
    assert any("node::" in label for label in path[: path.index(first)])
    assert any("node::" in label for label in path[path.index(last) :])
