# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""What other processes are asked in tests of how they answer."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def keeping(directory: Path) -> Iterator[Callable[..., object]]:
    """A function that keeps count. Leaves a file for each process that has closed it."""
    calls = 0

    def act(what: str, detail: object = None) -> object:
        nonlocal calls
        calls += 1
        if what == "fail":
            raise ValueError(detail)
        if what == "die":
            os.abort()
        if what == "talk":
            print("no answer")
        if what == "sleep":
            Path(str(detail)).touch()
            time.sleep(3600)
        return what, detail, os.getpid(), calls

    yield act
    (directory / str(os.getpid())).touch()
