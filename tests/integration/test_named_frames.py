# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Leaks below Java (JDK 17 and 21), CPython 3.13 and Node 20: the functions that allocate have their names.

A leak's stack in Java has names from zlib to the thread's start. Python and Node have a /tmp of their own.
"""

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
# An old host has no Node.
SCRIPTS, SCRIPT_HOST = ("pyleak", "nodeleak"), "app3"
# Node frees in sweeps, so that a leak shows by its low points alone: several of them have to be seen.
DUMPS = 45
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
    """The reports by unit and host, and all captures."""

    reports: dict[tuple[str, str], dict[str, Any]]
    said: str
    archive: Archive
    symcaches: Path

    def newest(self, host: str) -> tuple[Capture, dict[Path, float]]:
        """The newest capture of the profiled frontend, and the perf maps of that process."""
        captures = self.archive.captures("frontend.service", host)
        newest = max(captures, key=lambda capture: capture.time)
        same = [capture for capture in captures if capture.process == newest.process]
        return newest, {capture.perf_map: capture.time for capture in same if capture.perf_map}

    def leak(self, unit: str, host: str) -> dict[str, Any]:
        """The report of a unit that leaks."""
        report = self.reports[f"{unit}.service", host]
        assert report["verdict"] == "leak", report["reason"]
        return report


@pytest.fixture(scope="module")
def hunt(playbook: RunPlaybook, host: HostOf, controller: Controller, library: dict[str, Any]) -> Iterator[Hunt]:
    """Leaks on both hosts, profiled for a while, collected and reported."""
    directory = controller.directory / "frames"
    host("app3").run(f"cp {SETTINGS} /root/frontend && sed -i s/EVERY=.*/EVERY=3/ {SETTINGS}")
    for name in JDKS:
        host(name).run("systemctl start frontend")
    host(SCRIPT_HOST).run(f"systemctl start {' '.join(SCRIPTS)}")
    frontend = {"name": "frontend", "health_url": "http://127.0.0.1:8080/health"}
    units = {name: [frontend, *(SCRIPTS if name == SCRIPT_HOST else ())] for name in JDKS}
    variables = {
        "offheap_hosts": ",".join(JDKS),
        "offheap_units": f"{{{{ {units}[inventory_hostname] }}}}",
        "offheap_archive": str(directory / "archive"),
        "offheap_report": str(directory / "report"),
        **library,
        "offheap_serial": ["100%"],
        "profiled_service_healthy_seconds": 3,
        "profiled_service_malloc_conf": {"lg_prof_sample": 14},
        "profiled_service_dump_seconds": 4,
        "profiled_service_agent_settings": {"start_delay": 1},
    }
    playbook("enable-profiling.yml", extra_vars=variables).check()
    profiled = [(name, "frontend") for name in JDKS] + [(SCRIPT_HOST, unit) for unit in SCRIPTS]
    for name, unit in profiled:

        def dumps(name: str = name, unit: str = unit) -> bool:
            return int(host(name).run(f"ls /var/lib/offheap/{unit}.service/*.heap | wc -l").stdout) >= DUMPS

        wait_for(dumps, f"{DUMPS} dumps of {unit} on {name}", timeout=400, interval=2)
    collected = {key: value for key, value in variables.items() if key != "offheap_units"}
    playbook("collect-profiles.yml", extra_vars=collected).check()
    reported = playbook("report-leaks.yml", extra_vars=collected).check()
    reports: list[dict[str, Any]] = next(
        (task.result["reports"] for task in reported.tasks if "reports" in task.result), []
    )
    yield Hunt(
        {(report["unit"], report["host"]): report for report in reports},
        reported.stdout,
        Archive.open(directory / "archive"),
        directory / "symcaches",
    )
    host("app3").run(f"mv /root/frontend {SETTINGS}")
    playbook("collect-profiles.yml", extra_vars=collected)
    purge = {"offheap_archive": variables["offheap_archive"], "rollback_purge": True}
    playbook("rollback.yml", extra_vars={**purge, "offheap_hosts": ",".join(JDKS)})
    host(SCRIPT_HOST).run(f"systemctl stop {' '.join(SCRIPTS)}")


@pytest.mark.parametrize("name", JDKS)
def test_the_leaking_stack_has_names_from_zlib_to_the_threads_start(hunt: Hunt, name: str) -> None:
    path = [label for label in hunt.leak("frontend", name)["path"] if label != ONLY_IN_21]
    java = [label for label in path if label.startswith(("java.", "Frontend"))]
    assert tuple(java) == JAVA
    above, below = path[: path.index(JAVA[0])], path[path.index(JAVA[-1]) + 1 :]
    assert [label for label in above if label in NATIVE_ABOVE] == list(NATIVE_ABOVE)
    assert [label for label in below if label in NATIVE_BELOW] == list(NATIVE_BELOW)
    assert not {"[jit]", "[unmapped]", "Interpreter"} & set(path)


@pytest.mark.parametrize("name", JDKS)
def test_the_summary_names_the_applications_functions(hunt: Hunt, name: str) -> None:
    said = [line for line in hunt.said.splitlines() if "(pyleak)" not in line]
    lines = [line for line in said if "/day" in line and "inflate ←" in line]
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


def test_python(hunt: Hunt) -> None:
    paths = [suspect["path"] for suspect in hunt.leak("pyleak", SCRIPT_HOST)["suspects"]]
    assert all("_PyEval_EvalFrameDefault" in path for path in paths)
    window = next(path for path in paths if "inflate" in path)
    # zlib, the interpreter, and the first function in Python: the walk ends there, since Debian's CPython is built
    # without frame pointers.
    assert window.index("inflate") < window.index("_PyEval_EvalFrameDefault") < window.index("unpack (pyleak)")
    assert any("serve_asset (pyleak)" in path for path in paths)
    assert "inflate ← unpack (pyleak)" in hunt.said


def test_node(hunt: Hunt) -> None:
    path = hunt.leak("nodeleak", SCRIPT_HOST)["path"]
    functions = [label.partition(":")[0] for label in path if "(nodeleak:" in label]
    assert functions == ["receive (nodeleak", "keepUpload (nodeleak", "handleRequest (nodeleak", "run (nodeleak"], path
    # between Node's own code in C++ on both sides
    first, last = (next(label for label in order if "(nodeleak:" in label) for order in (path, path[::-1]))
    assert any("node::" in label for label in path[: path.index(first)])
    assert any("node::" in label for label in path[path.index(last) :])
