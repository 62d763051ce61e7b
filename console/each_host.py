# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""The same work on many hosts, a limited number at a time; a failing host stops no other."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from dataclasses import dataclass
from typing import Generic, TypeVar

from ..plugins.module_utils.formats.errors import OffheapError
from ..plugins.plugin_utils.fetch.host_session import Session
from .connect import Connector
from .target import Target

#: hosts at once; with more, they wait for the controller's CPU
AT_ONCE = 32
# Seconds without any outcome after which those that came are worth showing.
_QUIET = 1.0

Result = TypeVar("Result")


@dataclass(frozen=True)
class Outcome(Generic[Result]):
    """The outcome for a host: ``result``, or in ``error`` the reason for having none."""

    target: Target
    result: Result | None
    error: str = ""


def run(
    targets: Sequence[Target], connector: Connector, work: Callable[[Target, Session], Result], at_once: int = AT_ONCE
) -> Iterator[list[Outcome[Result]]]:
    """The hosts' outcomes as they come, and an empty list each time that a second passes without any. An interrupt ends
    the sessions and propagates.

    A fault of ours, which one host's answers may have brought out, is raised when the others' outcomes are told.
    """
    faults: list[BaseException] = []

    def one(target: Target) -> Outcome[Result]:
        try:
            with connector.session(target) as session:
                return Outcome(target, work(target, session))
        except OffheapError as error:
            return Outcome(target, None, str(error))

    pool = ThreadPoolExecutor(max_workers=max(1, min(at_once, len(targets))))
    try:
        left = {pool.submit(one, target) for target in targets}
        while left:
            done, left = wait_for(left, timeout=_QUIET, return_when=FIRST_COMPLETED)
            faults += [fault for future in done if (fault := future.exception())]
            yield [future.result() for future in done if not future.exception()]
        if faults:
            raise faults[0]
    finally:
        # Closing the connections raises errors in threads that still wait for a host, so they clean up.
        pool.shutdown(wait=False, cancel_futures=True)
        connector.hang_up()
        pool.shutdown(wait=True)
