# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Of two sessions of tests that run at once, one compiles the library and the other takes what it made.

They have a directory in common if OFFHEAP_BUILDS names it. A session that comes while the other still compiles waits.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def making(cache: Path) -> Iterator[None]:
    """Around a run that compiles into ``cache``: then the other session may have it."""
    with _locked() as shared:
        yield
        if shared is not None:
            shutil.copytree(cache, shared, dirs_exist_ok=True)


def take(cache: Path) -> None:
    """Fill ``cache`` with what the other session made, if it did."""
    with _locked() as shared:
        if shared is not None:
            shutil.copytree(shared, cache, dirs_exist_ok=True)


@contextmanager
def _locked() -> Iterator[Path | None]:
    place = os.environ.get("OFFHEAP_BUILDS")
    if place is None:
        yield None
        return
    shared = Path(place)
    shared.mkdir(parents=True, exist_ok=True)
    with shared.with_name(f"{shared.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield shared
