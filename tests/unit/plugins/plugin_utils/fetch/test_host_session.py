# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Sessions with this machine's own Python, and with programs that are not what they should be."""

from __future__ import annotations

import contextlib
import shlex
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ansible_collections.offheap.profiler.plugins.plugin_utils.fetch import host_session
from ansible_collections.offheap.profiler.plugins.plugin_utils.fetch.host_session import (
    HostError,
    HostSilent,
    Session,
    SessionError,
    TerminalWanted,
)

Password = Callable[[], str | None]


def begun(line: str, ready: str, prompt: str, password: Password = lambda: None) -> Session:
    return Session(host_session.ProcessStream(["sh", "-c", line], 10), ready, prompt, password)


@pytest.mark.parametrize("python", [sys.executable, "/usr/bin/python3", "/usr/bin/env python3"])
def test_a_host_answers_and_nothing_is_written(python: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with begun(*host_session.command(python, False, "root")) as host:
        with pytest.raises(HostError, match="not the name of a service unit"):
            host.ask("sample", unit="../x")
        found = host.ask("find", options={"units": ["nosuchunit"], "max_dump": 1, "max_captures": 1}, ask_jvms=True)
        assert found["absent"] == ["nosuchunit.service"] and found["captures"] == []
    assert list(tmp_path.iterdir()) == []


def test_the_code_is_packed_once_for_all_threads() -> None:
    host_session._code.cache_clear()
    with ThreadPoolExecutor(8) as pool:
        packed = list(pool.map(lambda _host: host_session.code(), range(8)))
    assert host_session._code.cache_info().misses == 1 and set(packed) == {packed[0]}


def test_it_ends_with_its_input() -> None:
    stream = host_session.ProcessStream(["sh", "-c", host_session.command(sys.executable, False, "root")[0]], 10)
    stream.close()
    assert stream._process.returncode is not None


def test_it_ends_by_itself_while_another_thread_still_listens() -> None:
    """As when somebody interrupts a trace of this machine: killed, it would put nothing back."""
    stream = host_session.ProcessStream(["sh", "-c", "echo begun; cat"], 30)
    begun = threading.Event()

    def listen() -> bytes:
        stream.receive(100)
        begun.set()
        return stream.receive(100)

    with ThreadPoolExecutor(1) as pool:
        heard = pool.submit(listen)
        assert begun.wait(20)
        stream.close()
        assert stream.status == 0
        with contextlib.suppress(OSError):  # it had not begun to listen again
            assert heard.result() == b""


def shell(text: str) -> tuple[str, str, str]:
    return f"exec sh -c {shlex.quote(text)}", "READY", "PASSWORD:"


def test_no_python() -> None:
    line, ready, prompt = host_session.command("/nowhere/python3", False, "root")
    with pytest.raises(SessionError, match=r"Python did not start.*not found"):
        begun(line, ready, prompt)


def test_what_a_login_shell_prints_is_skipped() -> None:
    line, ready, prompt = host_session.command(sys.executable, False, "root")
    with begun(f"echo Welcome; echo 'J{{}}' >&2; {line}", ready, prompt) as host, pytest.raises(HostError):
        host.ask("sample", unit="/")


def test_sudo_is_given_the_password_when_it_asks() -> None:
    line, ready, _prompt = host_session.command(sys.executable, False, "root")
    prompt = "PASSWORD:"
    asking = f'printf %s {prompt} >&2; read -r word; test "$word" = geheim && exec {line}; echo wrong'
    with begun(asking, ready, prompt, lambda: "geheim") as host, pytest.raises(HostError):
        host.ask("sample", unit="/")
    with pytest.raises(SessionError, match="wrong"):
        begun(asking, ready, prompt, lambda: "falsch")
    with pytest.raises(SessionError, match="there is none: set ansible_become_password"):
        begun(asking, ready, prompt)


def test_sudo_asks_again() -> None:
    with pytest.raises(SessionError, match="rejected the password"):
        begun(*shell("printf PASSWORD:; read -r word; echo Sorry; printf PASSWORD:; read -r word"), lambda: "falsch")


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ("printf '\\033[2Jhello'", "not the head of a message"),
        ("printf 'J\\0\\0\\0\\002[]'", "not a JSON object"),
        ("printf 'J\\0\\0\\0\\002{}'", "neither an answer nor an error"),
        ("printf 'D\\0\\0\\0\\002ab'", "data without being asked"),
        ("printf 'J\\377\\377\\377\\377'", "larger than any"),
        ("exec timeout 1 cat >/dev/null", "connection ended before the answer: the host was shut down"),
        ("printf 'J\\0\\0'; exec timeout 1 cat >/dev/null", "connection ended before the answer"),
    ],
)
def test_a_host_that_speaks_otherwise(answer: str, message: str) -> None:
    with (
        begun(*shell(f"echo READY; {answer}; exec cat >/dev/null")) as host,
        pytest.raises(SessionError, match=message),
    ):
        host.ask("units")


def test_a_host_that_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_session, "_SILENCE", 0.2)
    with (
        begun(*shell("echo READY; exec cat >/dev/null")) as host,
        pytest.raises(HostSilent, match=r"has been silent for 0\.2 s: it, or the network to it, is down"),
    ):
        host.ask("units", timeout=60)


def test_a_host_that_sends_each_byte_just_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_session, "_SILENCE", 0.5)
    bytes_ = "printf 'J\\0\\0\\1\\0'; while :; do printf x; sleep 0.1; done"
    with (
        begun(*shell(f"echo READY; exec 3<&0; cat <&3 >/dev/null & {bytes_}")) as host,
        pytest.raises(SessionError, match="sends less than 1000 bytes a second within a message"),
    ):
        host.ask("units", timeout=60)


def test_a_host_that_sends_block_after_block_of_next_to_nothing() -> None:
    block = "while :; do printf 'D\\0\\0\\0\\1x'; sleep 0.01; done"
    with (
        begun(*shell(f"echo READY; exec 3<&0; cat <&3 >/dev/null & {block}")) as host,
        pytest.raises(SessionError, match=r"the host sends less than 1000 bytes a second$"),
    ):
        host.ask("fetch", timeout=0.1, data=lambda _block: None)


def test_a_login_that_never_comes_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_session, "_BEGINNING", 0.3)
    with pytest.raises(SessionError, match=r"not started within 0\.3 s; so far it said: wait"):
        begun(*shell("while :; do echo wait; sleep 0.1; done"))


def test_a_host_that_takes_long_shows_that_it_lives(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_session, "_SILENCE", 5)
    alive = "printf 'A\\0\\0\\0\\0'; sleep 0.1"
    answer = """printf 'J\\0\\0\\0\\016{"answer": {}}'"""
    with begun(*shell(f"echo READY; {alive}; {alive}; {answer}; exec cat >/dev/null")) as host:
        assert host.ask("units") == {}
    with (
        begun(*shell(f"echo READY; exec 3<&0; cat <&3 >/dev/null & while :; do {alive}; done")) as host,
        pytest.raises(SessionError, match=r"lives, but has not answered for 0\.3 s"),
    ):
        host.ask("units", timeout=0.3)


def test_sudo_that_wants_a_terminal() -> None:
    with pytest.raises(TerminalWanted, match="Exempt the login user in sudoers"):
        begun(*shell("echo 'sudo: sorry, you must have a tty to run sudo'; exit 1"))


def test_the_command_is_one_line() -> None:
    """A login shell of csh's family takes no line break within quotes."""
    assert "\n" not in host_session.command("python3", True, "root")[0]


def test_an_error_is_shown_without_what_a_terminal_obeys() -> None:
    message = '{"error": "a\\u001b[31mb"}'
    answer = f"printf 'J\\0\\0\\0\\{len(message):03o}'; printf %s {shlex.quote(message)}"
    with begun(*shell(f"echo READY; {answer}; exec cat >/dev/null")) as host, pytest.raises(HostError) as caught:
        host.ask("units")
    assert str(caught.value) == "a\ufffd[31mb"


def test_words_of_the_command_are_quoted() -> None:
    line, _ready, _prompt = host_session.command("/opt/$HOME/python3; reboot", True, "a b")
    words = shlex.split(line)
    assert words[:2] == ["sudo", "-S"] and "a b" in words and {"/opt/$HOME/python3;", "reboot"} < set(words)
    assert "'/opt/$HOME/python3;'" in line
