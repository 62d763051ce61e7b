# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""The names that jemalloc gives dumps, and the names of the files beside them.

``jeprof[.<pid namespace>].<pid>.<sequence>.<cause><number>.heap``: the cause is i (interval), m (asked for), u (high
water) or f (final). Format: jemalloc, src/prof_sys.c.

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
    PREFIX + r"\.(?:[0-9]{1,20}\.)?([0-9]{1,10})\.([0-9]{1,9})\.(?:[imu][0-9]{1,20}|f[0-9]{0,20})\.heap\Z"
)


class DumpName(NamedTuple):
    """The pid as the process itself sees it, and the dump's number; a process numbers all its dumps in one sequence."""

    pid: int
    sequence: int


def parse(name: str) -> DumpName | None:
    """The parts of a dump's file name, without its directory; None for any other name."""
    match = _NAME.match(name)
    return DumpName(int(match.group(1)), int(match.group(2))) if match else None
