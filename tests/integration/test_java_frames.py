# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""The frames of Java on JDK 17 and 21: a leak's stack has names from zlib to the thread's start."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.offheap.profiler.plugins.plugin_utils.archive.archive import Archive
from ansible_collections.offheap.profiler.plugins.plugin_utils.archive.capture import Capture
from ansible_collections.offheap.profiler.plugins.plugin_utils.model.frame import Kind
from ansible_collections.offheap.profiler.plugins.plugin_utils.model.samples import BYTES, located, named
from ansible_collections.offheap.profiler.plugins.plugin_utils.readers import heap_v2
from ansible_collections.offheap.profiler.plugins.plugin_utils.symbols.jit_symbols import JitMaps
from ansible_collections.offheap.profiler.plugins.plugin_utils.symbols.symbolizer import Symbolizer
from ansible_collections.offheap.profiler.tests.integration.hosts import LabHost, wait_for
from ansible_collections.offheap.profiler.tests.integration.playbooks import Controller, PlaybookResult
from ansible_collections.offheap.profiler.tests.unit.strategies.leaky_archives import dump_of

RunPlaybook = Callable[..., PlaybookResult]
HostOf = Callable[[str], LabHost]

JDKS = {"app1": "17", "app3": "21"}
# over a minute, the least that a verdict needs
DUMPS = 20
SETTINGS = "/etc/default/frontend"

# Leaf first. All Java frames, whether compiled, put into their callers, or interpreted; of the native ones some.
NATIVE_ABOVE = ("inflate", "Java_java_util_zip_Inflater_inflateBytesBytes")
JAVA = (
    "java.util.zip.Inflater.inflateBytesBytes",
    "java.util.zip.Inflater.inflate",
    "java.util.zip.InflaterInputStream.read",
    "java.util.zip.GZIPInputStream.read",
    "java.io.FilterInputStream.read",
    "Frontend.unpack",
    "Frontend.serveAsset",
    "Frontend.handleRequest",
    "Frontend$$Lambda.run",
    "java.util.concurrent.Executors$RunnableAdapter.call",
    "java.util.concurrent.FutureTask.runAndReset",
    "java.util.concurrent.ScheduledThreadPoolExecutor$ScheduledFutureTask.run",
    "java.util.concurrent.ThreadPoolExecutor.runWorker",
    "java.util.concurrent.ThreadPoolExecutor$Worker.run",
    "java.lang.Thread.run",
)
NATIVE_BELOW = ("JavaCalls::call_helper", "thread_native_entry")
ONLY_IN_21 = "java.lang.Thread.runWith"


@dataclass
class Hunt:
    """The reports of the frontends by host, and all captures."""

    reports: dict[str, dict[str, Any]]
    said: str
    archive: Archive
    symcaches: Path

    def newest(self, host: str) -> tuple[Capture, dict[Path, float]]:
        """The newest capture of the profiled process, and the perf maps of that process."""
        captures = self.archive.captures("frontend.service", host)
        newest = max(captures, key=lambda capture: capture.time)
        same = [capture for capture in captures if capture.process == newest.process]
        return newest, {capture.perf_map: capture.time for capture in same if capture.perf_map}


@pytest.fixture(scope="module")
def hunt(lab: object, playbook: RunPlaybook, host: HostOf, controller: Controller) -> Iterator[Hunt]:
    """Leaks on both hosts, profiled for a while, collected and reported."""
    directory = controller.directory / "java"
    host("app3").run(f"cp {SETTINGS} /root/frontend && sed -i s/EVERY=.*/EVERY=10/ {SETTINGS}")
    variables = {
        "offheap_hosts": ",".join(JDKS),
        "offheap_units": [{"name": "frontend", "health_url": "http://127.0.0.1:8080/health"}],
        "offheap_archive": str(directory / "archive"),
        "offheap_report": str(directory / "report"),
        "offheap_cache": str(controller.directory / "cache"),
        "offheap_serial": ["100%"],
        "profiled_service_healthy_seconds": 3,
        "profiled_service_malloc_conf": {"lg_prof_sample": 16},
        "profiled_service_dump_seconds": 4,
        "profiled_service_agent_settings": {"start_delay": 1},
        "jemalloc_version": "5.3.0",
        "jemalloc_source": "{{ lab_sources }}/jemalloc-5.3.0.tar.bz2",
        "jemalloc_build_host": "app1",
    }
    playbook("enable-profiling.yml", extra_vars=variables).check()
    for name in JDKS:

        def dumps(name: str = name) -> bool:
            return int(host(name).run("ls /var/lib/offheap/frontend.service/*.heap | wc -l").stdout) >= DUMPS

        wait_for(dumps, f"{DUMPS} dumps of the frontend on {name}", timeout=300, interval=2)
    playbook("collect-profiles.yml", extra_vars=variables).check()
    reported = playbook("report-leaks.yml", extra_vars=variables).check()
    reports: list[dict[str, Any]] = next(
        (task.result["reports"] for task in reported.tasks if "reports" in task.result), []
    )
    yield Hunt(
        {report["host"]: report for report in reports if report["unit"] == "frontend.service"},
        reported.stdout,
        Archive.open(directory / "archive"),
        directory / "symcaches",
    )
    host("app3").run(f"mv /root/frontend {SETTINGS}")
    purge = {"offheap_archive": variables["offheap_archive"], "rollback_purge": True}
    playbook("collect-profiles.yml", extra_vars=variables)
    playbook("rollback.yml", extra_vars={**purge, "offheap_hosts": ",".join(JDKS)})


@pytest.mark.parametrize("name", JDKS)
def test_the_leaking_stack_has_names_from_zlib_to_the_threads_start(hunt: Hunt, name: str) -> None:
    report = hunt.reports[name]
    assert report["verdict"] == "leak", report["reason"]
    path = [label for label in report["path"] if label != ONLY_IN_21]
    java = [label for label in path if label.startswith(("java.", "Frontend"))]
    assert tuple(java) == JAVA
    above, below = path[: path.index(JAVA[0])], path[path.index(JAVA[-1]) + 1 :]
    assert [label for label in above if label in NATIVE_ABOVE] == list(NATIVE_ABOVE)
    assert [label for label in below if label in NATIVE_BELOW] == list(NATIVE_BELOW)
    assert not {"[jit]", "[unmapped]", "Interpreter"} & set(path)


@pytest.mark.parametrize("name", JDKS)
def test_the_summary_names_the_applications_functions(hunt: Hunt, name: str) -> None:
    lines = [line for line in hunt.said.splitlines() if "/day" in line and "inflate ←" in line]
    assert len(lines) >= len(JDKS)
    for line in lines:
        assert "java.util.zip.Inflater." in line
        assert "Frontend." in line


@pytest.mark.parametrize("name", JDKS)
def test_bytes_under_java_carry_a_java_name(hunt: Hunt, name: str) -> None:
    capture, maps = hunt.newest(name)
    assert maps, "a perf map came with the newest dump"
    warnings: list[str] = []
    symbolizer, jit = Symbolizer(hunt.archive.image, hunt.symcaches), JitMaps(maps, warnings.append).at(capture.time)
    places = located(heap_v2.parse(dump_of(capture), name), capture.facts.build_ids)
    found = named(places, lambda locations: symbolizer.frames(locations, jit))
    under = with_name = 0.0
    for frames, size in zip(found.each_stack_of_frames(), found.values[BYTES].tolist(), strict=True):
        kinds = {frame.kind for frame in frames}
        under += size if kinds & {Kind.JAVA, Kind.JIT} else 0.0
        with_name += size if Kind.JAVA in kinds else 0.0
    assert under > 10 << 20, "the leak allocates under Java"
    assert with_name >= 0.95 * under
    assert warnings == []


@pytest.mark.parametrize("name", JDKS)
def test_the_sidecar_is_among_the_facts(hunt: Hunt, name: str) -> None:
    capture, _maps = hunt.newest(name)
    agent = capture.facts.agent
    assert agent is not None
    assert agent["unwinder"] == "hybrid"
    assert agent["jemalloc"]["version"].startswith("5.3.0")
    assert agent["memory"]["rss"] > agent["memory"]["rss_anon"] > 0
    assert capture.facts.perf_map == {"source": "process"}


@pytest.mark.parametrize("name", JDKS)
def test_what_lay_beside_a_dump_went_with_it(hunt: Hunt, host: HostOf, name: str) -> None:
    spool = "/var/lib/offheap/frontend.service"
    collected = set(host(name).run(f"ls {spool}/collected").stdout.split())
    dumps = {entry for entry in collected if entry.endswith(".heap")}
    assert dumps and {f"{entry}.json" for entry in dumps} <= collected
    left = set(host(name).run(f"cd {spool} && ls").stdout.split())
    assert {entry for entry in left if entry.endswith(".json")} <= {f"{entry}.json" for entry in left}
    host(name).run("test ! -e /tmp/perf-$(systemctl show -p MainPID --value frontend).map")
