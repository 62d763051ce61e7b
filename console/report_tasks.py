# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""fab's commands for the report: write it, and serve it to a browser on this machine."""

from __future__ import annotations

import contextlib
from pathlib import Path

from invoke.context import Context
from invoke.exceptions import Exit

from . import screen
from .dump_tasks import ARCHIVE, ARCHIVE_HELP, ONLY_HELP, Units, command, failing
from .serve import PAGE, report_server


@command(
    help={
        "archive": ARCHIVE_HELP,
        "dest": "directory for the reports (offheap/report)",
        "unit": ONLY_HELP,
        "json": "print JSON",
    },
    iterable=["unit"],
)
def report(
    _context: Context, archive: str = ARCHIVE, dest: str = "offheap/report", unit: Units = None, json: bool = False
) -> None:
    """
    Judge from the archive what leaks, and write the report as HTML.

        fab report
    """
    from ..plugins.plugin_utils.base import progress
    from . import offline

    show = screen.Screen(json)
    with failing():
        told = progress.for_people(show.say)
        made = offline.reported(archive, Path(dest), unit or [], lambda text: show.say(text, "yellow"), told)
    if json:
        show.json({"files": made.fleet, "summary": [line for _answer, line in made.lines()]})
        return
    for answer, line in made.lines():
        show.verdict(answer, line)


@command(help={"directory": "what to serve (offheap/report)", "port": "port on 127.0.0.1 (8800)"})
def serve(_context: Context, directory: str = "offheap/report", port: int = 8800) -> None:
    """
    Serve the reports on 127.0.0.1, to whoever has the address that is printed.

        fab serve
    """
    if not (Path(directory) / PAGE).is_file():
        raise Exit(f"there is no report in {directory}: `fab report` writes one", 2)
    if not 0 <= port <= 65535:
        raise Exit(f"--port is {port}; give 0 (any free one) to 65535", 2)
    try:
        server, address = report_server(directory, port)
    except OSError as error:
        reason = f"cannot listen on 127.0.0.1:{port}: {error.strerror}; --port 0 takes any free one"
        raise Exit(reason, 2) from error
    with server, contextlib.suppress(KeyboardInterrupt):
        print(f"{address}{PAGE}   Ctrl-C ends", flush=True)
        server.serve_forever()
