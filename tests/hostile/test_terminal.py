# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Text from hosts on the operator's terminal and in tickets: it stays text."""

from __future__ import annotations

from typing import Any

import pytest

from ansible_collections.offheap.profiler.console import answers
from ansible_collections.offheap.profiler.console.screen import Screen
from ansible_collections.offheap.profiler.console.watch import Series
from ansible_collections.offheap.profiler.plugins.plugin_utils.base.printable import printable_lines
from ansible_collections.offheap.profiler.plugins.plugin_utils.export import callgrind, graph, top
from ansible_collections.offheap.profiler.plugins.plugin_utils.fetch.host_session import SessionError
from ansible_collections.offheap.profiler.plugins.plugin_utils.report import ticket

ESCAPES = ["\x1b]0;owned\x07", "\x1b[2J", "\x9b31m", "a\rb", "\u202edaor", "\x08\x08", "\x00", "\u2028", "\x85"]
UNIT = {
    "unit": "a.service", "pid": 1, "processes": 1, "rss": 1, "exe": "/x", "runtime": "java", "allocator": "jemalloc",
    "profiled": True, "sampling": None, "rss_with_agent": 0,
}  # fmt: skip


def _is_text(shown: str) -> bool:
    return all(line.isprintable() for line in shown.split("\n"))


@pytest.mark.parametrize("escape", ESCAPES)
def test_what_the_console_prints(escape: str, capsys: pytest.CaptureFixture[str]) -> None:
    show = Screen()
    show.table(("HOST", "RUNTIME"), [("liar", escape), ("next", "java")])
    show.say(f"liar: {escape}")
    show.verdict(None, f"a.service {escape}")
    said = capsys.readouterr()
    assert _is_text(said.out) and _is_text(said.err) and "next" in said.out


@pytest.mark.parametrize("escape", ESCAPES)
def test_what_is_known_of_a_dump(escape: str) -> None:
    assert _is_text("\n".join(top.head([("Unit", f"a{escape}b"), ("Host", "next")])))
    assert _is_text(printable_lines(f"Total\n\tof {escape}\n"))


@pytest.mark.parametrize("escape", ESCAPES)
def test_a_name_in_the_text_of_a_graph(escape: str) -> None:
    assert _is_text(graph._quoted(f"a{escape}b"))
    assert _is_text(callgrind._plain(f"a{escape}b"))


@pytest.mark.parametrize("escape", ESCAPES)
def test_a_ticket(escape: str) -> None:
    finding = {"unit": "a.service", "host": "liar", "verdict": "not growing", "reason": escape, "next_step": ""}
    data: dict[str, Any] = {"from": None, "units": [], "triage": [finding]}
    assert _is_text(ticket.render(data))


@pytest.mark.parametrize("name", ["![x](https://x.example/)", "<img src=x>", "```\n# now a heading\n```", "````"])
def test_a_ticket_is_no_markdown(name: str) -> None:
    first, *_text, last = ticket.fenced(f"{name}\n").splitlines()
    assert first == last and set(first) == {"`"} and first not in name


WRONG = [("rss", 10**400), ("rss", -1), ("rss", "1"), ("processes", None), ("unit", 3), ("runtime", None)]
WRONG += [("allocator", "x" * 5000), ("profiled", "yes"), ("sampling", []), ("rss_with_agent", None)]


@pytest.mark.parametrize(("key", "value"), WRONG)
def test_units_that_make_no_sense(key: str, value: object) -> None:
    assert answers.units({"units": [UNIT]}) == [UNIT]
    with pytest.raises(SessionError, match="makes no sense"):
        answers.units({"units": [UNIT, {**UNIT, key: value}]})


@pytest.mark.parametrize("answer", [{}, {"units": 3}, {"units": [3]}, {"units": {}}])
def test_no_units(answer: dict[str, Any]) -> None:
    with pytest.raises(SessionError):
        answers.units(answer)


@pytest.mark.parametrize(
    "answer",
    [
        {"processes": [{"pid": 1, "answer": 3}], "changed": True},
        {"processes": [{"pid": 10**400, "answer": {}}], "changed": True},
        {"processes": [], "changed": 1},
        {"changed": True},
    ],
)
def test_an_answer_of_agents_that_makes_no_sense(answer: dict[str, Any]) -> None:
    sound = {"processes": [{"pid": 1, "answer": {}}], "changed": True}
    assert answers.switched(sound) == sound
    with pytest.raises(SessionError):
        answers.switched(answer)


@pytest.mark.parametrize("key", ["time", "rss", "allocated"])
@pytest.mark.parametrize("number", [10**400, 1e300, float("nan"), float("inf"), "1"])
def test_a_look_with_impossible_numbers(key: str, number: object) -> None:
    series = Series("liar")
    sound = {"time": 1.5, "rss": 1, "start": "a", "active": "active", "allocated": 1}
    with pytest.raises(ValueError):
        series.add({**sound, key: number})
    with pytest.raises(ValueError):
        series.add({**sound, "start": "a" * 1000})
    series.add({**sound, "active": "\x1b[2J"})
    assert list(series.rss) == [1] and series.state.isprintable()
