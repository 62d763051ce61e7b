# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""The leak report of LeakSanitizer, alone or as a part of AddressSanitizer, also between other lines, as in a journal.

    ==4711==ERROR: LeakSanitizer: detected memory leaks
    Direct leak of 40 byte(s) in 1 object(s) allocated from:
        #0 0x7fa94de13545 in __interceptor_malloc lsan_interceptors.cpp:75
        #1 0x557d43fac169 in leak /srv/app.c:4
        #2 0x7f3e0f24d249  (/lib/libc.so.6+0x27249) (BuildId: 4196...)

    SUMMARY: LeakSanitizer: 40 byte(s) leaked in 1 allocation(s).

It names memory that nothing pointed to when the process ended, every allocation of it. Of several reports, the last one
counts. The option max_leaks leaves leaks out of the report, but not out of its sum. Other lines may come between the
frames of a stack, whose numbers show whether one is missing.
"""

from __future__ import annotations

import re
from pathlib import PurePosixPath

from ..model.frame import Frame
from ..model.raw import Records, Told
from ..model.sampling import EXACT, Measure
from .format_error import FormatError, UnusableError
from .stack_builder import StackBuilder

_BEGINNING = b"LeakSanitizer: detected memory leaks"
_LEAK = re.compile(rb"(?:Direct|Indirect) leak of (\d{1,20}) byte\(s\) in (\d{1,20}) object\(s\) allocated from:")
_FRAME = re.compile(rb" #(\d{1,4}) 0x[0-9a-f]{1,16} +(?:in )?(.*)")
_SUM = re.compile(rb"SUMMARY: \w{1,40}: (\d{1,20}) byte\(s\) leaked in (\d{1,20}) allocation\(s\)")
_IN_IMAGE = re.compile(r"\(([^()]+(?:\([^()]*\)[^()]*)*)\+0x([0-9a-f]{1,16})\)(?: \(BuildId: [0-9a-f]*\))?\Z")
# A path with blanks is known by its first slash; to try the others would take time with the square of their number.
_AT_LINE = re.compile(r"((?:(?! /).)+) (/.+?|[^\s:]+):(\d{1,9})(?::\d{1,9})?\Z")
_LINES_MISSING = "lines are missing (set the journal's RateLimitBurst=0)"
_INTERCEPTOR = re.compile(r"_{2,3}interceptor_")


def recognizes(data: bytes) -> bool:
    return _BEGINNING in data


def parse(data: bytes, name: str, _told: Told) -> Records:
    """The last report in ``data``; ``name`` is only for messages. Raises FormatError, UnusableError."""
    start = data.rfind(_BEGINNING)
    first = data.count(b"\n", 0, start) + 1
    builder = StackBuilder(name)
    known: dict[bytes, int] = {}
    counts: tuple[int, int] | None = None
    places: list[int] = []
    for line in data[start:].split(b"\n"):
        frame = _FRAME.search(line) if counts is not None else None
        if frame is not None:
            if int(frame[1]) != len(places):
                raise UnusableError(
                    name, f"a stack has frame {int(frame[1])} where {len(places)} should be: {_LINES_MISSING}"
                )
            text = frame[2].rstrip()
            if text not in known:
                known[text] = builder.named(_frame(text.decode("utf-8", "replace")))
            places.append(known[text])
            continue
        leak, total = _LEAK.search(line), _SUM.search(line)
        if counts is not None and (leak is not None or total is not None):
            builder.add(places, counts)
            counts, places = None, []
        if leak is not None:
            counts = (int(leak[2]), int(leak[1]))
        if total is not None:
            break
    else:
        raise FormatError(name, first, "a report that ends with 'SUMMARY: ... leaked' (it is cut off)")
    records = builder.records(Measure.LIVE, EXACT)
    if (records.total.bytes, records.total.objects) != (int(total[1]), int(total[2])):
        raise UnusableError(
            name,
            f"its stacks hold {records.total.bytes} of {int(total[1])} bytes: {_LINES_MISSING}, or the option"
            " max_leaks has left them out; set LSAN_OPTIONS=max_leaks=0",
        )
    if not known:
        raise UnusableError(
            name,
            "its stacks have no frames like '#0 0x4011d6 in leak app.c:4': do not set the option stack_trace_format",
        )
    return records


def _frame(text: str) -> Frame:
    """From ``leak /srv/app.c:4``, ``leak (/srv/app+0x1169)`` or only ``(/srv/app+0x1169)``."""
    image = _IN_IMAGE.search(text)
    if image is not None:
        function = _INTERCEPTOR.sub("", text[: image.start()].strip())
        module = PurePosixPath(image[1]).name
        return Frame(function, module, offset=0 if function else int(image[2], 16))
    place = _AT_LINE.match(text)
    if place is not None:
        return Frame(_INTERCEPTOR.sub("", place[1]), "", file=place[2], line=int(place[3]))
    return Frame(_INTERCEPTOR.sub("", text) or "[no name]", "")
