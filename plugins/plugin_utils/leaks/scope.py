# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Which captures of an archive are read: those in scope, by process, and of many of a process a part."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from ..archive.archive import Archive
from ..archive.capture import Capture
from ..base.durations import DAY, LATEST, moment
from ..base.progress import Progress
from ..model.series import evenly_spread
from .verdict import LEAST_SPAN

# How much is read of one process: at most a hundred dumps, fewer if they are large, spread evenly over the time.
_MOST_DUMPS = 100
_FEWEST_DUMPS = 8
_MOST_BYTES = 256 << 20

#: a unit, a host, and their captures
OfHost = tuple[str, str, list[Capture]]


@dataclass(frozen=True)
class Scope:
    """What to look at: these units and hosts (none: all), and processes watched for at least ``least_span`` seconds."""

    units: Sequence[str] = ()
    hosts: Sequence[str] = ()
    least_span: float = LEAST_SPAN


def chosen(archive: Archive, scope: Scope) -> list[tuple[str, str]]:
    """The units and hosts in scope, ordered by name."""
    return [
        (unit, host)
        for unit in archive.units()
        if not scope.units or unit in scope.units
        for host in archive.hosts(unit)
        if not scope.hosts or host in scope.hosts
    ]


def in_scope(
    archive: Archive, scope: Scope, warn: Callable[[str], None], progress: Progress | None = None
) -> Iterator[OfHost]:
    """The captures of each unit on each host, ordered by name. Calls ``warn`` for units and hosts that have none."""
    for sentence in archive.absent(scope.units, scope.hosts):
        warn(sentence)
    hosts = chosen(archive, scope)
    progress = progress or Progress()
    for number, (unit, host) in enumerate(hosts, 1):
        progress.at(f"reading {unit} on {host}, {number} of {len(hosts)}")
        if captures := archive.captures(unit, host, warn):
            yield unit, host, captures


def by_process(captures: list[Capture], warn: Callable[[str], None]) -> Iterator[tuple[str, list[Capture]]]:
    """The captures of each process of a unit on a host, without those with an impossible time."""
    for key, members in itertools.groupby(captures, key=lambda capture: capture.process):
        timely = []
        for capture in members:
            if 0 <= capture.time < LATEST:
                timely.append(capture)
            else:
                warn(
                    f"a capture of {capture.unit} on {capture.host} was left out:"
                    f" {capture.path} claims an impossible time"
                )
        yield key, timely


def of_now(captures: list[Capture], warn: Callable[[str], None]) -> list[Capture]:
    """The captures of a unit on a host without those from the future, where a process has none: a process of the time
    when the clock was ahead would be the newest for years. Of one alone, stretch.py knows better what to leave out."""
    latest = time.time() + DAY
    ahead = [capture for capture in captures if capture.time > latest]
    if not ahead or {capture.process for capture in captures} == {capture.process for capture in ahead}:
        return captures
    warn(
        f"captures of {ahead[0].unit} on {ahead[0].host} were left out, as they claim a time to come, up to"
        f" {moment(max(capture.time for capture in ahead))}: its clock was ahead, or still is"
    )
    return [capture for capture in captures if capture.time <= latest]


def thinned(captures: list[Capture]) -> list[Capture]:
    """The captures of a process, oldest first, evenly thinned if there are more than are worth reading."""
    average = max(1, sum(capture.facts.dump.size for capture in captures) // max(len(captures), 1))
    most = min(max(_MOST_BYTES // average, _FEWEST_DUMPS), _MOST_DUMPS)
    if len(captures) <= most:
        return captures
    return [captures[position] for position in evenly_spread([capture.time for capture in captures], most)]
