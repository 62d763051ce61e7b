# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Other processes answer, and whatever ends one of them is no error."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import pytest

from ansible_collections.offheap.profiler.plugins.plugin_utils.base import answering as module
from ansible_collections.offheap.profiler.plugins.plugin_utils.base.answering import answering
from ansible_collections.offheap.profiler.tests.agent.service import wait_for
from ansible_collections.offheap.profiler.tests.unit.strategies.answering_tricks import keeping


def test_each_keeps_open_what_it_was_told_and_closes_it_at_the_end(tmp_path: Path) -> None:
    with answering(2, keeping, tmp_path) as ask:
        large = b"x" * 1_000_000
        asked = [ask("echo", large) for _number in range(20)]
        answers = [future.result() for future in asked]
    assert {(what, detail) for what, detail, _pid, _calls in answers} == {("echo", large)}
    calls = {pid: max(calls for _what, _detail, own, calls in answers if own == pid) for _w, _d, pid, _c in answers}
    assert sum(calls.values()) == 20
    assert {path.name for path in tmp_path.iterdir()} >= set(map(str, calls))


def test_what_fails_or_ends_a_process_has_no_answer_and_the_others_go_on(tmp_path: Path) -> None:
    with answering(2, keeping, tmp_path) as ask:
        assert ask("fail", "so").result() is None
        assert ask("talk").result()[0] == "talk"
        assert ask("die").result() is None
        told = [ask("echo").result() for _number in range(10)]
        assert any(told), "one of them is still there"
        assert [ask("die").result() for _number in range(4)] == [None] * 4
        assert ask("echo").result() is None


def test_one_that_has_ended_takes_no_further_calls_from_the_others(tmp_path: Path) -> None:
    with answering(2, keeping, tmp_path) as ask:
        assert ask("die").result() is None
        assert all([future.result() for future in [ask("echo") for _number in range(50)]])


def test_none_that_cannot_begin_is_waited_for(tmp_path: Path) -> None:
    with answering(2, keeping) as ask:
        assert ask("echo", b"x" * 1_000_000).result() is None


def test_whoever_gives_up_waits_for_none_of_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_TO_END", 0.2)

    def given_up() -> Iterator[NoReturn]:
        with answering(2, keeping, tmp_path) as ask:
            for number in range(6):
                ask("sleep", tmp_path / f"asleep-{number}")
            wait_for("both are asked", lambda: len(list(tmp_path.iterdir())) == 2)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        next(given_up())
    assert [path.name[:6] for path in tmp_path.iterdir()] == ["asleep"] * 2
