# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""The names that jemalloc gives dumps, and the names of the files beside them.

``jeprof[.<start>][.<pid namespace>].<pid>.<sequence>.<cause><number>.heap``: the cause is i (interval), m (asked for),
u (high water) or f (final). Format: jemalloc, src/prof_sys.c; but for the start, which is ours. jemalloc itself would
name, and overwrite, dumps of a later process with the same pid alike. With the agent, the start is eight digits of the
boot's id and the milliseconds from the boot to the process's start; without, all 32 digits of the boot's id.

This module is private to the collection.
"""

from __future__ import annotations

import re
from typing import NamedTuple

#: the prefix of names that we configure in jemalloc
PREFIX = "jeprof"
#: suffixes to a dump's name: what the agent wrote beside it, and a perf map
SIDECAR, PERF_MAP = ".json", ".map"
COMPANIONS = (SIDECAR, PERF_MAP)
_NAME = re.compile(
    PREFIX + r"\.(?:([0-9a-f]{8}-[0-9]{1,20}|[0-9a-f]{32})\.)?(?:[0-9]{1,20}\.)?([0-9]{1,10})\.([0-9]{1,9})"
    r"\.(?:[imu][0-9]{1,20}|f[0-9]{0,20})\.heap\Z"
)


class DumpName(NamedTuple):
    """The pid as the process itself sees it, the dump's number in that process, and what tells its start from others.

    ``start`` is None in names that jemalloc alone has given.
    """

    pid: int
    sequence: int
    start: str | None


def parse(name: str) -> DumpName | None:
    """The parts of a dump's file name, without its directory; None for any other name."""
    match = _NAME.match(name)
    return DumpName(int(match[2]), int(match[3]), match[1]) if match else None
