# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""What the target reads from a dump, without parsing its samples.

A recording of async-profiler is whole if all its chunks are finished; it says nothing of images, and names its code.
A pprof profile was whole when it got its name (offered_profile.py), and so was a text of memleak or perf.

jemalloc writes a dump in blocks of 64 KiB straight to its final name, so a file can exist before it is finished.
The samples are followed by a copy of /proc/<pid>/maps (format ``heap_v2``, jemalloc's src/prof_data.c). That copy
shows that the dump is finished, which process wrote it, and which images its addresses belong to. gperftools ends its
profiles in the same way.

This module is private to the collection.
"""

from __future__ import annotations

import hashlib
import os
import re
from typing import NamedTuple

from ansible_collections.offheap.profiler.plugins.module_utils.formats import dump_name, jfr_header, limits, maps
from ansible_collections.offheap.profiler.plugins.module_utils.formats.errors import OffheapError
from ansible_collections.offheap.profiler.plugins.module_utils.host import process_key
from ansible_collections.offheap.profiler.plugins.module_utils.spool import offered_profile

_HEADERS = {
    dump_name.PREFIX: ("heap_v2", re.compile(rb"heap_v2/[0-9]{1,20}\n")),
    dump_name.GPERFTOOLS: ("gperftools", re.compile(rb"heap profile: ")),
}
_LONGEST_HEADER = 64
_MARKER = b"\nMAPPED_LIBRARIES:\n"
_STACK = re.compile(rb"^@((?: 0x[0-9a-f]{1,16}){1,1000})$", re.MULTILINE)
_MOST_TEXT = 64 << 20
_BLOCK = 1 << 20
# To look for names takes a second for each 4 MiB; without any, a profile has kilobytes.
_MOST_NAMELESS = 4 << 20


class DumpError(OffheapError):
    """A dump cannot be collected. ``finished`` says whether it is whole but malformed, or cut off."""

    def __init__(self, reason: str, finished: bool) -> None:
        super().__init__(reason)
        self.finished = finished


class Content(NamedTuple):
    """A finished dump: SHA-256 of the file (hex) and the mappings of its process at the time, if it has them.

    ``nameless`` says that it has addresses and no names, and the builds that they belong to, but not where those lie.
    """

    sha256: str
    mappings: list[maps.Mapping]
    nameless: bool = False


def read(fd: int, size: int, prefix: str = dump_name.PREFIX) -> Content:
    """Read the first ``size`` bytes of an open dump, in bounded memory; ``prefix`` of its name says what it is.

    Raises DumpError if it is not whole.
    """
    if prefix == dump_name.TRACED:
        return _read_recording(fd, size)
    if prefix == dump_name.PPROF:
        nameless = size <= _MOST_NAMELESS and offered_profile.is_nameless(os.pread(fd, size, 0))
        return Content(sha256(fd, size), [], nameless)
    if prefix in (dump_name.MEMLEAK, dump_name.PERF):
        return Content(sha256(fd, size), [])
    digest = hashlib.sha256()
    listing: list[bytes] = []
    found = False
    window = b""
    held = offset = 0
    while offset < size:
        block = os.pread(fd, min(_BLOCK, size - offset), offset)
        if not block:
            raise DumpError("it became shorter while it was read", finished=False)
        if not offset:
            _check_header(block[:_LONGEST_HEADER], *_HEADERS[prefix])
        offset += len(block)
        digest.update(block)
        if found:
            listing.append(block)
            held += len(block)
        else:
            window += block
            place = window.rfind(_MARKER)  # it is near the end, so this reads less
            found = place >= 0
            if found:
                listing.append(window[place + len(_MARKER) :])
            window = b"" if found else window[1 - len(_MARKER) :]
        if held > limits.LARGEST_MAPS:
            raise DumpError(f"its list of mappings is longer than {limits.LARGEST_MAPS} bytes", finished=True)
    if not size:
        raise DumpError("it is empty", finished=False)
    if not found:
        raise DumpError("it ends before the list of mappings", finished=False)
    text = b"".join(listing)
    if not text.endswith(b"\n"):
        raise DumpError("it ends in the middle of the list of mappings", finished=False)
    try:
        mappings = maps.parse(text)
    except maps.MapsError as exc:
        raise DumpError(f"its list of mappings is damaged: {exc}", finished=True) from exc
    if process_key.fingerprint(mappings) is None:
        raise DumpError("its list of mappings ends before [stack] and [vdso]", finished=False)
    return Content(digest.hexdigest(), mappings)


def _read_recording(fd: int, size: int) -> Content:
    try:
        whole = jfr_header.finished(lambda count, offset: os.pread(fd, count, offset), size)
    except jfr_header.JfrError as exc:
        raise DumpError(f"it is no recording: {exc}", finished=True) from exc
    if not size or whole != size:
        raise DumpError("its last chunk is not finished", finished=False)
    return Content(sha256(fd, size), [])


def sha256(fd: int, size: int) -> str:
    """Of the first bytes only: who writes to the file meanwhile must not make this go on for ever."""
    digest = hashlib.sha256()
    for offset in range(0, size, _BLOCK):
        digest.update(os.pread(fd, min(_BLOCK, size - offset), offset))
    return digest.hexdigest()


def addresses(fd: int, size: int) -> set[int]:
    """The addresses in the stacks of an open dump; of a very large one, only those near its beginning."""
    text = os.pread(fd, min(size, _MOST_TEXT), 0)
    words: set[bytes] = set()
    for match in _STACK.finditer(text, 0, text.find(_MARKER) + 1 or len(text)):
        words.update(match[1].split())
    return {int(word, 16) for word in words}


def _check_header(head: bytes, title: str, header: re.Pattern[bytes]) -> None:
    if header.match(head):
        return
    line, newline, _rest = head.partition(b"\n")
    if not newline and len(head) < _LONGEST_HEADER:
        raise DumpError("it ends in its first line", finished=False)
    shown = line[:40].decode("ascii", "backslashreplace")
    raise DumpError(f"its format is not {title}: the first line is {shown!r}", finished=True)
