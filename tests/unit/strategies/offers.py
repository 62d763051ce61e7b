# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""A small profile as a Go service would answer it."""

from __future__ import annotations

import gzip
from typing import Any

from ansible_collections.offheap.profiler.plugins.plugin_utils.base import profile_proto


def pprof(size: int, interval: int = 524288, kinds: tuple[str, str] = ("inuse_objects", "inuse_space")) -> bytes:
    """So many bytes in one object of main.leak; not packed."""
    made: Any = profile_proto.profile_class()()
    made.string_table.extend(["", "main.leak", "main.main", "space", "bytes", *kinds, "count"])
    made.period_type.type, made.period_type.unit, made.period = 3, 4, interval
    made.sample_type.add(type=5, unit=7)
    made.sample_type.add(type=6, unit=4)
    made.mapping.add(id=1, memory_start=0x400000, memory_limit=0x800000, has_functions=True)
    for number in (1, 2):
        made.function.add(id=number, name=number)
        made.location.add(id=number, mapping_id=1, address=0x400000 + number).line.add(function_id=number, line=7)
    made.sample.add(location_id=[1, 2], value=[1, size])
    return bytes(made.SerializeToString())


def packed(size: int) -> bytes:
    """The same, as it is answered."""
    return gzip.compress(pprof(size))


def nameless(size: int, path: str, build_id: str, address: int) -> bytes:
    """So many bytes at a linked address of an image, as jemalloc_pprof writes it; not packed."""
    made: Any = profile_proto.profile_class()()
    made.string_table.extend(["", "inuse_space", "bytes", path, build_id])
    made.sample_type.add(type=1, unit=2)
    made.mapping.add(id=1, filename=3, build_id=4)
    made.location.add(id=1, mapping_id=1, address=address)
    made.sample.add(location_id=[1], value=[size])
    return bytes(made.SerializeToString())
