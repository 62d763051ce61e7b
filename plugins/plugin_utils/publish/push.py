# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Sends a server the profiles that it does not have yet.

An archive keeps an empty file for each profile that a server has, so the next run sends what this one could not.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ...module_utils.formats.errors import OffheapError
from ..archive.archive import Archive
from ..archive.capture import Capture
from ..leaks.scope import Scope, by_process, in_scope
from .profile_server import Server, ServerError

#: a capture, and all captures of its process
OfProcess = tuple[Capture, list[Capture]]

# So many captures that cannot be sent are enough: it is not they.
_MOST_PROBLEMS = 100


@dataclass
class Pushed:
    """How many profiles were sent, how many the server still lacks, and what went wrong.

    ``failure`` says why the push was given up, or is empty.
    """

    sent: int = 0
    left: int = 0
    problems: list[str] = field(default_factory=list)
    failure: str = ""


def wanted(archive: Archive, server: Server, scope: Scope, warn: Callable[[str], None]) -> list[OfProcess]:
    """The captures that the server does not have, the newest of each process first, then the second newest of each."""
    processes = [
        sorted(timely, key=lambda capture: -capture.time)
        for _unit, _host, captures in in_scope(archive, scope, warn)
        for _process, timely in by_process(captures, warn)
    ]
    ranked = itertools.zip_longest(*([(capture, process) for capture in process] for process in processes))
    return [pair for row in ranked for pair in row if pair is not None and not archive.noted(pair[0], about(server))]


def push(
    archive: Archive,
    server: Server,
    captures: Sequence[OfProcess],
    most: int,
    send: Callable[[Capture, list[Capture]], None],
) -> Pushed:
    """Send ``most`` of the captures, the first that can be sent.

    ``send`` makes a capture's profile and sends it, or raises ServerError; it also gets all captures of the process.
    """
    done = Pushed(left=len(captures))
    for capture, process in captures:
        if done.sent == most or len(done.problems) > _MOST_PROBLEMS:
            break
        try:
            send(capture, process)
        except ServerError as error:
            if error.hopeless:
                done.failure = str(error)
                break
            done.problems.append(f"{capture.path}: {error}")
        except OffheapError as error:
            done.problems.append(str(error))
        else:
            done.sent, done.left = done.sent + 1, done.left - 1
            try:
                archive.note(capture, about(server))
            except (OSError, OffheapError) as error:  # so it would be with each of the others
                done.failure = (
                    f"the archive {archive.where} cannot note what was sent, so the next push would send it again:"
                    f" {error}; let this user write there"
                )
                break
    return done


def about(server: Server) -> str:
    """What the archive notes of each capture whose profile the server has."""
    return f"pushed/{server.key}"
