# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""What `make shapes` plays, and how it judges what was said."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from ansible_collections.offheap.profiler.plugins.plugin_utils.leaks.verdict import Answer
from ansible_collections.offheap.profiler.tests.verdicts import looking_often
from ansible_collections.offheap.profiler.tests.verdicts.scripts import (
    BLOCK,
    KEPT,
    LEAD,
    SPAN,
    WATCHED,
    Watched,
    script,
)
from ansible_collections.offheap.profiler.tests.verdicts.shapes_page import Told, page

PLAYERS = Path(looking_often.__file__).parent / "players"
BY_NAME = {watched.name: watched for watched in WATCHED}


def _kept(watched: Watched) -> int:
    """Bytes that the script never frees."""
    lines = [line.split() for line in script(watched).splitlines()]
    freed = {words[2] for words in lines if words[1] == "-"}
    return sum(int(words[3]) for words in lines if words[1] == "+" and words[2] not in freed)


def test_each_script_leaks_what_its_shape_says() -> None:
    assert _kept(BY_NAME["steady"]) == pytest.approx(KEPT, rel=0.1)
    assert _kept(BY_NAME["churn-1%"]) == pytest.approx(KEPT, rel=0.1)
    assert _kept(BY_NAME["begins-0.7"]) == pytest.approx(0.3 * KEPT, rel=0.15)
    assert 4 * _kept(BY_NAME["prefork"]) == pytest.approx(KEPT, rel=0.1)
    assert _kept(BY_NAME["cache-0.1"]) == 0
    for watched in WATCHED:
        times = [int(line.split()[0]) for line in script(watched).splitlines()]
        assert times == sorted(times) and times[0] >= 0


def test_a_script_begins_when_its_shape_does() -> None:
    late = BY_NAME["begins-0.7"]
    kept = [int(line.split()[0]) for line in script(late).splitlines() if line.endswith(f"{BLOCK} 0")]
    assert min(kept) / 1000 == pytest.approx(late.since, abs=2) == pytest.approx(LEAD + 0.7 * SPAN, abs=2)


@pytest.mark.parametrize("player", ["player.c", "player.cpp", "player.py"])
def test_players_do_what_the_script_says(tmp_path: Path, player: str) -> None:
    """A number of blocks that no player knows would end it with an error."""
    played = tmp_path / "a.script"
    played.write_text("0 + 1 16000 0\n20 + 2 16000 1\n40 = 1 64000 0\n60 - 2 0 1\n80 - 1 0 0\n")
    command = [sys.executable, str(PLAYERS / player)]
    if player != "player.py":
        command = [str(tmp_path / "player")]
        compiler = ["gcc"] if player.endswith(".c") else ["g++", "-std=c++17"]
        subprocess.run(
            [*compiler, "-O2", "-Wall", "-Wextra", "-Werror", "-o", command[0], PLAYERS / player], check=True
        )
    with pytest.raises(subprocess.TimeoutExpired):
        subprocess.run([*command, str(played)], timeout=1, check=True)


def test_no_leak_is_false_of_what_has_lost_something_and_a_leak_of_what_loses_nothing() -> None:
    def wrong(name: str, answer: Answer, after: float) -> bool:
        return bool(looking_often.wrong(BY_NAME[name], [(1e9 + after, answer)], 1e9))

    assert wrong("steady", Answer.NO_LEAK, 200) and not wrong("steady", Answer.LEAK, 200)
    assert not wrong("steady", Answer.NO_LEAK, 10), "too little was lost by then"
    assert not wrong("begins-0.7", Answer.NO_LEAK, 300)
    assert wrong("cache-0.5", Answer.LEAK, 300) and not wrong("cache-0.5", Answer.LEAK, 200)
    assert wrong("ramp", Answer.BURSTS, 100) and not wrong("ramp", Answer.CANNOT_TELL, 100)


def test_the_page_says_what_is_not_right() -> None:
    def told(shape: str, verdict: str, named: bool = True) -> Told:
        return Told(shape, "c", "2026-01-01", verdict, "", 9e9, 1e8, named, 243.0, 10, [70] if shape == "ramp" else [])

    text = page(
        [told("steady", "leak"), told("begins-0.5", "leak"), told("bursts-3", "leak", False), told("ramp", "leak")]
    )
    assert "Of 4 services, seen on 2026-01-01, 2 are told right" in text
    assert "40 times in all, 1 answers are false: ramp after 70 s" in text
    assert "since -2 s" in text and "**leak**" in text and "rate 0.99 ± 0.01" in text
