# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""The cache of an archive at an address stays within its bound, and nothing disappears while somebody reads it."""

from __future__ import annotations

import fcntl
import os
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from ansible_collections.offheap.profiler.plugins.plugin_utils.archive import far_archive, far_cache
from ansible_collections.offheap.profiler.plugins.plugin_utils.archive.capture import DUMP
from ansible_collections.offheap.profiler.tests.unit.plugins.plugin_utils.archive.test_far_archive import (
    add,
    content_of,
)
from ansible_collections.offheap.profiler.tests.unit.strategies import leaky_archives

DAY = 86_400.0


@pytest.fixture
def address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(far_cache, "LARGEST_CACHE", 1000)
    return f"memory://{uuid.uuid4()}/fleet"


@pytest.fixture
def cache(address: str) -> Iterator[Path]:
    """With files of 600 bytes, which were used a number of days ago, and nobody there for more than an hour."""
    os.close(far_cache.use(address))
    place = far_cache.place_of(address)
    for name, days in (("captures/a/dump", 3), ("captures/b/dump", 1), ("images/id/libc.so", 2), ("symcaches/id", 9)):
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_bytes(b"x" * 600)
        os.utime(place / name, (time.time() - days * DAY, time.time() - 20 * DAY))
    _long_ago(place)
    yield place


def _long_ago(place: Path) -> None:
    os.utime(place / ".in-use", (0, 0))


def _left(place: Path) -> list[str]:
    return sorted(path.relative_to(place).as_posix() for path in place.rglob("*") if path.name[0] != ".")


def test_the_longest_unused_go(address: str, cache: Path) -> None:
    os.close(far_cache.use(address))
    assert _left(cache) == ["archive.address", "captures", "captures/b", "captures/b/dump"]


def test_a_cache_within_the_bound_is_left_alone(address: str, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(far_cache, "LARGEST_CACHE", 4 * 600)
    before = _left(cache)
    os.close(far_cache.use(address))
    assert _left(cache) == before


def test_nothing_goes_while_somebody_uses_it(address: str, cache: Path) -> None:
    before = _left(cache)
    os.utime(cache / ".in-use")
    other = far_cache.use(address)
    _long_ago(cache)
    os.close(far_cache.use(address))
    assert _left(cache) == before
    os.close(other)
    os.close(far_cache.use(address))
    assert _left(cache) != before


def test_it_is_not_looked_through_more_than_once_an_hour(address: str, cache: Path) -> None:
    os.close(far_cache.use(address))
    (cache / "symcaches").mkdir()
    (cache / "symcaches" / "id").write_bytes(b"x" * 2000)
    os.close(far_cache.use(address))
    assert (cache / "symcaches" / "id").exists()


def test_an_archive_uses_its_cache_as_long_as_it_lives_and_brings_again_what_went(address: str, tmp_path: Path) -> None:
    archive = far_archive.created(address)
    add(archive, tmp_path, 0)
    (capture,) = archive.captures()
    held = os.open(archive.root / ".in-use", os.O_RDWR)
    with pytest.raises(BlockingIOError):
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    root = archive.root
    del archive, capture
    fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(held)
    for path in (path for path in root.rglob("*") if path.is_file()):
        os.utime(path, (0, 0))
    (root / "images").mkdir()
    (root / "images" / "new").write_bytes(b"x" * 1000)
    archive = far_archive.opened(address)
    assert not list(root.rglob(DUMP))
    (capture,) = archive.captures()
    assert leaky_archives.dump_of(capture) == content_of(0)
