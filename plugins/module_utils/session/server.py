# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""The host's end of a session: a question in, an answer out, until the other end goes away.

It runs from memory: the interpreter's standard input and output are connected to the controller. It leaves nothing on
the host that the modules would not.

This module is private to the collection.
"""

from __future__ import annotations

import importlib
from typing import IO, Any

from ansible_collections.offheap.profiler.plugins.module_utils.formats import limits, wire
from ansible_collections.offheap.profiler.plugins.module_utils.formats.errors import OffheapError

# By question, the module whose ANSWERS handles it. Each is loaded on first use, since loading all of them costs a
# host as much CPU time as collecting does.
_ANSWERED_BY = {
    **dict.fromkeys(("find", "stream", "mark"), "fetch"),
    **dict.fromkeys(("units", "sample", "control"), "units"),
}


def serve(source: IO[bytes], target: IO[bytes]) -> None:
    """Answer requests ``{"ask": name, ...}`` until the source ends."""

    def write(block: bytes) -> None:
        target.write(block)
        target.flush()

    while True:
        part = wire.read(source.read, limits.LARGEST_MESSAGE)
        if part is None or part.message is None:
            return
        question = part.message["ask"]
        module = importlib.import_module(f"{__package__}.{_ANSWERED_BY[question]}")
        try:
            answer: dict[str, Any] = {"answer": module.ANSWERS[question](part.message, write)}
        except (OffheapError, OSError) as exc:
            answer = {"error": str(exc)}
        wire.write_message(write, answer)
