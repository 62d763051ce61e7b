# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""The memory map: from smaps as text, from real processes, and from one with many threads and mappings."""

from __future__ import annotations

import struct
import time
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.offheap.profiler.plugins.module_utils.formats.memory_class import MemoryClass
from ansible_collections.offheap.profiler.plugins.module_utils.host import procfs
from ansible_collections.offheap.profiler.plugins.module_utils.host.regions import Region
from ansible_collections.offheap.profiler.plugins.module_utils.memory import glibc_chunks, smaps
from ansible_collections.offheap.profiler.plugins.module_utils.memory.smaps import Knowledge
from ansible_collections.offheap.profiler.tests.unit.fakes import programs

ARENA = 0x7F0000000000
MIB = 1 << 20

# Threads with their own arenas, where nine in ten blocks are freed, and a block that malloc maps separately.
FRAGMENTS = """
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <sys/mman.h>
static pthread_barrier_t done;
static void *volatile kept;
static void *work(void *p) {
    enum { N = 10000 };
    static __thread char *a[N];
    for (int i = 0; i < N; i++) a[i] = memset(malloc(1992), 1, 1992);
    for (int i = 0; i < N - 1; i++) if (i % 10) free(a[i]);
    if (p) { pthread_barrier_wait(&done); pause(); }
    return 0;
}
int main(void) {
    pthread_t thread;
    pthread_barrier_init(&done, 0, 4);
    for (int i = 0; i < 3; i++) pthread_create(&thread, 0, work, &thread);
    work(0);
    kept = memset(malloc(8 << 20), 1, 8 << 20);
    char *code = mmap(0, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    *code = 1;
    pthread_barrier_wait(&done);
    pause();
}
"""


def nothing(_start: int, _end: int) -> int:
    """No page is in memory."""
    return 0


def _region(start: int, end: int, perms: str = "rw-p", path: str = "", rss: int = 4096) -> Region:
    return Region(start, end, perms, path, rss, rss, 0)


def _classes(*entries: Region, known: Knowledge | None = None) -> dict[str, int]:
    """Resident bytes of the classes that have any mapping."""
    known = known or Knowledge([], [], True, lambda address, length: b"")
    found = smaps.summarize(iter(entries), known)
    return {name: sizes["resident"] for name, sizes in found.classes.items() if sizes["mappings"]}


def test_an_arena_is_its_memory_and_its_reservation() -> None:
    arena, rest = _region(ARENA, ARENA + MIB), _region(ARENA + MIB, ARENA + 64 * MIB, "---p", rss=0)
    assert _classes(arena, rest) == {"glibc-arenas": 4096}
    assert _classes(arena) == {"unknown": 4096}, "nothing is reserved behind it"
    shifted = _region(ARENA + 4096, ARENA + MIB)
    assert _classes(shifted, rest) == {"unknown": 4096}


def test_ranges_of_the_jvm_come_first() -> None:
    known = Knowledge([(ARENA, ARENA + 64 * MIB, MemoryClass.JAVA_HEAP)], [], True, lambda address, length: b"")
    arena, rest = _region(ARENA, ARENA + MIB), _region(ARENA + MIB, ARENA + 64 * MIB, "---p", rss=0)
    assert _classes(arena, rest, known=known) == {"java-heap": 4096}


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ((0, 0x801002), "malloc-mmapped"),  # as glibc 2.36 has written it
        ((0, 0x800FF2), "malloc-mmapped"),  # 2.43 and 2.44
        ((1, 0x800FF2), "malloc-mmapped"),  # the same in huge pages
        ((0, 0x7FF002), "malloc-mmapped"),  # another one follows in the same mapping
        ((0, 0x801001), "unknown"),
        ((0, 0x800FE2), "unknown"),
        ((0, 0x802002), "unknown"),
        ((0, 0x801FF2), "unknown"),
        ((0, 2), "unknown"),
    ],
)
def test_a_block_that_malloc_has_mapped(words: tuple[int, int], expected: str) -> None:
    known = Knowledge([], [], True, lambda address, length: struct.pack("=2Q", *words)[:length])
    assert _classes(_region(0x10000, 0x10000 + 0x801000), known=known) == {expected: 4096}


def test_what_a_stack_is() -> None:
    guard, stack = _region(0x7000, 0x8000, "---p", rss=0), _region(0x8000, 0x18000)
    cached = [_region(0x20000, 0x21000, "---p", rss=0), _region(0x21000, 0x31000)]
    other = [_region(0x40000, 0x41000, "---p", rss=0), _region(0x41000, 0x44000)]
    known = Knowledge([], [0x9000], True, lambda address, length: b"")
    assert _classes(guard, stack, *cached, *other, known=known) == {"thread-stacks": 8192, "unknown": 4096}


@pytest.mark.parametrize(
    ("path", "perms", "expected"),
    [
        ("[heap]", "rw-p", "malloc-heap"),
        ("[stack]", "rw-p", "thread-stacks"),
        ("/usr/lib/libc.so.6", "r-xp", "mapped-files"),
        ("/dev/shm/queue", "rw-s", "shared-memory"),
        ("/memfd:java_heap (deleted)", "rw-s", "java-heap"),
        ("/memfd:frames (deleted)", "rw-s", "shared-memory"),
        ("", "rwxp", "jit"),
        ("[vdso]", "r-xp", "unknown"),
    ],
)
def test_names_and_permissions(path: str, perms: str, expected: str) -> None:
    assert _classes(_region(0x10000, 0x20000, perms, path)) == {expected: 4096}


def test_memory_of_another_malloc() -> None:
    known = Knowledge([], [], False, lambda address, length: b"")
    arena, rest = _region(ARENA, ARENA + MIB), _region(ARENA + MIB, ARENA + 64 * MIB, "---p", rss=0)
    assert _classes(arena, rest, known=known) == {"other-malloc": 4096, "unknown": 0}


@pytest.fixture(scope="module")
def fragments(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    program = programs.compiled(tmp_path_factory.mktemp("map"), "fragments", FRAGMENTS, "-O1", "-lpthread")
    with programs.running(program) as pid:
        deadline = time.monotonic() + 20
        while len(smaps.stack_pointers(pid)) < 4:  # all sleep
            assert time.monotonic() < deadline
            time.sleep(0.01)
        yield pid


def test_a_real_process(fragments: int) -> None:
    with glibc_chunks.looking_into(fragments) as peek:
        pointers = smaps.stack_pointers(fragments)
        assert len(pointers) == 4
        found = smaps.read(fragments, Knowledge([], pointers, True, peek))
        arenas = glibc_chunks.in_use([heap for heap in found.heaps if not heap.main], peek, nothing)
        heap = glibc_chunks.in_use([heap for heap in found.heaps if heap.main], peek, nothing)
    status = procfs.status(fragments)
    counted = sum(int(status[name].split()[0]) * 1024 for name in ("RssAnon", "RssFile", "RssShmem"))
    assert found.resident == pytest.approx(counted, rel=0.01)
    sizes = {name: sizes["resident"] for name, sizes in found.classes.items()}
    assert sizes["malloc-mmapped"] == pytest.approx(8 * MIB, rel=0.01)
    assert sizes["thread-stacks"] > 0 and sizes["jit"] == 4096 and sizes["unknown"] < MIB
    assert len([heap for heap in found.heaps if not heap.main]) == 3
    assert arenas and arenas.used == pytest.approx(3 * 1000 * 2000, rel=0.01)
    assert heap and heap.used == pytest.approx(1000 * 2000, rel=0.02)
    assert arenas.seen == pytest.approx(arenas.size, rel=0.01)
    assert found.largest[0]["class"] in ("glibc-arenas", "malloc-heap")


def test_a_budget_gives_an_estimate(fragments: int) -> None:
    with glibc_chunks.looking_into(fragments) as peek:
        found = smaps.read(fragments, Knowledge([], [], True, peek))
        arenas = [heap for heap in found.heaps if not heap.main]
        whole, part = (glibc_chunks.in_use(arenas, peek, nothing, most) for most in (glibc_chunks.MOST_CHUNKS, 900))
    assert whole and part and part.seen < whole.seen / 2
    assert part.estimate == pytest.approx(whole.used, rel=0.2)


def test_what_is_swapped_out_stays_so(fragments: int) -> None:
    with glibc_chunks.looking_into(fragments) as peek:
        found = smaps.read(fragments, Knowledge([], [], True, peek))
        assert glibc_chunks.in_use([heap._replace(swap=4096) for heap in found.heaps], peek, nothing) is None


@given(st.binary(max_size=400))
def test_chunks_that_are_none(data: bytes) -> None:
    heap = smaps.Heap(0, 4096, 4096, 0, True)
    use = glibc_chunks.in_use([heap], lambda address, length: data[address : address + length], lambda start, end: 4096)
    assert use is None or (0 <= use.used <= use.seen <= use.size and use.estimate <= use.size)


def test_a_map_of_any_length_takes_the_same_memory(tmp_path: Path) -> None:
    directory = tmp_path / "50"
    directory.mkdir()
    with (directory / "smaps").open("wb") as stream:
        for number in range(20000):
            start = number << 16
            stream.write(b"%x-%x rw-p 0 00:00 0 \nRss: 4 kB\nPss: 4 kB\nSwap: 0 kB\n" % (start, start + 4096))
    tracemalloc.start()
    found = smaps.read(50, Knowledge([], [], True, lambda address, length: b""), str(tmp_path))
    _now, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert found.mappings == 20000
    assert peak < 4 * MIB


@pytest.mark.parametrize(
    ("said", "found"),
    [
        ("0 0x1 0x2 0x3 0x4 0x5 0x6 0x7ffd10 0x7f99\n", [0x7FFD10]),
        ("-1 0x7ffd20 0x7f99\n", [0x7FFD20]),
        ("running\n", []),
        ("-1 0xzz 0x7f99\n", []),
        ("0x1\n", []),
    ],
)
def test_the_pointer_of_a_thread(tmp_path: Path, said: str, found: list[int]) -> None:
    (tmp_path / "7/task/8").mkdir(parents=True)
    (tmp_path / "7/task/8/syscall").write_text(said)
    assert smaps.stack_pointers(7, str(tmp_path)) == found


def test_a_thread_that_runs_is_asked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy host, one that only waits for a processor would have no stack otherwise."""
    told = tmp_path / "7/task/8/syscall"
    told.parent.mkdir(parents=True)
    told.write_text("running\n")
    pauses: list[float] = []

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        if seconds:
            told.write_text("-1 0x7ffd20 0x7f99\n")

    monkeypatch.setattr("time.sleep", sleep)
    assert smaps.stack_pointers(7, str(tmp_path)) == [0x7FFD20]
    assert len(pauses) == 2 and sum(smaps._PAUSES) < 0.05
