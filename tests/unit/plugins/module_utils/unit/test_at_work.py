# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""One run at a time changes the units of a host."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from ansible_collections.offheap.profiler.plugins.module_utils.host import places
from ansible_collections.offheap.profiler.plugins.module_utils.unit import at_work

_HOLDER = """
import os, socket, sys
if "65534" in sys.argv: os.setuid(65534)
with socket.socket(socket.AF_UNIX) as taken:
    taken.bind("\\0" + sys.argv[1])
    if "listens" in sys.argv: taken.listen(8)
    print("ready", flush=True)
    sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(places, "PERSISTENT", str(tmp_path))
    monkeypatch.setattr(at_work, "_POLL_SECONDS", 0.01)


def holder(*arguments: str, **environment: str) -> subprocess.Popen[str]:
    name = at_work.name_of_the_lock()[1:]
    process = subprocess.Popen(
        [sys.executable, "-c", _HOLDER, name, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
    )
    assert process.stdout and process.stdout.readline() == "ready\n"
    return process


def test_a_second_run_says_who_is_at_work() -> None:
    with holder(SUDO_USER="deploy", SSH_CONNECTION="10.1.2.3 5000 10.1.2.4 22") as first:
        with pytest.raises(at_work.SomebodyAtWork) as error, at_work.alone(0.1):
            pass
        said = str(error.value)
        assert f"(process {first.pid}, since " in said
        assert "UTC, of the user deploy, connected from 10.1.2.3)" in said
        assert first.stdin
        first.stdin.close()
    with at_work.alone(0):
        pass


def test_what_its_environment_says_is_no_markup() -> None:
    with holder(SUDO_USER="<b>", SSH_CONNECTION="\x1b[1m 1 2 3") as first:
        with pytest.raises(at_work.SomebodyAtWork, match=r"UTC\)\. Nothing was changed"), at_work.alone(0):
            pass
        assert first.stdin
        first.stdin.close()


def test_a_second_run_waits_for_the_first() -> None:
    entered, seen = threading.Event(), []

    def first() -> None:
        with at_work.alone(0):
            entered.set()
            blocker.wait()
            seen.append("first")

    blocker = threading.Event()
    thread = threading.Thread(target=first)
    thread.start()
    entered.wait()
    threading.Timer(0.1, blocker.set).start()
    with at_work.alone(60):
        seen.append("second")
    thread.join()
    assert seen == ["first", "second"]


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user")
@pytest.mark.parametrize("does", ["listens", "answers nobody"])
def test_another_user_keeps_nobody_from_working(does: str) -> None:
    with holder("65534", does) as other:
        with at_work.alone(0):
            pass
        assert other.stdin
        other.stdin.close()
