# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Other processes make the samples of hosts that a survey has yet to come to, so that all processors share that work.

They begin with the last hosts and end where somebody has been before. All that they do is save time: what they cannot
make is tried again by the survey, which says why.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
from collections.abc import Iterator, Sequence
from typing import IO, cast

from ..archive import far_archive
from ..archive.archive import Archive
from ..archive.capture import Capture
from ..base import child, libraries, own_process
from ..columns import parquet, sample_cache
from .scope import OfHost, Scope, by_process, chosen, thinned
from .stretch import newest

# So many captures without samples, half a second of work, are worth other processes. Each keeps two processors busy,
# and with two of them the survey itself takes longest.
_MANY, _PROCESSORS_OF_EACH, _MOST = 100, 2, 2
# Seconds that one of them has to finish the capture that it is at.
_TO_END = 5


def helped(archive: Archive, scope: Scope, found: Iterator[OfHost]) -> Iterator[OfHost]:
    """The same. From the hundredth capture without samples on, others make those of the last of these hosts."""
    helpers: list[subprocess.Popen[bytes]] = []
    missing = 0
    try:
        for unit, host, captures in found:
            missing += len(_missing(captures, scope.least_span))
            if missing >= _MANY and not helpers:
                helpers = _started(archive, scope)
            yield unit, host, captures
    finally:
        for helper in helpers:
            _end(helper)


def _started(archive: Archive, scope: Scope) -> list[subprocess.Popen[bytes]]:
    count = min(len(os.sched_getaffinity(0)) // _PROCESSORS_OF_EACH, _MOST)
    told = {"where": archive.where, "units": [*scope.units], "hosts": [*scope.hosts], "least_span": scope.least_span}
    helpers = [own_process.started(make, str(number), str(count)) for number in range(count)]
    for helper in helpers:
        with contextlib.suppress(BrokenPipeError):  # it has ended already
            _told(helper).write(json.dumps(told).encode() + b"\n")
            _told(helper).flush()
    return helpers


def _told(helper: subprocess.Popen[bytes]) -> IO[bytes]:
    return cast(IO[bytes], helper.stdin)


def _end(helper: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(BrokenPipeError):
        _told(helper).close()
    with contextlib.suppress(subprocess.TimeoutExpired):
        helper.wait(_TO_END)
    helper.kill()
    helper.wait()
    cast(IO[bytes], helper.stdout).close()


def make(words: Sequence[str]) -> None:
    """In one of them: of so many hosts the one with this number, from the last on, until its pipe is closed."""
    told = json.loads(sys.stdin.readline())
    child.start(sample_cache.__name__, *libraries.DUMPS)
    archive = far_archive.opened(told["where"])
    hosts = chosen(archive, Scope(told["units"], told["hosts"]))
    number, count = map(int, words)
    for unit, host in hosts[::-1][number::count]:
        captures = archive.captures(unit, host, _tell_nobody)
        missing = _missing(captures, told["least_span"])
        if captures and not missing:
            return
        for _made in sample_cache.each(archive, [one for one in missing if one.facts.dump.size < sample_cache.LARGE]):
            if select.select([sys.stdin], [], [], 0)[0]:
                return


def _missing(captures: list[Capture], least_span: float) -> list[Capture]:
    """The captures of a host that a survey reads and that have no samples."""
    return [
        capture
        for _process, timely in by_process(captures, _tell_nobody)
        for capture in thinned(newest(timely, least_span).captures)
        if not capture.derived(parquet.NAME).exists()
    ]


def _tell_nobody(_warning: str) -> None:
    """The survey tells it."""
