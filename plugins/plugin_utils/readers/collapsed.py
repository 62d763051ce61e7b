# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Collapsed stacks, ``main;serve;inflate 65536``: root first, one stack a line, as flame graph tools exchange them.

The file does not say what its numbers are, so the user must. Tools that scale them write decimals, which are rounded.
"""

from __future__ import annotations

import io
from itertools import islice

from ..model.frame import Frame
from ..model.raw import Records, Told
from .format_error import FormatError, UnusableError
from .stack_builder import StackBuilder, packed

_MOST_DIGITS = 20
# Lines that tell whether each has two numbers.
_LOOKED_AT = 100
# As far as is looked for a line feed.
_LONGEST_LINE = 1 << 18


class _Places(dict[bytes, bytes]):
    """The place of each function, nothing for an empty name; adds what it lacks by itself, so that all of a stack's are
    found without a loop."""

    def __init__(self, builder: StackBuilder) -> None:
        super().__init__()
        self._builder = builder

    def __missing__(self, function: bytes) -> bytes:
        text = function.strip().decode("utf-8", "replace")
        self[function] = place = packed(self._builder.named(Frame(text, ""))) if text else b""
        return place


def recognizes(data: bytes) -> bool:
    return _stack_and_number(data[:_LONGEST_LINE].lstrip().split(b"\n", 1)[0]) is not None


def _stack_and_number(line: bytes) -> tuple[bytes, int] | None:
    stack, _space, number = line.rstrip().rpartition(b" ")
    whole, point, part = number.partition(b".")
    if not stack.strip() or not whole.isdigit() or len(number) > _MOST_DIGITS or (point and not part.isdigit()):
        return None
    return stack, int(whole) + (part >= b"5")


def _is_difference(data: bytes) -> bool:
    """Whether each stack has two numbers, as difffolded.pl and inferno-diff-folded write them."""
    lines = [line.split() for line in islice(io.BytesIO(data), _LOOKED_AT) if line.strip()]
    return bool(lines) and all(len(line) > 2 and line[-2].isdigit() for line in lines)


def parse(data: bytes, name: str, told: Told) -> Records:
    """The stacks in ``data``; ``name`` is only for messages. Raises FormatError, UnusableError."""
    if told.measure is None or told.unit not in ("bytes", "objects"):
        raise UnusableError(
            name,
            "collapsed stacks do not say what their numbers are: set source_unit to bytes or objects, and"
            " source_measure to live, allocated or grown (fab: --source live:bytes:1)",
        )
    if _is_difference(data):
        raise UnusableError(
            name, "has two numbers in each line, a difference: compare the two files themselves (fab diff)"
        )
    builder = StackBuilder(name)
    place = _Places(builder).__getitem__
    in_bytes = told.unit == "bytes"
    for number, line in enumerate(io.BytesIO(data), 1):
        if not line.strip():
            continue
        found = _stack_and_number(line)
        if found is None:
            raise FormatError(name, number, "a stack and a number, as in 'main;work 4096'", line.rstrip(b"\n"))
        stack, count = found
        places = b"".join(map(place, reversed(stack.split(b";"))))
        builder.add_packed(places, (0, count) if in_bytes else (count, 0))
    return builder.records(told.measure, told.sampling, unbiased=True)
