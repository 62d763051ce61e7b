# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""A map of bpftrace with stacks as its keys and numbers as its values.

    @bytes[
        malloc+0
        leak+18
        main+20
    ]: 4096

From 0.24 on a frame may have its line, leak+18@/srv/app.c:4, after those of inlined calls, [inlined] keep@/srv/app.c:9.
What the numbers are is in the script, not in the map, so the user must say it. bpftrace drops what does not fit its
map; a map that is full is refused.
"""

from __future__ import annotations

import re
from pathlib import PurePosixPath

from ..model.frame import Frame, Kind
from ..model.raw import Records, Told
from .format_error import FormatError, UnusableError
from .stack_builder import StackBuilder

_HEAD = re.compile(rb"(?:\^C)?@\w{0,64}\[\s*\Z")
_END = re.compile(rb"\s*(?:,[^\n]*)?\]: (\d{1,20})\s*\Z")
_FRAME = re.compile(
    r"(?:(?:0x)?[0-9a-f]{6,16} )?(\[inlined\] )?(\S.*?)(?:\+(?:0x[0-9a-f]+|\d+))?(?:@(\S[^@]*):(\d{1,9}))?"
    r"(?: \(([^()]*)\))?\Z"
)
# The default.
_MOST_KEYS = 4096
_MORE = "set BPFTRACE_MAX_MAP_KEYS=100000 (before 0.20: BPFTRACE_MAP_KEYS_MAX) and trace again"
# How no frame begins.
_NO_FRAME = (b"]", b"@", b",")


def recognizes(data: bytes) -> bool:
    return re.search(rb"^(?:\^C)?@\w{0,64}\[\s*$", data[:4096], re.MULTILINE) is not None


def parse(data: bytes, name: str, told: Told) -> Records:
    """The map in ``data``; ``name`` is only for messages. Raises FormatError, UnusableError."""
    if told.measure is None or not told.unit:
        raise UnusableError(
            name,
            "a map of bpftrace does not say what its numbers are: set source_unit to bytes or objects, and"
            " source_measure to live, allocated or grown (fab: --source live:bytes:1)",
        )
    if b"Map full" in data or re.search(rb"^Lost \d+ events", data, re.MULTILINE):
        raise UnusableError(name, f"bpftrace lost events or had no room: {_MORE}")
    builder = StackBuilder(name)
    known: dict[bytes, int] = {}
    places: list[int] | None = None
    for number, line in enumerate(data.split(b"\n"), 1):
        end = _END.match(line)
        if places is None:
            if _HEAD.match(line):
                places = []
            elif line.startswith(b"@"):
                raise FormatError(name, number, "a map whose keys are stacks, '@[' and a line for each frame", line)
        elif end is not None:
            count = int(end[1])
            builder.add(places, (0, count) if told.unit == "bytes" else (count, 0))
            places = None
        elif line.strip():
            if line.lstrip().startswith(_NO_FRAME):
                raise FormatError(name, number, "a frame, or ']: <n>' with a number that is not negative", line)
            if line not in known:
                known[line] = builder.named(_frame(line.decode("utf-8", "replace").strip()))
            places.append(known[line])
    if places is not None:
        raise FormatError(name, data.count(b"\n") + 1, "']: <n>' after the last stack (it is cut off)")
    if len(builder) >= _MOST_KEYS and len(builder) % _MOST_KEYS == 0:
        raise UnusableError(name, f"its map is full ({len(builder)} keys): {_MORE}")
    return builder.records(told.measure, told.sampling, unbiased=True)


def _frame(line: str) -> Frame:
    match = _FRAME.match(line)
    if match is None:
        return Frame(line, "")
    inlined, function, file, number, image = match.groups()
    module = PurePosixPath(image or "").name
    kind = Kind.INLINED if inlined or image == "inlined" else Kind.NATIVE
    module = "" if module == "[unknown]" or kind is Kind.INLINED else module
    return Frame(function, module, kind, file=file or "", line=int(number or 0))
