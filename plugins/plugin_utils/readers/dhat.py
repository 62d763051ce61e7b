# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""dhat's own file, JSON: what each place has allocated, and what of it was there at the program's end.

    {"dhatFileVersion":2,"mode":"heap","bklt":true,...
    ,"pps":[{"tb":1070,"tbk":10,...,"eb":1070,"ebk":10,...,"fs":[1,2]}]
    ,"ftbl":["[root]","0x1091A6: hold (app.c:12)","0x109821: main (app.c:31)"]}

Valgrind's tool and the crate dhat of Rust write it, both with every allocation, and the leaf first. Lifetimes are sums
without a time of birth, and so no lives. Format: dhat/dh_main.c of Valgrind.
"""

from __future__ import annotations

import json
from typing import Any

from ..model.raw import Records, Told
from ..model.sampling import EXACT, Measure
from .format_error import FormatError, UnusableError
from .stack_builder import LARGEST, StackBuilder
from .valgrind_place import frame_of

_BEGINNING = b'{"dhatFileVersion"'
_OF_MEMORY = ("heap", "rust-heap")
_OF_MIMALLOC = "mimalloc-heap"
_COUNTS = ("ebk", "eb", "tbk", "tb")


def recognizes(data: bytes) -> bool:
    return data[:64].lstrip().replace(b" ", b"").replace(b"\n", b"").startswith(_BEGINNING)


def parse(data: bytes, name: str, _told: Told) -> Records:
    """The profile in ``data``; ``name`` is only for messages. Raises FormatError, UnusableError."""
    try:
        found = json.loads(data)
        mode, has_ends, points, frames = (found[key] for key in ("mode", "bklt", "pps", "ftbl"))
        if found["dhatFileVersion"] != 2:
            raise UnusableError(name, "is of another version of dhat: its 'dhatFileVersion' is not 2")
        if mode == _OF_MIMALLOC:
            raise UnusableError(
                name,
                "is mimalloc-pprof's, with addresses that nothing gives names to: have its sampling profiler write one"
                " (MIMALLOC_PROF=1 MIMALLOC_PROF_DUMP_AT_EXIT=FILE)",
            )
        if mode not in _OF_MEMORY or has_ends is not True:
            raise UnusableError(
                name, f"counts what was {_verb(found)}, not memory: run valgrind --tool=dhat --mode=heap"
            )
        builder = StackBuilder(name)
        places: dict[int, int | None] = {}
        for point in points:
            stack = []
            for number in point["fs"]:
                if number not in places:
                    places[_natural(number)] = _place(builder, frames[number])
                stack.append(places[number])
            builder.add([place for place in stack if place is not None], [_natural(point[key]) for key in _COUNTS])
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        raise FormatError(name, 1, f"a file of dhat, as its dh_view.html reads it ({_words(error)})") from None
    return builder.records(Measure.LIVE, EXACT)


def _place(builder: StackBuilder, text: str) -> int | None:
    frame = frame_of(text)
    return None if frame is None else builder.named(frame)


def _natural(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= LARGEST:
        raise ValueError("a number is not what dhat counts")
    return value


def _verb(found: dict[str, Any]) -> str:
    return str(found.get("verb", "something else")).lower()[:40]


def _words(error: Exception) -> str:
    """Why, in words of ours where JSON has none that help."""
    if isinstance(error, KeyError):
        return f"it has no {error}"
    return "it is cut off or damaged" if isinstance(error, (json.JSONDecodeError, RecursionError)) else str(error)
