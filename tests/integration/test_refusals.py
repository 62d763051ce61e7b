# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""What cannot work is refused before anything is touched, and what suffers is put back."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.offheap.profiler.tests.integration.hosts import Lab, LabHost, wait_for
from ansible_collections.offheap.profiler.tests.integration.playbooks import Controller, PlaybookResult

pytestmark = pytest.mark.usefixtures("quiet_lab")

RunPlaybook = Callable[..., PlaybookResult]
HostOf = Callable[[str], LabHost]


@pytest.fixture(scope="module")
def variables(library: dict[str, Any]) -> dict[str, Any]:
    return {**library, "profiled_service_healthy_seconds": 3}


@pytest.fixture(scope="module", autouse=True)
def clean_hosts(lab: Lab, playbook: RunPlaybook, controller: Controller, variables: dict[str, Any]) -> Iterator[None]:
    """A build of jemalloc in the cache, made by the whole fleet, and nothing of ours left at the end."""
    playbook(
        "enable-profiling.yml", extra_vars={**variables, "offheap_units": ["ticker"], "offheap_serial": "100%"}
    ).check()
    playbook("rollback.yml").check()
    yield
    playbook("rollback.yml", extra_vars={"rollback_purge": True, "rollback_discard": True}).check()


def test_each_unit_that_cannot_work_is_refused_with_its_reason(
    playbook: RunPlaybook, host: HostOf, variables: dict[str, Any]
) -> None:
    wanted = {
        "static": "static-binary",
        "capable": "file-capabilities",
        "clobber": "wrapper-overwrites-preload",
        "contained": "container",
        "masked": "masked",
        "nonsense": "no-such-unit",
    }
    app2 = host("app2")
    app2.run("systemctl start static capable clobber")
    before = app2.listing()
    result = playbook("enable-profiling.yml", limit="app2", extra_vars={**variables, "offheap_units": list(wanted)})
    assert result.rc != 0
    task = next(task for task in result.of("app2") if "Find what cannot work" in task.task)
    refused = {item["unit"].removesuffix(".service"): item["refusal"] for item in task.result["units"]}
    assert refused == wanted
    assert all(f"{unit}.service is unchanged: " in result.failures("app2") for unit in wanted)
    by_hand = (
        "--volume=/var/lib/offheap/contained.service:/var/lib/offheap/contained.service --env=LD_PRELOAD=/opt/offheap/"
    )
    assert by_hand in result.failures("app2")
    assert [task.task for task in result.changes("app2") if "jemalloc" not in str(task.role)] == []
    kept = [line for line in app2.listing() if "/opt/offheap" not in line]
    assert kept == [line for line in before if "/opt/offheap" not in line]
    app2.run("systemctl stop static capable clobber")


def test_a_unit_that_is_refused_does_not_keep_the_others(
    playbook: RunPlaybook, host: HostOf, variables: dict[str, Any]
) -> None:
    units = ["masked", "ticker", {"name": "nonsense"}]
    result = playbook("enable-profiling.yml", limit="app2,app3", extra_vars={**variables, "offheap_units": units})
    for name in ("app2", "app3"):
        assert any(path.startswith("/opt/offheap/jemalloc/") for path in host(name).mapped("ticker"))
        (failed,) = result.of(name, "failed")
        assert "masked.service is unchanged: " in failed.message and "nonsense.service is unchanged: " in failed.message
    assert result.rc != 0
    playbook("rollback.yml", limit="app2,app3").check()


def test_a_unit_that_crashes_is_put_back_and_the_rollout_stops(
    playbook: RunPlaybook, host: HostOf, variables: dict[str, Any]
) -> None:
    """The canary fails, is repaired, and the other hosts are never touched."""
    for name in ("app1", "app2"):
        host(name).run("systemctl start fragile")
    before = host("app1").show("fragile", "DropInPaths", "Environment")
    untouched = host("app2").show("fragile", "InvocationID")
    result = playbook("enable-profiling.yml", limit="app1,app2", extra_vars={**variables, "offheap_units": ["fragile"]})
    assert result.rc != 0
    assert result.stats["app1"].failed == 1
    assert "rolled back and runs as before" in result.failures("app1")
    assert "this allocator is not mine" in result.failures("app1"), "the journal's last lines are told"
    assert host("app1").show("fragile", "ActiveState")["ActiveState"] == "active"
    assert host("app1").show("fragile", "DropInPaths", "Environment") == before
    assert not any("jemalloc" in path for path in host("app1").mapped("fragile"))
    assert host("app2").show("fragile", "InvocationID") == untouched, "the rollout went on to the next host"
    for name in ("app1", "app2"):
        host(name).run("systemctl stop fragile")


def test_a_failing_health_command_puts_the_unit_back(
    playbook: RunPlaybook, host: HostOf, variables: dict[str, Any]
) -> None:
    fails_after = "test ! -e /etc/systemd/system/ticker.service.d/90-offheap.conf"
    unit = {"name": "ticker", "health_command": fails_after}
    result = playbook("enable-profiling.yml", limit="app3", extra_vars={**variables, "offheap_units": [unit]})
    assert result.rc != 0
    assert "rolled back and runs as before" in result.failures("app3")
    assert not any("jemalloc" in path for path in host("app3").mapped("ticker"))


def test_a_health_check_that_fails_already_restarts_nothing(
    playbook: RunPlaybook, host: HostOf, variables: dict[str, Any]
) -> None:
    untouched = host("app3").show("ticker", "InvocationID")
    units = [{"name": "ticker", "health_command": "/bin/false"}]
    result = playbook("enable-profiling.yml", limit="app3", extra_vars={**variables, "offheap_units": units})
    assert result.rc != 0 and "before anything was touched" in result.failures("app3")
    assert host("app3").show("ticker", "InvocationID") == untouched


def test_a_stopped_unit_is_not_started(playbook: RunPlaybook, host: HostOf, variables: dict[str, Any]) -> None:
    app3 = host("app3")
    playbook("enable-profiling.yml", limit="app3", extra_vars={**variables, "offheap_units": ["fragile"]}).check()
    assert app3.show("fragile", "ActiveState")["ActiveState"] == "inactive"
    assert "90-offheap.conf" in app3.show("fragile", "DropInPaths")["DropInPaths"]
    playbook("rollback.yml", limit="app3").check()


def test_without_the_agent_jemalloc_dumps_by_the_bytes_allocated(
    playbook: RunPlaybook, host: HostOf, variables: dict[str, Any]
) -> None:
    conf = {"prof_active": True, "lg_prof_sample": 16, "lg_prof_interval": 20}
    plain = {"jemalloc_agent": False, "profiled_service_malloc_conf": conf, "offheap_units": ["ticker"]}
    playbook("enable-profiling.yml", limit="app3", extra_vars={**variables, **plain}).check()
    assert not any("liboffheap" in path for path in host("app3").mapped("ticker"))
    count = "ls /var/lib/offheap/ticker.service | grep -c '\\.i[0-9]*\\.heap$'"
    wait_for(lambda: int(host("app3").run(count, check=False).stdout or 0) > 1, "dumps of jemalloc's own")
    playbook("rollback.yml", limit="app3").check()


def test_a_full_file_system_is_refused(playbook: RunPlaybook, host: HostOf, variables: dict[str, Any]) -> None:
    app3 = host("app3")
    app3.run("mkdir -p /var/lib/offheap && mount -t tmpfs -o size=4m tmpfs /var/lib/offheap")
    try:
        result = playbook("enable-profiling.yml", limit="app3", extra_vars={**variables, "offheap_units": ["ticker"]})
        assert result.rc != 0
        assert "has 4 MiB free, but 512 MiB are required" in result.failures("app3")
    finally:
        app3.run("umount /var/lib/offheap")


@pytest.mark.parametrize(
    ("changed", "host_name", "said"),
    [
        ({"jemalloc_checksum": "0" * 64}, "app1", "The SHA-256 of"),
        ({"jemalloc_version": "9.9.9"}, "app1", "Set jemalloc_checksum"),
        ({"jemalloc_version": "5.3.1"}, "app1", "jemalloc 5.3.1 can crash a service"),
        ({"jemalloc_source": "/nowhere/jemalloc.tar.bz2"}, "app1", "There is no file /nowhere"),
        ({"jemalloc_build_host": ""}, "app2", "app2 has no compiler"),
        ({"jemalloc_method": "archive", "jemalloc_archive": "/nowhere.tar.gz"}, "app2", "There is no file"),
        (
            {"jemalloc_method": "reuse", "jemalloc_reuse_library": "/lib/x86_64-linux-gnu/libm.so.6"},
            "app2",
            "can profile",
        ),
        ({"offheap_units": []}, "app1", "No unit is named"),
    ],
)
def test_bad_input_is_told_with_the_way_out(
    playbook: RunPlaybook, variables: dict[str, Any], changed: dict[str, Any], host_name: str, said: str
) -> None:
    """An option of another build, so that none in the cache or on the host serves."""
    fresh = {
        **variables,
        "offheap_units": ["ticker"],
        "jemalloc_configure_options": ["--enable-prof", "--disable-cxx", "--disable-doc", "--disable-stats"],
        **changed,
    }
    if changed.get("offheap_units") == []:
        fresh.pop("jemalloc_configure_options")
    result = playbook("enable-profiling.yml", limit=host_name, extra_vars=fresh)
    assert result.rc != 0
    assert said in result.failures(host_name)


def test_an_option_that_the_library_does_not_know_is_refused(
    playbook: RunPlaybook, host: HostOf, variables: dict[str, Any]
) -> None:
    options = {**variables, "offheap_units": ["ticker"], "profiled_service_malloc_conf": {"lg_prof_smple": 19}}
    result = playbook("enable-profiling.yml", limit="app3", extra_vars=options)
    assert "lg_prof_smple" in result.failures("app3")
    assert host("app3").show("ticker", "DropInPaths")["DropInPaths"] == ""


def test_a_library_that_is_there_is_reused_and_left_as_it_is(
    playbook: RunPlaybook, host: HostOf, variables: dict[str, Any]
) -> None:
    app2 = host("app2")
    app2.run("cp /opt/offheap/jemalloc/*/lib/libjemalloc.so.2 /usr/local/lib/libjemalloc.so.2")
    reuse = {**variables, "offheap_units": ["ticker"], "jemalloc_method": "reuse"}
    reuse["jemalloc_reuse_library"] = "/usr/local/lib/libjemalloc.so.2"
    # The agent is ours whoever's the library is, and comes to a host that has none.
    app2.run("rm -r /opt/offheap/agent")
    playbook("enable-profiling.yml", limit="app2", extra_vars=reuse).check()
    assert "/usr/local/lib/libjemalloc.so.2" in app2.mapped("ticker")
    assert any(path.startswith("/opt/offheap/agent/") for path in app2.mapped("ticker"))
    playbook("rollback.yml", limit="app2").check()
    assert "/usr/local/lib/libjemalloc.so.2" not in app2.mapped("ticker")
    app2.run("rm /usr/local/lib/libjemalloc.so.2")


@pytest.mark.parametrize("named", [True, False])
def test_a_library_that_a_user_could_replace_is_not_reused(
    playbook: RunPlaybook, host: HostOf, variables: dict[str, Any], named: bool
) -> None:
    """Found or named: it would become code of the service, and of root."""
    app2 = host("app2")
    app2.run("mkdir -p /opt/app/lib && cp /opt/offheap/jemalloc/*/lib/libjemalloc.so.2 /opt/app/lib/libjemalloc.so.2")
    app2.run("chown nobody /opt/app")
    reuse = {**variables, "offheap_units": ["ticker"], "jemalloc_method": "reuse"}
    if named:
        reuse["jemalloc_reuse_library"] = "/opt/app/lib/libjemalloc.so.2"
    result = playbook("enable-profiling.yml", limit="app2", extra_vars=reuse)
    try:
        if named:
            assert "could replace it: /opt/app belongs to the user nobody" in result.failures("app2")
        assert "/opt/app/lib/libjemalloc.so.2" not in app2.mapped("ticker")
    finally:
        app2.run("rm -r /opt/app")
        playbook("rollback.yml", limit="app2").check()


def test_a_build_of_another_day_is_installed_from_its_tarball(
    playbook: RunPlaybook, host: HostOf, variables: dict[str, Any], controller: Controller
) -> None:
    archive = next((controller.directory / "cache").glob("jemalloc-5.3.0-*.tar.gz"))
    playbook("rollback.yml", limit="app3", extra_vars={"rollback_purge": True, "rollback_discard": True}).check()
    relative = str(archive.relative_to(controller.directory))
    taken = {"jemalloc_method": "archive", "jemalloc_archive": relative, "profiled_service_healthy_seconds": 3}
    for option, path in (("archive", archive), ("agent", next(archive.parent.glob("agent-*.tar.gz")))):
        taken[f"jemalloc_{option}_checksum"] = json.loads(Path(f"{path}.json").read_text())["sha256"]
    playbook("enable-profiling.yml", limit="app3", extra_vars={**taken, "offheap_units": ["ticker"]}).check()
    assert any(path.startswith("/opt/offheap/jemalloc/") for path in host("app3").mapped("ticker"))


def test_a_tarball_of_a_release_that_crashes_services_is_not_unpacked(
    playbook: RunPlaybook, host: HostOf, controller: Controller, tmp_path: Path
) -> None:
    """Whatever version is asked for: what lies in the tarball counts."""
    build = tmp_path / "5.3.1-0123abcd"
    build.mkdir()
    with tarfile.open(controller.directory / "old.tar.gz", "w:gz") as tarball:
        tarball.add(build, build.name)
    taken = {"jemalloc_method": "archive", "jemalloc_archive": "old.tar.gz", "offheap_units": ["ticker"]}
    result = playbook("enable-profiling.yml", limit="app3", extra_vars=taken)
    assert result.rc != 0
    assert "old.tar.gz: jemalloc 5.3.1 can crash a service" in result.failures("app3")
    assert "5.3.1" not in host("app3").run("ls /opt/offheap/jemalloc", check=False).stdout


def test_a_drop_in_below_run_ends_with_a_reboot(
    playbook: RunPlaybook, host: HostOf, lab: Lab, variables: dict[str, Any]
) -> None:
    app3 = host("app3")
    session = {**variables, "offheap_units": ["ticker"], "profiled_service_until_reboot": True}
    playbook("enable-profiling.yml", limit="app3", extra_vars=session).check()
    assert app3.show("ticker", "DropInPaths")["DropInPaths"] == "/run/systemd/system/ticker.service.d/90-offheap.conf"
    boot = app3.run("cat /proc/1/stat | cut -d' ' -f22").stdout
    app3.run("systemctl reboot", check=False)

    def is_back() -> bool:
        state = app3.run("cut -d' ' -f22 /proc/1/stat; systemctl is-active ticker", check=False).stdout.split()
        return len(state) == 2 and state[0] != boot.strip() and state[1] == "active"

    wait_for(is_back, "app3 rebooted with the ticker active")
    assert not any("jemalloc" in path for path in app3.mapped("ticker"))
