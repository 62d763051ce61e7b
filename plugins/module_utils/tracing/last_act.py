# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""What is still to be done in a service if we are killed while we trace it: a child process of ours does it then.

This module is private to the collection.
"""

from __future__ import annotations

import contextlib
import os
from typing import Callable, Iterator, NoReturn


@contextlib.contextmanager
def if_killed(work: Callable[[], object]) -> Iterator[None]:
    """If we end before we leave, a child does the work, with all that is open now."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(writing)
        _wait(reading, work)
    os.close(reading)
    try:
        yield
    finally:
        with contextlib.suppress(BrokenPipeError):  # it was killed itself
            os.write(writing, b".")
        os.close(writing)
        os.waitpid(child, 0)


def _wait(pipe: int, work: Callable[[], object]) -> NoReturn:
    """In the child. The pipe ends with us, and with other children of ours that are at work just then."""
    try:
        os.setsid()  # what kills us may kill our group
        nowhere = os.open(os.devnull, os.O_RDWR)
        for number in range(3):  # else who reads what we say would wait for the child
            os.dup2(nowhere, number)
        if not os.read(pipe, 1):
            work()
    finally:
        os._exit(0)
