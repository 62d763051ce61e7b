# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""The names that jemalloc gives dumps, those that we give recordings, and the names of the files beside them.

``jeprof[.<start>][.<pid namespace>].<pid>.<sequence>.<cause><number>.heap``: the cause is i (interval), m (asked for),
u (high water) or f (final). Format: jemalloc, src/prof_sys.c; but for the start, which is ours. jemalloc itself would
name, and overwrite, dumps of a later process with the same pid alike. With the agent, the start is eight digits of the
boot's id and the milliseconds from the boot to the process's start; without, all 32 digits of the boot's id.

What a live trace leaves has a name of the same form: a recording of async-profiler begins with ``asprof``, the texts of
memleak and perf with those names; its start is that of the trace. So has a profile that a service offers by itself: it
begins with its source, its start is that of the process, and its number is when it was taken (nanoseconds since the
epoch). jemalloc's own are called like those that it writes itself.

This module is private to the collection.
"""

from __future__ import annotations

import re
from typing import NamedTuple

#: the prefix of names that we configure in jemalloc
PREFIX = "jeprof"
#: the prefixes of what live traces leave
TRACED, MEMLEAK, PERF = "asprof", "memleak", "perf"
#: the prefixes of other profiles that services offer, which are the names of their sources
PPROF, GPERFTOOLS = "pprof", "gperftools"
#: suffixes to a dump's name: what the agent wrote beside it, a perf map, lives of what was sampled, and their holders
SIDECAR, PERF_MAP, LIVES, HOLDERS = ".json", ".map", ".lives", ".holders"
COMPANIONS = (SIDECAR, PERF_MAP, LIVES, HOLDERS)
_NAME = re.compile(
    f"({PREFIX}|{TRACED}|{MEMLEAK}|{PERF}|{PPROF}|{GPERFTOOLS})"
    + r"\.(?:([0-9a-f]{8}-[0-9]{1,20}|[0-9a-f]{32})\.)?(?:[0-9]{1,20}\.)?([0-9]{1,10})\.([0-9]{1,9})"
    r"\.(?:[imu][0-9]{1,20}|f[0-9]{0,20})\.heap\Z"
)


class DumpName(NamedTuple):
    """The pid as the process itself sees it, the dump's number in that process, and what tells its start from others.

    ``start`` is None in names that jemalloc alone has given. ``prefix`` tells what the dump is.
    """

    pid: int
    sequence: int
    start: str | None
    prefix: str = PREFIX


def parse(name: str) -> DumpName | None:
    """The parts of a dump's file name, without its directory; None for any other name."""
    match = _NAME.match(name)
    return DumpName(int(match[3]), int(match[4]), match[2], match[1]) if match else None


def beside(name: str) -> str:
    """The name of the dump that a file belongs to: its own, or the one that it lies beside."""
    return next((name[: -len(suffix)] for suffix in COMPANIONS if name.endswith(suffix)), name)


def of_trace(prefix: str, boot_id: str, started: int, pid: int, sequence: int) -> str:
    """The name of what a window of a trace has left; ``started`` is in milliseconds since the boot."""
    return f"{prefix}.{boot_id[:8]}-{started}.{pid}.{sequence}.m{sequence}.heap"


def of_offer(prefix: str, boot_id: str, started: int, pid: int, sequence: int, taken: int) -> str:
    """The name of a profile that a process offers, which has ``started`` then (milliseconds since the boot)."""
    return f"{prefix}.{boot_id[:8]}-{started}.{pid}.{sequence}.m{taken}.heap"
