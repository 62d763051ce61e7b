# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Changes to a target, for check mode and Ansible's diff too.

This module is private to the collection.
"""

from __future__ import annotations

from typing import Callable


class Changes:
    """Changes to the target: done, or in check mode only noted."""

    def __init__(self, check_mode: bool) -> None:
        self._check_mode = check_mode
        self._before: list[str] = []
        self._after: list[str] = []
        self._differences: list[dict[str, str]] = []
        self.any = False
        self.units = False

    def do(self, action: Callable[[], object]) -> None:
        """Act, unless this is check mode."""
        self.any = True
        if not self._check_mode:
            action()

    def note(self, path: str, before: str, after: str) -> None:
        """Record a change to a file's text or to a directory's attributes."""
        texts = {"before_header": path, "after_header": path, "before": before, "after": after}
        self._differences.append({name: _readable(text) for name, text in texts.items()})

    def diff(self) -> list[dict[str, str]]:
        """The changes in the form that Ansible prints."""
        return self._differences


def _readable(text: str) -> str:
    """Text that a result may hold: for one byte that is no UTF-8, Ansible refuses the whole of it."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
