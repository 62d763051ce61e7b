# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""A dozen packaged services that make it hard: profiled, or refused before their restart.

Some open libraries in ways of their own. Others change their root or user, are many processes or come from a script:
those are the catalog's, with its clients, and are as before afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest

from ansible_collections.offheap.profiler.plugins.plugin_utils.archive.archive import Archive
from ansible_collections.offheap.profiler.tests.integration.hosts import Lab, LabHost, wait_for
from ansible_collections.offheap.profiler.tests.integration.playbooks import Controller, PlaybookResult
from ansible_collections.offheap.profiler.tests.services.catalog import LOTS
from ansible_collections.offheap.profiler.tests.services.trial import (
    CHILDREN,
    CLIENTS,
    Outcome,
    State,
    Trial,
    each,
    state,
)

pytestmark = [pytest.mark.usefixtures("quiet_lab"), pytest.mark.in_order]

RunPlaybook = Callable[..., PlaybookResult]
# PHP opens these three with RTLD_DEEPBIND, which gives them glibc's free.
EXTENSIONS = ("mysql", "curl", "zip")
PACKAGES = {
    "app2": ["php8.2-fpm", *(f"php8.2-{name}" for name in EXTENSIONS), "rspamd", "openvswitch-switch"],
    "app3": ["php8.4-fpm", *(f"php8.4-{name}" for name in EXTENSIONS), "apache2", "libapache2-mod-php8.4"],
}
PROFILED = {"app2": ["php8.2-fpm.service"], "app3": ["php8.4-fpm.service", "apache2.service"]}
# A restart of the one restarts the other.
TIED = ["ovsdb-server.service", "ovs-vswitchd.service"]
OF_CATALOG = {"app2": ["memcached", "redis-server", "nginx", "haproxy"], "app3": ["snmpd", "varnish"]}
SUITE_OF = {"app2": "bookworm", "app3": "trixie"}
# A pool beside that of the package, whose workers have another user.
POOLS = "/etc/php/8.4/fpm/pool.d"
SECOND_POOL = (
    f"sed 's/^.www.$/[second]/; s/^user = .*/user = daemon/; s/^group = .*/group = daemon/; s,^listen = .*,listen ="
    f" /run/php/second.sock,' {POOLS}/www.conf > {POOLS}/second.conf"
)
PAGE = "<?php echo curl_version()['version'], class_exists('ZipArchive'), function_exists('mysqli_connect');"


@pytest.fixture(scope="module")
def services(lab: Lab, host: Callable[[str], LabHost]) -> Iterator[dict[str, LabHost]]:
    hosts = {name: host(name) for name in PACKAGES}
    for name, on in hosts.items():
        lab.command("install", name, *PACKAGES[name])
        if name == "app3":
            on.run(f"{SECOND_POOL} && systemctl restart php8.4-fpm")
        on.run(f"systemctl start {' '.join(PROFILED[name])}")
    hosts["app3"].run(f'echo "{PAGE}" > /var/www/html/page.php')
    yield hosts
    for on in hosts.values():
        on.run(
            "systemctl stop php8.2-fpm php8.4-fpm apache2 rspamd openvswitch-switch; systemctl reset-failed",
            check=False,
        )


@pytest.fixture(scope="module")
def trials(lab: Lab, services: dict[str, LabHost]) -> Iterator[dict[str, Trial]]:
    """Those of the catalog by name, configured, each with what its client needs."""
    catalog = {service.name: service for lot in LOTS for service in lot}
    found = {}
    for name, on in services.items():
        for service in (catalog[one].of(SUITE_OF[name]) for one in OF_CATALOG[name]):
            found[service.name] = Trial(on, service, Outcome(SUITE_OF[name], service.name, service.unit))
        packages = [trial.service.packages for trial in found.values() if trial.host is on]
        lab.command("install", name, *" ".join(packages).split(), *CLIENTS)
    each(list(found.values()), Trial.prepare)
    assert not {name: trial.outcome.untried for name, trial in found.items() if trial.outcome.untried}
    yield found
    for trial in found.values():
        trial.host.run(f"systemctl disable --now {trial.service.unit}; systemctl stop backend", check=False)


@pytest.fixture(scope="module")
def before(services: dict[str, LabHost], trials: dict[str, Trial]) -> dict[str, State]:
    return states(services, trials)


@pytest.fixture(scope="module")
def enabled(
    playbook: RunPlaybook,
    request: pytest.FixtureRequest,
    trials: dict[str, Trial],
    before: dict[str, State],
) -> PlaybookResult:
    units: dict[str, list[Any]] = {name: list(PROFILED[name]) for name in PACKAGES}
    units["app2"] += ["rspamd", *TIED]
    for trial in trials.values():
        settings = {"start_delay": 0, **CHILDREN[trial.service.children]}
        units[trial.host.name].append({"name": trial.service.unit, "agent_settings": settings})
    variables = {
        # Not before what lay there before was seen.
        **request.getfixturevalue("built"),
        "offheap_hosts": ",".join(PACKAGES),
        "offheap_units": f"{{{{ {units}[inventory_hostname] }}}}",
        "offheap_serial": ["100%"],
        "profiled_service_malloc_conf": {"lg_prof_sample": 12},
        "profiled_service_dump_seconds": 4,
        "profiled_service_healthy_seconds": 4,
    }
    return playbook("enable-profiling.yml", extra_vars=variables)


@pytest.mark.parametrize("name", PROFILED)
def test_services_whose_libraries_bind_deeply_are_profiled(
    name: str, services: dict[str, LabHost], enabled: PlaybookResult
) -> None:
    on = services[name]
    for unit in PROFILED[name]:
        assert on.show(unit, "ActiveState", "NRestarts") == {"ActiveState": "active", "NRestarts": "0"}
        mapped = on.mapped(unit)
        for library in ("libjemalloc.so.2", "liboffheap.so", "curl.so", "mysqli.so"):
            assert any(path.endswith(f"/{library}") for path in mapped), (unit, sorted(mapped))
        assert on.run(f"ls /var/lib/offheap/{unit}/*.heap").stdout


def test_the_workers_of_each_pool_are_profiled(services: dict[str, LabHost], enabled: PlaybookResult) -> None:
    """They have two users, and the first process is root's."""
    on, spool = services["app3"], "/var/lib/offheap/php8.4-fpm.service"

    def users() -> set[str]:
        return set(on.run(f"stat -c %U {spool}/*.heap").stdout.split())

    wait_for(lambda: users() == {"root", "www-data", "daemon"}, "dumps of all users")
    assert on.run(f"stat -c '%U %a' {spool}").stdout.split() == ["root", "770"]
    assert on.run(f"runuser -u nobody -- ls {spool}", check=False).returncode != 0


def test_two_that_restart_each_other_are_profiled_as_one(services: dict[str, LabHost], enabled: PlaybookResult) -> None:
    on = services["app2"]
    for unit in TIED:
        assert on.show(unit, "ActiveState", "NRestarts") == {"ActiveState": "active", "NRestarts": "0"}
        assert any(path.endswith("/libjemalloc.so.2") for path in on.mapped(unit))
        assert on.run(f"ls /var/lib/offheap/{unit}/*.heap").stdout
    on.run("ovs-vsctl --timeout=10 show")


def test_they_work(services: dict[str, LabHost], enabled: PlaybookResult) -> None:
    asked = "python3 -c \"import urllib.request as u; print(u.urlopen('http://127.0.0.1/page.php').read())\""
    for _request in range(20):
        assert services["app3"].run(asked).stdout.strip().endswith("11'")


def test_what_cannot_bear_it_is_refused_before_its_restart(
    services: dict[str, LabHost], enabled: PlaybookResult
) -> None:
    app2 = services["app2"]
    said = enabled.failures("app2")
    assert "rspamd.service is unchanged: rspamd.service uses librspamd-" in said and "allocator: own" in said
    assert app2.show("rspamd", "ActiveState", "NRestarts") == {"ActiveState": "active", "NRestarts": "0"}
    assert not any("/opt/offheap/" in path for path in app2.mapped("rspamd"))


class End(NamedTuple):
    """What was collected of all, what rollback said, and what is there afterwards, by host."""

    archive: Archive
    rollback: PlaybookResult
    after: dict[str, State]


@pytest.fixture(scope="module")
def end(
    playbook: RunPlaybook,
    controller: Controller,
    services: dict[str, LabHost],
    trials: dict[str, Trial],
    enabled: PlaybookResult,
) -> End:
    each(list(trials.values()), Trial.drive)
    wait_for(lambda: all(trial.dumps() > 1 for trial in trials.values()), "two dumps of each", interval=1)
    common = {"offheap_hosts": ",".join(PACKAGES), "offheap_archive": str(controller.directory / "packaged")}
    playbook("collect-profiles.yml", extra_vars=common).check()
    done = playbook("rollback.yml", extra_vars={**common, "rollback_purge": True})
    return End(Archive.open(controller.directory / "packaged"), done, states(services, trials))


def states(services: dict[str, LabHost], trials: dict[str, Trial]) -> dict[str, State]:
    return {name: state(on, [trial.service for trial in trials.values()]) for name, on in services.items()}


def test_the_dumps_of_each_pool_are_collected(end: End) -> None:
    captures = end.archive.captures("php8.4-fpm.service", "app3")
    assert len({capture.facts.process.pid for capture in captures}) == 5, "the first process, and two of each pool"


@pytest.mark.parametrize("name", [one for names in OF_CATALOG.values() for one in names])
def test_hard_ones_answer_their_client_have_named_frames_and_are_as_before(
    name: str, trials: dict[str, Trial], before: dict[str, State], enabled: PlaybookResult, end: End
) -> None:
    trial = trials[name]
    trial.judge_enabled(enabled)
    assert (trial.outcome.enabled, trial.outcome.reason) == ("yes", "")
    trial.judge_captures(end.archive)
    assert trial.outcome.samples > 0, trial.outcome
    assert trial.outcome.named > 0.25, trial.outcome
    trial.judge_rollback(before[trial.host.name], end.after[trial.host.name], end.rollback)
    assert trial.outcome.rolled_back, trial.outcome
