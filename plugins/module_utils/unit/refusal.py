# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Why a unit is left unchanged.

This module is private to the collection.
"""

from __future__ import annotations

from ansible_collections.offheap.profiler.plugins.module_utils.formats.errors import OffheapError


class UnitError(OffheapError):
    """The state of the unit's files or its spool rules out the request. The message says what to change."""


class Refusal(UnitError):
    """The unit must not, or cannot, be profiled. ``reason`` is a short name that playbooks can test."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason
