# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""What the child process costs that parses what hosts sent: the same work without it, in the same process."""

from __future__ import annotations

import os
from collections.abc import Callable

from ansible_collections.offheap.profiler.plugins.plugin_utils.base import child

_ASKED = "OFFHEAP_BENCH_UNCONFINED"
#: for a run that parses in its own process
ENVIRONMENT = {_ASKED: "1"}
#: how many times as long parsing in the child may take
MOST_COST = 1.10


def heed() -> None:
    """Call this before anything is parsed: without the child if the environment says so."""
    if _ASKED in os.environ:
        child.call = _call
        child.start = _start


def _call(function: Callable[..., bytes], *arguments: object, size: int) -> bytes:
    return function(*arguments)


def _start(*modules: str) -> None:
    """There is no child."""
