# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Other processes of this library that share a long job with this one, so that all processors work on it.

All that they do is save time: what one of them cannot answer is for the caller to do, who then meets the same error.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import subprocess
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from queue import SimpleQueue
from typing import IO, Any, cast

from . import own_process

# Seconds that one of them has to finish what it is at.
_TO_END = 5

Answer = Callable[..., Any]
_Pool = SimpleQueue[subprocess.Popen[bytes]]


@contextmanager
def answering(
    count: int, opened: Callable[..., AbstractContextManager[Answer]], *arguments: object
) -> Iterator[Callable[..., Future[Any]]]:
    """So many processes, each of which keeps open what ``opened`` (of a module) opens with these arguments: a function.

    Yields what asks one of them for that function's answer to other arguments. It is None if the function fails, or
    its process ended.
    """
    processes = [own_process.started(serve) for _number in range(count)]
    idle: _Pool = SimpleQueue()
    told = pickle.dumps((opened, arguments))
    pool = ThreadPoolExecutor(max(count, 1))

    def ask(*call: object) -> Future[Any]:
        return pool.submit(_asked, processes, idle, pickle.dumps(call))

    try:
        for process in processes:
            pool.submit(_begin, process, told, idle)
        yield ask
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        for process in processes:
            _end(process)
        pool.shutdown()
        for process in processes:
            _streams(process)[1].close()


def _streams(process: subprocess.Popen[bytes]) -> tuple[IO[bytes], IO[bytes]]:
    return cast(IO[bytes], process.stdin), cast(IO[bytes], process.stdout)


def _begin(process: subprocess.Popen[bytes], told: bytes, idle: _Pool) -> None:
    _send(process, told)
    idle.put(process)


def _send(process: subprocess.Popen[bytes], data: bytes) -> None:
    requests, _answers = _streams(process)
    with contextlib.suppress(OSError, ValueError):  # it has ended; then there is no answer
        requests.write(data)
        requests.flush()


def _asked(processes: Sequence[subprocess.Popen[bytes]], idle: _Pool, call: bytes) -> Any:
    process, others_go_on = idle.get(), False
    try:
        _send(process, call)
        return pickle.load(_streams(process)[1])
    except (OSError, EOFError, pickle.UnpicklingError):
        process.kill()
        process.wait()
        others_go_on = any(one.poll() is None for one in processes)
        return None
    finally:
        if not others_go_on:  # one that has ended would be idle at once, and take nearly all further calls from them
            idle.put(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(OSError):
        _streams(process)[0].close()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_TO_END)
    process.kill()
    process.wait()


def serve(_words: Sequence[str]) -> None:
    """In one of them: answers until its pipe is closed."""
    source, target = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints is no answer
    opened, arguments = pickle.load(source)
    with opened(*arguments) as answer:
        while source.peek(1):
            call = pickle.load(source)
            try:
                found = answer(*call)
            except Exception:  # the caller meets it, too, and says what it is
                found = None
            pickle.dump(found, target)
            target.flush()
