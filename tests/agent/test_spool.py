# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""The schedule, and which dumps stay when there are more than the budget."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from ansible_collections.offheap.profiler.plugins.module_utils.agent import client
from ansible_collections.offheap.profiler.plugins.module_utils.formats import dump_name
from ansible_collections.offheap.profiler.tests.agent.conftest import FOREIGN
from ansible_collections.offheap.profiler.tests.agent.service import Service, parsed, wait_for

Start = Callable[..., Service]


def test_schedule_and_statistics(start: Start, workload: Path) -> None:
    service = start(workload, "leak", "30", dump_seconds=1, stats_seconds=1)
    wait_for("two dumps", lambda: len(service.dumps()) >= 2)
    service.ask("schedule", dump=0)
    sidecar = json.loads((service.dumps()[0].with_name(service.dumps()[0].name + ".json")).read_text())
    assert sidecar["reason"] == "schedule"
    count = len(service.dumps())
    files = wait_for("statistics", lambda: list(service.spool.glob(f"jeprof.*.{service.pid}.stats.jsonl")))
    rows = [json.loads(line) for line in files[0].read_text().splitlines()]
    assert all(row["memory"]["rss"] > 0 for row in rows)
    time.sleep(1.2)
    assert len(service.dumps()) == count


def test_first_newest_and_spaced_between(start: Start, workload: Path) -> None:
    """Dumps of 300 minutes, one each minute (their times are set), in a budget of 12."""
    service = start(workload, "leak", "60", start="dormant", keep_files=12)
    began = time.time() - 300 * 60
    with service.connected() as connection:
        for minute in range(300):
            path = connection.request("dump")["path"]
            os.utime(path, (began + minute * 60,) * 2)
    kept = [(path.stat().st_mtime - began) / 60 for path in service.dumps()]
    numbers = [parsed(path)[2] for path in service.dumps()]
    assert len(kept) == 12
    assert numbers[0] == 0 and numbers[-1] == 299
    ages = [299 - number for number in numbers[1:-1]]
    ratios = [older / younger for older, younger in itertools.pairwise(ages)]
    assert max(ratios) < 6, ages  # spread over the whole time, not all at one end
    assert ages[0] > 100 and ages[-1] < 10, ages
    assert {path.name for path in service.spool.glob("*.json")} == {f"{path.name}.json" for path in service.dumps()}


def test_budget_in_bytes(start: Start, workload: Path) -> None:
    service = start(workload, "leak", "60", start="dormant")
    size = service.ask("dump")["size"]
    service.ask("schedule", keep_bytes=size * 5 + 2000)
    for _number in range(12):
        service.ask("dump")
    assert sum(path.stat().st_size for path in service.dumps()) <= size * 5 + 2000
    assert len(service.dumps()) >= 4
    service.ask("schedule", keep_bytes=1)
    newest = Path(service.ask("dump")["path"])
    assert service.dumps() == [newest]


def test_what_a_killed_process_was_writing_beside_a_dump_is_removed(
    start: Start, workload: Path, tmp_path: Path
) -> None:
    (tmp_path / "spool").mkdir()
    left, others = (tmp_path / "spool" / f"{name}.70000001.0.m0.heap.lives.part" for name in ("jeprof", "perf"))
    for path in (left, others):
        path.write_bytes(bytes(4096))
        os.utime(path, (1_000_000, 1_000_000))
    being_written = tmp_path / "spool" / "jeprof.70000002.0.m0.heap.holders.part"
    being_written.write_bytes(b"{")
    start(workload, "leak", "60").ask("dump")
    assert [path.exists() for path in (left, others, being_written)] == [False, True, True]


def test_a_sparse_file_takes_little_of_the_budget(start: Start, workload: Path, tmp_path: Path) -> None:
    spool = tmp_path / "spool"
    spool.mkdir()
    sparse = spool / "jeprof.70000001.0.m0.heap"
    with sparse.open("wb") as stream:
        stream.truncate(1 << 40)
    service = start(workload, "leak", "60", start="dormant")
    own = [Path(service.ask("dump")["path"]) for _number in range(3)]
    assert set(service.dumps()) == {sparse, *own}


def test_dumps_of_earlier_processes_count_but_go_first(start: Start, workload: Path, tmp_path: Path) -> None:
    spool = tmp_path / "spool"
    spool.mkdir()
    hour_ago = time.time() - 3600
    for pid in (70000001, 70000002):
        for number in range(6):
            path = spool / f"jeprof.{pid}.{number}.m{number}.heap"
            path.write_text("heap_v2/1\n")
            path.with_name(path.name + ".json").write_text("{}")
            os.utime(path, (hour_ago + number + pid % 10,) * 2)
    strangers = ["jeprof.txt", "other.1.2.m3.heap", "jeprof.1.2.m3.heap.bak", "jeprof.x.0.m0.heap"]
    for name in strangers:
        (spool / name).write_text("")
    (spool / "collected").mkdir()
    service = start(workload, "leak", "60", start="dormant", keep_files=6)
    for _number in range(3):
        service.ask("dump")
    per_process = {
        pid: [path for path in service.dumps() if parsed(path)[1] == pid] for pid in (70000001, 70000002, service.pid)
    }
    assert [len(paths) for paths in per_process.values()] == [2, 2, 2]
    assert per_process[70000001][0].name == "jeprof.70000001.0.m0.heap"
    assert per_process[70000001][1].name == "jeprof.70000001.5.m5.heap"
    for _number in range(10):
        service.ask("dump")
    assert len(service.dumps()) <= 6
    assert all((spool / name).exists() for name in (*strangers, "collected"))


def test_each_of_many_processes_keeps_what_a_verdict_needs(start: Start, workload: Path) -> None:
    """Three that live, of a budget of nine: each may have eight all the same. What has ended gets no share."""
    living = [subprocess.Popen(["sleep", "60"]) for _number in range(2)]
    try:
        service = start(workload, "leak", "60", start="dormant", keep_files=9)
        hour_ago = time.time() - 3600
        for pid in (70000001, *(process.pid for process in living)):
            for number in range(12):
                path = service.spool / f"jeprof.{pid}.{number}.m{number}.heap"
                path.write_text("heap_v2/1\n")
                os.utime(path, (hour_ago + number,) * 2)
        for _number in range(12):
            service.ask("dump")
        kept = {pid: 0 for pid in (70000001, *(process.pid for process in living), service.pid)}
        for path in service.dumps():
            kept[parsed(path)[1]] += 1
        assert sum(kept.values()) == 24
        assert all(kept[pid] >= 6 for pid in (*(process.pid for process in living), service.pid)), kept
    finally:
        for process in living:
            process.kill()
            process.wait()


@pytest.mark.skipif(FOREIGN, reason="unshare is a program of this machine")
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a namespace of pids")
def test_a_pid_that_comes_again_replaces_no_dump(start: Start, workload: Path) -> None:
    """As after a reboot, or in a second container: both processes believe that their pid is 1."""

    def dumps_after_another_start(wanted: int) -> dict[str, bytes]:
        service = start("unshare", "--pid", "--fork", str(workload), "leak", "60", executable=workload, dump_seconds=1)
        wait_for("more dumps", lambda: len(list(service.spool.glob("*.heap.json"))) >= wanted)
        service.kill()
        assert {parsed(path)[1] for path in service.dumps()} == {1}
        return {path.name: path.read_bytes() for path in service.dumps()}

    first = dumps_after_another_start(2)
    both = dumps_after_another_start(len(first) + 2)
    assert first.items() <= both.items()
    assert len({(dump_name.parse(name) or pytest.fail(name)).start for name in both}) == 2


def test_what_jemalloc_names_itself_tells_starts_apart_too(start: Start, workload: Path) -> None:
    service = start(workload, "leak", "2", conf="lg_prof_sample:12,prof_final:true")
    ours = parsed(Path(service.ask("dump")["path"]))
    assert service.result()[0] == 0
    finals = [path for path in service.dumps() if ".f.heap" in path.name]
    assert [parsed(path)[:2] for path in finals] == [ours[:2]]


def test_what_has_a_dump_s_name_already_stays(start: Start, workload: Path, tmp_path: Path) -> None:
    service = start(workload, "leak", "60", start="dormant")
    first = service.ask("dump")["path"]
    other = tmp_path / "other"
    other.write_text("precious")
    Path(first.replace(".0.m0.", ".1.m1.")).symlink_to(other)
    assert service.ask("dump")["path"] == first.replace(".0.m0.", ".2.m2.")
    assert other.read_text() == "precious"


def test_what_others_have_put_into_the_spool_is_not_written_to(start: Start, workload: Path, tmp_path: Path) -> None:
    """It may belong to workers without rights, and the process be root: a second name of a file, or a pipe."""
    service = start(workload, "leak", "60", start="dormant")
    first = Path(service.ask("dump")["path"])
    other = tmp_path / "other"
    other.write_text("precious")
    second = first.with_name(first.name.replace(".0.m0.", ".1.m1."))
    os.link(other, f"{second}.json.part")
    assert service.ask("dump")["path"] == str(second)
    third = first.with_name(first.name.replace(".0.m0.", ".2.m2."))
    os.mkfifo(f"{third}.json.part")
    assert service.ask("dump")["path"] == str(third)
    assert json.loads(second.with_name(f"{second.name}.json").read_text())["dump"] == second.name
    assert json.loads(third.with_name(f"{third.name}.json").read_text())["dump"] == third.name
    statistics = first.with_name(first.name.replace(".0.m0.heap", ".stats.jsonl"))
    os.link(other, statistics)
    service.ask("schedule", stats=1)
    wait_for("its problem", lambda: "it is not ours" in (service.ask("status")["problem"] or ""))
    statistics.unlink()
    os.mkfifo(statistics)
    assert service.ask("dump")["ok"]
    statistics.unlink()
    wait_for("statistics", lambda: statistics.is_file() and statistics.read_text())
    assert other.read_text() == "precious"


@pytest.mark.skipif(FOREIGN, reason="unshare is a program of this machine")
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can hide /proc, and write into another user's spool")
def test_without_proc_no_dump_into_another_user_s_spool(start: Start, workload: Path, tmp_path: Path) -> None:
    """jemalloc would open the dump by its name, where its user could have put a link by then."""
    service = start("unshare", "--mount", str(workload), "leak", "60", executable=workload, start="dormant")
    assert service.ask("dump")["ok"]
    subprocess.run(
        ["nsenter", "--mount", "--target", str(service.pid), "mount", "-t", "tmpfs", "none", "/proc"], check=True
    )
    assert service.ask("dump")["ok"], "its own spool"
    before = sorted(service.spool.iterdir())
    os.chown(service.spool, 65534, 65534)
    with pytest.raises(client.AgentError, match="is another user's"):
        service.ask("dump")
    assert sorted(service.spool.iterdir()) == before


def test_a_flood_from_before(start: Start, workload: Path, tmp_path: Path) -> None:
    spool = tmp_path / "spool"
    spool.mkdir()
    old = time.time() - 3600
    for number in range(5000):
        path = spool / f"jeprof.70000001.{number}.i{number}.heap"
        path.touch()
        os.utime(path, (old, old))
    service = start(workload, "leak", "60", start="dormant", keep_files=50)
    wait_for("a spool within its budget", lambda: len(service.dumps()) <= 50)
    assert service.ask("dump")["ok"]


def test_statistics_files_are_few(start: Start, workload: Path, tmp_path: Path) -> None:
    spool = tmp_path / "spool"
    spool.mkdir()
    for pid in range(70000001, 70000041):
        (spool / f"jeprof.{pid}.stats.jsonl").touch()
    service = start(workload, "leak", "60", start="dormant")
    for _number in range(30):
        service.ask("dump")
    assert len(list(spool.glob("*.stats.jsonl"))) <= 16
