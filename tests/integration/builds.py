# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Of sessions of tests that run one after the other or at once, one compiles the library and the others take it.

They have a directory in common if OFFHEAP_BUILDS names it. A session that comes while another still compiles waits.
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
    """Around a run that compiles into ``cache``: then other sessions may have it."""
    with _locked() as shared:
        yield
        if shared is not None:
            shutil.copytree(cache, shared, dirs_exist_ok=True)


@contextmanager
def sharing_crossed(cache: Path) -> Iterator[None]:
    """Around a run that builds on the controller for other hosts; others need not wait for it, and get what it made."""
    with _locked() as shared:
        if shared is not None:
            _copy(_crossed(shared), cache)
    yield
    give_crossed(cache)


def give_crossed(cache: Path) -> None:
    """Let other sessions have what was built for other hosts."""
    with _locked() as shared:
        if shared is not None:
            _copy(cache, _crossed(shared))


def _crossed(shared: Path) -> Path:
    """Apart from the others, which some tests want alone in their cache."""
    return shared.with_name(f"{shared.name}-crossed")


def _copy(source: Path, target: Path) -> None:
    target.mkdir(mode=0o700, parents=True, exist_ok=True)
    for path in source.glob("*-cross.tar.gz*"):
        shutil.copy2(path, target)


def take(cache: Path) -> None:
    """Fill ``cache`` with what another session made, if one did."""
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
