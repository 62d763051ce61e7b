# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""The whole hunt on three hosts: look, enable, collect, report, roll back; and the hosts are as they were.

Its archive is in a bucket of an S3 server that is spoken to by HTTP; test_collect.py has one in a directory.

The tests stand in the order of the hunt and each needs those before it.
"""

from __future__ import annotations

import json
import re
import subprocess
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.offheap.profiler.plugins.plugin_utils.archive import far_archive
from ansible_collections.offheap.profiler.plugins.plugin_utils.archive.capture import DUMP
from ansible_collections.offheap.profiler.plugins.plugin_utils.archive.object_store import ObjectStore
from ansible_collections.offheap.profiler.plugins.plugin_utils.model.samples import BYTES, located
from ansible_collections.offheap.profiler.plugins.plugin_utils.readers import heap_v2
from ansible_collections.offheap.profiler.tests.integration.hosts import Lab, LabHost, wait_for
from ansible_collections.offheap.profiler.tests.integration.playbooks import PROGRAMS, Controller, PlaybookResult
from ansible_collections.offheap.profiler.tests.unit.fakes import s3
from ansible_collections.offheap.profiler.tests.unit.strategies.leaky_archives import dump_of

pytestmark = pytest.mark.in_order

HOSTS = ("app1", "app2", "app3")
UNITS = ("frontend", "ticker", "vault", "legacy", "wrapped")
# At one in four seconds: a report wants to have watched for a minute at least.
DUMPS = 20

RunPlaybook = Callable[..., PlaybookResult]
HostOf = Callable[[str], LabHost]

# What the collection may put on a host, and nothing else (docs/what_is_touched.md).
OURS = re.compile(
    r" /(opt|var/lib|var/lib/private)/offheap(/|$)| /etc/systemd/system/\w+\.service\.d(/90-offheap\.\w+)?$"
)


@dataclass
class Hunt:
    """What the steps of the hunt have done so far."""

    variables: dict[str, Any]
    before: dict[str, list[str]]
    looked: PlaybookResult
    enabled: PlaybookResult


@pytest.fixture(scope="module")
def bucket(controller: Controller) -> Iterator[str]:
    """The address of an archive, which every program that the tests start finds the way to."""
    with s3.running() as server, pytest.MonkeyPatch.context() as patch:
        for name, value in server.environment.items():
            patch.setenv(name, value)
        patch.setenv("XDG_CACHE_HOME", str(controller.directory / "user-cache"))
        yield f"{server.bucket()}/offheap"


@pytest.fixture(scope="module")
def hunt(
    lab: Lab, playbook: RunPlaybook, host: HostOf, controller: Controller, library: dict[str, Any], bucket: str
) -> Hunt:
    """Hosts that already have jemallocs of other owners, looked at in check mode and then enabled for real."""
    for name in HOSTS:
        host(name).run(
            "mkdir -p /opt/cassandra/lib && head -c 100000 /dev/urandom > /opt/cassandra/lib/libjemalloc.so.1"
        )
        host(name).run("cp /bin/true /usr/local/lib/libjemalloc.so.2")
    variables = {
        "offheap_units": [*UNITS[1:], {"name": "frontend", "health_url": "http://127.0.0.1:8080/health"}],
        "offheap_archive": bucket,
        "offheap_report": str(controller.directory / "report"),
        **library,
        "offheap_serial": ["100%"],
        "profiled_service_healthy_seconds": 3,
        "profiled_service_malloc_conf": {"lg_prof_sample": 16},
        "profiled_service_dump_seconds": 4,
        "profiled_service_agent_settings": {"start_delay": 1},
    }
    before = {name: host(name).listing() for name in HOSTS}
    empty = {**variables, "offheap_cache": "nothing-built-yet"}
    looked = playbook("enable-profiling.yml", extra_vars=empty, check=True, diff=True).check()
    assert {name: host(name).listing() for name in HOSTS} == before, "check mode has changed a host"
    enabled = playbook("enable-profiling.yml", extra_vars=variables, diff=True).check()
    assert "First verdict" not in looked.stdout
    assert f"frontend.service is profiled on {', '.join(HOSTS)}" in enabled.stdout and "First verdict" in enabled.stdout
    return Hunt(variables, before, looked, enabled)


def _writes(result: PlaybookResult, host: str) -> dict[str, str]:
    """Every file that enabling the units writes, with its text, as --diff tells it."""
    tasks = [task for task in result.changes(host) if task.action.endswith("unit_enable")]
    return {diff["after_header"]: diff["after"] for task in tasks for diff in task.diffs}


def _restarts(result: PlaybookResult, host: str) -> list[str]:
    tasks = [task for task in result.changes(host) if task.action.endswith("unit_enable")]
    return [one["unit"] for task in tasks for one in task.result["units"] if one["restarted"]]


def _rolled_back(result: PlaybookResult, host: str) -> dict[str, bool]:
    """The units of a rollback, and whether each was restarted."""
    return {one["unit"]: one["restarted"] for task in result.of(host) for one in task.result.get("units", [])}


@pytest.mark.parametrize("name", HOSTS)
def test_check_mode_tells_what_the_run_then_does(hunt: Hunt, name: str) -> None:
    assert _writes(hunt.looked, name) == _writes(hunt.enabled, name)
    assert _restarts(hunt.looked, name) == _restarts(hunt.enabled, name)
    assert len(_restarts(hunt.enabled, name)) == len(UNITS)


def test_check_mode_tells_who_would_build(hunt: Hunt) -> None:
    if "jemalloc_build_host" not in hunt.variables:
        pytest.skip("the controller builds")
    told = {task.host: task.message for task in hunt.looked.tasks if "would be built" in task.message}
    assert list(told) == ["app1"] and told["app1"].count("would be built") == 2, "the library and the agent"


@pytest.mark.parametrize("name", HOSTS)
@pytest.mark.parametrize("unit", UNITS)
def test_every_unit_runs_under_the_library(hunt: Hunt, host: HostOf, name: str, unit: str) -> None:
    assert any(path.startswith("/opt/offheap/jemalloc/5.3.0-") for path in host(name).mapped(unit))


@pytest.mark.parametrize("name", HOSTS)
def test_an_existing_preload_stays_behind_ours(hunt: Hunt, host: HostOf, name: str) -> None:
    mapped = host(name).mapped("legacy")
    assert "/usr/local/lib/liblegacy.so" in mapped
    environment = host(name).run(f"tr '\\0' '\\n' < /proc/{host(name).main_pid('legacy')}/environ").stdout
    preload = re.search(r"^LD_PRELOAD=(.*)$", environment, re.MULTILINE)
    assert preload is not None
    names = [path.rsplit("/", 1)[1] for path in preload.group(1).split(":")]
    assert names == ["libjemalloc.so.2", "liboffheap.so", "liblegacy.so"]


@pytest.mark.parametrize("name", HOSTS)
def test_a_transient_user_keeps_its_state_directory(hunt: Hunt, host: HostOf, name: str) -> None:
    environment = host(name).run(f"tr '\\0' '\\n' < /proc/{host(name).main_pid('vault')}/environ").stdout
    assert "STATE_DIRECTORY=/var/lib/vault\n" in environment


@pytest.mark.parametrize("name", HOSTS)
def test_nothing_else_on_the_host_has_changed(hunt: Hunt, host: HostOf, name: str) -> None:
    now = {line for line in host(name).listing() if not OURS.search(line)}
    assert now ^ {line for line in hunt.before[name] if not OURS.search(line)} == set()


def test_the_agent_answers_in_every_unit_and_switches_without_a_restart(
    hunt: Hunt, playbook: RunPlaybook, host: HostOf
) -> None:
    pids = {(name, unit): host(name).main_pid(unit) for name in HOSTS for unit in UNITS}
    for state, changed in (("off", 1), ("off", 0), ("on", 1), ("dump", 1)):
        switched = playbook("switch-profiling.yml", "-e", f"state={state}").check()
        assert {name: stats.changed for name, stats in switched.stats.items()} == dict.fromkeys(HOSTS, changed), state
        for name in HOSTS:
            asked = next(task for task in switched.of(name) if task.action.endswith("heap_control"))
            results = asked.result["results"]
            assert [result["unit"] for result in results] == sorted(f"{unit}.service" for unit in UNITS)
    assert {(name, unit): host(name).main_pid(unit) for name in HOSTS for unit in UNITS} == pids


def test_a_second_run_changes_and_restarts_nothing(hunt: Hunt, playbook: RunPlaybook, host: HostOf) -> None:
    pids = {(name, unit): host(name).main_pid(unit) for name in HOSTS for unit in UNITS}
    again = playbook("enable-profiling.yml", extra_vars=hunt.variables).check()
    assert {name: stats.changed for name, stats in again.stats.items()} == dict.fromkeys(HOSTS, 0)
    assert {(name, unit): host(name).main_pid(unit) for name in HOSTS for unit in UNITS} == pids


def test_the_report_names_the_leaking_path(hunt: Hunt, playbook: RunPlaybook, host: HostOf) -> None:
    def dumps(name: str) -> int:
        count = "grep -ls ^MAPPED_LIB /var/lib/offheap/frontend.service/*.heap | wc -l"
        return int(host(name).run(count).stdout)

    # What came before holds a time without sampling.
    before = {name: dumps(name) for name in HOSTS}
    for name in HOSTS:

        def enough(name: str = name) -> bool:
            return dumps(name) >= before[name] + DUMPS

        wait_for(enough, f"{DUMPS} more dumps of the frontend on {name}", timeout=240, interval=2)

    def told() -> PlaybookResult | None:
        """None while a path has only just grown, as the memory of a JVM's compiler may: it says when it is judged."""
        playbook("collect-profiles.yml", extra_vars=hunt.variables).check()
        done = playbook("report-leaks.yml", extra_vars=hunt.variables).check()
        verdicts = {one["host"]: one["verdict"] for one in done.reports if one["unit"] == "frontend.service"}
        return None if "cannot-tell" in verdicts.values() else done

    reported = wait_for(told, "verdicts on all frontends", timeout=400, interval=15)
    assert reported
    reports = reported.reports
    frontends = {report["host"]: report for report in reports if report["unit"] == "frontend.service"}
    assert {name: report["verdict"] for name, report in frontends.items()} == {
        "app1": "leak",
        "app2": "leak",
        "app3": "no-leak",
    }
    for name in ("app1", "app2"):
        path = " ".join(frontends[name]["path"])
        assert "inflate" in path
        assert "Inflater" in path
        assert frontends[name]["growth_bytes_per_day"] > frontends[name]["growth_error"] > 0
    fleet = next(task.result["files"] for task in reported.tasks if "reports" in task.result)
    assert "frontend.service leaks " in Path(fleet["text"]).read_text()
    assert Path(fleet["page"]).read_text().startswith("<!DOCTYPE html>")
    for report in reports:
        page = Path(report["files"]["flamegraph"])
        assert page.is_file()
        assert "<html" in page.read_text()[:500].lower()
    others = {(r["host"], r["unit"]): r["verdict"] for r in reports if r["unit"] != "frontend.service"}
    assert "leak" not in others.values(), others


def test_a_copy_in_a_directory_tells_the_same(hunt: Hunt, playbook: RunPlaybook, controller: Controller) -> None:
    """To the byte, and in the bucket nothing lies beside the captures."""
    address = hunt.variables["offheap_archive"]
    pull = {"archive": "copy", "url": address, "direction": "pull"}
    report = {"archive": "copy", "dest": "report-of-copy", "show": False}
    tasks = [{"offheap.profiler.archive_sync": pull}, {"offheap.profiler.leak_report": report}]
    path = controller.directory / "copy.yml"
    path.write_text(json.dumps([{"hosts": "localhost", "gather_facts": False, "tasks": tasks}]))
    copied, _reported = playbook(path).check().of("localhost")
    assert not copied.result.get("warnings")
    made, of_copy = (
        {file.relative_to(root): file.read_bytes() for file in root.rglob("*") if file.is_file()}
        for root in (controller.directory / "report", controller.directory / "report-of-copy")
    )
    assert made and made == of_copy
    names = [name for name in ObjectStore(address).files() if name.startswith("captures/")]
    captures = far_archive.opened(address).captures()
    assert copied.result["captures"] == len(captures) == sum(name.endswith(f"/{DUMP}") for name in names) > 0


@pytest.mark.parametrize("name", HOSTS)
def test_totals_equal_those_of_the_jeprof_that_was_built(
    hunt: Hunt, name: str, controller: Controller, tmp_path: Path
) -> None:
    """On the dumps that the services of this hunt have written. Totals need no symbols."""
    built = next((controller.directory / "cache").glob("jemalloc-5.3.0-*.tar.gz"))
    with tarfile.open(built) as archive:
        member = next(one for one in archive if one.name.endswith("/bin/jeprof"))
        archive.extract(member, tmp_path, filter="data")
    jeprof = tmp_path / member.name
    tools = ",".join(f"{tool}:/bin/true" for tool in ("addr2line", "nm", "c++filt", "objdump"))
    captures = far_archive.opened(hunt.variables["offheap_archive"]).captures(host=name)
    assert len({capture.unit for capture in captures}) == len(UNITS)
    for capture in captures[::10]:
        (tmp_path / "dump").write_bytes(dump_of(capture))
        argv = ["perl", str(jeprof), f"--tools={tools}", "--text", "--show_bytes", "/bin/true", str(tmp_path / "dump")]
        printed = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
        total = re.match(r"Total: (\d+)", printed)
        parsed = heap_v2.parse(dump_of(capture), capture.dump.name)
        ours = float(located(parsed, {}).values[BYTES].sum())
        # A dump in which nothing is live has no total. jeprof's sum has the order of a Perl hash, hence the last bit.
        assert int(total[1] if total else 0) in {int(ours), int(ours + 1e-6), int(ours - 1e-6)}


def test_collecting_again_brings_only_what_is_new(hunt: Hunt, playbook: RunPlaybook, host: HostOf) -> None:
    for name in HOSTS:
        host(name).run("systemctl stop frontend ticker vault legacy wrapped")
    playbook("collect-profiles.yml", extra_vars=hunt.variables).check()
    again = playbook("collect-profiles.yml", extra_vars=hunt.variables).check()
    for name in HOSTS:
        host(name).run("systemctl start frontend ticker vault legacy wrapped")
    assert {name: stats.changed for name, stats in again.stats.items()} == dict.fromkeys(HOSTS, 0)


def test_the_console_sees_the_units_and_has_them_dump(hunt: Hunt, controller: Controller, lab: Lab) -> None:
    def fab(*arguments: str) -> Any:
        command = [f"{PROGRAMS}/fab", "-r", str(controller.installed), *arguments, "-i", str(lab.inventory), "--json"]
        done = subprocess.run(
            command, cwd=controller.directory, env=controller.environment, text=True, capture_output=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    seen = {(unit["host"], unit["unit"]): unit for unit in fab("status")}
    assert set(seen) == {(name, f"{unit}.service") for name in HOSTS for unit in UNITS}
    assert {unit["allocator"] for unit in seen.values()} == {"jemalloc"}
    assert all(2 * unit["rss_with_agent"] > unit["rss"] for unit in seen.values()), seen
    dumped = fab("dump", "--unit", "frontend", "--archive", hunt.variables["offheap_archive"])
    assert [(capture["host"], capture["unit"]) for capture in dumped] == [(name, "frontend.service") for name in HOSTS]
    for command, sampling in (("off", False), ("on", True)):
        assert all(host["changed"] for host in fab(command, "--unit", "ticker"))
        found = {(unit["host"], unit["unit"]): unit["sampling"] for unit in fab("status")}
        assert {found[name, "ticker.service"] for name in HOSTS} == {sampling}


def test_java_stacks_that_stand_in_a_native_method(playbook: RunPlaybook, controller: Controller) -> None:
    """The frontend's timers wait for their next turn most of the time."""
    play = {
        "hosts": "all",
        "become": True,
        "gather_facts": False,
        "tasks": [{"offheap.profiler.java_stacks": {"unit": "frontend", "method": ".*[.]park", "dumps": 3}}],
    }
    path = controller.directory / "stacks.yml"
    path.write_text(json.dumps([play]))
    asked = playbook(path).check()
    for name in HOSTS:
        result = asked.of(name)[-1].result
        assert (result["taken"], result["problems"], result["changed"]) == (3, [], False)
        assert {stack["frames"][0].rpartition(".")[2] for stack in result["stacks"]} == {"park"}
        assert any(stack["frames"][-1] == "java.lang.Thread.run" for stack in result["stacks"])


def test_rollback_needs_no_variables_and_leaves_nothing(
    hunt: Hunt, playbook: RunPlaybook, host: HostOf, controller: Controller
) -> None:
    archive = {"offheap_archive": hunt.variables["offheap_archive"]}
    looked = playbook("rollback.yml", check=True, diff=True).check()
    first = playbook("rollback.yml").check()
    for name in HOSTS:
        assert _rolled_back(first, name) == {f"{unit}.service": True for unit in UNITS}
        assert _rolled_back(looked, name) == _rolled_back(first, name)
        for unit in UNITS:
            assert not any("jemalloc" in path for path in host(name).mapped(unit))
        assert "heap" in host(name).run("find /var/lib/offheap/").stdout, "without purge, dumps stay"
    playbook("rollback.yml", extra_vars={**archive, "rollback_purge": True}).check()
    for name in HOSTS:
        assert host(name).listing() == hunt.before[name]
        host(name).run("test ! -e /run/offheap")
    twice = playbook("rollback.yml", extra_vars={**archive, "rollback_purge": True}).check()
    assert {name: stats.changed for name, stats in twice.stats.items()} == dict.fromkeys(HOSTS, 0)
    for name in HOSTS:
        host(name).run("rm -r /opt/cassandra /usr/local/lib/libjemalloc.so.2")
