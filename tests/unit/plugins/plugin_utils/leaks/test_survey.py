# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
from __future__ import annotations

import gc
import os
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import pyarrow.parquet as pq
import pytest

from ansible_collections.offheap.profiler.plugins.action import leak_report
from ansible_collections.offheap.profiler.plugins.module_utils.formats.capture_facts import (
    ASYNC_PROFILER,
    SamplingFacts,
)
from ansible_collections.offheap.profiler.plugins.plugin_utils.archive.archive import Archive
from ansible_collections.offheap.profiler.plugins.plugin_utils.archive.capture import Capture
from ansible_collections.offheap.profiler.plugins.plugin_utils.columns import parquet
from ansible_collections.offheap.profiler.plugins.plugin_utils.columns.series_reader import Reader, reading
from ansible_collections.offheap.profiler.plugins.plugin_utils.leaks import survey as module
from ansible_collections.offheap.profiler.plugins.plugin_utils.leaks.ranking import leaks_of
from ansible_collections.offheap.profiler.plugins.plugin_utils.leaks.scope import Scope
from ansible_collections.offheap.profiler.plugins.plugin_utils.leaks.stretch import Stretch
from ansible_collections.offheap.profiler.plugins.plugin_utils.leaks.survey import Host, survey
from ansible_collections.offheap.profiler.plugins.plugin_utils.leaks.verdict import Answer, Verdict
from ansible_collections.offheap.profiler.plugins.plugin_utils.leaks.watched import Watched, verdict_on_host
from ansible_collections.offheap.profiler.plugins.plugin_utils.model.lives import Lives
from ansible_collections.offheap.profiler.plugins.plugin_utils.symbols.jit_symbols import JitMaps
from ansible_collections.offheap.profiler.tests.bench.shapes import DAY
from ansible_collections.offheap.profiler.tests.unit.fakes.actions import run_action
from ansible_collections.offheap.profiler.tests.unit.plugins.plugin_utils.leaks.test_workers import levels, short_worker
from ansible_collections.offheap.profiler.tests.unit.strategies import leaky_archives, small_recordings
from ansible_collections.offheap.profiler.tests.unit.strategies.described_archives import (
    Caller,
    DescribedArchive,
    DescribedProcess,
)


def _worker(leaked: int, begins: int = 0, dumps: int = 40, born: int = 0) -> DescribedProcess:
    return DescribedProcess(
        "web.service", "app1", begins, dumps, 60, leaked, "inflate", Caller.LIBRARY, padding=0, label="", born=born
    )


def _judged(root: Path, *processes: DescribedProcess) -> Host:
    archive = DescribedArchive(list(processes)).make(root / "archive")
    with reading(archive, pytest.fail) as reader:
        (host,) = survey(archive, reader, Scope(), pytest.fail)
    return host


def test_workers_that_leak_alike_are_one_leak_with_the_rate_of_all(tmp_path: Path) -> None:
    alone = _judged(tmp_path / "one", _worker(1)).verdict
    host = _judged(tmp_path / "four", *[_worker(1) for _number in range(4)])
    assert host.together is not None and len(host.together.members) == 4
    assert host.verdict.answer is Answer.LEAK and "that is of 4 processes together" in host.verdict.reason
    (leak,) = leaks_of(host.judged)
    for rate in (host.verdict.growth, host.verdict.suspects[0].growth, leak.growth):
        assert rate == pytest.approx(4 * alone.growth, rel=0.01)
    assert host.decisive_sum is host.together.series


def test_a_process_from_the_time_when_a_clock_was_ahead_is_not_the_newest(tmp_path: Path) -> None:
    """It did not leak, and says that it ran in 2099; the one that runs now does. app3 still has that clock."""
    archive = leaky_archives.fill(tmp_path / "archive", tmp_path / "scratch")
    for number in range(12):
        for host, steady in (("app1", 30), ("app3", 40)):
            content, late = leaky_archives.dump_text(5, steady + number % 2), 4.08e9 + 300 * number
            leaky_archives.add(archive, tmp_path / "scratch", content, host=host, sequence=number, time=late, pid=99)
    told: list[str] = []
    with reading(archive, pytest.fail) as reader:
        hosts = {host.host: host for host in survey(archive, reader, Scope(), told.append)}
    assert [hosts[name].verdict.answer for name in ("app1", "app3")] == [Answer.LEAK, Answer.NO_LEAK]
    assert told == [
        "captures of frontend.service on app1 were left out, as they claim a time to come, up to 2099-04-16 06:15:00"
        " UTC: its clock was ahead, or still is"
    ]


def test_reading_an_archive_leaves_python_as_it_was(tmp_path: Path) -> None:
    before = gc.get_threshold()
    _judged(tmp_path, _worker(1))
    assert gc.get_threshold() == before


@pytest.mark.parametrize(("born", "freed"), [(50, 0.98), (1, 0.0), (0, None)])
def test_where_dumps_say_what_was_allocated_a_suspect_says_how_much_of_it_was_freed(
    tmp_path: Path, born: int, freed: float | None
) -> None:
    (suspect,) = _judged(tmp_path, _worker(1, born=born)).verdict.suspects
    assert suspect.freed == (freed if freed is None else pytest.approx(freed, abs=0.001))


def test_one_that_leaks_among_workers_that_do_not_is_told_by_itself_or_as_their_sum(tmp_path: Path) -> None:
    host = _judged(tmp_path, _worker(4), *[_worker(0) for _number in range(3)])
    assert host.verdict.answer is Answer.LEAK
    assert host.verdict.process == next(one.watched.process for one in host.processes if one.watched.verdict.suspects)


def test_workers_without_sampling_are_not_judged_together_either(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "newest", lambda captures, _span: Stretch(list(captures), "off", sampled=False))
    host = _judged(tmp_path, _worker(0), _worker(0))
    assert (host.together, host.verdict.answer, host.verdict.reason) == (None, Answer.CANNOT_TELL, "off")


def test_levels_do_not_speak_for_workers_of_which_lives_are_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lives(_reader: Reader, captures: Sequence[Capture], _maps: JitMaps) -> Lives | None:
        return short_worker(0.02, 1) if captures[-1].facts.process.pid == 100 else None

    monkeypatch.setattr(Reader, "lives", lives)
    assert _judged(tmp_path, _worker(4), _worker(4)).together is None


def test_what_was_together_for_too_few_dumps_is_judged_by_itself(tmp_path: Path) -> None:
    """Of three dumps each, two are at a time at which both ran."""
    host = _judged(tmp_path, _worker(0, dumps=3), _worker(0, begins=20, dumps=3))
    assert host.together is not None and "only 2 dumps" in host.together.watched.verdict.reason
    assert host.verdict.answer is Answer.NO_LEAK


def test_a_restart_is_no_worker_beside_the_first(tmp_path: Path) -> None:
    host = _judged(tmp_path, _worker(4), _worker(0, begins=3000))
    assert host.together is None
    assert host.verdict.answer is not Answer.LEAK


def test_workers_that_are_replaced_too_soon_keep_the_answer_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their master, which does nothing, must not speak for them."""
    master = _worker(0, dumps=60)
    workers = [_worker(1, begins=at * 60, dumps=1) for at in range(40)]

    def lives(_reader: Reader, captures: Sequence[Capture], _maps: JitMaps) -> Lives | None:
        pid = captures[-1].facts.process.pid
        return None if pid == 100 else short_worker(50 / DAY, pid, leak=leak)

    monkeypatch.setattr(Reader, "lives", lives)
    leak = 60000
    verdict = _judged(tmp_path / "leak", master, *workers).verdict
    assert verdict.answer is Answer.CANNOT_TELL and "processes ended after" in verdict.reason
    leak = 0
    assert _judged(tmp_path / "none", master, *workers).verdict.answer is Answer.NO_LEAK


@pytest.mark.parametrize(
    ("mean", "answer"),
    [(100, Answer.NO_LEAK), (400, Answer.FILLS_UP), (None, Answer.LEAK)],
    ids=["lives", "fills", "stays"],
)
def test_a_recording_is_judged_by_its_frees(tmp_path: Path, mean: float | None, answer: Answer) -> None:
    """Ten minutes of a service that allocates ten blocks a second, which live for so many seconds on average."""
    dice = random.Random(1)
    events: list[tuple[float, small_recordings.Event]] = [(0.5, (10**8, 1 << 40))]  # of what was there before
    for number in range(6000):
        born = number / 10
        events.append((born, (round(born * 1e9), number + 1, 50000, 1)))
        if mean is not None:
            dies = born + dice.expovariate(1 / mean)
            events.append((dies, (round(dies * 1e9), number + 1)))
    archive = Archive.create(tmp_path / "archive")
    for number, end in enumerate((200, 400, 600)):
        seen = [event for when, event in events if when < end]
        content = small_recordings.recording(seen, interval=1 << 20, nanoseconds=end * 10**9)
        (tmp_path / "dump").write_bytes(content)
        facts = leaky_archives.facts(content, "app1", number, 1e9 + end)
        facts = replace(facts, source=ASYNC_PROFILER, sampling=SamplingFacts("systematic", 1 << 20))
        archive.add_capture(facts, tmp_path / "dump")
    with reading(archive, pytest.fail) as reader:
        (host,) = survey(archive, reader, Scope(), pytest.fail)
    assert host.verdict.answer is answer, host.verdict.reason


def test_a_process_that_measures_something_else_by_now_stops_no_report(tmp_path: Path) -> None:
    archive = Archive.create(tmp_path / "archive")
    for number, end in enumerate((200, 400, 600)):
        seen: list[small_recordings.Event] = [(round((0.5 + at) * 1e9), at + 1, 50000, 1) for at in range(50)]
        seen += [(round(50.5e9), 1)] if number else []  # without any free, all that came counts
        content = small_recordings.recording(seen, interval=1 << 20, nanoseconds=end * 10**9)
        (tmp_path / "dump").write_bytes(content)
        facts = leaky_archives.facts(content, "app1", number, 1e9 + end)
        measure = "allocated" if number == 0 else "live"
        facts = replace(facts, source=ASYNC_PROFILER, measure=measure, sampling=SamplingFacts("systematic", 1 << 20))
        archive.add_capture(facts, tmp_path / "dump")
    said: list[str] = []
    with reading(archive, said.append) as reader:
        (host,) = survey(archive, reader, Scope(), said.append)
    assert [capture.facts.measure for capture in host.processes[0].captures] == ["live", "live"]
    assert any("1 captures of" in one and "something else than the newest, live memory" in one for one in said), said


def test_a_capture_whose_derived_stacks_are_damaged_stops_no_report(tmp_path: Path) -> None:
    archive = DescribedArchive([_worker(1, dumps=12), replace(_worker(1, dumps=12), host="app2")]).make(tmp_path)
    with reading(archive, pytest.fail) as reader:
        assert len(list(survey(archive, reader, Scope(), pytest.fail))) == 2
    newest = archive.captures(host="app1")[-1].derived(parquet.NAME)
    group = pq.read_metadata(newest).row_group(0)
    columns = {group.column(at).path_in_schema: group.column(at) for at in range(group.num_columns)}
    column = columns["frames.list.element.offset"]
    content = bytearray(newest.read_bytes())
    content[column.dictionary_page_offset + column.total_compressed_size // 2] ^= 255
    newest.write_bytes(content)
    said: list[str] = []
    with reading(archive, said.append) as reader:
        hosts = list(survey(archive, reader, Scope(), said.append))
    assert [len(host.processes[0].captures) for host in hosts] == [11, 12]
    (left_out,) = said
    assert "a capture of web.service on app1 was left out" in left_out and "delete it" in left_out


def test_one_that_leaked_and_has_ended_is_no_leak_beside_replaced_workers() -> None:
    def watched(process: str, start: float, end: float, answer: Answer, points: int = 50) -> Watched:
        verdict = Verdict(answer, "so", process=process, points=points, span=end - start)
        return Watched("web.service", "app1", process, "", start, end, verdict)

    leaked, cured = watched("1-a", 0, 1000, Answer.LEAK), watched("2-b", 1100, 5000, Answer.NO_LEAK)
    short = [watched(f"{at}-c", 900 + 400 * at, 1000 + 400 * at, Answer.CANNOT_TELL, 1) for at in range(10)]
    each = [module.Process(one, [], levels(8.0), JitMaps({}, pytest.fail)) for one in (leaked, cured, *short)]
    replaced = module._replaced([(one, None) for one in each])
    assert replaced is not None and replaced.verdict.span > 3000
    assert verdict_on_host([leaked, cured, replaced]).answer is Answer.CANNOT_TELL
    assert leaks_of([leaked, cured, replaced]) == []


@pytest.fixture
def many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Archive:
    """Four hosts are many, on a machine with two processors. A capture of the second one cannot be read."""
    monkeypatch.setattr(module, "_MANY", 4)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {0, 1})
    archive = leaky_archives.fill(tmp_path / "archive", tmp_path / "scratch")
    for host in ("app3", "app4"):
        for number in range(12):
            content, time = leaky_archives.dump_text(20 + number, 30), leaky_archives.START + 300 * number
            leaky_archives.add(archive, tmp_path / "scratch", content, host=host, sequence=number, time=time)
    archive.captures(host="app2")[3].dump.write_bytes(b"damaged")
    return archive


def _told(archive: Archive, dest: Path, **arguments: Any) -> tuple[str, dict[str, bytes]]:
    """What the report's action returns, and the files that it writes."""
    result = run_action(leak_report, archive=str(archive.root), dest=str(dest), show=False, **arguments)
    files = {path.relative_to(dest).as_posix(): path.read_bytes() for path in dest.rglob("*") if path.is_file()}
    return repr(result).replace(dest.name, ""), files


def _alone(archive: Archive, dest: Path, **arguments: Any) -> tuple[str, dict[str, bytes]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "sched_getaffinity", lambda _pid: {0})
        return _told(archive, dest, **arguments)


def _here(_captures: list[Capture], *_others: object) -> NoReturn:
    pytest.fail("judged by this process")


def test_other_processes_say_the_same_of_many_hosts(
    many: Archive, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result, files = _alone(many, tmp_path / "here")
    assert "a capture of frontend.service on app2 was left out" in result and len(files) == 15
    monkeypatch.setattr(module, "_processes", _here)
    assert _told(many, tmp_path / "there") == (result, files)
    for capture in many.captures():
        capture.derived(parquet.NAME).unlink(missing_ok=True)
    assert _told(many, tmp_path / "anew") == (result, files)
    assert sum(capture.derived(parquet.NAME).exists() for capture in many.captures()) == 47


def test_in_check_mode_they_keep_nothing(many: Archive, tmp_path: Path) -> None:
    before = sorted(many.root.rglob("*"))
    assert _told(many, tmp_path / "there", check=True) == _alone(many, tmp_path / "here", check=True)
    assert sorted(many.root.rglob("*")) == before


def test_what_their_end_leaves_open_is_done_here(
    many: Archive, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_judging", os.abort)
    assert _told(many, tmp_path / "there") == _alone(many, tmp_path / "here")


def test_a_host_with_large_dumps_is_judged_here(many: Archive, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here: list[str] = []

    def noted(captures: list[Capture], *others: Any) -> Any:
        here.append(captures[0].host)
        return judge(captures, *others)

    judge = module._processes
    monkeypatch.setattr(module, "_processes", noted)
    content = leaky_archives.dump_text(10_000_000, 30)
    leaky_archives.add(many, tmp_path / "scratch", content, host="app3", sequence=12, time=leaky_archives.START + 3600)
    monkeypatch.setattr(module, "LARGE", len(content))
    _told(many, tmp_path / "there")
    assert here == ["app3"]


def test_few_hosts_or_one_processor_are_worth_no_others(
    many: Archive, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "answering", _here)
    _told(many, tmp_path / "few", hosts=["app1", "app2", "app3"])
    _alone(many, tmp_path / "one")


def test_a_host_that_the_inventory_has_twice_is_told(tmp_path: Path) -> None:
    archive = Archive.create(tmp_path / "archive")
    for host, leaked in (("db", 7), ("web-2", 5), ("web-2.example.com", 5)):
        for number in range(2):
            dump = leaky_archives.dump_text(leaked + number, 30)
            time = leaky_archives.START + number
            leaky_archives.add(archive, tmp_path / "scratch", dump, host=host, sequence=number, time=time)
    told: list[str] = []
    with reading(archive, told.append) as reader:
        assert len(list(survey(archive, reader, Scope(), told.append))) == 3
    assert [one for one in told if "two names" in one] == [
        "frontend.service has the same dump on web-2 and web-2.example.com: if these are two names of one host, name it"
        " once in the inventory, since all that it holds is counted twice"
    ]
