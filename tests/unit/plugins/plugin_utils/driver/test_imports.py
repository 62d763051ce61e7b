# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Profiles of other tools in the archive: what is kept of them, and what is said of a series of them."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from ansible_collections.offheap.profiler.plugins.module_utils.formats.errors import OffheapError
from ansible_collections.offheap.profiler.plugins.plugin_utils.archive.archive import Archive
from ansible_collections.offheap.profiler.plugins.plugin_utils.driver.imports import (
    Imported,
    Origin,
    import_profiles,
)
from ansible_collections.offheap.profiler.plugins.plugin_utils.driver.sources import DumpReader, Images
from ansible_collections.offheap.profiler.plugins.plugin_utils.driver.told_options import told_in_short
from ansible_collections.offheap.profiler.plugins.plugin_utils.leaks.scope import Scope
from ansible_collections.offheap.profiler.plugins.plugin_utils.leaks.verdict import Answer
from ansible_collections.offheap.profiler.plugins.plugin_utils.report.host_report import Limits, reports
from ansible_collections.offheap.profiler.tests.unit.fakes import profile_stores
from ansible_collections.offheap.profiler.tests.unit.strategies import go_program, leak_tools, leaky_archives
from ansible_collections.offheap.profiler.tests.unit.strategies.imported_series import A_DAY, judged, surveyed

START = 1763780400
MIB = 1 << 20
EXACT = Origin("web", "app1", told=told_in_short("live:bytes:1"))


def folded(directory: Path, leaked: list[int], steady: int = 9 * MIB) -> list[Path]:
    """Collapsed stacks, an hour apart by the times of their files."""
    files = []
    for hour, size in enumerate(leaked):
        path = directory / f"{hour}.folded"
        path.write_text(f"main;serve;inflate {size}\nmain;cache {steady}\n")
        os.utime(path, (START + 3600 * hour,) * 2)
        files.append(path)
    return files


def test_a_leak_in_imported_profiles_is_told_by_name(tmp_path: Path) -> None:
    files = folded(tmp_path, [MIB * (4 + hour) for hour in range(6)])
    found = import_profiles(files, EXACT, tmp_path / "archive")
    assert [(one.new, one.clock, one.facts.dump.time) for one in found] == [
        (True, "file", START + 3600 * hour) for hour in range(6)
    ]
    (host,) = surveyed(tmp_path / "archive")
    assert (host.unit, host.host, host.verdict.answer) == ("web.service", "app1", Answer.LEAK)
    (suspect,) = host.verdict.suspects
    assert [frame.label for frame in suspect.path] == ["inflate", "serve", "main"]
    assert suspect.growth == pytest.approx(24 * MIB)
    (report,) = reports(Archive.open(tmp_path / "archive"), Scope(), Limits(), pytest.fail, False)
    assert report.headline.startswith("Leak of 24.0 MiB/day")
    assert "inflate" in report.files["txt"] and "main;serve;inflate" in report.files["folded"]


@pytest.mark.parametrize("measure", ["allocated", "grown"])
def test_what_is_not_live_is_kept_and_never_called_a_leak(measure: str, tmp_path: Path) -> None:
    files = folded(tmp_path, [MIB * (4 + hour) for hour in range(6)])
    import_profiles(files, Origin("web", "app1", told=told_in_short(f"{measure}:bytes:1")), tmp_path / "archive")
    (host,) = surveyed(tmp_path / "archive")
    assert (host.verdict.answer, host.verdict.suspects) == (Answer.CANNOT_TELL, [])
    assert "not what is live" in host.verdict.reason


def test_where_nobody_knows_the_sampling_nothing_is_called_a_leak(tmp_path: Path) -> None:
    files = folded(tmp_path, [MIB * (4 + hour) for hour in range(6)])
    import_profiles(files, Origin("web", "app1", told=told_in_short("live:bytes")), tmp_path / "archive")
    (host,) = surveyed(tmp_path / "archive")
    assert host.verdict.answer is Answer.CANNOT_TELL
    assert "unknown how the profiles" in host.verdict.reason


def test_what_sources_count_in_different_ways_is_never_one_series(tmp_path: Path) -> None:
    for told in ("live:bytes:1", "allocated:bytes:1"):
        import_profiles(folded(tmp_path, [1, 2, 3]), Origin("web", "app1", told=told_in_short(told)), tmp_path / "a")
    (host,) = surveyed(tmp_path / "a")
    assert len(host.processes) == 2


def test_a_time_before_1970_is_none_of_a_profile(tmp_path: Path) -> None:
    """Such a capture would be kept for good, and read by no report."""
    profile = tmp_path / "heap.pb"
    profile.write_bytes(profile_stores.pprof({"inflate;serve": MIB}, taken=-5.0))
    for of_file, time in ((START, START), (-86400, 0)):
        os.utime(profile, (of_file, of_file))
        (found,) = import_profiles([profile], Origin("web", "app1"), tmp_path / "archive")
        assert (found.new, found.clock, found.facts.dump.time) == (True, "file", time)


def test_importing_twice_changes_nothing(tmp_path: Path) -> None:
    files = folded(tmp_path, [MIB, MIB, 2 * MIB])
    first = import_profiles(files, EXACT, tmp_path / "archive")
    assert len({one.path for one in first}) == 3, "the same content at another time is another capture"
    again = import_profiles(files, EXACT, tmp_path / "archive")
    assert [(one.path, one.new) for one in again] == [(one.path, False) for one in first]


def test_check_mode_says_the_same_and_writes_nothing(tmp_path: Path) -> None:
    files, root = folded(tmp_path, [1, 2]), tmp_path / "archive"
    expected = import_profiles(files, EXACT, root, check_mode=True)
    assert not root.exists()
    done = import_profiles(files, EXACT, root)

    def told(found: list[Imported]) -> list[tuple[Path, bool]]:
        return [(one.path, one.new) for one in found]

    assert told(done) == told(expected)
    assert told(import_profiles(files, EXACT, root, check_mode=True)) == [(one.path, False) for one in done]


def test_a_packed_file_is_the_same_as_a_plain_one(tmp_path: Path) -> None:
    (plain,) = folded(tmp_path, [5 * MIB])
    packed = tmp_path / "x.gz"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    at = Origin("web", "app1", time=float(START), told=EXACT.told)
    (first,), (second,) = (import_profiles([file], at, tmp_path / "archive") for file in (plain, packed))
    assert (first.path, second.new, first.clock) == (second.path, False, "option")


def test_all_bad_files_are_named_and_nothing_is_imported(tmp_path: Path) -> None:
    files = [tmp_path / "empty.folded", *folded(tmp_path, [1, 2]), tmp_path / "bad.folded"]
    files[0].touch()
    files[-1].write_bytes(b"\0\1\2 nothing that anybody knows")
    with pytest.raises(OffheapError, match=r"empty\.folded: is empty\n.*bad\.folded.*\nNothing was imported"):
        import_profiles(files, EXACT, tmp_path / "archive")
    assert Archive.open(tmp_path / "archive").captures() == []


@pytest.mark.parametrize(
    ("origin", "message"),
    [
        (Origin("web.socket", "app1"), "is not the name of a service"),
        (Origin("web", ""), "name no valid host"),
        (Origin("web", "app1", process=-1), "the process is -1; give 0 to 9999999999"),
        (Origin("web", "app1", process=10**10), "the process is 10000000000; give 0 to"),
        (Origin("web", "app1", time=1.0), "for a single profile only"),
    ],
)
def test_what_cannot_be_stored_is_refused(origin: Origin, message: str, tmp_path: Path) -> None:
    with pytest.raises(OffheapError, match=message):
        import_profiles(folded(tmp_path, [1, 2]), Origin(**{**vars(origin), "told": EXACT.told}), tmp_path / "archive")


def test_a_missing_file_is_said_to_be_missing(tmp_path: Path) -> None:
    with pytest.raises(OffheapError, match=r"none\.pb: No such file"):
        import_profiles([tmp_path / "none.pb"], EXACT, tmp_path / "archive")


def spooled(directory: Path, start: str, number: int, size: int) -> Path:
    """A dump of ours with its sidecar, as a copy of a spool has them."""
    dump = directory / f"jeprof.{start}.1.{number}.m{number}.heap"
    dump.write_bytes(leaky_archives.dump_text(size, 9 * MIB))
    os.utime(dump, (START + 3600 * number,) * 2)
    facts = {
        **{"format": 1, "dump": dump.name, "size": dump.stat().st_size, "pid": 1, "agent": "1", "reason": "schedule"},
        **{"unwinder": "hybrid", "active": True, "active_since": START, "duration": 0.1, "memory": {"rss": 64 * MIB}},
        "jemalloc": {"version": "5.3.0", "malloc_conf": "prof:true", "options": {}},
    }
    dump.with_name(f"{dump.name}.json").write_text(json.dumps(facts))
    return dump


def test_the_copy_of_a_spool_keeps_starts_apart_and_what_the_agent_said(tmp_path: Path) -> None:
    files = [spooled(tmp_path, start, number, MIB) for start in ("0123abcd-1000", "0123abcd-9000") for number in (0, 1)]
    found = import_profiles(files, Origin("web", "app-0"), tmp_path / "archive")
    assert len({one.facts.process.key for one in found}) == 2
    assert {(one.facts.process.pid, one.facts.memory["rss"]) for one in found} == {(1, 64 * MIB)}
    again = import_profiles(files, Origin("web", "app-0"), tmp_path / "archive")
    assert not [one for one in again if one.new]


def test_a_sidecar_that_is_about_another_dump_is_told(tmp_path: Path) -> None:
    dump = spooled(tmp_path, "0123abcd-1000", 0, MIB)
    dump.write_bytes(leaky_archives.dump_text(2 * MIB, 9 * MIB))
    dump.with_name(f"{dump.name}.json").write_text("{}")
    (found,) = import_profiles([dump], Origin("web", "app-0"), tmp_path / "archive")
    assert found.facts.agent == {"problem": "it is not of format 1"} and not found.facts.memory


def test_images_named_by_the_user_come_into_the_archive_and_no_others(tmp_path: Path) -> None:
    dump = tmp_path / "x.heap"
    dump.write_bytes(leaky_archives.dump_text(40, 10))
    guessed = import_profiles([dump], Origin("web", "app1"), tmp_path / "guessed")[0].facts
    assert not guessed.build_ids, "this machine's libz may be another build than theirs"
    (one,) = import_profiles([dump], Origin("web", "app1"), tmp_path / "archive", [leaky_archives.libz().parent])
    archive = Archive.open(tmp_path / "archive")
    (build_id,) = one.facts.build_ids.values()
    assert one.facts.sums == {build_id: leaky_archives.libz_sum()}
    assert archive.image(build_id, leaky_archives.libz_sum()) is not None
    source = DumpReader(Images(archive=archive), tmp_path).read(one.path)
    assert "inflate" in {frame.function for frame in source.samples.frames}


@pytest.mark.slow
def test_profiles_of_a_go_program_end_in_the_true_verdict(tmp_path: Path) -> None:
    program = go_program.built(tmp_path)
    files = [tmp_path / f"{step}.pb.gz" for step in range(6)]
    for step, file in enumerate(files):
        go_program.write_profile(program, file, 4096, 4000 * (1 + step))
    host = judged(files, tmp_path)
    facts = host.processes[0].captures[-1].facts
    assert (facts.source, facts.measure) == ("pprof", "live")
    assert host.verdict.answer is Answer.LEAK
    (suspect,) = host.verdict.suspects
    assert [frame.label for frame in suspect.path][:2] == ["main.leak", "main.main"]
    # Go's samples are drawn anew in each run: one in twenty misses the interval, one in ten thousand twice of it.
    assert abs(suspect.growth - 4000 * go_program.SIZE * A_DAY) < 2 * suspect.error


def sanitizers(directory: Path, blocks: int) -> Path:
    path = directory / f"{blocks}.report"
    path.write_bytes(leak_tools.sanitizer_report(directory, blocks))
    return path


def heaptrack(directory: Path, blocks: int) -> Path:
    path = directory / f"{blocks}.folded"
    leak_tools.folded_by_heaptrack(leak_tools.heaptrack_trace(directory, blocks), path)
    return path


def mimalloc_pprof(directory: Path, blocks: int) -> Path:
    return leak_tools.mimalloc_dump(directory, blocks, "proto")


@pytest.mark.parametrize(
    ("tool", "told"),
    [
        (sanitizers, ""),
        (leak_tools.massif_file, ""),
        (leak_tools.dhat_file, ""),
        (leak_tools.memcheck_file, ""),
        (heaptrack, "live:bytes:1"),
        (leak_tools.gperftools_dump, ""),
        (leak_tools.memray_table, ""),
        (leak_tools.mimalloc_dump, ""),
        (mimalloc_pprof, ""),
    ],
    ids="sanitizer massif dhat memcheck heaptrack gperftools memray mimalloc mimalloc-pprof".split(),
)
def test_what_leak_tools_see_ends_in_the_true_verdict(
    tool: Callable[[Path, int], Path], told: str, tmp_path: Path
) -> None:
    host = judged([tool(tmp_path, 1000 * (1 + step)) for step in range(5)], tmp_path, told, [tmp_path])
    assert host.verdict.answer is Answer.LEAK
    (suspect,) = host.verdict.suspects
    assert suspect.path[0].function.startswith("take")
    assert suspect.growth == pytest.approx(1000 * 1001 * A_DAY, rel=1e-3)


@pytest.mark.parametrize("check_mode", [False, True])
def test_a_pattern_that_matches_nothing_is_no_success(tmp_path: Path, check_mode: bool) -> None:
    with pytest.raises(OffheapError, match="nothing to import"):
        import_profiles([], Origin("frontend", "app1"), tmp_path / "archive", check_mode=check_mode)
    assert not (tmp_path / "archive").exists()
