# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""The same work on many hosts, so many at a time; one that fails stops no other."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from typing import Generic, TypeVar

from ..plugins.module_utils.formats.errors import OffheapError
from ..plugins.plugin_utils.fetch.host_session import Session
from .connect import Connector
from .target import Target

#: hosts at once; beyond it the controller's own processor is what they wait for
AT_ONCE = 32

Result = TypeVar("Result")


@dataclass(frozen=True)
class Outcome(Generic[Result]):
    """What came of a host: ``result``, or in ``error`` why there is none."""

    target: Target
    result: Result | None
    error: str = ""


def run(
    targets: Sequence[Target], connector: Connector, work: Callable[[Target, Session], Result], at_once: int = AT_ONCE
) -> Iterator[Outcome[Result]]:
    """Each host's outcome, in the order in which they are done. An interrupt ends the sessions and comes through."""

    def one(target: Target) -> Outcome[Result]:
        try:
            with connector.session(target) as session:
                return Outcome(target, work(target, session))
        except OffheapError as error:
            return Outcome(target, None, str(error))

    pool = ThreadPoolExecutor(max_workers=max(1, min(at_once, len(targets))))
    try:
        for future in as_completed([pool.submit(one, target) for target in targets]):
            yield future.result()
    finally:
        # Threads that still wait for a host get an error from their closed connections, and clear up behind them.
        pool.shutdown(wait=False, cancel_futures=True)
        connector.hang_up()
        pool.shutdown(wait=True)
