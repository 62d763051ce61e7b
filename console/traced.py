# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""How far a live trace is; and what live traces saw, as tables: what came and stayed, or of perf what came; the largest
paths of each host."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from ..plugins.module_utils.formats.dump_name import PERF
from ..plugins.plugin_utils.archive.archive import Archive
from ..plugins.plugin_utils.archive.capture import DUMP
from ..plugins.plugin_utils.base.byte_size import as_text
from ..plugins.plugin_utils.base.durations import duration
from ..plugins.plugin_utils.driver.stayed import stayed
from ..plugins.plugin_utils.fetch.collect import Collected
from ..plugins.plugin_utils.fetch.host_session import SessionError

#: columns of a table that hold numbers
NUMBERS = (1, 2, 3)
_STAYED, _GREW = "CAME AND STAYED", "CAME IN THE LAST WINDOW"

Row = tuple[str, ...]


class Windows:
    """In which of its windows a trace is, and how long the rest takes, by our clock since it began."""

    def __init__(self, seconds: int, count: int) -> None:
        self._seconds = seconds
        self._count = count
        self._began: float | None = None

    def begin(self, _block: bytes) -> None:
        """The host says that the first window begins. Raises SessionError if it has said so before."""
        if self._began is not None:
            raise SessionError("the host broke the protocol: its trace began twice")
        self._began = time.monotonic()

    def text(self) -> str:
        """Where it is, for people; empty before it has begun."""
        if self._began is None:
            return ""
        gone = time.monotonic() - self._began
        number = min(int(gone // self._seconds) + 1, self._count)
        left = max(self._seconds * self._count - gone, 0)
        return f"window {number} of {self._count}, {duration(left)} left"


def warnings(answer: dict[str, Any]) -> list[str]:
    """What to say of a host's answer beside its dumps."""
    if answer["ended"]:
        return [f"ended early: {answer['ended']}"]
    if not answer["dumps"]:
        return [f"process {answer['pid']} has touched no new memory in all that time"]
    return []


def tables(
    store: Archive, done: Iterable[tuple[str, dict[str, Any], Collected]], most: int
) -> Iterator[tuple[Row, Sequence[Row]]]:
    """Headings and rows for the hosts, their answers, and what was collected of them. Raises ControllerError."""
    found: dict[str, list[Row]] = {_STAYED: [], _GREW: []}
    for host, answer, brought in done:
        own = [facts for facts in brought.captures if facts.dump.name in answer["dumps"]]
        if not own:
            continue
        newest = max(own, key=lambda facts: facts.dump.time)
        for one in stayed(store.place(newest) / DUMP, newest, most):
            age = "not known" if one.age is None else duration(one.age)
            row = (host, str(answer["pid"]), as_text(one.bytes), age, one.path)
            found[_GREW if newest.source == PERF else _STAYED].append(row)
    for came, rows in found.items():
        if rows:
            yield ("HOST", "PID", came, "HALF OF IT FOR", "PATH"), rows
