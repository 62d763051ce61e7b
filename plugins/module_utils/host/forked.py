# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Work in a child process that may hang, since it touches what a service's user can make hang, such as the file systems
of its namespace (fuse(4)), or that holds what the kernel lets go when a process ends. Not even SIGKILL ends who waits
for such a file system, so nobody waits for the child for long.

This module is private to the collection.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from typing import Callable, NoReturn

from ansible_collections.offheap.profiler.plugins.module_utils.formats.errors import OffheapError

_CHUNK = 1 << 16
_SECONDS_TO_END = 5.0

Write = Callable[[bytes], None]


class ForkedError(OffheapError):
    """The work has failed, or has not ended in time."""


def run(name: str, work: Callable[[Write], None], receive: Write, limit: int, seconds: float) -> None:
    """Do ``work`` in a child, and pass what it writes, at most ``limit`` bytes, to ``receive``.

    The first byte in the pipe says whether the rest is output (``+``) or the reason why there is none (``-``). Raises
    ForkedError, whose message begins with the ``name``.
    """
    deadline = time.monotonic() + seconds
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        _child(writing, work)
    os.close(writing)
    whole = False
    try:
        _relay(name, reading, receive, limit, deadline)
        whole = True
    finally:
        os.close(reading)
        if not whole:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        status = _end_of(child)  # it has closed its end of the pipe, or was killed, so it is about to end
    if status != 0:
        raise ForkedError(f"{name}: its answer was cut off")


def _end_of(child: int) -> int:
    """The status of a process that is about to end. One that is still there after a while waits for a file system of
    the service's user, which need not answer: that one ends when it may, and its status is -1."""
    deadline = time.monotonic() + _SECONDS_TO_END
    while True:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return status
        if time.monotonic() >= deadline:
            return -1
        time.sleep(0.01)


def _relay(name: str, pipe: int, receive: Write, limit: int, deadline: float) -> None:
    kind, failure, size = b"", b"", 0
    while True:
        left = deadline - time.monotonic()
        if left <= 0 or not select.select([pipe], [], [], left)[0]:
            raise ForkedError(f"{name} did not answer in time")
        part = os.read(pipe, _CHUNK)
        if not part:
            break
        if not kind:
            kind, part = part[:1], part[1:]
        size += len(part)
        if size > limit:
            raise ForkedError(f"{name} sent more than {limit} bytes")
        if kind == b"+":
            receive(part)
        else:
            failure += part
    if kind != b"+":
        raise ForkedError(f"{name}: {failure.decode('utf-8', 'replace') or 'the attempt ended early'}")


def _child(pipe: int, work: Callable[[Write], None]) -> NoReturn:
    started = False

    def write(part: bytes) -> None:
        nonlocal started
        if not started:
            part, started = b"+" + part, True
        while part:
            part = part[os.write(pipe, part) :]

    try:
        work(write)
        write(b"")
        status = 0
    except BaseException as exc:  # this is a forked copy, which no exception may leave
        status = 1
        if not started:
            with contextlib.suppress(BaseException):
                os.write(pipe, b"-" + str(exc).encode("utf-8", "replace")[:2000])
    os._exit(status)
