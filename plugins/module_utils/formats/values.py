# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Values out of JSON that somebody else has written: what counts as a text, a size, a number.

This module is private to the collection.
"""

from __future__ import annotations

import math
import re
from typing import Any

#: the year 5138, in seconds since the epoch
LATEST = 10**11
_SURROGATE = re.compile("[\ud800-\udfff]")


def is_text(value: Any, longest: int) -> bool:
    """A text of at most so many characters, empty ones included, that UTF-8 can have."""
    return isinstance(value, str) and len(value) <= longest and not _SURROGATE.search(value)


def is_whole(value: Any) -> bool:
    """A whole number that fits into 63 bits."""
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) < 1 << 62


def is_size(value: Any) -> bool:
    """A number of bytes, or of anything that is counted."""
    return is_whole(value) and value >= 0


def is_number(value: Any) -> bool:
    """A number that is finite."""
    return is_whole(value) or (isinstance(value, float) and math.isfinite(value))


def is_time(value: Any) -> bool:
    """Seconds since the epoch that a calendar has."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value <= LATEST


def clean(text: str, limit: int) -> str:
    """A text as the kernel has it (os.fsdecode), as valid UTF-8 of at most so many bytes."""
    return text.encode("utf-8", "surrogateescape")[:limit].decode("utf-8", "replace")
