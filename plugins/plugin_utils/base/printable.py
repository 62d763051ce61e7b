# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Text from outside, made safe for a terminal or a line of a report."""

from __future__ import annotations


def printable(text: str) -> str:
    """The text with everything that could move a cursor or break a line replaced by U+FFFD."""
    if text.isprintable():
        return text
    return "".join([character if character.isprintable() else "\ufffd" for character in text])


def printable_lines(text: str) -> str:
    """The same for a text of several lines, which stay lines; tabs become spaces."""
    return "\n".join([printable(line.expandtabs()) for line in text.split("\n")])
