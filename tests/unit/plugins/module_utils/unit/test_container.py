# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Units that run Podman: what is refused, and what is written. The lab has the real Podman (test_podman.py)."""

from __future__ import annotations

import shlex
import tomllib
from pathlib import Path

import pytest

from ansible_collections.offheap.profiler.plugins.module_utils.host import selinux
from ansible_collections.offheap.profiler.plugins.module_utils.unit import container, drop_in, programs
from ansible_collections.offheap.profiler.plugins.module_utils.unit.service import Service
from ansible_collections.offheap.profiler.tests.unit.fakes.programs import SLEEPS, compiled
from ansible_collections.offheap.profiler.tests.unit.fakes.refusals import refusal
from ansible_collections.offheap.profiler.tests.unit.fakes.units import unit

BY_HAND = "Give its 'run' these"
RUN = "run --cgroups=split -d localhost/app:1"


@pytest.fixture(autouse=True)
def without_selinux(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(selinux, "_FS", str(tmp_path))
    return tmp_path / "enforce"


@pytest.fixture
def podman(tmp_path: Path) -> Path:
    """A stand-in that says its version."""
    path = tmp_path / "podman"
    path.write_text("#!/bin/sh\necho podman version 5.4.2\n")
    path.chmod(0o755)
    return path


def of(podman: Path, words: str = RUN, **single: str) -> Service:
    name = single.get("Id", "probe.service")
    return unit(podman, arguments=[f"{podman} {words}"], text=single, Id=name)


@pytest.mark.parametrize(
    ("words", "single", "way_out"),
    [
        ("start app", {}, "Let root's 'podman run' make it at each start"),
        (RUN, {"User": "app"}, "as another user than root"),
        ("run -d localhost/app:1", {}, "Add --cgroups=split"),
        (f"{RUN} --name=app", {}, "Add 'ExecStop="),
        (RUN, {"Id": "a:b.service"}, "Rename the unit"),
        (RUN, {}, "is not running"),
    ],
)
def test_what_nothing_can_be_brought_into(podman: Path, words: str, single: dict[str, str], way_out: str) -> None:
    refusal(lambda: container.check(of(podman, words, **single), ""), "container", way_out)


@pytest.mark.parametrize("version", ["podman version 4.9.3", "podman version", "no"])
def test_a_podman_that_cannot_add_to_its_settings(podman: Path, version: str) -> None:
    podman.write_text(f"#!/bin/sh\necho {version}\n")
    refusal(lambda: container.check(of(podman), BY_HAND), "container", "Podman 5 can", BY_HAND)


def test_a_podman_that_does_not_run(podman: Path) -> None:
    podman.unlink()
    refusal(lambda: container.check(of(podman), BY_HAND), "container", "podman --version' does not work")


def test_selinux(podman: Path, without_selinux: Path) -> None:
    without_selinux.write_text("1\n")
    refusal(lambda: container.check(of(podman), BY_HAND), "container", "SELinux", BY_HAND)


def test_a_unit_that_has_such_settings_itself(podman: Path, tmp_path: Path) -> None:
    own = tmp_path / "probe.service"
    own.write_text("[Service]\nEnvironment=CONTAINERS_CONF_OVERRIDE=/etc/mine.conf\n")
    refusal(
        lambda: container.check(of(podman, FragmentPath=str(own)), ""),
        "container",
        str(own),
        "CONTAINERS_CONF_OVERRIDE",
    )


def test_the_settings_add_to_those_that_there_are() -> None:
    text = container.settings({"LD_PRELOAD": "/l.so", "X": 'a "quoted" \\ %b'}, ["/spool:/spool"])
    found = tomllib.loads(text)["containers"]
    assert found == {
        "env": ["LD_PRELOAD=/l.so", 'X=a "quoted" \\ %b', {"append": True}],
        "volumes": ["/spool:/spool", {"append": True}],
    }


def test_the_unit_itself_gets_nothing_but_the_name_of_the_settings(podman: Path) -> None:
    inside = drop_in.Injection(
        "/l/l.so", ["Environment=LD_PRELOAD=/l/l.so"], None, {"LD_PRELOAD": "/l/l.so"}, frozenset()
    )
    found = container.into(inside, of(podman), ["/l/l.so", "/a/a.so"], programs.Owner(7, 8), "/etc/systemd/system/d")
    assert found.settings[0] == 'Environment="CONTAINERS_CONF_OVERRIDE=/etc/systemd/system/d/90-offheap.containers"'
    assert not [line for line in found.settings if "LD_PRELOAD" in line]
    assert "ExecStartPre=-/bin/mkdir -p /a /l /var/lib/offheap/probe.service" in found.settings
    assert "ExecStartPre=-/usr/bin/install -d -o 7 -g 8 /run/offheap/probe.service" in found.settings
    volumes = tomllib.loads(found.container or "")["containers"]["volumes"]
    assert volumes[:2] == ["/a:/a:ro", "/l:/l:ro"]
    assert "/var/lib/offheap/probe.service:/var/lib/offheap/probe.service" in volumes


def test_what_somebody_has_to_add_by_hand() -> None:
    agent = drop_in.AgentSettings("/a/a.so", {"OFFHEAP_DUMP_SECONDS": "7"})
    said = container.by_hand(unit("/usr/bin/docker"), "/l/l.so", {"lg_prof_sample": 17}, agent)
    command = shlex.split(said.partition("these: ")[2])
    assert command[:3] == [
        "--volume=/a:/a:ro",
        "--volume=/l:/l:ro",
        "--volume=/var/lib/offheap/probe.service:/var/lib/offheap/probe.service",
    ]
    assert "--env=LD_PRELOAD=/l/l.so:/a/a.so" in command and "--env=OFFHEAP_DUMP_SECONDS=7" in command
    conf = next(word for word in command if "MALLOC_CONF" in word)
    assert "lg_prof_sample:17" in conf and "prof_prefix:/var/lib/offheap/probe.service/jeprof" in conf


def test_whether_a_container_has_musl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loader = "-Wl,--dynamic-linker=/lib/ld-musl-x86_64.so.1"
    musl, glibc = compiled(tmp_path, "with-musl", SLEEPS, loader), compiled(tmp_path, "with-glibc")
    monkeypatch.setattr(programs, "file_of", lambda _unit, program: program)
    monkeypatch.setattr(Service, "contained", lambda _self: [1])
    for found, has_musl in (([musl], True), ([glibc], False), ([tmp_path], False), ([tmp_path, glibc, musl], True)):
        monkeypatch.setattr(programs, "running", lambda _unit, _pids, found=found: list(map(str, found)))
        assert container.has_musl(unit("/usr/bin/podman")) is has_musl
    monkeypatch.setattr(Service, "contained", lambda _self: [])
    assert not container.has_musl(unit("/usr/bin/podman"))
