# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Boots the lab, gives it its workloads and installs the collection, once for all integration tests.

OFFHEAP_LAB_KEEP=1 leaves the lab up at the end and takes it up again as it is the next time. OFFHEAP_LAB_NAME names
the lab; two sessions of tests that run at once need different ones, or the second waits for the first.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.offheap.profiler.tests.gates.this_run import lab_lock
from ansible_collections.offheap.profiler.tests.integration import builds
from ansible_collections.offheap.profiler.tests.integration.hosts import PREPARE, Lab, LabHost
from ansible_collections.offheap.profiler.tests.integration.playbooks import (
    REPOSITORY,
    Controller,
    PlaybookResult,
    build,
)
from ansible_collections.offheap.profiler.tests.integration.spools import make_spool, put
from ansible_collections.offheap.profiler.tests.unit.plugins.module_utils.malloc import jemalloc_process

NAME = os.environ.get("OFFHEAP_LAB_NAME", "itest")
LOGS = REPOSITORY / "build" / ("integration" if NAME == "itest" else f"integration-{NAME}")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Everything here needs the lab, but for the truth suite."""
    here = Path(__file__).parent
    for item in items:
        if item.path.is_relative_to(here) and not item.path.is_relative_to(here / "truth"):
            item.add_marker("lab")


def _say(request: pytest.FixtureRequest, text: str) -> None:
    """Tell, past pytest's capture, what takes its time."""
    reporter = request.config.pluginmanager.get_plugin("terminalreporter")
    capture = request.config.pluginmanager.get_plugin("capturemanager")
    if reporter is not None and capture is not None:
        with capture.global_and_fixture_disabled():
            reporter.ensure_newline()
            reporter.write_line(text)


@pytest.fixture(scope="session")
def booted_lab(request: pytest.FixtureRequest) -> Iterator[Lab]:
    """Three booted hosts, one of each suite, or of those that OFFHEAP_TEST_SUITES names, without workloads."""
    if os.geteuid() != 0:
        pytest.fail("the integration tests boot containers: they need root")
    keep = os.environ.get("OFFHEAP_LAB_KEEP") == "1"
    lab = Lab(NAME)
    LOGS.mkdir(parents=True, exist_ok=True)
    with lab_lock(lab.name).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not keep:
            lab.down()
        _say(request, f"booting the lab {lab.name} (the first time builds its images)")
        others = os.environ.get("OFFHEAP_TEST_SUITES")
        _say(request, lab.command("up", "--hosts", "3", *(["--suites", others] if others else [])).stdout)
        yield lab
        if not keep:
            lab.down()


@pytest.fixture(scope="session")
def controller(booted_lab: Lab) -> Iterator[Controller]:
    """A user's directory with an ansible.cfg, where no collection is installed yet."""
    # Short: the paths of SSH's control sockets lie below it
    directory = Path(tempfile.mkdtemp(prefix="offheap-"))
    shutil.rmtree(LOGS, ignore_errors=True)
    yield Controller(directory, booted_lab.inventory, LOGS)
    shutil.rmtree(directory)


@pytest.fixture(scope="session")
def lab(request: pytest.FixtureRequest, booted_lab: Lab, controller: Controller) -> Lab:
    """Three hosts with all workloads installed and the good ones running."""
    _say(request, "preparing the workloads")
    controller.playbook(PREPARE).check()
    return booted_lab


@pytest.fixture(scope="session")
def quiet_lab(lab: Lab) -> Lab:
    """The lab without the services in Java, which keep a third of a processor busy."""
    for name in lab.hosts():
        lab.host(name).run("systemctl stop frontend wrapped")
    return lab


@pytest.fixture(scope="session")
def collection(request: pytest.FixtureRequest, controller: Controller) -> Path:
    """The installed collection, from a tarball as users get it."""
    _say(request, "building and installing the collection")
    controller.install(build(controller.directory))
    return controller.installed


@pytest.fixture(scope="session")
def playbook(lab: Lab, collection: Path, controller: Controller) -> Callable[..., PlaybookResult]:
    """Runs a playbook against the prepared hosts: see Controller.playbook."""
    return controller.playbook


@pytest.fixture(scope="session")
def library(lab: Lab, controller: Controller) -> dict[str, Any]:
    """Variables with which app1 builds for all, once; with OFFHEAP_TEST_BUILD=cross, the controller does."""
    builds.take(controller.directory / "cache")
    who = {"jemalloc_method": "cross"} if os.environ.get("OFFHEAP_TEST_BUILD") else {"jemalloc_build_host": "app1"}
    return {
        **who,
        "offheap_cache": "cache",
        "jemalloc_version": "5.3.0",
        "jemalloc_source": "{{ lab_sources }}/jemalloc-5.3.0.tar.bz2",
    }


@pytest.fixture(scope="session")
def built(playbook: Callable[..., PlaybookResult], controller: Controller, library: dict[str, Any]) -> dict[str, Any]:
    """The same, once the cache has what they build, for plays of which the host that builds is none."""
    role = {"hosts": "all", "become": True, "gather_facts": False, "roles": ["offheap.profiler.jemalloc"]}
    path = controller.directory / "build.yml"
    path.write_text(json.dumps([role]))
    with builds.making(controller.directory / "cache"):
        playbook(path, extra_vars=library).check()
    return library


@pytest.fixture(scope="session")
def host(lab: Lab) -> Callable[[str], LabHost]:
    """Gives a host by its name."""
    return lab.host


@pytest.fixture(scope="session")
def dumps(tmp_path_factory: pytest.TempPathFactory) -> list[bytes]:
    """Three dumps of one process."""
    directory = tmp_path_factory.mktemp("spool")
    with jemalloc_process.running(directory):
        return [path.read_bytes() for path in jemalloc_process.dumps(directory)[:3]]


@pytest.fixture
def hosts(booted_lab: Lab, dumps: list[bytes]) -> Iterator[dict[str, LabHost]]:
    """The hosts, each with three dumps of a process that is gone."""
    found = {name: booted_lab.host(name) for name in booted_lab.hosts()}
    for number, host in enumerate(found.values()):
        make_spool(host)
        for sequence, content in enumerate(dumps):
            put(host, f"jeprof.99999{number}.{sequence}.i{sequence}.heap", content)
    yield found
    for host in found.values():
        host.run("rm -rf /var/lib/offheap /var/lib/private/offheap /home/deploy/.ansible/tmp/*")
