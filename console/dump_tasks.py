# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Commands on a dump, or on a capture of an archive: they ask no host."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fabric import task
from invoke.context import Context
from invoke.exceptions import Exit

from ..plugins.module_utils.formats.errors import OffheapError
from ..plugins.plugin_utils.base.printable import printable_lines
from . import screen

_FILE_HELP = {
    "binary_path": "where executables and libraries are, in the form of PPROF_BINARY_PATH",
    "source": "measure:unit:interval where the file does not say it, as in live:bytes:1",
}
_JSON_HELP = {"json": "print JSON"}
# Fabric has no types.
_command: Callable[..., Callable[[Callable[..., None]], Any]] = task


def _paths(text: str) -> list[Path]:
    return [Path(path).expanduser() for path in text.split(":") if path]


@contextmanager
def failing() -> Iterator[None]:
    """Turn errors of the library into a message and an exit status."""
    try:
        yield
    except OffheapError as error:
        raise Exit(str(error), 2) from error


def _analyzed(path: Path, images: tuple[str, str], show: screen.Screen, **request: Any) -> bytes:
    """``images`` are the options binary_path and source."""
    from ..plugins.plugin_utils.driver.formats import Request
    from . import offline

    with failing():
        places = offline.places(_paths(images[0]), images[1])
        return offline.analyzed(Request(**request), path, places, lambda text: show.say(text, "yellow"))


def top_text(path: Path, rows: int, cumulative: bool, images: tuple[str, str], show: screen.Screen) -> str:
    """The functions that hold most, or JSON if the screen shows that."""
    from ..plugins.plugin_utils.export.top import Look

    look = Look(cumulative, max(rows, 0), False)
    kind = "json" if show.as_json else "text"
    return printable_lines(_analyzed(path, images, show, kind=kind, look=look).decode("utf-8", "replace"))


@_command(help={**_FILE_HELP, **_JSON_HELP, "rows": "functions to show (20)", "cum": "sort by what callees hold, too"})
def top(
    _context: Context,
    dump: str,
    rows: int = 20,
    cum: bool = False,
    binary_path: str = "",
    source: str = "",
    json: bool = False,
) -> None:
    """
    What holds the memory in a dump, or in a capture of the archive.

        fab top x.heap
    """
    sys.stdout.write(top_text(Path(dump), rows, cum, (binary_path, source), screen.Screen(json)))


@_command(
    help={
        **_FILE_HELP,
        **_JSON_HELP,
        "focus": "only stacks with a frame that matches",
        "rows": "differences to show (20)",
    }
)
def diff(
    _context: Context,
    before: str,
    after: str,
    focus: str = "",
    rows: int = 20,
    binary_path: str = "",
    source: str = "",
    json: bool = False,
) -> None:
    """
    What grew, shrank, appeared and vanished between two dumps, and which of it is more than chance.

        fab diff a.heap b.heap
    """
    from . import offline

    show = screen.Screen(json)
    with failing():
        places = offline.places(_paths(binary_path), source)
        text = offline.compared(
            Path(before), Path(after), focus, rows, json, places, lambda text: show.say(text, "yellow")
        )
    sys.stdout.write(printable_lines(text))


@_command(help={**_FILE_HELP, "dest": "where to write it (x.html for x.heap)", "force": "replace an existing file"})
def flame(
    _context: Context, dump: str, dest: str = "", force: bool = False, binary_path: str = "", source: str = ""
) -> None:
    """
    A dump as a flame graph: one HTML file that needs no network.

        fab flame x.heap
    """
    from ..plugins.plugin_utils.base.output_file import write

    path = Path(dump)
    page = Path(dest) if dest else Path.cwd() / f"{path.name.removesuffix('.heap') or 'dump'}.html"
    content = _analyzed(path, (binary_path, source), screen.Screen(), kind="flamegraph")
    with failing():
        write(page, content, force)
    print(page)


@_command(help={**_FILE_HELP, "focus": "the functions, as a regular expression"})
def peek(_context: Context, dump: str, focus: str, binary_path: str = "", source: str = "") -> None:
    """
    Who calls the functions that match, and what they call.

        fab peek x.heap --focus inflate
    """
    content = _analyzed(Path(dump), (binary_path, source), screen.Screen(), kind="peek", function=focus)
    sys.stdout.write(printable_lines(content.decode("utf-8", "replace")))
