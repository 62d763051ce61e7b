# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Packaged services that open libraries in ways of their own: profiled, or refused before their restart."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from ansible_collections.offheap.profiler.tests.integration import builds
from ansible_collections.offheap.profiler.tests.integration.hosts import Lab, LabHost
from ansible_collections.offheap.profiler.tests.integration.playbooks import Controller, PlaybookResult

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
PAGE = "<?php echo curl_version()['version'], class_exists('ZipArchive'), function_exists('mysqli_connect');"


@pytest.fixture(scope="module")
def services(lab: Lab, host: Callable[[str], LabHost]) -> Iterator[dict[str, LabHost]]:
    hosts = {name: host(name) for name in PACKAGES}
    for name, on in hosts.items():
        lab.command("install", name, *PACKAGES[name])
        on.run(f"systemctl start {' '.join(PROFILED[name])}")
    hosts["app3"].run(f'echo "{PAGE}" > /var/www/html/page.php')
    yield hosts
    for on in hosts.values():
        on.run(
            "systemctl stop php8.2-fpm php8.4-fpm apache2 rspamd openvswitch-switch; systemctl reset-failed",
            check=False,
        )


@pytest.fixture(scope="module")
def enabled(
    playbook: RunPlaybook, controller: Controller, library: dict[str, Any], services: dict[str, LabHost]
) -> dict[str, PlaybookResult]:
    role = {"hosts": "all", "become": True, "gather_facts": False, "roles": ["offheap.profiler.jemalloc"]}
    path = controller.directory / "build.yml"
    path.write_text(json.dumps([role]))
    with builds.making(controller.directory / "cache"):
        playbook(path, extra_vars=library).check()
    done = {}
    for name in services:
        units = [*PROFILED[name], *(["rspamd", *TIED] if name == "app2" else [])]
        variables = {**library, "offheap_hosts": name, "offheap_units": units, "profiled_service_healthy_seconds": 4}
        done[name] = playbook("enable-profiling.yml", extra_vars=variables)
    return done


@pytest.mark.parametrize("name", PROFILED)
def test_services_whose_libraries_bind_deeply_are_profiled(
    name: str, services: dict[str, LabHost], enabled: dict[str, PlaybookResult]
) -> None:
    on = services[name]
    for unit in PROFILED[name]:
        assert on.show(unit, "ActiveState", "NRestarts") == {"ActiveState": "active", "NRestarts": "0"}
        mapped = on.mapped(unit)
        for library in ("libjemalloc.so.2", "liboffheap.so", "curl.so", "mysqli.so"):
            assert any(path.endswith(f"/{library}") for path in mapped), (unit, sorted(mapped))
        assert on.run(f"ls /var/lib/offheap/{unit}/*.heap").stdout


def test_two_that_restart_each_other_are_profiled_as_one(
    services: dict[str, LabHost], enabled: dict[str, PlaybookResult]
) -> None:
    on = services["app2"]
    for unit in TIED:
        assert on.show(unit, "ActiveState", "NRestarts") == {"ActiveState": "active", "NRestarts": "0"}
        assert any(path.endswith("/libjemalloc.so.2") for path in on.mapped(unit))
        assert on.run(f"ls /var/lib/offheap/{unit}/*.heap").stdout
    on.run("ovs-vsctl --timeout=10 show")


def test_they_work(services: dict[str, LabHost], enabled: dict[str, PlaybookResult]) -> None:
    asked = "python3 -c \"import urllib.request as u; print(u.urlopen('http://127.0.0.1/page.php').read())\""
    for _request in range(20):
        assert services["app3"].run(asked).stdout.strip().endswith("11'")


def test_what_cannot_bear_it_is_refused_before_its_restart(
    services: dict[str, LabHost], enabled: dict[str, PlaybookResult]
) -> None:
    app2 = services["app2"]
    said = enabled["app2"].failures("app2")
    assert "rspamd.service is unchanged" in said and "died when it was started" in said and "trace_live" in said
    assert app2.show("rspamd", "ActiveState", "NRestarts") == {"ActiveState": "active", "NRestarts": "0"}
    assert not any("/opt/offheap/" in path for path in app2.mapped("rspamd"))
