# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Whoever attaches to the probes otel_memory counts what the book counts."""

from __future__ import annotations

import math
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.offheap.profiler.plugins.plugin_utils.readers import lives_book
from ansible_collections.offheap.profiler.plugins.plugin_utils.readers.lives_book import Book
from ansible_collections.offheap.profiler.tests.agent import probes
from ansible_collections.offheap.profiler.tests.agent.conftest import EMULATED, service_program
from ansible_collections.offheap.profiler.tests.agent.service import Service

Start = Callable[..., Service]


class Traced:
    """The program of the ledger, with an agent whose file nobody else has."""

    def __init__(
        self, start: Start, agent: Path, before: list[Path], lg_interval: int, settings: dict[str, Any]
    ) -> None:
        self.agent, self.interval = agent, 1 << lg_interval
        settings = {"conf": f"lg_prof_sample:{lg_interval}", "lg_sample": lg_interval, **settings}
        self.service = start(
            service_program("lives"),
            "4",
            "3000",
            preload=[*before, agent],
            popen={"stdin": subprocess.PIPE},
            **settings,
        )
        self.service.wait_until_active()

    def do(self, what: str) -> None:
        assert self.service.do(what) == "done"

    def again(self) -> None:
        """A new book."""
        self.service.ask("deactivate")
        self.service.ask("activate")

    def book(self) -> Book:
        return lives_book.parse(Path(f"{self.service.ask('dump')['path']}.lives").read_bytes(), "a book")


@pytest.fixture(params=["jemalloc", "sampler"])
def traced(
    request: pytest.FixtureRequest, start: Start, jemalloc: Path, library: Path, tmp_path: Path
) -> Callable[[int], Traced]:
    if EMULATED:
        pytest.skip("uprobes are of this machine's kernel")
    agent = Path(shutil.copy(library, tmp_path / "liboffheap.so"))

    def begin(lg_interval: int) -> Traced:
        if request.param == "jemalloc":
            return Traced(start, agent, [jemalloc], lg_interval, {})
        return Traced(start, agent, [], lg_interval, {"prefix": tmp_path / "spool" / "jeprof"})

    return begin


def test_the_notes_are_those_of_the_contract(library: Path) -> None:
    first, second, third = ("x0", "x1", "x2") if EMULATED else ("%rdi", "%rsi", "%rdx")
    told = {note.name: note.arguments for note in probes.notes(library)}
    assert told == {"alloc": f"8@{first} 8@{second} 8@{third}", "free": f"8@{first}"}


@pytest.mark.parametrize("lg_interval", [0, 12])
def test_a_tracer_counts_what_the_book_counts(traced: Callable[[int], Traced], lg_interval: int) -> None:
    program = traced(lg_interval)
    assert program.service.ask("status")["traced"] is False
    with probes.attached(program.agent) as tracer:
        program.again()
        program.do("churn")
        program.do("free")
        program.do("churn")
        book = program.book()
        events = tracer.events()
        assert program.service.ask("status")["traced"] is True
    assert program.service.ask("status")["traced"] is False
    assert {event.pid for event in events} == {program.service.pid}
    living: dict[int, int] = {}
    born, weighted, exact = 0, 0, 0.0
    for event in events:
        pointer, size, weight = event.values
        if event.name == "free":
            del living[pointer]
            continue
        assert pointer not in living
        living[pointer] = size
        born += 1
        weighted += weight
        exact += size / -math.expm1(-size / program.interval) if lg_interval else size
    assert born == sum(book.births) > (12_000 if lg_interval == 0 else 1000)
    assert born - len(living) == sum(book.deaths)
    assert sorted(living.values()) == sorted(book.size)
    assert weighted == pytest.approx(exact, abs=born / 2)
