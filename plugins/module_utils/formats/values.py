# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Untrusted JSON, and checks of the values in it: what counts as a text, a size, a number.

This module is private to the collection.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any

#: the year 5138, in seconds since the epoch
LATEST = 10**11
#: the largest whole number
MOST = (1 << 62) - 1
_MOST_DIGITS = 1000
_SURROGATE = re.compile("[\ud800-\udfff]")


def parsed(text: str) -> Any:
    """Untrusted JSON. Raises ValueError, RecursionError.

    Of a number with a million digits, int() would take minutes (before Python 3.10.7, which limits them itself).
    """
    return json.loads(text, parse_int=_whole)


def _whole(digits: str) -> int:
    if len(digits) > _MOST_DIGITS:
        raise ValueError(f"a number of {len(digits)} digits")
    return int(digits)


def is_text(value: Any, longest: int) -> bool:
    """A text, possibly empty, of at most ``longest`` characters, that UTF-8 can encode."""
    return isinstance(value, str) and len(value) <= longest and not _SURROGATE.search(value)


def is_whole(value: Any) -> bool:
    """A whole number that fits into 63 bits."""
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) <= MOST


def is_size(value: Any) -> bool:
    """A number of bytes, or any other count."""
    return is_whole(value) and value >= 0


def is_number(value: Any) -> bool:
    """A number that is finite."""
    return is_whole(value) or (isinstance(value, float) and math.isfinite(value))


def is_time(value: Any) -> bool:
    """Seconds since the epoch that a calendar has."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value <= LATEST


def nearest_time(seconds: float) -> float:
    """The time of a file, or the nearest that a calendar has: its owner may set any."""
    return min(max(seconds, 0.0), float(LATEST))


def clean(text: str, limit: int) -> str:
    """A text from the kernel (os.fsdecode) as valid UTF-8, cut to ``limit`` bytes."""
    return text.encode("utf-8", "surrogateescape")[:limit].decode("utf-8", "replace")
