# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""The leaks of a Go and of a Rust service are found without a preload: by the profiles that the one offers, and by the
jemalloc that the other has linked in.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from ansible_collections.offheap.profiler.plugins.plugin_utils.archive.archive import Archive
from ansible_collections.offheap.profiler.plugins.plugin_utils.archive.capture import Capture
from ansible_collections.offheap.profiler.plugins.plugin_utils.driver.sources import Places, open_reader
from ansible_collections.offheap.profiler.plugins.plugin_utils.model.samples import BYTES
from ansible_collections.offheap.profiler.tests.integration.hosts import LabHost, wait_for
from ansible_collections.offheap.profiler.tests.integration.playbooks import Controller, PlaybookResult
from ansible_collections.offheap.profiler.tests.unit.strategies import go_program, rust_program

RunPlaybook = Callable[..., PlaybookResult]
HostOf = Callable[[str], LabHost]

SERVICES = Path(__file__).parent / "services"
#: bytes that each of them forgets at a time
SIZE = 64 << 10
DAY = 86_400
EVERY, DUMPS = 5, 5
GO, RUST = "app1", "app3"
ENDPOINT, PORT = "rust_endpoint", 7070
UNITS = {GO: "gateway", RUST: "router"}
LEAKS = {GO: "main.openSession", RUST: "router::remember"}
UNIT = "[Service]\nUser=nobody\nRuntimeDirectory={name}\nExecStart=/usr/local/bin/{name}\n"
_ASK = "import urllib.request as r; print(r.urlopen('http://127.0.0.1:6060/forgotten', timeout=5).read().decode())"
FORGOTTEN = {GO: f'python3 -c "{_ASK}"', RUST: "cat /run/router/forgotten"}


def _install(on: LabHost, program: Path) -> None:
    unit = program.with_name(f"{program.name}.service")
    unit.write_text(UNIT.format(name=program.name))
    on.send(program, f"/usr/local/bin/{program.name}")
    on.send(unit, f"/etc/systemd/system/{unit.name}")
    on.run(f"systemctl daemon-reload && systemctl start {unit.name}")
    wait_for(lambda: on.run(FORGOTTEN[on.name], check=False).returncode == 0, f"{unit.name} leaks")


@pytest.fixture(scope="module")
def services(host: HostOf, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, LabHost]]:
    """The hosts on which they run."""
    directory = tmp_path_factory.mktemp("services")
    (directory / "gateway.go").write_bytes((SERVICES / "gateway.go").read_bytes())
    go_program.go(directory, "build", "-o", "gateway", "gateway.go", CGO_ENABLED="0")
    found = {GO: host(GO), RUST: host(RUST)}
    _install(found[GO], directory / "gateway")
    _install(found[RUST], rust_program.built(SERVICES / "router", directory))
    yield found
    for name, on in found.items():
        on.run(
            f"systemctl stop {UNITS[name]}; rm /usr/local/bin/{UNITS[name]} /etc/systemd/system/{UNITS[name]}.service"
        )
        on.run("systemctl daemon-reload; rm -rf /var/lib/offheap")


class Hunted(NamedTuple):
    """What the hunt said of each host's service, how fast that really leaked (bytes a second), and its process."""

    reports: dict[str, dict[str, Any]]
    rates: dict[str, float]
    pids: dict[str, int]
    enabled: PlaybookResult
    archive: Archive


def _dumps(on: LabHost) -> int:
    count = f"ls /var/lib/offheap/{UNITS[on.name]}.service | grep -c 'heap$'"
    return int(on.run(count, check=False).stdout or 0)


@pytest.fixture(scope="module")
def hunted(playbook: RunPlaybook, services: dict[str, LabHost], controller: Controller) -> Hunted:
    place = controller.directory / "offered"
    hosts = f"{GO},{RUST}"
    own = {"name": "router", "mode": "own", "malloc_conf": {"lg_prof_sample": 0, "lg_prof_interval": 23}}
    enabled = playbook(
        "enable-profiling.yml",
        limit=RUST,
        extra_vars={"offheap_units": [own], "profiled_service_mode": "own", "profiled_service_healthy_seconds": 3},
    ).check()
    url = "http://127.0.0.1:6060/debug/pprof/heap?gc=1"
    offered = [{"unit": "gateway", "url": url, "every": EVERY, "count": 100}]
    given = {
        "offheap_archive": str(place / "archive"),
        "offheap_report": str(place / "report"),
        "offheap_report_min_span": 10,
        "offheap_offered": f"{{{{ {offered} if inventory_hostname == '{GO}' else [] }}}}",
    }
    pids = {name: on.main_pid(UNITS[name]) for name, on in services.items()}
    before = {name: (time.monotonic(), int(on.run(FORGOTTEN[name]).stdout)) for name, on in services.items()}
    playbook("collect-profiles.yml", limit=hosts, extra_vars=given).check()
    for on in services.values():
        wait_for(lambda on=on: _dumps(on) >= DUMPS, f"{DUMPS} more of {UNITS[on.name]}")  # type: ignore[misc]
    rates = {}
    for name, on in services.items():
        began, forgotten = before[name]
        rates[name] = (int(on.run(FORGOTTEN[name]).stdout) - forgotten) / (time.monotonic() - began)
    playbook("collect-profiles.yml", limit=hosts, extra_vars=given).check()
    reports = playbook("report-leaks.yml", extra_vars=given).check().reports
    return Hunted({one["host"]: one for one in reports}, rates, pids, enabled, Archive.open(place / "archive"))


@pytest.mark.parametrize("name", [GO, RUST], ids=["go", "rust"])
def test_the_leak_is_named_with_its_rate(hunted: Hunted, name: str) -> None:
    report = hunted.reports[name]
    assert (report["unit"], report["verdict"]) == (f"{UNITS[name]}.service", "leak"), report["reason"]
    assert LEAKS[name] in report["suspects"][0]["path"]
    assert report["growth_bytes_per_day"] == pytest.approx(hunted.rates[name] * DAY, rel=0.15)


@pytest.mark.parametrize(("name", "source"), [(GO, "pprof"), (RUST, "jemalloc")], ids=["go", "rust"])
def test_each_profile_holds_what_was_forgotten_to_the_byte(hunted: Hunted, name: str, source: str) -> None:
    captures = sorted(hunted.archive.captures(f"{UNITS[name]}.service", name), key=lambda one: one.time)
    assert len(captures) > DUMPS and len({capture.process for capture in captures}) == 1
    for capture in captures:
        assert (capture.facts.source, capture.facts.measure) == (source, "live")
        assert capture.facts.process.pid == hunted.pids[name]
        assert capture.facts.process.exe == f"/usr/local/bin/{UNITS[name]}"
    found = _bytes_through(LEAKS[name], captures)
    assert all(size % SIZE == 0 for size in found), "whole ones and nothing else"
    assert found == sorted(set(found)) and found[0] > 0, "each has more"


@pytest.fixture
def endpoint(host: HostOf, tmp_path: Path) -> Iterator[LabHost]:
    """A host with a Rust service that offers profiles as jemalloc_pprof makes them, and has forgotten 500 blocks."""
    on = host(RUST)
    source = Path(rust_program.__file__).parent / ENDPOINT
    unit = tmp_path / f"{ENDPOINT}.service"
    start = (
        f"ExecStart=/usr/local/bin/{ENDPOINT} /tmp/dump {PORT}\nEnvironment=MALLOC_CONF=prof:true,lg_prof_sample:0\n"
    )
    unit.write_text(f"[Service]\nUser=nobody\nPrivateTmp=yes\n{start}")
    on.send(rust_program.built(source, tmp_path), f"/usr/local/bin/{ENDPOINT}")
    on.send(unit, f"/etc/systemd/system/{unit.name}")
    on.run(f"systemctl daemon-reload && systemctl start {unit.name}")
    ask = f"import urllib.request as r; r.urlopen('http://127.0.0.1:{PORT}/forget/500', timeout=5)"
    wait_for(lambda: on.run(f'python3 -c "{ask}"', check=False).returncode == 0, f"{unit.name} forgets")
    yield on
    on.run(f"systemctl stop {unit.name}; rm /etc/systemd/system/{unit.name} /usr/local/bin/{ENDPOINT}")
    on.run(f"systemctl daemon-reload; rm -rf /var/lib/offheap/{unit.name}")


def test_a_profile_without_names_gets_them(playbook: RunPlaybook, endpoint: LabHost, tmp_path: Path) -> None:
    """By the service's own image, which comes with it; how it was sampled, the user says."""
    given = {
        "offheap_archive": str(tmp_path / "archive"),
        "offheap_offered": [{"unit": ENDPOINT, "url": f"http://127.0.0.1:{PORT}/debug/pprof/heap"}],
        "heap_collect_units": [ENDPOINT],
        "heap_collect_source_interval": "1",
    }
    playbook("collect-profiles.yml", limit=RUST, extra_vars=given).check()
    (capture,) = Archive.open(tmp_path / "archive").captures()
    assert (capture.facts.source, capture.facts.measure) == ("pprof", "live")
    assert capture.facts.sampling is not None and capture.facts.sampling.interval == 1
    assert capture.facts.process.pid == endpoint.main_pid(ENDPOINT)
    (size,) = _bytes_through(f"{ENDPOINT}::forget_block", [capture])
    assert size == 500 * 1024


def _bytes_through(function: str, captures: list[Capture]) -> list[float]:
    """What each capture says of the stacks through a function."""
    found = []
    with open_reader([captures[0].path], Places()) as reader:
        for capture in captures:
            samples = reader.read(capture.path).samples
            named = np.array([function in frame.function for frame in samples.frames])
            through = np.bincount(samples.stack_of(), named[samples.place_frame[samples.stacks]], len(samples)) > 0
            found.append(float(samples.values[BYTES][through].sum()))
    return found


def test_nothing_is_preloaded(hunted: Hunted, services: dict[str, LabHost]) -> None:
    for name, on in services.items():
        assert not any("offheap" in path for path in on.mapped(UNITS[name]))
    (unit,) = next(task.result["units"] for task in hunted.enabled.of(RUST) if task.result.get("changed"))
    assert unit["restarted"] and list(unit["environment"]) == ["MALLOC_CONF", "OFFHEAP_UNIT"]
    assert {task.status for task in hunted.enabled.of(RUST) if "jemalloc" in str(task.role)} <= {"skipped"}


def test_a_rollback_ends_both(playbook: RunPlaybook, services: dict[str, LabHost], hunted: Hunted) -> None:
    timers = "systemctl list-units --all --plain --no-legend 'offheap-take-*'"
    assert "offheap-take-gateway.timer" in services[GO].run(timers).stdout
    discarding = {"rollback_purge": True, "rollback_discard": True}
    playbook("rollback.yml", limit=f"{GO},{RUST}", extra_vars=discarding).check()
    assert services[GO].run(timers).stdout == ""
    ours = "/run/offheap/taking/* /var/lib/offheap /etc/systemd/system/*.d/90-offheap* /run/systemd/transient/offheap-*"
    assert [on.run(f"ls -d {ours}", check=False).stdout for on in services.values()] == ["", ""]
    assert services[GO].main_pid("gateway") == hunted.pids[GO], "nothing was restarted"
    environment = services[RUST].run(f"tr '\\0' '\\n' < /proc/{services[RUST].main_pid('router')}/environ").stdout
    assert "MALLOC_CONF" not in environment
