# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Host keys that paramiko alone would miss in known_hosts, and why there is no connection; tests/integration has real
servers."""

from __future__ import annotations

import contextlib
import socket
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import paramiko
import pytest
from fabric import Connection

from ansible_collections.offheap.profiler.console import connect
from ansible_collections.offheap.profiler.console.connect import ConnectError, Connector, _expanded, _explained
from ansible_collections.offheap.profiler.console.known_hosts import KnownHosts
from ansible_collections.offheap.profiler.console.target import Settings, from_word, settings

OURS, OTHER = paramiko.ECDSAKey.generate(), paramiko.ECDSAKey.generate()


def line(names: str, key: paramiko.PKey) -> str:
    return f"{names} {key.get_name()} {key.get_base64()}\n"


def shown(
    directory: Path, known: str, name: str = "app1", accept_new: bool = False, **more: str
) -> tuple[KnownHosts, Path]:
    """What happens when a host that paramiko does not know shows OURS."""
    path = directory / "known_hosts"
    path.write_text(known)
    values = {keyword: [value] for keyword, value in more.items()}
    policy = KnownHosts(Settings({"userknownhostsfile": [str(path)], **values}), accept_new)
    policy.missing_host_key(paramiko.SSHClient(), name, OURS)
    return policy, path


@pytest.mark.parametrize("names", ["*", "app?", "web*,app*", "*.example,app1*", "APP1"])
def test_patterns(tmp_path: Path, names: str) -> None:
    shown(tmp_path, line(names, OURS))


@pytest.mark.parametrize("names", ["app", "app1?", "*,!app1", "*,!APP1", "[a]pp1"])
def test_what_does_not_match(tmp_path: Path, names: str) -> None:
    with pytest.raises(ConnectError, match=r"unknown.*--accept-new"):
        shown(tmp_path, line(names, OURS))


def test_a_key_of_the_host_without_its_port(tmp_path: Path) -> None:
    """OpenSSH takes it, and remembers no other: to connect once with ssh would change nothing."""
    shown(tmp_path, line("app1", OURS), "[app1]:2222")
    for known, message in (
        (line("app1", OTHER), "is unknown"),
        (line("[app1]:2222", OTHER) + line("app1", OURS), "has CHANGED"),
        ("@revoked " + line("app1", OURS), "REVOKED"),
    ):
        with pytest.raises(ConnectError, match=message):
            shown(tmp_path, known, "[app1]:2222")


def test_another_key_than_the_pattern_has(tmp_path: Path) -> None:
    with pytest.raises(ConnectError, match="has CHANGED"):
        shown(tmp_path, line("app*", OTHER), accept_new=True)


def test_an_alias_is_what_counts(tmp_path: Path) -> None:
    shown(tmp_path, line("fleet", OURS), hostkeyalias="fleet")
    with pytest.raises(ConnectError, match="has CHANGED"):
        shown(tmp_path, line("fleet", OTHER) + line("app*", OURS), hostkeyalias="fleet")


@pytest.mark.parametrize(("option", "setting"), [(True, "ask"), (False, "accept-new"), (False, "no")])
def test_a_new_key_that_is_accepted_is_remembered(tmp_path: Path, option: bool, setting: str) -> None:
    _policy, path = shown(tmp_path, "", accept_new=option, stricthostkeychecking=setting)
    assert path.read_text() == line("app1", OURS)


def test_nothing_begins_after_hanging_up() -> None:
    """Otherwise a thread that is still connecting would start working, and the exit would wait for it."""
    with Connector(False, 5, lambda _target: None) as connector:
        connector.hang_up()
        with pytest.raises(ConnectError, match="interrupted"), connector.session(from_word("localhost")):
            pytest.fail("a session has begun")


def test_a_host_that_is_not_there_is_named_with_its_port_and_how_long_it_was_waited_for() -> None:
    there = cast(Connection, SimpleNamespace(host="192.0.2.7", port=2222, connect_timeout=4))
    assert _explained(TimeoutError(), "app2", there) == "192.0.2.7 port 2222 does not answer within 4 seconds"
    assert _explained(ConnectionRefusedError(), "app2", there) == "nothing listens for SSH at 192.0.2.7 port 2222"
    unknown = socket.gaierror(-2, "Name or service not known")
    assert "no address is known for 192.0.2.7: Name or service" in _explained(unknown, "app2", there)


def test_a_new_key_begins_a_line_of_its_own(tmp_path: Path) -> None:
    _policy, path = shown(tmp_path, line("app2", OTHER).rstrip("\n"), accept_new=True)
    assert [text.split()[0] for text in path.read_text().splitlines()] == ["app2", "app1"]


def test_the_tokens_of_a_proxy_command() -> None:
    found = Settings({"host": ["app1"], "hostname": ["192.0.2.7"], "user": ["deploy"], "port": ["2222"]})
    command = _expanded("ssh -W %h:%p -l %r %n 100%%", found)
    assert command == "ssh -W 192.0.2.7:2222 -l deploy app1 100%"


def test_a_key_is_where_openssh_looks_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``ssh -G`` says neither what a token nor what a variable stands for."""
    monkeypatch.setenv("HOME", str(tmp_path))
    keys = ["%d/of_%n", "${HOME}/of_%r_at_%h", "~/of_%p"]
    made = [tmp_path / name for name in ("of_app1", "of_deploy_at_app1.example.org", "of_2222")]
    for key in made:
        key.touch()
    (tmp_path / "config").write_text("HostName app1.example.org\n" + "".join(f"IdentityFile {key}\n" for key in keys))
    found = settings("deploy@app1", ["-F", str(tmp_path / "config"), "-p", "2222"])
    with Connector(False, 5, lambda _target: None) as connector:
        assert connector._made(found, None, None).connect_kwargs["key_filename"] == list(map(str, made))


def test_sessions_behind_a_jump_host_are_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """``fab watch`` has one with each host until it ends."""
    behind = Settings({"proxyjump": ["bastion"], "hostname": ["bastion"], "user": ["me"], "port": ["22"]})
    monkeypatch.setattr(connect, "settings", lambda *_of: behind)
    monkeypatch.setattr(Connector, "_made", lambda *_of: SimpleNamespace(is_connected=True, close=lambda: None))
    monkeypatch.setattr(Connector, "_open", lambda *_of: SimpleNamespace(close=lambda: None))
    has_all = threading.Event()

    def connect_to_all() -> None:
        with Connector(False, 5, lambda _target: None) as connector, contextlib.ExitStack() as stack:
            for number in range(connect.PER_GATEWAY + 1):
                target = from_word(f"app{number}")
                connector._connection(target, behind, stack)
            has_all.set()

    threading.Thread(target=connect_to_all, daemon=True).start()
    assert has_all.wait(10)
