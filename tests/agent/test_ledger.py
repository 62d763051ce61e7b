# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""The ledger: every birth and every death of a sampled object is counted, once."""

from __future__ import annotations

import os
import resource
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from ansible_collections.offheap.profiler.plugins.plugin_utils.model.lives import BUCKETS, youngest
from ansible_collections.offheap.profiler.plugins.plugin_utils.readers import lives_book
from ansible_collections.offheap.profiler.plugins.plugin_utils.readers.lives_book import Book
from ansible_collections.offheap.profiler.tests.agent.builds import SOURCES
from ansible_collections.offheap.profiler.tests.agent.conftest import EMULATED, PROGRAMS, compiled, service_program
from ansible_collections.offheap.profiler.tests.agent.service import Service

Start = Callable[..., Service]


class Living:
    """The program, and what the agent says of its lives."""

    def __init__(self, start: Start, jemalloc: Path, library: Path, conf: str, steps: int = 3000) -> None:
        settings = {"conf": conf, "preload": [jemalloc, library], "popen": {"stdin": subprocess.PIPE}}
        self.service = start(service_program("lives"), "4", str(steps), **settings)
        self.service.wait_until_active()

    def do(self, what: str) -> None:
        assert self.service.do(what) == "done"

    def dump(self) -> tuple[Book, int, int]:
        """The book, and what jemalloc itself counts as living, in objects and bytes."""
        told = self.service.ask("dump")
        book = lives_book.parse(Path(f"{told['path']}.lives").read_bytes(), "a book")
        return book, told["objects"], told["bytes"]


@pytest.fixture
def living(start: Start, jemalloc: Path, library: Path) -> Living:
    return Living(start, jemalloc, library, "lg_prof_sample:0")


def test_births_less_deaths_are_what_jemalloc_counts_as_living(living: Living) -> None:
    living.do("churn")
    book, objects, size = living.dump()
    assert (len(book.stack), sum(book.size)) == (objects, size)
    assert objects >= 400 and sum(book.births) >= 12_000
    assert (book.lost, book.interval) == (0, 1)
    living.do("free")
    freed, objects, size = living.dump()
    assert (len(freed.stack), sum(freed.size)) == (objects, size)
    assert sum(freed.deaths) >= sum(book.deaths) + 400


def test_ages_are_those_that_objects_reached(living: Living) -> None:
    living.do("churn")
    before, _objects, _size = living.dump()
    time.sleep(1.1)  # the age that the test is about
    living.do("free")
    after, _objects, _size = living.dump()
    old = [bucket for bucket in range(BUCKETS) if youngest(bucket) >= 1.0]
    died = sum(after.deaths[at] for at in range(len(after.deaths)) if at % BUCKETS in old)
    assert died >= 400
    assert min(after.born, default=0) >= 0 and before.began == pytest.approx(after.began, abs=0.1)


@pytest.mark.parametrize("how", ["switch", "reset"])
def test_a_new_book_begins_where_jemalloc_begins_anew(living: Living, how: str) -> None:
    living.do("churn")
    first, _objects, _size = living.dump()
    if how == "reset":
        living.service.ask("reset")
    else:
        living.service.ask("deactivate")
        living.do("churn")
        off = living.service.ask("dump")["path"]
        assert not Path(f"{off}.lives").exists(), "births are missing in it"
        living.service.ask("activate")
    second, _objects, _size = living.dump()
    assert second.began > first.began
    assert sum(second.births) < 100, "only what the program does meanwhile"
    living.do("free")  # of the old book
    living.do("churn")
    third, _objects, _size = living.dump()
    assert third.began == pytest.approx(second.began, abs=0.1)
    assert sum(third.births) >= 12_000


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_a_new_book_is_empty_also_in_locked_memory(living: Living) -> None:
    """The kernel does not take it back (mlockall), and what was in it would never be found free again."""
    living.do("lock")
    for _number in range(3):
        living.do("churn")
        living.service.ask("reset")
    living.do("free")
    book, objects, size = living.dump()
    assert (len(book.stack), sum(book.size)) == (objects, size)
    assert sum(book.births) < 100, "only what the program does meanwhile"


def test_a_full_table_says_so(living: Living) -> None:
    living.do("stacks")
    book, _objects, _size = living.dump()
    assert len(book.ends) == 16384
    assert 3600 < book.lost < 4200


def test_a_book_goes_with_its_dump(living: Living) -> None:
    first = Path(living.service.ask("dump")["path"])
    living.service.ask("schedule", keep_files=2)
    for _number in range(3):
        living.service.ask("dump")
    books = {path.name.removesuffix(".lives") for path in living.service.spool.glob("*.lives")}
    assert books == {path.name for path in living.service.dumps()} and len(books) == 2
    assert first.name in books


def test_a_jemalloc_that_tells_of_no_births_has_no_book(
    start: Start, workload: Path, unpatched_jemalloc: Path, library: Path
) -> None:
    service = start(workload, "leak", "30", preload=[unpatched_jemalloc, library])
    service.wait_until_active()
    assert not Path(f"{service.ask('dump')['path']}.lives").exists()
    assert not service.ask("status")["problem"]


@pytest.mark.skipif(EMULATED, reason="the emulator needs memory of its own")
def test_a_service_without_memory_for_a_book_is_told_of(start: Start, workload: Path) -> None:
    service = start(workload, "leak", "30", start="dormant")
    size = next(
        line for line in Path(f"/proc/{service.agent().pid}/status").read_text().split("\n") if "VmSize" in line
    )
    most = (int(size.split()[1]) << 10) + (24 << 20)
    resource.prlimit(service.pid, resource.RLIMIT_AS, (most, most))
    service.ask("activate")
    assert "without lives" in service.ask("status")["problem"]
    assert not Path(f"{service.ask('dump')['path']}.lives").exists()


@pytest.mark.parametrize("sanitizer", ["address,undefined", "thread", ""])
def test_clean_and_exact(tmp_path: Path, sanitizer: str) -> None:
    """Ten million births and deaths in eight threads, a tenth of it under the sanitizers."""
    names = "book clock descriptors feeder got json ledger loader mallctl maps probes sampler".split()
    parts = [SOURCES / f"{part}.c" for part in names]
    options = [f"-fsanitize={sanitizer}"] if sanitizer else []
    name = f"ledger-{sanitizer.split(',')[0] or 'plain'}"
    program = compiled(name, [*parts, PROGRAMS / "ledger_driver.c"], "-O1", f"-I{SOURCES}", *options)
    target = tmp_path / "a.heap"
    steps = 62_500 if sanitizer else 625_000
    done = subprocess.run([program, "8", str(steps), target], capture_output=True, text=True, timeout=300, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    births, deaths = map(int, done.stdout.split())
    book = lives_book.parse(target.with_name("a.heap.lives").read_bytes(), "a book")
    assert births == 8 * steps
    assert (sum(book.births), sum(book.deaths), len(book.stack)) == (births, deaths, births - deaths)
    assert book.lost == 0
