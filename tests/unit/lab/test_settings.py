# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Two labs share nothing, and names that the kernel would reject are refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from ansible_collections.offheap.profiler.tests.lab.nspawnlab.settings import MAX_HOSTS, LabError, Settings


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OFFHEAP_LAB_NAME", "OFFHEAP_LAB_DIR", "OFFHEAP_LAB_NET"):
        monkeypatch.delenv(name, raising=False)


def test_defaults() -> None:
    settings = Settings.from_environment()
    assert settings.inventory == Path("/var/cache/offheap-lab/run/inventory.ini")
    assert (settings.gateway, settings.address(1), settings.netns("app1")) == (
        "10.77.0.1",
        "10.77.0.11",
        "offheap-app1",
    )


def test_another_name_shares_images_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    first = Settings.from_environment()
    monkeypatch.setenv("OFFHEAP_LAB_NAME", "second")
    second = Settings.from_environment()
    assert second.images == first.images
    mine = {first.run, first.subnet, first.bridge, first.link(1), first.netns("app1")}
    theirs = {second.run, second.subnet, second.bridge, second.link(1), second.netns("app1")}
    assert not mine & theirs


def test_interface_names_fit_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OFFHEAP_LAB_NAME", "n" * 9)
    settings = Settings.from_environment()
    assert max(len(settings.bridge), len(settings.link(MAX_HOSTS))) <= 15


@pytest.mark.parametrize("name", ["", "Lab", "9lives", "a-b", "../x", "n" * 10])
def test_bad_name(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv("OFFHEAP_LAB_NAME", name)
    with pytest.raises(LabError, match="needs a letter"):
        Settings.from_environment()


@pytest.mark.parametrize("subnet", ["10.77.0.0", "10.77", "10.77.0/24", "a.b.c"])
def test_bad_subnet(monkeypatch: pytest.MonkeyPatch, subnet: str) -> None:
    monkeypatch.setenv("OFFHEAP_LAB_NET", subnet)
    with pytest.raises(LabError, match="three octets"):
        Settings.from_environment()
