# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""System call filters, as systemctl prints them, against the calls that the agent makes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ansible_collections.offheap.profiler.plugins.module_utils.unit import syscall_filter
from ansible_collections.offheap.profiler.tests.unit.fakes import units
from ansible_collections.offheap.profiler.tests.unit.fakes.refusals import refusal

ALL = " ".join(syscall_filter._AGENT)
AGENT = Path(__file__).resolve().parents[5] / "roles" / "jemalloc" / "files" / "agent"


def check(words: str, number: str = "2147483646") -> None:
    syscall_filter.check(units.unit(lists={"SystemCallFilter": words.split()}, text={"SystemCallErrorNumber": number}))


@pytest.mark.parametrize(
    ("words", "number"),
    [
        ("", "2147483646"),
        ("~", "2147483646"),
        (f"{ALL} read write", "2147483646"),
        ("read write", "1"),
        ("~mount umount2 reboot", "0"),
        (f"~{ALL}", "1"),
        (" ".join(f"{name}:EPERM" for name in syscall_filter._AGENT), "0"),
        (f"~socket:EPERM {ALL.replace('socket', 'mount')}", "13"),
    ],
)
def test_what_the_agent_survives(words: str, number: str) -> None:
    check(words, number)


@pytest.mark.parametrize(
    ("words", "number", "named"),
    [
        (ALL.replace("socket ", ""), "2147483646", "(socket)"),
        (ALL.replace("socket ", ""), "0", "(socket)"),
        ("~mount bind listen", "2147483646", "(bind, listen)"),
        (f"~mount:EPERM {ALL.split()[0]}:kill", "1", f"({ALL.split()[0]})"),
    ],
)
def test_what_would_end_the_service(words: str, number: str, named: str) -> None:
    refusal(lambda: check(words, number), "system-call-filter", named, "profile without the agent")


def test_the_calls_are_those_that_the_agent_says() -> None:
    text = (AGENT / "README.md").read_text()
    said = re.search(r"it must list these, as `@system-service` does: ([a-z0-9_\s]+)\.", text)
    assert said and set(syscall_filter._AGENT) <= set(said[1].split())


@pytest.mark.parametrize(
    ("families", "reachable"),
    [("", True), ("~", True), ("AF_UNIX AF_INET", True), ("~AF_PACKET", True), ("AF_INET", False), ("~AF_UNIX", False)],
)
def test_an_agent_that_nobody_could_ask(families: str, reachable: bool) -> None:
    one = units.unit(lists={"RestrictAddressFamilies": families.split()})
    if reachable:
        syscall_filter.check(one)
    else:
        refusal(lambda: syscall_filter.check(one), "no-unix-sockets", "Add AF_UNIX")


@pytest.mark.parametrize(
    ("words", "number", "expected"),
    [("", "0", True), ("~mount", "0", True), ("~unshare", "0", False), ("read", "1", True), ("read", "0", False)],
)
def test_whether_taking_descriptors_of_its_own_is_survived(words: str, number: str, expected: bool) -> None:
    one = units.unit(lists={"SystemCallFilter": words.split()}, text={"SystemCallErrorNumber": number})
    assert syscall_filter.may_unshare(one) is expected


@pytest.mark.parametrize(("families", "reachable"), [("none", False), ("AF_UNIX\nRestrictAddressFamilies=", True)])
def test_a_unit_with_no_address_family_at_all(tmp_path: Path, families: str, reachable: bool) -> None:
    """systemd shows that as an empty list."""
    file = tmp_path / "probe.service"
    file.write_text(f"[Service]\nExecStart=/bin/true\nRestrictAddressFamilies={families}\n")
    one = units.unit(FragmentPath=str(file))
    if reachable:
        syscall_filter.check(one)
    else:
        refusal(lambda: syscall_filter.check(one), "no-unix-sockets", "Add AF_UNIX")
