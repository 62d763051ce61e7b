# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Runs that have nothing in common but a bucket, as the slices of an AWX job: each has an inventory, a home and a
directory of its own, and no facts of another.

The tests stand in an order; each leaves the hosts without the profiler.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from ansible_collections.offheap.profiler.plugins.plugin_utils.archive import canary, far_archive
from ansible_collections.offheap.profiler.plugins.plugin_utils.archive.object_store import ObjectStore
from ansible_collections.offheap.profiler.tests.integration import small_services
from ansible_collections.offheap.profiler.tests.integration.conftest import LOGS
from ansible_collections.offheap.profiler.tests.integration.hosts import Lab, LabHost, wait_for
from ansible_collections.offheap.profiler.tests.integration.playbooks import (
    REPOSITORY,
    Controller,
    During,
    PlaybookResult,
)
from ansible_collections.offheap.profiler.tests.unit.fakes import s3

pytestmark = pytest.mark.in_order

HOSTS = ("app1", "app2", "app3")
UNIT = "grower"
HEALTHY_SECONDS = 5
DUMPS = 16
TEMPLATE = 3


@dataclass
class Slice(Controller):
    """One run's controller, on which nothing is there but the collection and a build of the library, as in an image."""

    secrets: Mapping[str, str] = field(default_factory=dict)

    @property
    def environment(self) -> dict[str, str]:
        env = {name: value for name, value in super().environment.items() if not name.startswith("XDG_")}
        return {**env, **self.secrets, "HOME": str(self.directory / "user")}


@dataclass(frozen=True)
class Fleet:
    """The slices by their host's name, and one without hosts under the name none. ``variables`` are those of the
    template."""

    slices: dict[str, Slice]
    variables: dict[str, Any]
    bucket: str

    def run(
        self, name: str, playbook: str, workflow: int, during: During | None = None, **variables: Any
    ) -> PlaybookResult:
        """A job of the template, with what AWX tells it, not which slice it is; and with all variables that there are,
        each a text as from a survey."""
        number = 40 + list(self.slices).index(name)
        awx = {"awx_job_id": number, "awx_workflow_job_id": workflow, "awx_job_template_id": TEMPLATE}
        survey = {name: _text(value) for name, value in {**_defaults(), **self.variables, **variables}.items()}
        return self.slices[name].playbook(playbook, extra_vars={**survey, **awx}, during=during)

    def run_all(self, playbook: str, workflow: int, names: Sequence[str] = HOSTS) -> dict[str, PlaybookResult]:
        """Jobs of several slices at once."""
        with ThreadPoolExecutor(len(names)) as pool:
            jobs = {name: pool.submit(self.run, name, playbook, workflow) for name in names}
        return {name: job.result() for name, job in jobs.items()}

    def marker(self, workflow: int, file: str) -> dict[str, Any]:
        """A marker of a rollout; empty if there is none."""
        content = ObjectStore(self.bucket).read(f"rollouts/{workflow}-{TEMPLATE}/{file}", 1 << 16)
        found: dict[str, Any] = json.loads(content or b"{}")
        return found


@pytest.fixture(scope="module")
def fleet(
    quiet_lab: Lab,
    playbook: Callable[..., PlaybookResult],
    controller: Controller,
    library: dict[str, Any],
    host: Callable[[str], LabHost],
) -> Iterator[Fleet]:
    """A small service that leaks, on each host."""
    role = controller.directory / "library.yml"
    role.write_text(
        json.dumps([{"hosts": "all", "become": True, "gather_facts": False, "roles": ["offheap.profiler.jemalloc"]}])
    )
    playbook(role, limit="app1", extra_vars=library).check()
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(s3.running())
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        for name, value in server.environment.items():
            patch.setenv(name, value)
        patch.setenv("XDG_CACHE_HOME", str(controller.directory / "user-cache"))
        slices = {
            name: stack.enter_context(_slice(name, quiet_lab, controller, server.environment))
            for name in (*HOSTS, "none")
        }
        for name in HOSTS:
            stack.enter_context(small_services.installed(host(name), UNIT))
        bucket = f"{server.bucket()}/offheap"
        variables = {
            **library,
            "offheap_units": [UNIT],
            "offheap_archive": bucket,
            "offheap_report_min_span": 10,
            "profiled_service_healthy_seconds": HEALTHY_SECONDS,
            "profiled_service_malloc_conf": {"lg_prof_sample": 16},
            "profiled_service_dump_seconds": 2,
            "profiled_service_agent_settings": {"start_delay": 1},
        }
        yield Fleet(slices, variables, bucket)
        purge = {"rollback_purge": True, "rollback_discard": True}
        playbook("rollback.yml", extra_vars=purge).check()


@contextlib.contextmanager
def _slice(name: str, lab: Lab, controller: Controller, secrets: Mapping[str, str]) -> Iterator[Slice]:
    # Short: the paths of SSH's control sockets lie below it
    directory = Path(tempfile.mkdtemp(prefix="offheap-"))
    inventory = directory / "inventory"
    others = set(lab.hosts()) - {name}
    lines = [line for line in lab.inventory.read_text().splitlines() if line.partition(" ")[0] not in others]
    inventory.write_text("\n".join(lines) + "\n")
    shutil.copytree(controller.collections, directory / "collections", symlinks=True)
    shutil.copytree(controller.directory / "cache", directory / "cache")
    (directory / "user").mkdir()
    yield Slice(directory, inventory, LOGS / f"slice-{name}", secrets=secrets)
    shutil.rmtree(directory)


def _defaults() -> dict[str, Any]:
    """All variables of docs/variables.md but those that a role derives from others: the playbooks' own left empty."""
    page = (REPOSITORY / "docs/variables.md").read_text().splitlines()
    rows = [line.split("|")[1] for line in page if line.startswith("| `")]
    found: dict[str, Any] = dict.fromkeys(re.findall(r"`(\w+)`", " ".join(rows)), "")
    for path in (REPOSITORY / "roles").glob("*/defaults/main.yml"):
        for name, value in yaml.safe_load(path.read_text()).items():
            found[name] = value
    return {name: value for name, value in found.items() if "{{" not in str(value)}


def _text(value: Any) -> str:
    """What somebody would type: a list in lines, true, and YAML for what has parts."""
    if isinstance(value, list) and not any(isinstance(one, dict) for one in value):
        return "\n".join(map(str, value))
    if isinstance(value, (list, dict)):
        return yaml.safe_dump(value)
    return str(value).lower() if isinstance(value, bool) else str(value)


def _began(on: LabHost) -> int:
    """When the unit's process began, in microseconds since the machine that carries all hosts was booted."""
    return int(on.show(UNIT, "ExecMainStartTimestampMonotonic")["ExecMainStartTimestampMonotonic"])


def _dumps(on: LabHost) -> int:
    return int(on.run(f"ls /var/lib/offheap/{UNIT}.service | grep -c 'heap$'", check=False).stdout or 0)


def _stats(result: PlaybookResult) -> dict[str, Any]:
    """What a run passes on to the next job of a workflow."""
    found: dict[str, Any] = {}
    for task in result.tasks:
        found |= task.result.get("ansible_stats", {}).get("data", {})
    return found


def _is_profiled(on: LabHost) -> bool:
    return any("/opt/offheap/jemalloc" in path for path in on.mapped(UNIT))


def test_slices_enable_collect_and_report_a_fleet(fleet: Fleet, host: Callable[[str], LabHost]) -> None:
    enabled = fleet.run_all("enable-profiling.yml", 71, (*HOSTS, "none"))
    for result in enabled.values():
        result.check()
        assert "ansible.builtin.setup" not in {task.action for task in result.tasks}, "no facts are needed"
    first = fleet.marker(71, canary.CANARY)
    assert first["run"] == f"AWX job {40 + HOSTS.index(first['hosts'])}"
    assert fleet.marker(71, canary.OUTCOME) == {"well": True}
    began = {name: _began(host(name)) for name in HOSTS}
    well = began.pop(first["hosts"]) + HEALTHY_SECONDS * 1_000_000
    assert min(began.values()) > well, "nobody was touched before the canary was well"
    assert all(_is_profiled(host(name)) for name in HOSTS)

    wait_for(lambda: min(_dumps(host(name)) for name in HOSTS) >= DUMPS, f"{DUMPS} dumps on each host")
    collected = fleet.run_all("collect-profiles.yml", 72, (*HOSTS, "none"))
    brought = {
        name: [task.result["captures"] for task in result.check().tasks if task.action.endswith("heap_fetch")]
        for name, result in collected.items()
    }
    assert brought.pop("none") == []
    captures = far_archive.opened(fleet.bucket).captures()
    assert len(captures) == sum(len(one) for of_slice in brought.values() for one in of_slice) >= 3 * DUMPS

    reported = fleet.run("none", "report-leaks.yml", 73).check()
    verdicts = {report["host"]: report["verdict"] for report in reported.reports}
    assert verdicts == dict.fromkeys(HOSTS, "leak")

    of_slices = [_stats(enabled[name])["offheap_result_enable"] for name in HOSTS]
    assert all(
        f"{UNIT}.service is profiled on {name}" in told.pop("next") for name, told in zip(HOSTS, of_slices, strict=True)
    )
    assert of_slices == [{"hosts": 1, "units": 1, "refused": []}] * 3
    of_slices = [_stats(collected[name])["offheap_result_collect"] for name in HOSTS]
    assert sum(told["captures"] for told in of_slices) == len(captures) and min(told["bytes"] for told in of_slices) > 0
    told = _stats(reported)["offheap_result_report"]
    assert (told["leaks"], told["no_leaks"], told["cannot_tell"]) == (3, 0, 0)
    assert {(one["unit"], one["host"]) for one in told["worst"]} == {(f"{UNIT}.service", name) for name in HOSTS}
    for result in fleet.run_all("rollback.yml", 74).values():
        result.check()
    assert not any(_is_profiled(host(name)) for name in HOSTS)


@pytest.mark.parametrize("name", ["triage", "switch-profiling", "trace-live", "rollback"])
def test_a_slice_without_hosts_ends_well(fleet: Fleet, name: str) -> None:
    fleet.run("none", f"{name}.yml", 75).check()


def test_a_broken_canary_in_the_first_slice_stops_the_others(fleet: Fleet, host: Callable[[str], LabHost]) -> None:
    pids = {name: host(name).main_pid(UNIT) for name in HOSTS}
    broken = [{"name": UNIT, "health_command": f"test ! -e /etc/systemd/system/{UNIT}.service.d/90-offheap.conf"}]
    with ThreadPoolExecutor() as pool:
        jobs: dict[str, Future[PlaybookResult]] = {
            "app1": pool.submit(fleet.run, "app1", "enable-profiling.yml", 81, offheap_units=broken)
        }
        wait_for(lambda: fleet.marker(81, canary.CANARY) or jobs["app1"].done(), "the first slice goes first", 120)
        for name in ("app2", "app3"):
            jobs[name] = pool.submit(fleet.run, name, "enable-profiling.yml", 81)
    results = {name: job.result() for name, job in jobs.items()}
    assert {name: result.rc for name, result in results.items()} == dict.fromkeys(HOSTS, 2)
    assert "the health command" in results["app1"].failures("app1")
    assert fleet.marker(81, canary.OUTCOME) == {"well": False}
    for name in ("app2", "app3"):
        assert f"rollout 81-{TEMPLATE} has stopped: its canary, app1 of AWX job 40" in results[name].failures(name)
        assert host(name).main_pid(UNIT) == pids[name], "it was not touched"
        host(name).run(f"test ! -e /etc/systemd/system/{UNIT}.service.d")
    assert host("app1").main_pid(UNIT) != pids["app1"]
    assert not any(_is_profiled(host(name)) for name in HOSTS)


@pytest.mark.soak_only
def test_a_first_slice_that_is_killed_stops_the_others(fleet: Fleet, host: Callable[[str], LabHost]) -> None:
    def kill(process: subprocess.Popen[bytes], _log: Path) -> None:
        wait_for(lambda: fleet.marker(91, canary.CANARY), "the first slice goes first", 120, 0.05)
        os.killpg(process.pid, signal.SIGKILL)

    assert fleet.run("app1", "enable-profiling.yml", 91, kill).rc == -signal.SIGKILL
    pid = host("app2").main_pid(UNIT)
    other = fleet.run("app2", "enable-profiling.yml", 91, offheap_canary_timeout=5)
    assert "after 5 s there is no word of its canary, app1 of AWX job 40" in other.failures("app2")
    assert host("app2").main_pid(UNIT) == pid
    assert fleet.marker(91, canary.OUTCOME) == {}
    fleet.run("app2", "enable-profiling.yml", 92).check()
    assert _is_profiled(host("app2"))
