# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""A HotSpot JVM's own counters, from the file that it keeps mapped for jstat.

The JVM writes ``/tmp/hsperfdata_<user>/<pid>`` all the time, and reading it costs the JVM nothing. Format: HotSpot's
perfMemory.hpp (PerfDataPrologue, PerfDataEntry). The service may write there, so nothing in it is trusted.

This module is private to the collection.
"""

from __future__ import annotations

import os
import re
import stat
import struct

from ansible_collections.offheap.profiler.plugins.module_utils.host import procfs

_PATH = re.compile(r"/tmp/hsperfdata_[^/]+/\d+\Z")
_MAGIC = b"\xca\xfe\xc0\xc0"
_MOST_BYTES = 1 << 20
_LONG = b"J"


def read(pid: int, proc: str = "/proc") -> dict[str, int]:
    """The numeric counters, by name; empty if the JVM keeps no such file (``-XX:-UsePerfData``)."""
    path = next((path for path in procfs.mapped_files(pid, proc) if _PATH.match(path)), None)
    if path is None:
        return {}
    try:
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        with open(os.open(f"{procfs.directory(pid, proc)}/root{path}", flags), "rb") as file:
            data = file.read(_MOST_BYTES) if stat.S_ISREG(os.fstat(file.fileno()).st_mode) else b""
    except OSError:
        return {}
    return parse(data)


def parse(data: bytes) -> dict[str, int]:
    """The 64-bit numbers among the entries. An entry that does not fit ends the list."""
    if len(data) < 32 or data[:4] != _MAGIC:
        return {}
    order = "<" if data[4] else ">"
    entry = struct.Struct(order + "3i4ci")
    number = struct.Struct(order + "q")
    at, count = struct.unpack_from(order + "2i", data, 24)
    found: dict[str, int] = {}
    for _index in range(min(max(count, 0), _MOST_BYTES // entry.size)):
        if not 0 <= at <= len(data) - entry.size:
            break
        length, name_at, vector, kind, _flags, _units, _variability, value_at = entry.unpack_from(data, at)
        if length < entry.size or min(name_at, value_at) < 0:
            break
        name = data[at + name_at : at + length].partition(b"\0")[0]
        if kind == _LONG and vector == 0 and at + value_at + number.size <= len(data):
            (found[name.decode("ascii", "replace")],) = number.unpack_from(data, at + value_at)
        at += length
    return found
