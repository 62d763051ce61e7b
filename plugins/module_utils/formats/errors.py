# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""The base of all errors that the collection raises on purpose.

This module is private to the collection.
"""

from __future__ import annotations


class OffheapError(Exception):
    """Something that was asked for cannot be had. The message is one sentence for the user: what, why, what to do."""
