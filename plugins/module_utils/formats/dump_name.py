# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Names of dumps, as jemalloc makes them, and of what lies beside one.

``jeprof[.<pid namespace>].<pid>.<sequence>.<cause><number>.heap``: the cause is i (interval), m (asked for), u (high
water) or f (final). Format: jemalloc, src/prof_sys.c.

This module is private to the collection.
"""

from __future__ import annotations

import re
from typing import NamedTuple

#: what jemalloc is told to begin the name with
PREFIX = "jeprof"
#: a dump's name and this: what the agent wrote beside it, and a perf map
SIDECAR, PERF_MAP = ".json", ".map"
COMPANIONS = (SIDECAR, PERF_MAP)
_NAME = re.compile(
    PREFIX + r"\.(?:[0-9]{1,20}\.)?([0-9]{1,10})\.([0-9]{1,9})\.(?:[imu][0-9]{1,20}|f[0-9]{0,20})\.heap\Z"
)


class DumpName(NamedTuple):
    """The process, as it sees itself, and the number of the dump: all of one process are counted in one row."""

    pid: int
    sequence: int


def parse(name: str) -> DumpName | None:
    """The parts of a dump's file name, without its directory; None for any other name."""
    match = _NAME.match(name)
    return DumpName(int(match.group(1)), int(match.group(2))) if match else None
