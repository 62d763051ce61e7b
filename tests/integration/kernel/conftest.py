# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""One host for most of these tests, which boots a kernel of its own."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.offheap.profiler.tests.integration.conftest import LOGS, NAME
from ansible_collections.offheap.profiler.tests.integration.hosts import PREPARE, Lab, LabHost
from ansible_collections.offheap.profiler.tests.integration.playbooks import Controller, build

MACHINE = "app1"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """An emulated processor is slow."""
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker("soak_only")


@contextlib.contextmanager
def booted(letter: str, kind: str) -> Iterator[Lab]:
    """A lab of one host of this kind; the letter tells its name from those of other labs."""
    lab = Lab(f"{NAME}{letter}"[-9:])
    keep = os.environ.get("OFFHEAP_LAB_KEEP") == "1"
    if not keep:
        lab.down()
    lab.command("up", kind)
    yield lab
    if not keep:
        lab.down()


@contextlib.contextmanager
def controller_of(lab: Lab) -> Iterator[Controller]:
    """A controller with the collection; the workloads are installed, and none of them runs."""
    with tempfile.TemporaryDirectory(prefix="offheap-") as directory:
        controller = Controller(Path(directory), lab.inventory, LOGS)
        controller.install(build(controller.directory))
        controller.playbook(PREPARE, extra_vars={"workloads_running": []}).check()
        yield controller


@pytest.fixture(scope="session")
def one() -> Iterator[Lab]:
    with booted("k", "--kernel") as lab:
        yield lab


@pytest.fixture(scope="session")
def machine(one: Lab) -> LabHost:
    return one.host(MACHINE)


@pytest.fixture(scope="session")
def user(one: Lab) -> Iterator[Controller]:
    with controller_of(one) as controller:
        yield controller


@pytest.fixture(scope="session")
def built_here() -> dict[str, Any]:
    """Variables with which the controller builds."""
    return {
        "offheap_cache": "cache",
        "jemalloc_method": "cross",
        "jemalloc_version": "5.3.0",
        "jemalloc_source": "{{ lab_sources }}/jemalloc-5.3.0.tar.bz2",
    }
