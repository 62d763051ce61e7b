# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""The lake: what is added is there once, whoever adds, and the questions of its page have the right answers."""

from __future__ import annotations

import math
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import deltalake
import duckdb
import pytest
from ansible.errors import AnsibleActionFail

from ansible_collections.offheap.profiler.plugins.action import lake_update
from ansible_collections.offheap.profiler.plugins.plugin_utils.archive import far_archive
from ansible_collections.offheap.profiler.plugins.plugin_utils.archive.archive import Archive
from ansible_collections.offheap.profiler.plugins.plugin_utils.columns import parquet, sample_cache
from ansible_collections.offheap.profiler.plugins.plugin_utils.columns.lake import TABLES, Lake, LakeError
from ansible_collections.offheap.profiler.plugins.plugin_utils.columns.series_reader import reading
from ansible_collections.offheap.profiler.tests.conftest import ROOT
from ansible_collections.offheap.profiler.tests.unit.fakes import duck, s3
from ansible_collections.offheap.profiler.tests.unit.fakes.actions import run_action
from ansible_collections.offheap.profiler.tests.unit.strategies import leaky_archives

MIB = 1 << 20
#: a sampled object of 4 KiB stands for this much
SAMPLED = 4096 / (1 - math.exp(-4096 / leaky_archives.INTERVAL))
# 2025-10-23, an hour before midnight UTC
BEFORE_MIDNIGHT = 1761260400.0
STEP = 600.0


def add(archive: Archive, scratch: Path, content: bytes, label: str, rss: int, **of: Any) -> None:
    scratch.mkdir(exist_ok=True)
    (scratch / "dump").write_bytes(content)
    facts = replace(leaky_archives.facts(content, **of), label=label, agent={"memory": {"rss": rss}})
    archive.add_capture(facts, scratch / "dump")


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Archive:
    """Two hosts for two hours, across midnight: app1 (1.0) leaks through inflate from midnight on, app2 (1.1) never."""
    directory = tmp_path_factory.mktemp("fleet")
    archive = Archive.create(directory / "archive")
    build_id = leaky_archives.image().build_id
    assert build_id is not None
    archive.add_image(build_id, leaky_archives.libz().name, leaky_archives.libz())
    for number in range(12):
        for host, leaked, label in (("app1", 10 + 5 * max(0, number - 6), "1.0"), ("app2", 0, "1.1")):
            content = leaky_archives.dump_text(leaked, 30)
            of = {"host": host, "sequence": number, "time": BEFORE_MIDNIGHT + STEP * number}
            add(archive, directory / "scratch", content, label, 100 * MIB, **of)
    return archive


@pytest.fixture(params=["directory", "bucket"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "directory":
        return str(tmp_path / "lake")
    server: s3.Server = request.getfixturevalue("s3_store")
    return f"{server.bucket()}/lake"


def update(archive: Archive, place: str, check: bool = False, **options: Any) -> dict[str, Any]:
    return run_action(lake_update, check, archive=str(archive.root), lake=place, **options)


def asked(place: str, query: str) -> list[tuple[Any, ...]]:
    with duckdb.connect() as connection:
        connection.sql("SET TimeZone = 'UTC'")
        duck.open_tables(connection, place)
        return [tuple(row.values()) for row in connection.sql(query).to_arrow_table().to_pylist()]


def has_all(archive: Archive, place: str) -> None:
    """Each capture once, each stack once, and the numbers that the samples of the captures have."""
    names = asked(place, "SELECT name FROM captures ORDER BY name")
    assert names == [(archive.name_of(capture),) for capture in sorted(archive.captures(), key=archive.name_of)]
    assert asked(place, "SELECT stack FROM stacks GROUP BY stack HAVING count(*) > 1") == []
    found = asked(
        place, "SELECT name, sum(bytes), sum(objects), count(*) FROM captures JOIN points USING (capture) GROUP BY 1"
    )
    assert len(found) == len(names)
    for name, size, objects, stacks in found:
        capture = next(one for one in archive.captures() if archive.name_of(one) == name)
        moment = parquet.read_moment(sample_cache.of(archive, capture), capture.time)
        assert (size, objects) == (pytest.approx(moment.bytes.sum()), pytest.approx(moment.objects.sum()))
        assert stacks == (moment.objects > 0).sum()
    assert asked(place, "SELECT count(*) FROM points ANTI JOIN stacks USING (stack)") == [(0,)]


def test_what_is_new_is_added_once(fleet: Archive, place: str) -> None:
    assert update(fleet, place, check=True)["captures"] == 24
    assert update(fleet, place, hosts=["app2"])["captures"] == 12
    assert update(fleet, place, check=True)["captures"] == 12
    done = update(fleet, place)
    assert (done["captures"], done["changed"], done.get("warnings")) == (12, True, None)
    has_all(fleet, place)
    again = update(fleet, place)
    assert (again["captures"], again["changed"]) == (0, False)


@pytest.mark.slow
def test_compaction_and_a_new_beginning_change_no_answer(fleet: Archive, place: str) -> None:
    for host in ("app1", "app2"):
        update(fleet, place, hosts=[host])
    assert len(deltalake.DeltaTable(f"{place}/points").file_uris()) == 2
    assert update(fleet, place, compact=True)["files"] == {"captures": 1, "stacks": 1, "points": 1}
    has_all(fleet, place)
    (rows,) = [asked(place, "SELECT stack FROM points")]
    assert rows == sorted(rows), "sorted by stack"
    with pytest.raises(AnsibleActionFail, match="leave out hosts"):
        update(fleet, place, rebuild=True, hosts=["app1"])
    assert update(fleet, place, check=True, rebuild=True)["captures"] == 24
    assert update(fleet, place, rebuild=True)["captures"] == 24
    has_all(fleet, place)


@pytest.mark.slow
def test_two_that_add_the_same(fleet: Archive, place: str) -> None:
    together, added, warnings = threading.Barrier(2), list[int](), list[str]()

    def run() -> None:
        with reading(fleet, warnings.append) as reader:
            captures = fleet.captures()
            together.wait()
            for first in range(0, 24, 4):  # more commits, more chances to meet
                added.append(Lake(place).add(fleet, reader, captures[first : first + 4], warnings.append))

    threads = [threading.Thread(target=run) for _writer in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(added) == 12 and sum(added) == 24 and warnings == []
    has_all(fleet, place)


@pytest.mark.parametrize("table", TABLES)
def test_a_writer_killed_before_any_commit(
    fleet: Archive, table: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it had committed stays, and the next one adds only the rest."""
    place, append = str(tmp_path / "lake"), Lake._append

    def killed(self: Lake, *arguments: Any) -> int:
        if table in ("stacks", arguments[0]):
            raise KeyboardInterrupt
        return append(self, *arguments)

    monkeypatch.setattr(Lake, "_append_stacks" if table == "stacks" else "_append", killed)
    with pytest.raises(KeyboardInterrupt):
        update(fleet, place)
    monkeypatch.undo()
    assert update(fleet, place)["captures"] == 24
    has_all(fleet, place)


def test_what_cannot_be_read_is_told(fleet: Archive, tmp_path: Path) -> None:
    shutil.copytree(fleet.root, tmp_path / "archive")
    archive = Archive.open(tmp_path / "archive")
    harmed = archive.captures()[3]
    harmed.dump.write_bytes(b"harmed")
    (harmed.path / parquet.NAME).unlink(missing_ok=True)
    done = update(archive, str(tmp_path / "lake"))
    assert done["captures"] == 23
    assert [text.split(":")[0] for text in done["warnings"]] == ["a capture of frontend.service on app1 was left out"]
    (tmp_path / "file").write_text("")
    with pytest.raises(AnsibleActionFail, match=f"the lake {tmp_path}/file"):
        update(archive, str(tmp_path / "file"))


def test_an_archive_is_no_place_for_a_lake(fleet: Archive, s3_store: s3.Server) -> None:
    address = f"{s3_store.bucket()}/fleet"
    far_archive.created(address)
    for place in (str(fleet.root), address):
        with pytest.raises(AnsibleActionFail, match=f"{place} is an archive"):
            update(fleet, place, rebuild=True)
    assert len(fleet.captures()) == 24


PAGE = (ROOT / "docs" / "lake.md").read_text(encoding="utf-8")
QUESTIONS = re.findall(r"```sql\n(.*?)```", PAGE, re.DOTALL)


def rounded(rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    return [tuple(round(cell, 3) if isinstance(cell, float) else cell for cell in row) for row in rows]


def mib(sampled: float) -> float:
    return round(sampled * SAMPLED / MIB, 3)


@pytest.fixture(scope="module")
def lake(fleet: Archive, tmp_path_factory: pytest.TempPathFactory) -> str:
    place = str(tmp_path_factory.mktemp("lake") / "lake")
    update(fleet, place)
    return place


def answers() -> Iterator[Callable[[list[tuple[Any, ...]]], bool]]:
    """What is right for each question of the page, in its order."""
    inflate, deflate, process = "inflate < [jit]", "deflate < [jit]", "12-1a2b3c4d"
    unit = "frontend.service"
    yield lambda rows: [(row[1], row[4]) for row in rows] == [("app1", mib(65)), ("app2", mib(30))]
    yield lambda rows: rows == [(unit, deflate, 2, mib(60)), (unit, inflate, 1, mib(35))]
    # Least squares through 10, 10, 10, 10, 10, 10, 10, 15, 20, 25, 30, 35 at 0, 1, 2 … 11 steps
    yield (
        lambda rows: (
            rows[0] == (unit, "app1", process, inflate, mib(_slope() * 86400 / STEP))
            and all(row[4] == 0 for row in rows[1:])
            and len(rows) == 3
        )
    )
    average = sum(10 + 5 * max(0, number - 6) for number in range(12)) / 12
    yield (
        lambda rows: (
            rows
            == [
                (unit, "1.0", deflate, mib(30)),
                (unit, "1.1", deflate, mib(30)),
                (unit, "1.0", inflate, mib(average)),
            ]
        )
    )
    yield lambda rows: rows == [(inflate, "1.0")]
    yield (
        lambda rows: (
            [(str(row[1])[:10], *row[2:]) for row in rows]
            == [
                ("2025-10-23", mib(35), mib(40)),
                ("2025-10-24", mib(35), mib(65)),
            ]
        )
    )
    yield lambda rows: rows == [(unit, "app1", process, 0.0, mib(25))]
    yield lambda rows: len(rows) == 24 and rows[0][5] == round(30 * SAMPLED / (100 * MIB), 3) and rows[-1][1] == "app1"
    yield lambda rows: rows == []
    yield lambda rows: rows == [(leaky_archives.libz().name, mib(95))]


def _slope() -> float:
    values = [10 + 5 * max(0, number - 6) for number in range(12)]
    middle, mean = 5.5, sum(values) / 12
    return sum((at - middle) * (value - mean) for at, value in enumerate(values)) / sum(
        (at - middle) ** 2 for at in range(12)
    )


def test_the_page_has_ten_questions() -> None:
    assert len(QUESTIONS) == 10 == len(list(answers()))


def test_the_example_runs(lake: str) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    done = subprocess.run(
        [sys.executable, "-c", example.replace("offheap/lake", lake)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0 and "24" in done.stdout, done.stderr


@pytest.mark.parametrize("number", range(10))
def test_questions(lake: str, number: int) -> None:
    rows = rounded(asked(lake, QUESTIONS[number]))
    assert list(answers())[number](rows), rows


def test_a_capture_in_which_nothing_was_live_holds_nothing(tmp_path: Path) -> None:
    """It has no points; the one before it was answered in its place."""
    archive, place = Archive.create(tmp_path / "archive"), str(tmp_path / "lake")
    for number, leaked in enumerate((10, 0)):
        content = leaky_archives.dump_text(leaked, 0)
        add(archive, tmp_path / "scratch", content, "1.0", 0, host="app1", sequence=number, time=1e9 + number)
    update(archive, place)
    ((*_whose, seen, live),) = asked(place, QUESTIONS[0])
    assert (seen.timestamp(), live) == (1e9 + 1, 0)
    ((_unit, _day, middle, most),) = asked(place, QUESTIONS[5])
    assert rounded([(middle, most)]) == [(mib(5), mib(10))]


def test_a_lake_that_cannot_be_reached(s3_store: s3.Server, fleet: Archive) -> None:
    with pytest.raises(LakeError, match="the lake s3://nowhere/lake"), reading(fleet, print) as reader:
        Lake("s3://nowhere/lake").add(fleet, reader, fleet.captures(), print)
