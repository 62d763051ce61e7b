# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""One line per step, with the seconds since the command began, so that nobody waits in the dark."""

from __future__ import annotations

import sys
import threading
import time

_BEGIN = time.monotonic()
_LOCK = threading.Lock()


def elapsed() -> float:
    """Seconds since the command began."""
    return time.monotonic() - _BEGIN


def say(message: str) -> None:
    """Print one step."""
    with _LOCK:
        print(f"lab {elapsed():6.1f} s  {message}", flush=True)


def complain(message: str) -> None:
    """Print what went wrong, to standard error."""
    with _LOCK:
        print(f"lab: {message}", file=sys.stderr, flush=True)
