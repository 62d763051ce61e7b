# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""The profiles of an archive that a server does not have yet, sent to it.

An archive remembers what a server has, by an empty file for each profile: the next run sends what this one could not.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ...module_utils.formats.errors import OffheapError
from ..archive.archive import Archive, Capture
from . import pyroscope
from .pyroscope import PushError, Server


@dataclass
class Pushed:
    """How many profiles were sent, how many the server still lacks, and what went wrong.

    ``failure`` says why the server was given up, or is empty.
    """

    sent: int = 0
    left: int = 0
    problems: list[str] = field(default_factory=list)
    failure: str = ""


def wanted(archive: Archive, server: Server, units: Collection[str], hosts: Collection[str]) -> list[Capture]:
    """The captures that the server does not have, the newest of each process first. Empty selections are all."""
    return _newest_first(
        capture
        for capture in archive.captures()
        if (not units or capture.unit in units)
        and (not hosts or capture.host in hosts)
        and not marker(archive, server, capture).exists()
    )


def push(
    archive: Archive, server: Server, captures: Sequence[Capture], most: int, render: Callable[[Capture], bytes]
) -> Pushed:
    """Send the first ``most`` of the captures; ``render`` makes the profile (gzipped pprof) of one. Raises OSError."""
    done = Pushed(left=len(captures))
    for capture in captures[:most]:
        try:
            pyroscope.push(server, capture, render(capture))
        except PushError as error:
            if error.hopeless:
                done.failure = str(error)
                break
            done.problems.append(f"{capture.path}: {error}")
        except OffheapError as error:
            done.problems.append(str(error))
        else:
            sent = marker(archive, server, capture)
            sent.parent.mkdir(parents=True, exist_ok=True)
            sent.touch()
            done.sent, done.left = done.sent + 1, done.left - 1
    return done


def marker(archive: Archive, server: Server, capture: Capture) -> Path:
    """The empty file that says that the server has this capture's profile."""
    return archive.memo(capture, "pushed", server.key)


def _newest_first(captures: Iterable[Capture]) -> list[Capture]:
    """The newest of each process, then the second newest of each, and so on."""
    ordered = sorted(captures, key=lambda capture: (capture.unit, capture.host, capture.process, -capture.time))
    groups = [list(group) for _key, group in itertools.groupby(ordered, key=lambda c: (c.unit, c.host, c.process))]
    return [capture for row in itertools.zip_longest(*groups) for capture in row if capture is not None]
