# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""What is still to be done in a service if we are killed while we trace it: a child process of ours does it then.

This module is private to the collection.
"""

from __future__ import annotations

import contextlib
import os
import socket
from typing import Callable, Iterator, NoReturn


@contextlib.contextmanager
def if_killed(work: Callable[[], object]) -> Iterator[None]:
    """If we end before we leave, a child does the work, with all that is open now."""
    ours, theirs = socket.socketpair()
    child = os.fork()
    if child == 0:
        ours.close()
        _wait(theirs, work)
    theirs.close()
    try:
        ours.recv(1)
        yield
    finally:
        with contextlib.suppress(BrokenPipeError):  # it was killed itself
            ours.send(b".")
        ours.close()
        os.waitpid(child, 0)


def _wait(parent: socket.socket, work: Callable[[], object]) -> NoReturn:
    """In the child. The connection ends with us, and with other children of ours that are at work just then."""
    try:
        os.setsid()  # what kills us may kill our group
        nowhere = os.open(os.devnull, os.O_RDWR)
        for number in range(3):  # else who reads what we say would wait for the child
            os.dup2(nowhere, number)
        parent.send(b".")
        if not parent.recv(1):
            work()
    finally:
        os._exit(0)
