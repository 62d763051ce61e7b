# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""The host's end of a session: a question in, an answer out, until the other end goes away.

It runs from memory: the interpreter's standard input and output are connected to the controller. It leaves nothing on
the host that the modules would not.

This module is private to the collection.
"""

from __future__ import annotations

import importlib
import os
import select
import signal
import sys
import threading
import time
import traceback
from typing import IO, Any

from ansible_collections.offheap.profiler.plugins.module_utils.formats import limits, wire
from ansible_collections.offheap.profiler.plugins.module_utils.formats.errors import OffheapError

# By question, the module whose ANSWERS handles it. Each is loaded on first use, since loading all of them costs a
# host as much CPU time as collecting does.
_ANSWERED_BY = {
    **dict.fromkeys(("find", "stream", "mark"), "fetch"),
    **dict.fromkeys(("units", "sample", "control", "trace"), "units"),
}


#: seconds after which a controller that takes nothing counts as gone, although its connection still stands
_PATIENCE = 120.0


class Way:
    """The way to the controller. While an answer is made, it shows that we live, and ends us when that is in vain."""

    def __init__(self, target: IO[bytes]) -> None:
        self._target = target
        self._lock = threading.Lock()
        self._answering = threading.Event()
        self._taken = time.monotonic()
        threading.Thread(target=self._beat, daemon=True).start()

    def write(self, block: bytes) -> None:
        """Send all of it."""
        with self._lock:
            self._target.write(block)
            self._target.flush()
        self._taken = time.monotonic()

    def __enter__(self) -> Way:
        self._taken = time.monotonic()
        self._answering.set()
        return self

    def __exit__(self, *_exc: object) -> None:
        self._answering.clear()

    def _beat(self) -> None:
        while True:
            self._answering.wait()
            time.sleep(wire.BEAT)
            try:
                self._show_life()
            except OSError:
                break  # the controller is gone, and with it whoever wanted the answer
            if self._answering.is_set() and time.monotonic() - self._taken > _PATIENCE:
                break
        os.kill(os.getpid(), signal.SIGTERM)  # which a trace takes as its end: it has to clean up

    def _show_life(self) -> None:
        """A sign of life, unless an answer is on its way or the controller takes nothing at the moment."""
        if not self._lock.acquire(blocking=False):
            return
        try:
            if self._answering.is_set() and select.select([], [self._target], [], 0)[1]:
                wire.write_alive(self._target.write)
                self._target.flush()
                self._taken = time.monotonic()
        finally:
            self._lock.release()


def _bug(error: Exception) -> str:
    place = traceback.extract_tb(error.__traceback__)[-1]
    told = f"{type(error).__name__}: {error} in {place.filename}, line {place.lineno}"
    return f"this is a bug of the collection, and nothing is wrong with the host ({told}); please report it"


def serve(source: IO[bytes], target: IO[bytes]) -> None:
    """Answer requests ``{"ask": name, ...}`` until the source ends."""
    way = Way(target)
    while True:
        part = wire.read(source.read, limits.LARGEST_MESSAGE)
        if part is None or part.message is None:
            return
        question = part.message["ask"]
        with way:
            try:
                module = importlib.import_module(f"{__package__}.{_ANSWERED_BY[question]}")
                answer: dict[str, Any] = {"answer": module.ANSWERS[question](part.message, way.write)}
            except (OffheapError, OSError) as exc:
                answer = {"error": str(exc)}
            except ImportError as exc:  # a Python that somebody has built may be without a part, such as ctypes
                told = f"{sys.executable} is not a whole Python: {exc}"
                answer = {"error": f"{told}. Set ansible_python_interpreter to another one"}
            except Exception as exc:  # a bug of ours; who only saw the connection end would take it for a dead host
                answer = {"error": _bug(exc)}
            wire.write_message(way.write, answer)
