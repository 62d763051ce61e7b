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
from .target import TargetError

#: columns of a table that hold numbers
NUMBERS = (1, 2, 3)
_STAYED, _GREW = "CAME AND STAYED", "CAME IN THE LAST WINDOW"

Row = tuple[str, ...]
# Seconds beside the windows that a trace may take; how many windows perf makes again at most, having lost something.
_BESIDE, _AGAIN = 120, 3
#: what was seen, which is a column's heading, and the rows
Rows = tuple[str, list[Row]]
#: a host's answer, warnings of the collection, and what is shown
Traced = tuple[dict[str, Any], list[str], Rows]


def percent(text: str) -> float | None:
    """A budget; None for the usual one. Raises TargetError."""
    try:
        return float(text) if text else None
    except ValueError:
        raise TargetError(f"{text!r} is not a number of percent") from None


class Windows:
    """In which of its windows a trace is, and how long the rest takes, by our clock since it began."""

    def __init__(self, seconds: int, count: int) -> None:
        self._seconds = seconds
        self._count = count
        self._began: float | None = None

    @property
    def most(self) -> int:
        """Seconds that it may take in all."""
        return _BESIDE + self._seconds * (self._count + _AGAIN)

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


def rows(store: Archive, host: str, answer: dict[str, Any], brought: Collected, most: int) -> Rows:
    """Of a host's answer, and what was collected of it, the ``most`` largest. Raises ControllerError."""
    own = [facts for facts in brought.captures if facts.dump.name in answer["dumps"]]
    if not own or not most:
        return "", []
    newest = max(own, key=lambda facts: facts.dump.time)
    found: list[Row] = []
    for one in stayed(store.place(newest) / DUMP, newest, most):
        age = "not known" if one.age is None else duration(one.age)
        found.append((host, str(answer["pid"]), as_text(one.bytes), age, one.path))
    return _GREW if newest.source == PERF else _STAYED, found


def tables(each: Iterable[Rows]) -> Iterator[tuple[Row, Sequence[Row]]]:
    """Headings and rows for the hosts."""
    found: dict[str, list[Row]] = {_STAYED: [], _GREW: [], "": []}
    for came, own in each:
        found[came] += own
    for came, all_rows in found.items():
        if all_rows:
            yield ("HOST", "PID", came, "HALF OF IT FOR", "PATH"), all_rows
