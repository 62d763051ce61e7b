# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Spools that would fill the disk of a target, and what a service's user puts into its folder of collected dumps."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ansible_collections.offheap.profiler.plugins.module_utils.formats import limits
from ansible_collections.offheap.profiler.plugins.module_utils.formats.pack_request import Identity, SpooledDump
from ansible_collections.offheap.profiler.plugins.module_utils.host import places
from ansible_collections.offheap.profiler.plugins.module_utils.spool import steps
from ansible_collections.offheap.profiler.tests.hostile.bounds import costs_at_most

UNIT = "web.service"
MOST = 1 << 20


@pytest.fixture
def spool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(places, "SPOOLS", str(tmp_path))
    monkeypatch.setattr(limits, "LARGEST_SPOOL", MOST)
    tmp_path.chmod(0o755)
    (tmp_path / UNIT).mkdir()
    return tmp_path / UNIT


def _dump(spool: Path, sequence: int, size: int = 100 << 10) -> Path:
    path = spool / f"jeprof.12.{sequence}.i{sequence}.heap"
    path.write_bytes(os.urandom(size))
    os.utime(path, (sequence, sequence))
    return path


def _collect(*dumps: Path) -> list[str]:
    marked = steps.mark([SpooledDump(UNIT, dump.name, Identity.of(dump.stat())) for dump in dumps], delete=False)
    return list(marked["problems"])


def _size(spool: Path) -> int:
    return sum(path.stat().st_blocks * 512 for path in spool.rglob("*") if path.is_file())


def test_five_collections_of_the_whole_budget(spool: Path) -> None:
    for turn in range(5):
        dumps = [_dump(spool, 100 * turn + number) for number in range(9)]
        for dump in dumps:
            dump.with_name(dump.name + ".map").write_bytes(os.urandom(20 << 10))
        assert _collect(*dumps) == [] and 0 < _size(spool) <= MOST
    kept = sorted(path.name for path in (spool / "collected").iterdir())
    assert dumps[-1].name in kept and f"{dumps[-1].name}.map" in kept, "the newest"
    assert {name.removesuffix(".map") for name in kept} == {name for name in kept if name.endswith(".heap")}


def test_dumps_that_are_not_collected_stay_and_are_told(spool: Path) -> None:
    _collect(*[_dump(spool, number) for number in range(5)])
    waiting = [_dump(spool, 1000 + number) for number in range(20)]
    (problem,) = _collect(_dump(spool, 10))
    assert "not collected" in problem and str(spool) in problem
    assert list((spool / "collected").iterdir()) == [] and all(dump.exists() for dump in waiting)


def test_what_a_service_puts_there(spool: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    _dump(outside, 1)
    theirs = spool / "collected"
    theirs.mkdir()
    (theirs / "jeprof.1.0.i0.heap").symlink_to(outside / "jeprof.12.1.i1.heap")
    (theirs / "jeprof.1.1.i1.heap").mkdir()
    (theirs / "outside").symlink_to(outside)
    (theirs / "notes").write_bytes(os.urandom(2 * MOST))
    for number in range(3000):
        (theirs / f"jeprof.2.{number}.i{number}.heap").touch()
    with costs_at_most(5, 8):
        (problem,) = _collect(_dump(spool, 7))
    assert "not collected" in problem
    assert (outside / "jeprof.12.1.i1.heap").stat().st_size == 100 << 10, "nothing outside was touched"
    assert (theirs / "notes").exists()


def test_a_link_in_the_place_of_the_folder(spool: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    kept = [_dump(outside, number, 1 << 20) for number in range(3)]
    (spool / "collected").symlink_to(outside)
    dump = _dump(spool, 7)
    (problem,) = _collect(dump)
    assert "is not a directory" in problem and dump.exists() and all(path.exists() for path in kept)
