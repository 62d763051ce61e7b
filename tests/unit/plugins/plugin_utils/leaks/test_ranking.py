# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ansible_collections.offheap.profiler.plugins.plugin_utils.archive.archive import Archive
from ansible_collections.offheap.profiler.plugins.plugin_utils.columns import sample_cache
from ansible_collections.offheap.profiler.plugins.plugin_utils.leaks import ranking
from ansible_collections.offheap.profiler.plugins.plugin_utils.leaks.baseline import too_much
from ansible_collections.offheap.profiler.plugins.plugin_utils.leaks.ranking import Leak
from ansible_collections.offheap.profiler.plugins.plugin_utils.leaks.scope import Scope
from ansible_collections.offheap.profiler.plugins.plugin_utils.leaks.verdict import Answer, judge
from ansible_collections.offheap.profiler.plugins.plugin_utils.leaks.watched import Watched
from ansible_collections.offheap.profiler.plugins.plugin_utils.model import series
from ansible_collections.offheap.profiler.plugins.plugin_utils.model.frame import Frame, Kind
from ansible_collections.offheap.profiler.plugins.plugin_utils.report.host_report import Limits, reports
from ansible_collections.offheap.profiler.tests.unit.strategies import leaky_archives
from ansible_collections.offheap.profiler.tests.unit.strategies.profiles import profile

MIB = 1 << 20
HOUR = 3600.0
LEAK = ("inflate", "serve", "main")


def _watched(
    host: str, rate: float = 100.0, *, start: float = 0.0, label: str = "", path: tuple[str, ...] = LEAK, pid: int = 7
) -> Watched:
    """A process that leaks so many MiB an hour for an hour."""
    points = [
        (start + HOUR * step / 20, profile({path: (5 + rate * step / 20) * MIB, ("cache", "main"): 50.0 * MIB}))
        for step in range(21)
    ]
    verdict = judge(f"{pid}-aa", series.of_samples(points))
    return Watched("a.service", host, f"{pid}-aa", label, start, start + HOUR, verdict)


def _only(watched: list[Watched]) -> Leak:
    (leak,) = ranking.together(watched)
    return leak


def test_the_same_path_on_many_hosts_is_one_leak() -> None:
    leak = _only([_watched("app1"), _watched("app2", 50), _watched("app3", 0)])
    assert (list(leak.hosts), leak.watched, leak.processes) == (["app1", "app2"], 3, 2)
    assert abs(leak.growth - 150 * 24 * MIB) < leak.error
    assert leak.growth == pytest.approx(sum(leak.hosts.values()))
    assert leak.share > 0.9
    assert [frame.label for frame in leak.path] == list(LEAK)


def test_leaks_are_ranked_by_their_growth_on_all_hosts() -> None:
    one = [_watched(f"app{number}", 60) for number in range(3)]
    leaks = ranking.together([*one, _watched("app9", 100, path=("deflate", "store", "main"))])
    assert [leak.key[0] for leak in leaks] == ["inflate", "deflate"]
    assert sum(leak.share for leak in leaks) == pytest.approx(1.0)


def test_a_host_that_leaks_faster_than_the_others_is_named() -> None:
    leak = _only([_watched(f"app{number}", 100 + number) for number in range(5)] + [_watched("hot", 900)])
    assert leak.outliers == ["hot"]
    assert _only([_watched("app1"), _watched("hot", 900)]).outliers == [], "of two, none is the odd one"


def test_a_host_that_leaks_faster_is_told_by_the_errors_of_all_its_processes() -> None:
    others = [_watched(f"app{number}", 100) for number in range(5)]
    hot = [_watched("hot", 300, pid=pid) for pid in (7, 8)]
    unsure = replace(hot[0].verdict.suspects[0], error=1e12)
    hot[0] = replace(hot[0], verdict=replace(hot[0].verdict, suspects=[unsure]))
    leak = _only([*others, *hot])
    assert leak.outliers == [] and leak.error > 1e12


def test_a_restart_continues_a_leak_and_a_cured_one_is_gone() -> None:
    before, after = _watched("app1"), _watched("app1", start=2 * HOUR, pid=8)
    leak = _only([before, after])
    assert (leak.processes, list(leak.hosts), leak.first_seen) == (2, ["app1"], 0.0)
    assert abs(leak.growth - 100 * 24 * MIB) < leak.error, "it is not counted twice"
    assert ranking.together([before, _watched("app1", 0, start=2 * HOUR, pid=8)]) == []


def test_a_leak_is_shown_by_the_path_with_most_names_of_what_runs_now() -> None:
    """Not by a process that has ended without a map of its compiled code, however fast it leaked."""
    ended, now = _watched("app1", 200), _watched("app1", 100, start=2 * HOUR, pid=8)
    (suspect,) = ended.verdict.suspects
    bare = replace(suspect, path=(*suspect.path[:1], Frame("", "", Kind.JIT), *suspect.path[1:]))
    leak = _only([replace(ended, verdict=replace(ended.verdict, suspects=[bare])), now])
    (suspect,) = now.verdict.suspects
    assert leak.path == suspect.path
    assert leak.fastest == (suspect.growth, suspect.error), "nor is it judged by what an ended process lost"
    assert too_much([leak], [], limit=150.0 * 24 * MIB) == []


def test_workers_that_live_side_by_side_add_up() -> None:
    leak = _only([_watched("app1"), _watched("app1", pid=8)])
    assert (leak.processes, list(leak.hosts)) == (2, ["app1"])
    assert abs(leak.growth - 200 * 24 * MIB) < leak.error
    assert leak.fastest == (leak.growth, leak.error), "a limit is of a host"


def test_the_version_with_which_a_leak_appeared() -> None:
    cured, leaking = _watched("app1", 0, label="1.0"), _watched("app1", start=2 * HOUR, label="1.1", pid=8)
    leak = _only([cured, leaking, _watched("app2", start=2 * HOUR, label="1.1")])
    assert (leak.label, leak.first_seen) == ("1.1", 2 * HOUR)
    assert _only([_watched("app1", label="1.0"), _watched("app1", start=2 * HOUR, label="1.1", pid=8)]).label == ""


def test_an_archive_is_ranked_as_its_reports_say(tmp_path: Path) -> None:
    archive = leaky_archives.fill(tmp_path / "archive", tmp_path / "scratch")
    warnings: list[str] = []
    (leak,), watched = ranking.rank(archive, warnings.append, Scope())
    leaking, healthy = reports(archive, Scope(), Limits(), warnings.append, check_mode=False)
    assert warnings == []
    assert [(process.host, process.verdict.answer) for process in watched] == [
        (report.host, report.verdict.answer) for report in (leaking, healthy)
    ]
    (suspect,) = leaking.suspects
    assert leak.fastest == (suspect.growth, suspect.error)
    assert leak.hosts == {"app1": suspect.growth}
    assert ranking.rank(archive, warnings.append, Scope(hosts=["app2"]))[0] == []
    assert ranking.rank(archive, warnings.append, Scope(units=["other.service"])) == ([], [])


def test_what_cannot_be_read_is_told_and_left_out(tmp_path: Path) -> None:
    archive: Archive = leaky_archives.fill(tmp_path / "archive", tmp_path / "scratch")
    captures = archive.captures(host="app1")
    paths = [capture.path for capture in captures]
    samples = sample_cache.of(archive, captures[0])
    whole = samples.read_bytes()
    # Its end, which holds the format, stays intact.
    samples.write_bytes(b"PAR1" + bytes(len(whole) // 4) + whole[4 + len(whole) // 4 :])
    (paths[3] / "dump.heap.zst").unlink()
    (archive.captures(host="app2")[0].path / "capture.json").write_text("{")
    warnings: list[str] = []
    _leaks, watched = ranking.rank(archive, warnings.append, Scope())
    points = {process.host: process.verdict.points for process in watched}
    assert points == {"app1": 10, "app2": 11}, "a damaged capture costs itself alone"
    assert watched[0].verdict.answer is Answer.LEAK
    for part in ("has no samples", "samples.parquet: ", "is damaged: Expecting"):
        assert sum(part in warning for warning in warnings) == 1


def test_a_stack_without_frames_takes_no_other_leak() -> None:
    whole = _watched("app1")
    (suspect,) = whole.verdict.suspects
    nameless = replace(suspect, key=(), path=())
    leaks = ranking.together([replace(whole, verdict=replace(whole.verdict, suspects=[nameless, suspect]))])
    assert sorted(leak.key for leak in leaks) == [(), suspect.key]


def test_processes_are_not_compared_with_those_of_each_other_host() -> None:
    class Unique(Watched):
        def __eq__(self, other: object) -> bool:
            raise AssertionError("thousands of hosts would make millions of comparisons")

        __hash__ = object.__hash__

    watched = [_watched(f"app{number}") for number in range(3)]
    (leak,) = ranking.together([Unique(**vars(one)) for one in watched])
    assert sorted(leak.hosts) == ["app0", "app1", "app2"]
