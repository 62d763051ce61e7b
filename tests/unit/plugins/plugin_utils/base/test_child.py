# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""What the child process answers, what it may not do, and that whatever ends it ends one call only."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from ansible_collections.offheap.profiler.plugins.plugin_utils.base import child
from ansible_collections.offheap.profiler.plugins.plugin_utils.base.child import Allowance, ChildError
from ansible_collections.offheap.profiler.tests.unit.strategies import child_tricks
from ansible_collections.offheap.profiler.tests.unit.strategies.child_tricks import (
    append,
    connect,
    crash,
    echo,
    flood,
    hoard,
    number,
    refuse,
    remove,
    run,
    sleep,
    spin,
    stall,
    stumble,
    talk,
    write,
)

LITTLE = Allowance(2, 256 << 20, 1 << 20)


@pytest.fixture
def little(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every call may work for two seconds, wait for eight, and take 256 MiB, and a MiB of answer."""
    monkeypatch.setattr(Allowance, "of", lambda _size: LITTLE)
    monkeypatch.setattr(child, "_PATIENCE", 5)


def test_one_process_answers_call_after_call() -> None:
    assert child.call(echo, b"x" * 3_000_000, size=0) == b"x" * 3_000_000
    assert child.call(number, size=0) == child.call(number, size=0) != b"%d" % os.getpid()
    assert child.call(talk, size=0) == b"said", "what is printed is no answer"


def test_another_system_than_linux_is_told_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child, "_running", [])
    monkeypatch.setattr(os, "uname", lambda: os.uname_result(("Darwin", "mac", "25.1.0", "", "arm64")))
    with pytest.raises(ChildError, match=r"this controller runs Darwin, .* use a container"):
        child.call(echo, b"", size=0)


@pytest.mark.slow
@pytest.mark.usefixtures("little")
@pytest.mark.parametrize(
    ("function", "why"),
    [
        (spin, "more than 2 s"),
        (sleep, "more than 2 s"),
        (stall, "more than 2 s"),
        (flood, "more than 1.0 MiB"),
        (hoard, "more than 256.0 MiB of memory"),
        (crash, "SIGSEGV"),
    ],
)
def test_what_exceeds_its_limits_is_one_call_s_problem(function: Callable[[], bytes], why: str) -> None:
    began = time.monotonic()
    with pytest.raises(ChildError, match=why):
        child.call(function, size=0)
    assert time.monotonic() - began < 60
    assert child.call(echo, b"next", size=0) == b"next"


@pytest.mark.slow
@pytest.mark.usefixtures("little")
def test_one_that_takes_no_request() -> None:
    os.kill(int(child.call(number, size=0)), signal.SIGSTOP)
    with pytest.raises(ChildError, match="more than 2 s"):
        child.call(echo, b"x" * (2 << 20), size=0)
    assert child.call(echo, b"next", size=0) == b"next"


def test_refusals_keep_their_words() -> None:
    before = child.call(number, size=0)
    with pytest.raises(ChildError, match=r"^the dump is cut off�$"):
        child.call(refuse, "the dump is cut off\x1b", size=0)
    with pytest.raises(ChildError, match="KeyError: 'a bug'"):
        child.call(stumble, size=0)
    with pytest.raises(ChildError, match="No such file"):
        child.call(append, "/nonexistent/file", size=0)
    assert child.call(number, size=0) == before, "a refusal ends nothing"


@pytest.mark.parametrize("trick", [write, append, remove, run, connect])
def test_what_it_may_not_do(trick: Callable[[str], bytes], tmp_path: Path) -> None:
    path = tmp_path / "file"
    if trick is not write:
        path.write_bytes(b"1")
    with socket.create_server(("127.0.0.1", 0)) as server, pytest.raises(ChildError, match=r"Errno|unreachable"):
        child.call(trick, str(server.getsockname()[1]) if trick is connect else str(path), size=0)
    assert (path.read_bytes() if path.exists() else b"") == (b"" if trick is write else b"1")


def test_threads_take_turns() -> None:
    answers: list[bytes | bytearray] = []
    data = [b"%d" % thread * 200_000 for thread in range(8)]
    threads = [threading.Thread(target=lambda one=one: answers.append(child.call(echo, one, size=0))) for one in data]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(answers) == sorted(data)


def test_a_fork_has_its_own() -> None:
    mine = child.call(number, size=0)
    source, target = os.pipe()
    fork = os.fork()
    if fork == 0:
        os.write(target, child.call(number, size=0))
        child.end()
        os._exit(0)
    os.close(target)
    assert os.waitpid(fork, 0)[1] == 0
    with os.fdopen(source, "rb") as stream:
        theirs = stream.read()
    assert theirs != mine == child.call(number, size=0)


def test_it_ends_when_its_parent_is_killed() -> None:
    program = (
        f"import sys, time; sys.path.insert(0, {str(Path(__file__).parents[5] / '.cache' / 'collections')!r})\n"
        f"from {child.__name__} import call\nfrom {child_tricks.__name__} import number\n"
        "print(call(number, size=0).decode(), flush=True); time.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        its_child = int(parent.stdout.readline())
        assert Path(f"/proc/{its_child}").exists()
        parent.kill()
    deadline = time.monotonic() + 60
    while Path(f"/proc/{its_child}").exists() and "State:\tZ" not in Path(f"/proc/{its_child}/status").read_text():
        assert time.monotonic() < deadline
        time.sleep(0.01)
