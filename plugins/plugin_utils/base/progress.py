# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""How far a long job is, for whoever waits at a terminal."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable

_FIRST, _EVERY = 1.0, 5.0
# Asked when this is loaded: Ansible loads an action before it starts the worker that runs it without a terminal.
_AT_A_TERMINAL = sys.stderr.isatty()


class Progress:
    """Counts what is done, and tells it after a second and then every five; without ``tell``, nothing."""

    def __init__(self, tell: Callable[[str], None] | None = None) -> None:
        self._tell = tell
        self._started = time.monotonic()
        self._due = self._started + _FIRST
        self._now, self._captures = "", 0

    def at(self, what: str) -> None:
        """What is being done from now on: ``frontend.service on app7, host 7 of 50``."""
        self._now = what
        self._told()

    def capture(self) -> None:
        """One more capture is done."""
        self._captures += 1
        self._told()

    def _told(self) -> None:
        now = time.monotonic()
        if self._tell is None or now < self._due:
            return
        self._due = now + _EVERY
        rate = self._captures / (now - self._started)
        speed = f", {rate:.0f} a second" if rate >= 1 else ""
        self._tell(self._now + (f" (captures so far: {self._captures}{speed})" if self._captures else ""))


def for_people(tell: Callable[[str], None]) -> Progress:
    """Progress that is told at a terminal, or wherever OFFHEAP_PROGRESS=1 asks for it; elsewhere it stays silent."""
    wanted = os.environ.get("OFFHEAP_PROGRESS", "")
    return Progress(tell if wanted == "1" or (wanted == "" and _AT_A_TERMINAL) else None)
