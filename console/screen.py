# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""What the operator sees: tables, progress and failures; JSON for scripts, plain lines without a terminal.

Results go to standard output, everything else to standard error.
"""

from __future__ import annotations

import contextlib
import getpass
import io
import json
import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.text import Text

from ..plugins.plugin_utils.base.byte_size import as_text
from ..plugins.plugin_utils.base.printable import printable, printable_lines
from .each_host import Outcome
from .target import Target

if TYPE_CHECKING:
    from rich.console import JustifyMethod
    from rich.progress import Progress

    from ..plugins.plugin_utils.leaks.verdict import Answer

# So many hosts are named that a command still waits for.
_NAMED = 3
# So wide is a last column at least whose words may be broken into lines.
_LAST = 20
# Keyed by name: the module of Answer loads numpy, and most commands show no verdict.
_COLOURS = {
    "LEAK": "red",
    "BURSTS": "red",
    "OVERFLOWS": "red",
    "GREW": "yellow",
    "CANNOT_TELL": "yellow",
    "FILLS_UP": "green",
    "NO_LEAK": "green",
}


class Screen:
    """Standard output and standard error of one command."""

    def __init__(self, as_json: bool = False) -> None:
        self.as_json = as_json
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(errors="replace")  # in Latin-1 there is no arrow, and an answer is more than that
        if not os.environ.get("COLUMNS", "0").strip("0"):
            os.environ.pop("COLUMNS", None)  # in none, rich would show nothing
        # Without a terminal nothing is truncated to fit.
        self.out = Console(highlight=False, soft_wrap=not sys.stdout.isatty())
        self.err = Console(stderr=True, highlight=False, soft_wrap=not sys.stderr.isatty())
        self._asking = threading.Lock()
        self._secret: str | None = None
        self._progress: Progress | None = None

    def table(self, columns: Sequence[str], rows: Sequence[Sequence[str | Text]], right: Sequence[int] = ()) -> None:
        """Rows under their headings; the column numbers in ``right`` hold numbers."""
        Rows(self, columns, right).add(rows)

    def json(self, document: Any) -> None:
        print(json.dumps(document, indent=1), flush=True)

    def say(self, text: str, style: str = "") -> None:
        """A line for people."""
        self.err.print(Text(printable_lines(text), style))

    def verdict(self, answer: Answer | None, line: str) -> None:
        """A line of a report."""
        self.out.print(Text(printable_lines(line), _COLOURS[answer.name] if answer else ""))

    def password(self, target: Target) -> str | None:
        """The host's own sudo password, else one that is asked for, hidden, once for all hosts."""
        if target.become_password is not None:
            return target.become_password
        if not sys.stdin.isatty():
            return None
        with self._asking:
            if self._secret is None:
                with self.paused():
                    self._secret = getpass.getpass(f"password for sudo (asked by {target.name}): ")
            return self._secret

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Meanwhile no progress is shown, which would take what is printed to standard output for itself."""
        if self._progress is not None:
            self._progress.stop()
        try:
            yield
        finally:
            if self._progress is not None:
                self._progress.start()

    @contextlib.contextmanager
    def progress(self, what: str, hosts: Sequence[str]) -> Iterator[Steps]:
        """Shows how many hosts are done, the last ones that are not, and how many bytes have arrived. Nothing without a
        terminal."""
        if not self.err.is_terminal or not what:
            yield Steps()
            return
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[size]}"),
        )
        with Progress(*columns, TimeElapsedColumn(), console=self.err, transient=True) as self._progress:
            yield Steps(self._progress, what, hosts)
        self._progress = None

    def failures(self, outcomes: Sequence[Outcome[Any]]) -> int:
        """Say which hosts failed and why. Returns how many."""
        failed = [outcome for outcome in outcomes if outcome.error]
        for outcome in sorted(failed, key=lambda outcome: outcome.target.name):
            self.say(f"{outcome.target.name}: {outcome.error}", "red")
        if failed and len(outcomes) > 1:
            self.say(f"{len(failed)} of {len(outcomes)} hosts failed", "bold red")
        return len(failed)


class Rows:
    """A table whose rows may come in parts: only the first has the headings, and columns keep their width."""

    def __init__(self, show: Screen, columns: Sequence[str], right: Sequence[int] = ()) -> None:
        self._show = show
        self._columns = columns
        self._right = right
        self._widths = [0] * len(columns)

    def add(self, rows: Sequence[Sequence[str | Text]]) -> None:
        """Print some more, if there are any."""
        if not rows:
            return
        from rich.table import Table

        first = not any(self._widths)
        cells = zip(self._columns, *rows, strict=True)
        self._widths = [max(width, *map(len, column)) for width, column in zip(self._widths, cells, strict=True)]
        table = Table(box=None, pad_edge=False, header_style="bold", show_header=first)
        for number, (column, width) in enumerate(zip(self._columns, self._widths, strict=True)):
            # The last may be broken into lines, unless it has numbers.
            justify: JustifyMethod = "right" if number in self._right else "left"
            whole = number in self._right or number != len(self._columns) - 1
            table.add_column(column, justify=justify, no_wrap=whole, min_width=width if whole else None)
        for row in rows:
            table.add_row(*[cell if isinstance(cell, Text) else Text(printable(cell)) for cell in row])
        width = sum(self._widths) + 2 * len(self._widths)
        if sys.stdout.isatty():
            # What does not fit is broken by the terminal: rich would leave out the columns at the right.
            last = 0 if len(self._columns) - 1 in self._right else max(self._widths[-1] - _LAST, 0)
            Console(width=max(self._show.out.width, width - last), highlight=False).print(table)
        else:
            Console(width=max(80, width), highlight=False).print(table)


class Steps:
    """Counts what is done, from any thread."""

    def __init__(self, progress: Progress | None = None, what: str = "", hosts: Sequence[str] = ()) -> None:
        self._progress = progress
        self._what = what
        # What each host is at, as whoever asks it says.
        self._left: dict[str, Callable[[], str]] = {host: str for host in hosts}
        self._task = progress.add_task(what, total=len(hosts), size="") if progress else None
        self._bytes = 0
        self._lock = threading.Lock()

    def done(self, host: str) -> None:
        """One more host is done."""
        with self._lock:
            self._left.pop(host, None)
        if self._progress is not None and self._task is not None:
            self._progress.update(self._task, advance=1)
            self.refresh()

    def working(self, host: str, told: Callable[[], str]) -> None:
        """``told`` says what a host is at, each time that it is shown."""
        with self._lock:
            self._left[host] = told

    def refresh(self) -> None:
        """Show anew for what we wait."""
        if self._progress is not None and self._task is not None:
            with self._lock:
                left = dict(self._left)
            named = [(host, f"{host} ({at})" if (at := told()) else host) for host, told in left.items()]
            if len(named) > _NAMED:  # one that says what it is at stands for all
                named = [(host, f"{text} and {len(left) - 1} more") for host, text in named if text != host][:1]
            waits = f", waiting for {', '.join(text for _host, text in named)}" if named else ""
            self._progress.update(self._task, description=f"{self._what}{waits}")

    def came(self, size: int) -> None:
        """So many more bytes have arrived."""
        if self._progress is not None and self._task is not None:
            with self._lock:
                self._bytes += size
                self._progress.update(self._task, size=as_text(self._bytes))
