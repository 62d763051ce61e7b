# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Threads of a JVM as ``Thread.print`` writes them, and which of them are inside a native method.

A thread's name is whatever the service gave it, even with line breaks, so only a line's own form counts.
Format: jstack(1), and HotSpot's JavaThread::print_stack_on.

This module is private to the collection.
"""

from __future__ import annotations

import re
from typing import Iterator, NamedTuple, Pattern

from ansible_collections.offheap.profiler.plugins.module_utils.formats.perf_map_line import without_hidden_class

_FRAME = re.compile(r"\tat ([^\s()]{1,1000})\(([^()]{0,1000})\)\Z")
#: how many frames of a stack are kept; recursion may have thousands
_MOST_FRAMES = 64
_NATIVE = "Native Method"


class Stack(NamedTuple):
    """A Java stack, leaf first: ``class.method`` of each frame. ``native`` says whether the leaf is a native method."""

    frames: tuple[str, ...]
    native: bool


def stacks(text: str) -> Iterator[Stack]:
    """The Java stacks of the threads that have any."""
    frames: list[str] = []
    native = False
    for line in text.split("\n"):
        match = _FRAME.match(line)
        if match:
            if not frames:
                native = match.group(2).rpartition("/")[2] == _NATIVE
            if len(frames) < _MOST_FRAMES:
                frames.append(without_hidden_class(match.group(1)).rpartition("/")[2])
        elif frames and not line.startswith("\t"):
            yield Stack(tuple(frames), native)
            frames = []
    if frames:
        yield Stack(tuple(frames), native)


def standing_in(text: str, method: Pattern[str]) -> list[tuple[str, ...]]:
    """Stacks whose leaf is a native method whose whole name, ``class.method``, matches."""
    return [stack.frames for stack in stacks(text) if stack.native and method.fullmatch(stack.frames[0])]
