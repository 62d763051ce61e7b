# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Sizes in bytes as people write them, with binary units, and as jemalloc's lg_ options take them."""

from __future__ import annotations

import math
import re

from .errors import ControllerError

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
_TEXT = re.compile(r"\s*(\d{1,19})\s*([KMGTPE]?)(?:i?B)?\s*\Z", re.IGNORECASE)


class ByteSizeError(ControllerError):
    """A text is not a size, or a size is not a power of two where one is needed."""


def as_text(size: float) -> str:
    """Write 62914560 as ``60.0 MiB``: one decimal, but whole bytes below 1 KiB.

    An infinite size, such as an error that cannot be estimated, is "unknown".
    """
    # From 1023.95 on it would be printed as 1024.0.
    if -1023.95 < size < 1023.95:
        return f"{round(size)} B"
    for unit in _UNITS[1:-1]:
        size /= 1024
        if -1023.95 < size < 1023.95:
            return f"{size:.1f} {unit}"
    return f"{size / 1024:.1f} {_UNITS[-1]}" if math.isfinite(size) else "unknown"


def parse(size: int | str) -> int:
    """Read ``512 KiB``, ``512k``, ``512K`` or a plain number; every unit is a power of 1024.

    Raises ByteSizeError for anything else, including negative numbers.
    """
    match = None if isinstance(size, bool) else _TEXT.match(str(size))
    if not match:
        raise ByteSizeError(f"{size!r} is not a size: expected bytes, such as 524288, or '512 KiB'")
    return int(match.group(1)) << 10 * " KMGTPE".index(match.group(2).upper() or " ")


def lg(size: int | str) -> int:
    """The exponent that jemalloc's ``lg_`` options take: 19 for 512 KiB.

    Raises ByteSizeError unless the size is a power of two: jemalloc cannot express any other.
    """
    count = parse(size)
    if count < 1 or count & (count - 1):
        lower = 1 << max(count.bit_length() - 1, 0)
        raise ByteSizeError(f"{size!r} is not a power of two; nearest are {as_text(lower)} and {as_text(lower * 2)}")
    return count.bit_length() - 1
