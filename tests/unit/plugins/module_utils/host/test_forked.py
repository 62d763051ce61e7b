# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Nobody waits for a child that hangs, and none is left."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import pytest

from ansible_collections.offheap.profiler.plugins.module_utils.host import forked


def said(parts: list[bytes], work: object, seconds: float = 10.0) -> bytes:
    forked.run("the work", work, parts.append, 100, seconds)  # type: ignore[arg-type]
    return b"".join(parts)


def test_what_it_writes_arrives() -> None:
    def work(write: forked.Write) -> None:
        write(b"one ")
        write(b"two")

    assert said([], work) == b"one two"
    assert said([], lambda _write: None) == b""


def test_what_it_raises_is_told() -> None:
    def work(_write: forked.Write) -> None:
        raise OSError("no such place")

    with pytest.raises(forked.ForkedError, match="the work: no such place"):
        said([], work)


def test_what_has_begun_and_fails_is_cut_off() -> None:
    def work(write: forked.Write) -> None:
        write(b"one")
        raise OSError("no such place")

    with pytest.raises(forked.ForkedError, match="cut off"):
        said([], work)


def test_an_answer_without_end() -> None:
    def work(write: forked.Write) -> None:
        while True:
            write(b"x" * 50)

    with pytest.raises(forked.ForkedError, match="more than 100 bytes"):
        said([], work)


def test_one_that_hangs_is_ended_and_none_is_left() -> None:
    children = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children")
    before = children.read_text()
    with pytest.raises(forked.ForkedError, match="did not answer in time"):
        said([], lambda _write: time.sleep(60), 0.1)
    assert children.read_text() == before


def test_a_child_that_a_file_system_holds_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a FUSE of a service's user that does not answer, not even SIGKILL ends it."""
    monkeypatch.setattr(forked, "_SECONDS_TO_END", 0.05)
    with subprocess.Popen(["/bin/sleep", "60"]) as held:
        assert forked._end_of(held.pid) == -1
        held.kill()
    with subprocess.Popen(["/bin/false"]) as ended:
        assert os.waitstatus_to_exitcode(forked._end_of(ended.pid)) == 1
