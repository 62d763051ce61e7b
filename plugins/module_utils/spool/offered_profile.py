# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""A profile that a service offers: which source wrote it, and whether it is whole. Its samples are not parsed here.

This module is private to the collection.
"""

from __future__ import annotations

import re
import zlib

from ansible_collections.offheap.profiler.plugins.module_utils.formats import (
    dump_name,
    limits,
    no_profile,
    protobuf_fields,
)
from ansible_collections.offheap.profiler.plugins.module_utils.formats.errors import OffheapError

_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
_MAPPINGS, _LAST_MAPPINGS = b"\nMAPPED_LIBRARIES:\n", (b"[stack]", b"[vdso]")
# Texts, by how they begin; both end with a copy of /proc/<pid>/maps.
_TEXTS = {b"heap_v2/": dump_name.PREFIX, b"heap profile: ": dump_name.GPERFTOOLS}
_TEXT_OF_GO = re.compile(rb"heap profile: [^\n]{0,200} @ heap/\d+\n")
# Fields of pprof's Profile.
_LARGEST_FIELD, _SAMPLE_TYPE, _MAPPING, _FUNCTION, _STRING = 15, 1, 3, 5, 6


class NoProfileError(OffheapError):
    """The bytes are no whole profile that could be read later. The message says why."""


def unpacked(data: bytes) -> bytes:
    """The profile without gzip, which pprof's have around them. Raises NoProfileError."""
    if not data.startswith(_GZIP):
        return data
    inflater = zlib.decompressobj(zlib.MAX_WBITS | 16)
    try:
        found = inflater.decompress(data, limits.LARGEST_DUMP)
    except zlib.error as exc:
        raise NoProfileError(f"its compression is damaged: {exc}") from exc
    if inflater.unconsumed_tail:
        raise NoProfileError(f"it has more than {limits.LARGEST_DUMP >> 20} MiB when unpacked")
    if not inflater.eof or inflater.unused_data:
        raise NoProfileError("its compression does not end where it ends: it is cut off, or still being written")
    return found


def prefix_of(data: bytes) -> str:
    """The prefix of the name that such a profile gets as a dump. Raises NoProfileError."""
    for beginning, prefix in _TEXTS.items():
        if data.startswith(beginning):
            mappings = data.rpartition(_MAPPINGS)
            if _TEXT_OF_GO.match(data):
                raise NoProfileError("is Go's text, without mappings: leave out debug=1")
            if not mappings[1] or not data.endswith(b"\n") or not any(last in mappings[2] for last in _LAST_MAPPINGS):
                raise NoProfileError("it ends before or within its list of mappings")
            return prefix
    fields = _fields(data)
    if _SAMPLE_TYPE in fields and _STRING in fields:
        return dump_name.PPROF
    why = no_profile.reason(data)
    if why:
        raise NoProfileError(f"it {why}")
    if data.startswith(_ZSTD):
        raise NoProfileError("it is packed with zstd: have the service write it plain or with gzip")
    raise NoProfileError(
        f"it is neither pprof's nor jemalloc's nor gperftools' and whole: it begins with {bytes(data[:40])!r}"
    )


def is_nameless(data: bytes) -> bool:
    """Whether pprof's profile names no function: jemalloc_pprof leaves that to those who have the images."""
    fields = _fields(data)
    return _MAPPING in fields and _FUNCTION not in fields


def _fields(data: bytes) -> set[int]:
    """The fields of a protobuf message; none if it has others than a Profile, or is cut off."""
    try:
        return {field.key >> 3 for field in protobuf_fields.fields(data, 0, len(data), _LARGEST_FIELD)}
    except protobuf_fields.Damaged:
        return set()
