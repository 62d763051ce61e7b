# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Whoever stands between us and a host, with a key that known_hosts has something to say about."""

from __future__ import annotations

from pathlib import Path
from socket import socketpair

import paramiko
import pytest

from ansible_collections.offheap.profiler.console.known_hosts import ConnectError
from ansible_collections.offheap.profiler.tests.unit.console.test_connect import OTHER, OURS, line, shown

HASHED = paramiko.HostKeys.hash_host("app1")


@pytest.mark.parametrize("names", ["app1", "*", "app?,!app2", HASHED])
@pytest.mark.parametrize("accept_new", [False, True])
def test_a_revoked_key(tmp_path: Path, names: str, accept_new: bool) -> None:
    known = line(f"@revoked {names}", OURS)
    for text in (known, known + line("app1", OURS), line("app1", OURS) + known):
        with pytest.raises(ConnectError, match="REVOKED"):
            shown(tmp_path, text, accept_new=accept_new)
    assert shown(tmp_path, line("@revoked *", OTHER) + line("app1", OURS))[1].read_text().count("\n") == 2, "the next"


@pytest.mark.parametrize("odd", ["@cert-authority *", "@revoked", "@new *", "#", "", "app1 ssh-rsa", "app1 ssh-rsa !"])
def test_other_lines_stop_nothing_and_allow_nothing(tmp_path: Path, odd: str) -> None:
    odd_line = line(odd, OURS) if odd.startswith("@c") else f"{odd}\n"
    shown(tmp_path, odd_line + line("app1", OURS))
    with pytest.raises(ConnectError, match=r"unknown|CHANGED"):
        shown(tmp_path, odd_line)


def test_a_key_that_only_the_address_has(tmp_path: Path) -> None:
    """The alias says which host it must be; the address may have been given to another one."""
    with pytest.raises(ConnectError, match="unknown"):
        shown(tmp_path, line("app1", OURS) + line(HASHED, OURS), hostkeyalias="db")
    shown(tmp_path, line("app1", OTHER) + line("db", OURS), hostkeyalias="db")


def test_a_key_of_another_kind(tmp_path: Path) -> None:
    """Offering only a kind that is not known does not make the host a new one."""
    with pytest.raises(ConnectError, match="CHANGED"):
        shown(tmp_path, line("app1", paramiko.RSAKey.generate(2048)), accept_new=True)


def test_one_of_several_keys(tmp_path: Path) -> None:
    shown(tmp_path, line("app1", OTHER) + line("app1", OURS))
    shown(tmp_path, line(HASHED, OTHER) + line(HASHED, OURS))


def test_the_kind_that_is_known_is_asked_for_first(tmp_path: Path) -> None:
    policy, _path = shown(tmp_path, line("app1", OURS) + line("[app2]:2222", paramiko.RSAKey.generate(2048)))
    for host, port, first in (("app1", 22, OURS.get_name()), ("app2", 2222, "rsa-sha2-512")):
        ours, theirs = socketpair()
        with ours, theirs:
            assert policy.transport(host, port)(ours).get_security_options().key_types[0] == first
