# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""The memory of a unit on some hosts as it grows: numbers, curves and growth per hour."""

from __future__ import annotations

import _thread
import json
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from invoke.exceptions import Exit
from rich.console import Console as RichConsole
from rich.console import ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from ..plugins.module_utils.formats import values
from ..plugins.plugin_utils.base.byte_size import as_text
from ..plugins.plugin_utils.base.durations import moment
from ..plugins.plugin_utils.base.printable import printable
from ..plugins.plugin_utils.fetch.host_session import Session
from ..plugins.plugin_utils.leaks.trend import middle_slopes, theil_sen
from .screen import Screen

#: samples kept per host; each look takes the slopes of all pairs
MOST = 240
# Samples without which a growth is chance.
_LEAST = 10
_BLOCKS = "▁▂▃▄▅▆▇█"
_HOUR = 3600.0
_LONGEST_START = 64
_LONGEST = 70  # characters of an error beside a curve; all of it is told at the end


@dataclass
class Series:
    """What a host reported: times in seconds since the epoch, sizes in bytes. ``live`` is of the last looks, since an
    agent answers at each; empty while none does."""

    host: str
    times: deque[float] = field(default_factory=lambda: deque(maxlen=MOST))
    rss: deque[float] = field(default_factory=lambda: deque(maxlen=MOST))
    live: deque[float] = field(default_factory=lambda: deque(maxlen=MOST))
    state: str = "connecting"
    start: str | None = None

    def add(self, sample: dict[str, Any]) -> None:
        """Add a sample, as a host sends it. A restart clears the series. Raises ValueError, KeyError, TypeError."""
        sizes = (sample["rss"], sample.get("allocated", 0))
        if not values.is_time(sample["time"]) or not all(map(values.is_size, sizes)):
            raise ValueError("a number is out of range")
        if not values.is_text(sample["start"], _LONGEST_START):
            raise ValueError("that is no start")
        if sample["start"] != self.start:
            for column in (self.times, self.rss, self.live):
                column.clear()
        self.start = sample["start"]
        self.state = printable(str(sample["active"])[:20])
        self.times.append(float(sample["time"]))
        self.rss.append(float(sample["rss"]))
        if "allocated" in sample:
            self.live.append(float(sample["allocated"]))
        else:  # what was live is no longer known to be, and each size must keep its time
            self.live.clear()

    def lost(self, error: str) -> None:
        """The host cannot be asked, or not any more."""
        self.state = printable(error.partition("\n")[0])[:_LONGEST]

    def growth(self) -> float | None:
        """Bytes per hour of the allocator's live bytes, or of RSS if those are unknown; None while nobody can tell even
        whether it grows: with few samples, or where a quarter of their slopes goes up and a quarter down."""
        sizes = list(self.live or self.rss)
        if len(sizes) < _LEAST:
            return None
        times = list(self.times)[-len(sizes) :]
        low, high = middle_slopes(times, sizes)
        return None if low < 0 < high else theil_sen(times, sizes) * _HOUR

    def document(self) -> dict[str, Any]:
        """The newest numbers, for scripts."""
        return {
            "host": self.host,
            "state": self.state,
            "time": self.times[-1] if self.times else None,
            "rss": self.rss[-1] if self.rss else None,
            "live": self.live[-1] if self.live else None,
            "growth_per_hour": self.growth(),
        }


def follow(series: Series, session: Session, unit: str, interval: float, stop: threading.Event) -> None:
    """Ask a host for samples until ``stop`` is set. Raises SessionError, HostError."""
    while not stop.is_set():
        began = time.monotonic()
        try:
            series.add(session.ask("sample", unit=unit))
        except (KeyError, TypeError, ValueError):
            series.state = "?"
        stop.wait(max(0.0, interval - (time.monotonic() - began)))


def curve(values: Sequence[float], width: int) -> str:
    """The last values as a line of blocks, from the smallest to the largest."""
    shown = list(values)[-width:]
    low, high = min(shown, default=0.0), max(shown, default=0.0)
    if high - low <= 0.001 * high:
        return _BLOCKS[0] * len(shown)
    return "".join(_BLOCKS[min(int((value - low) / (high - low) * len(_BLOCKS)), len(_BLOCKS) - 1)] for value in shown)


def per_hour(growth: float | None) -> str:
    if growth is None:
        return "…"
    return f"{'+' if growth >= 0 else '-'}{as_text(abs(growth))}/h"


class View:
    """All series as a table that redraws itself."""

    def __init__(self, unit: str, series: Sequence[Series]) -> None:
        self._unit = unit
        self._series = series

    def __rich_console__(self, _console: RichConsole, options: ConsoleOptions) -> RenderResult:
        hosts = max((len(one.host) for one in self._series), default=4)
        width = max(8, min(60, options.max_width - hosts - 46))
        table = Table(box=None, pad_edge=False, header_style="bold")
        for name in ("HOST", "RSS", "LIVE", "GROWTH", ""):
            table.add_column(name, justify="right" if name in ("RSS", "LIVE", "GROWTH") else "left", no_wrap=True)
        for one in self._series:
            if not one.times:
                table.add_row(Text(one.host), "", "", "", Text(one.state, "dim"))
                continue
            live = as_text(one.live[-1]) if one.live else "-"
            state = "" if one.state == "active" else f" {one.state}"
            line = Text(curve(one.live or one.rss, width)) + Text(state, "red")
            table.add_row(Text(one.host), as_text(one.rss[-1]), live, per_hour(one.growth()), line)
        yield Text(f"{self._unit}   Ctrl-C ends", "dim")
        yield table


@contextmanager
def shown(show: Screen, unit: str, series: Sequence[Series], interval: float) -> Iterator[None]:
    """Meanwhile shows curves on a terminal, elsewhere lines or JSON, one for each host and look."""
    if show.out.is_terminal and not show.as_json:
        from rich.live import Live

        with Live(View(unit, series), console=show.out, refresh_per_second=4, screen=False):
            yield
        return
    over = threading.Event()
    problems: list[Exit] = []

    def told() -> None:
        try:
            lines()
        except Exit as problem:
            problems.append(problem)
            _thread.interrupt_main()  # nobody reads on, so it ends as by Ctrl-C

    def lines() -> None:
        before: dict[str, tuple[float | None, str]] = {one.host: (None, one.state) for one in series}
        while not over.wait(interval / 4):
            for one in series:
                document = one.document()
                now = document["time"], document["state"]
                if before[one.host] == now:
                    continue
                before[one.host] = now
                if show.as_json or document["time"] is None:
                    print(json.dumps(document) if show.as_json else f"{one.host} {one.state}", flush=True)
                    continue
                growth = "" if document["growth_per_hour"] is None else f" {as_text(document['growth_per_hour'])}/h"
                print(f"{moment(document['time'])} {one.host} rss {as_text(document['rss'])}{growth}", flush=True)

    thread = threading.Thread(target=told, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        if problems:
            raise problems[0]
