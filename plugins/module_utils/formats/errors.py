# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""The base of all errors that the collection raises on purpose.

This module is private to the collection.
"""

from __future__ import annotations


class OffheapError(Exception):
    """A request cannot be fulfilled. The message is one sentence for the user: what happened, why, what to do."""
