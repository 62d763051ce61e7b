# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""What memray's own reader gives of a file of memray's, as ``memray transform csv --leaks`` writes it.

    allocator,num_allocations,size,tid,thread_name,stack_trace
    MALLOC,3,3001,1,0x1,take;/srv/app.py;9|main;/srv/app.py;12

Every allocation that was not freed when memray stopped, stacks leaf first. Without ``--leaks`` the same table has what
was live when memory was at its peak, and does not say so. Format: memray/reporters/transform.py, render_as_csv.
"""

from __future__ import annotations

import csv
import io
import re
from pathlib import PurePosixPath

from ..model.frame import Frame, Kind
from ..model.raw import Records, Told
from ..model.sampling import EXACT, Measure
from .format_error import FormatError
from .stack_builder import StackBuilder

_HEADING = ["allocator", "num_allocations", "size", "tid", "thread_name", "stack_trace"]
_NUMBER = re.compile(r"\d{1,20}", re.ASCII)
# Where a place ends. Names of functions in C++ may have bars and semicolons, too.
_LINE = re.compile(r";(-?\d{1,10})(?:\||\Z)", re.ASCII)
_ROW = f"{len(_HEADING)} fields, the second and third numbers, the last places as in 'take;app.py;9|main;app.py;12'"
# A stack of 4,096 frames, each with a path.
_LONGEST_FIELD = 1 << 21


def recognizes(data: bytes) -> bool:
    return data.startswith(",".join(_HEADING).encode())


def parse(data: bytes, name: str, _told: Told) -> Records:
    """The table in ``data``; ``name`` is only for messages. Raises FormatError, UnusableError."""
    if not data.endswith(b"\n"):
        raise FormatError(name, data.count(b"\n") + 1, "the end of a line (it is cut off)")
    csv.field_size_limit(_LONGEST_FIELD)
    rows = csv.reader(io.StringIO(data.decode("utf-8", "replace"), newline=""), strict=True)
    builder = StackBuilder(name)
    known: dict[tuple[str, str], int] = {}
    try:
        for row in rows:
            if row == _HEADING and rows.line_num == 1:
                continue
            *pieces, rest = _LINE.split(row[-1] if row else "")
            if len(row) != len(_HEADING) or rest or not all(map(_NUMBER.fullmatch, row[1:3])):
                raise FormatError(name, rows.line_num, _ROW, ",".join(row).encode())
            stack = list(zip(pieces[::2], pieces[1::2], strict=True))
            for place in stack:
                if place not in known:
                    known[place] = builder.named(_frame(*place))
            builder.add([known[place] for place in stack], (int(row[1]), int(row[2])))
    except csv.Error as error:
        raise FormatError(name, rows.line_num, f"a table of comma-separated values ({error})") from None
    return builder.records(Measure.LIVE, EXACT)


def _frame(place: str, line: str) -> Frame:
    function, _semicolon, file = place.rpartition(";")
    at = max(int(line), 0) & 0xFFFFFFFF
    if file.endswith((".py", ">")):  # <frozen posixpath>, <string>
        return Frame(function, "[python]", Kind.PYTHON, file=file, line=at)
    return Frame(function, PurePosixPath(file).name if ".so" in file else "", file=file, line=at)
