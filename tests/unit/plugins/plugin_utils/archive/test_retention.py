# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
from __future__ import annotations

import os
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.offheap.profiler.plugins.plugin_utils.archive import retention
from ansible_collections.offheap.profiler.plugins.plugin_utils.archive.archive import Archive
from ansible_collections.offheap.profiler.plugins.plugin_utils.archive.capture import Capture
from ansible_collections.offheap.profiler.plugins.plugin_utils.archive.retention import Keep, too_much
from ansible_collections.offheap.profiler.tests.unit.plugins.plugin_utils.archive import capture_samples

HOUR = 3600.0
DAY = 86400.0
FACTS = capture_samples.facts()


def _series(times: list[float], process: str = "1-1a2b3c4d", host: str = "app1") -> list[Capture]:
    return [
        Capture(
            Path(f"/nowhere/{host}/{process}/{number}"),
            host,
            "a.service",
            process,
            number,
            time,
            capture_samples.facts(),
        )
        for number, time in enumerate(times)
    ]


def _left(captures: list[Capture], limits: Keep, now: float = 0.0) -> list[Capture]:
    gone = too_much(captures, limits, now, [100] * len(captures))
    return [capture for capture in captures if capture not in gone]


def test_without_limits_all_is_kept() -> None:
    captures = _series([HOUR * number for number in range(50)])
    assert _left(captures, Keep(), now=1e9) == captures


def test_the_first_the_newest_and_log_spaced_ones_stay() -> None:
    left = [capture.sequence for capture in _left(_series([HOUR * number for number in range(1000)]), Keep(count=12))]
    assert (len(left), left[0], left[-1]) == (12, 0, 999)
    distances = [999 - sequence for sequence in left[:-1]]
    assert distances[-1] <= 2, "the last hours are known by the hour"
    ratios = [further / nearer for further, nearer in pairwise(distances)]
    assert all(1 < ratio < 4.1 for ratio in ratios)


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=40), st.integers(1, 20))
def test_any_series_is_thinned_to_its_number(times: list[float], count: int) -> None:
    captures = _series(sorted(times))
    left = _left(captures, Keep(count=count))
    assert len(left) == min(len(captures), max(count, 2))
    assert left[0] is captures[0] and left[-1] is captures[-1]
    assert _left(left, Keep(count=count)) == left, "thinning what is thin changes nothing"


def test_a_process_is_thinned_by_itself() -> None:
    captures = _series([0.0, 1, 2, 3]) + _series([0.0, 1], process="2-1a2b3c4d") + _series([0.0, 1, 2], host="app2")
    left = [(capture.host, capture.process, capture.sequence) for capture in _left(captures, Keep(count=2))]
    assert left == [
        ("app1", "1-1a2b3c4d", 0),
        ("app1", "1-1a2b3c4d", 3),
        ("app1", "2-1a2b3c4d", 0),
        ("app1", "2-1a2b3c4d", 1),
        ("app2", "1-1a2b3c4d", 0),
        ("app2", "1-1a2b3c4d", 2),
    ]


def test_old_captures_go_and_old_processes_as_a_whole() -> None:
    captures = _series([0.0, DAY, 9 * DAY]) + _series([0.0, DAY], process="2-1a2b3c4d")
    left = _left(captures, Keep(age=7 * DAY), now=10 * DAY)
    assert [(capture.process, capture.time) for capture in left] == [("1-1a2b3c4d", 9 * DAY)]


@pytest.mark.parametrize(("size", "kept"), [(2000, 20), (1999, 18), (1000, 10), (400, 4), (200, 2), (199, 0)])
def test_all_are_thinned_alike_to_a_size(size: int, kept: int) -> None:
    captures = _series([float(number) for number in range(10)])
    captures += _series([100.0 + number for number in range(10)], process="2-1a2b3c4d")
    left = _left(captures, Keep(size=size))
    assert len(left) == kept
    if kept == 2:
        assert {capture.process for capture in left} == {"2-1a2b3c4d"}, "the process that ended first goes first"


@pytest.mark.parametrize("beside", ["perf.map.gz", "lives.gz", "holders.gz"])
def test_the_last_file_of_each_kind_beside_a_dump_stays(tmp_path: Path, beside: str) -> None:
    captures = [
        Capture(tmp_path / str(number), "app1", "a.service", "1-1a2b3c4d", number, HOUR * number, FACTS)
        for number in range(100)
    ]
    for number in (3, 40):
        captures[number].path.mkdir()
        (captures[number].path / beside).write_bytes(b"")
    assert 40 in [capture.sequence for capture in _left(captures, Keep(count=4))]


def test_an_archive_is_pruned(tmp_path: Path) -> None:
    archive = Archive.create(tmp_path / "archive")
    for sequence in range(10):
        content = f"{sequence}".encode()
        (tmp_path / "dump").write_bytes(content)
        archive.add_capture(capture_samples.facts(content, sequence=sequence), tmp_path / "dump")
    told, size = retention.prune(archive, Keep(count=3), 0.0, check_mode=True)
    assert (len(told), len(archive.captures())) == (7, 10)
    removed, size_again = retention.prune(archive, Keep(count=3), 0.0)
    assert (removed, size_again) == (told, size)
    assert [capture.sequence for capture in archive.captures()][::2] == [0, 9]
    assert size > 7 * 500, "facts and dumps"
    assert retention.prune(archive, Keep(count=3), 0.0) == ([], 0)


@pytest.mark.parametrize("limit", ["size", "age"])
def test_a_host_whose_clock_is_ahead_keeps_no_more_than_others(tmp_path: Path, limit: str) -> None:
    """What it sent arrived a day before what the other host sent, and says a year later."""
    archive = Archive.create(tmp_path / "archive")
    for host, arrived, said in (("ahead", 8 * DAY, 365 * DAY), ("right", 9 * DAY, 9 * DAY)):
        for sequence in range(2):
            content = f"{host} {sequence}".encode()
            (tmp_path / "dump").write_bytes(content)
            facts = capture_samples.facts(content, host=host, sequence=sequence)
            facts = replace(facts, dump=replace(facts.dump, time=said + sequence))
            added, _new = archive.add_capture(facts, tmp_path / "dump")
            os.utime(added.path / "capture.json", (arrived, arrived))
    its_size = sum(archive.size_of(capture) for capture in archive.captures(host="right"))
    keep = Keep(size=its_size) if limit == "size" else Keep(age=1.5 * DAY)
    retention.prune(archive, keep, 10 * DAY)
    assert [(capture.host, capture.sequence) for capture in archive.captures()] == [("right", 0), ("right", 1)]
