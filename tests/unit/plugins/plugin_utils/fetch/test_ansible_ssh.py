# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Sessions over an Ansible connection without a network: its ssh is a shell on this machine."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ansible_collections.offheap.profiler.plugins.plugin_utils.fetch import ansible_ssh
from ansible_collections.offheap.profiler.plugins.plugin_utils.fetch.host_session import (
    PasswordRefused,
    Session,
    TerminalWanted,
)
from ansible_collections.offheap.profiler.tests.unit.fakes import programs

SUDO = {"become_exe": "sudo", "become_flags": "-H -S -n", "become_user": "root", "become_pass": "geheim"}


class Options:
    def __init__(self, **options: str | None) -> None:
        self.options = options

    def get_option(self, name: str) -> str | None:
        return self.options.get(name)

    def set_option(self, name: str, value: str) -> None:
        self.options[name] = value


class Become(Options):
    name = "sudo"


class Connection(Options):
    """``script`` stands in for ssh; its $1 is the command for the host."""

    transport = "ssh"
    become: Become | None = None
    host = ""

    def __init__(self, script: str = 'exec sh -c "$1"', /, **options: str | None) -> None:
        super().__init__(host="app1", ssh_executable="/usr/bin/ssh", **options)
        self.script = script
        self._play_context = SimpleNamespace(password="")

    @staticmethod
    def _create_control_path(*parts: str | None) -> str:
        return "%(directory)s/" + "-".join(map(str, parts))

    def _build_command(self, executable: str, subsystem: str, host: str, command: str) -> list[str]:
        assert (executable, subsystem, host) == ("/usr/bin/ssh", "ssh", "app1")
        return ["sh", "-c", self.script, "sh", command]


@contextmanager
def begun(connection: Any) -> Iterator[Session]:
    with ansible_ssh.session(connection, sys.executable) or nullcontext() as session:
        assert session is not None
        yield session


def absent(connection: Any, python: str = sys.executable) -> bool:
    with ansible_ssh.session(connection, python) or nullcontext() as session:
        return session is None


def answers(session: Session) -> bool:
    """Asks something that any machine can answer, profiled or not."""
    options = {"units": ["nosuchunit"], "max_dump": 1, "max_captures": 1}
    return bool(session.ask("find", options=options, ask_jvms=False)["absent"] == ["nosuchunit.service"])


def test_a_session_whatever_ssh_says_beside_it(tmp_path: Path) -> None:
    """The noise comes between two answers, at a moment that the test chooses."""
    wanted, made = tmp_path / "wanted", tmp_path / "made"
    os.mkfifo(wanted)
    os.mkfifo(made)
    talkative = f"(read -r _ < {wanted}; echo client_loop: noise >&2; echo > {made}) & "
    with begun(Connection(talkative + 'exec sh -c "$1"')) as session:
        assert answers(session)
        wanted.write_text("now\n")
        assert made.read_text() == "\n"
        assert answers(session)


def test_sudo_is_given_its_password(tmp_path: Path) -> None:
    """A script stands in for sudo and takes the same arguments (sudo -S -p PROMPT -u USER -- COMMAND)."""
    sudo = '#!/bin/sh\nprintf %s "$3" >&2; read -r word; shift 6; [ "$word" = geheim ] && exec "$@"\n'
    programs.script(tmp_path, "sudo", sudo)
    connection = Connection(f'PATH={tmp_path}:$PATH exec sh -c "$1"')
    connection.become = Become(**SUDO)
    with begun(connection):
        pass
    asking = Connection('printf %s "${1#*-p }" | cut -d" " -f1 | tr -d "\\n"; read -r word; ' * 2)
    asking.become = Become(**SUDO)
    with pytest.raises(PasswordRefused):
        absent(asking)


@pytest.mark.parametrize("option", ["become_exe", "become_flags"])
def test_a_sudo_of_ones_own_is_left_to_the_modules(option: str) -> None:
    connection = Connection("exit 1")
    connection.become = Become(**{**SUDO, option: "other"})
    assert absent(connection)


def test_what_else_is_left_to_the_modules() -> None:
    local, with_password, asked, other_become = (Connection(password=word) for word in ("", "geheim", "", ""))
    asked._play_context.password = "geheim"
    local.transport = "local"
    other_become.become = Become(**SUDO)
    other_become.become.name = "su"
    assert all(absent(connection) for connection in (local, with_password, asked, other_become))
    assert absent(Connection(), "/nowhere/python3"), "they find another, or say what is wrong in Ansible's words"


def test_a_host_that_cannot_be_reached() -> None:
    with pytest.raises(ansible_ssh.Unreachable, match="via ssh: No route to host"):
        absent(Connection("echo 'No route to host' >&2; exit 255"))
    assert absent(Connection("exit 255", reconnection_retries="3")), "Ansible tries again"


@pytest.mark.parametrize(
    ("options", "common"),
    [
        ({}, "-o ServerAliveInterval=10 -o ServerAliveCountMax=3"),
        ({"ssh_common_args": "-J bastion"}, "-J bastion -o ServerAliveInterval=10 -o ServerAliveCountMax=3"),
        ({"ssh_args": "-oserveraliveinterval=60", "ssh_common_args": "-J bastion"}, "-J bastion"),
        ({"ssh_extra_args": "-o ServerAliveInterval=0"}, None),
    ],
)
def test_a_connection_is_kept_alive_unless_the_user_has_said_how(options: dict[str, str | None], common: str) -> None:
    connection = Connection(**options)
    ansible_ssh.prepare(connection)
    assert connection.options.get("ssh_common_args") == common


def test_the_connection_is_shared_with_our_own_tasks_only() -> None:
    """One that another task has opened would not be kept alive."""
    connection = Connection(port="22", remote_user="deploy")
    ansible_ssh.prepare(connection)
    assert connection.options["control_path"] == "%(directory)s/app1-22-deploy-offheap"
    theirs = Connection(control_path="/tmp/%%C")
    ansible_ssh.prepare(theirs)
    assert theirs.options["control_path"] == "/tmp/%%C"


def test_sudo_that_wants_a_terminal_gets_one_only_without_pipelining() -> None:
    refusing = "echo 'sudo: sorry, you must have a tty to run sudo'; exit 1"
    assert absent(Connection(refusing))
    with pytest.raises(TerminalWanted):
        absent(Connection(refusing, pipelining="yes"))


def test_what_is_packed_is_not_compressed_again() -> None:
    connection = Connection(ssh_args="-C -o ControlMaster=auto -o 'ProxyCommand=nc %h'")
    ansible_ssh.prepare(connection)
    assert connection.options["ssh_args"] == "-o ControlMaster=auto -o 'ProxyCommand=nc %h'"


def test_other_connections_are_left_as_they_are() -> None:
    connection = Connection(ssh_args="-C")
    connection.transport = "local"
    ansible_ssh.prepare(connection)
    assert connection.options["ssh_args"] == "-C" and "ssh_common_args" not in connection.options
