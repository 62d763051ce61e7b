# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Times and rates as people say them."""

from __future__ import annotations

import re
from datetime import datetime, timezone

from .byte_size import as_text
from .errors import ControllerError

DAY = 86400.0
#: the year 5138: a host's clock can claim any time, and datetime ends with the year 9999
LATEST = 1e11
# Eight digits are a date.
_NUMBER = re.compile(r"(?![0-9]{8}\Z)[0-9]{1,11}(?:\.[0-9]{1,9})?")


class DurationError(ControllerError):
    """A text is not a time."""


def moment(time: float) -> str:
    """Seconds since the epoch as people write them: ``2026-11-22 03:00:00 UTC``; of a time that no clock shows, the
    nearest that one does."""
    return datetime.fromtimestamp(min(max(time, 0.0), LATEST), tz=timezone.utc).strftime("%Y-%m-%d %H:%M:%S UTC")


def seconds_of(text: str) -> float:
    """Seconds since the epoch from such a number, or from a date and time (ISO 8601, in UTC unless it says otherwise).

    Raises DurationError.
    """
    if _NUMBER.fullmatch(text):
        return float(text)
    try:
        found = datetime.fromisoformat(text.removesuffix(" UTC"))
    except ValueError as error:
        raise DurationError(f"{text!r} is not a time: write it like 2026-11-22T03:00:00, in UTC") from error
    seconds = (found if found.tzinfo else found.replace(tzinfo=timezone.utc)).timestamp()
    if not 0 <= seconds < LATEST:
        raise DurationError(f"{text!r} is no time of a profile: those are from 1970 on, and before the year 5138")
    return seconds


def duration(seconds: float) -> str:
    """Seconds as people say them: ``45 s``, ``12 min``, ``3 h 20 min``, ``4 d 2 h``."""
    whole = int(seconds)
    if whole < 120:
        return f"{whole} s"
    minutes, hours, days = whole // 60, whole // 3600, whole // int(DAY)
    if minutes < 120:
        return f"{minutes} min"
    if hours < 48:
        return f"{hours} h {minutes % 60} min" if minutes % 60 else f"{hours} h"
    return f"{days} d {hours % 24} h" if hours % 24 else f"{days} d"


def per_day(rate: float) -> str:
    """A rate in bytes per day: ``64.0 MiB/day``."""
    return f"{as_text(rate)}/day"
