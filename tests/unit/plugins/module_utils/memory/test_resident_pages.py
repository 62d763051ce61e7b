# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""What malloc_trim would give back is told before it is called, of heaps that are full of holes in many ways."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from ansible_collections.offheap.profiler.plugins.module_utils.memory import process, resident_pages
from ansible_collections.offheap.profiler.tests.unit.fakes import programs

KIB = 1 << 10
#: allocates in one way; then, for each line that it reads, trims and says what was resident before and after, in pages
HOLES = r"""
#include <malloc.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
enum { COUNT = 40000 };
static size_t next_size(int way, unsigned *seed) {
    switch (way) {
    case 1: return 2000;
    case 2: return 16384;
    case 3: return 100 + rand_r(seed) % 40000;
    case 4: return 60000;
    default: return 3000;
    }
}
static void *work(void *given) {
    int way = *(int *)given, count = way == 1 || way > 4 ? 20000 : 2500;
    unsigned seed = 7;
    char **blocks = calloc(COUNT, sizeof *blocks);
    for (int i = 0; i < count; i++) {
        size_t size = next_size(way, &seed);
        blocks[i] = memset(malloc(size), 1, size);
    }
    for (int i = 0; i < count - 1; i++)
        if (way == 2 ? i % 2 : way == 3 ? rand_r(&seed) % 3 : way == 4 ? i % 4 : way == 6 ? i < count / 2 : i % 10)
            free(blocks[i]), blocks[i] = NULL;
    if (way == 7) /* all is freed, and stays at the top */
        for (int i = count - 1; i >= 0; i--)
            free(blocks[i]);
    if (way == 8) { /* once trimmed, and half of it filled again */
        malloc_trim(0);
        for (int i = 0; i < count / 2; i++)
            if (!blocks[i])
                blocks[i] = memset(malloc(3000), 1, 3000);
        for (int i = 0; i < count / 4; i++)
            free(blocks[i]);
    }
    return NULL;
}
static long resident(void) {
    long size, pages;
    FILE *file = fopen("/proc/self/statm", "r");
    if (!file || fscanf(file, "%ld %ld", &size, &pages) != 2)
        abort();
    fclose(file);
    return pages;
}
int main(int argc, char **argv) {
    int way = atoi(argv[argc - 1]);
    char line[8];
    pthread_t threads[3];
    mallopt(M_TRIM_THRESHOLD, 1 << 30);
    mallopt(M_MMAP_THRESHOLD, 1 << 25);
    if (way == 5) /* in arenas of threads */
        for (int i = 0; i < 3; i++)
            pthread_create(&threads[i], NULL, work, &way), pthread_join(threads[i], NULL);
    else
        work(&way);
    resident();
    puts("ready"), fflush(stdout);
    while (fgets(line, sizeof line, stdin)) {
        long before = resident();
        malloc_trim(0);
        printf("%ld %ld\n", before, resident()), fflush(stdout);
    }
}
"""


@pytest.fixture(scope="module")
def holes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return programs.compiled(tmp_path_factory.mktemp("holes"), "holes", HOLES, "-O1", "-lpthread")


@pytest.fixture
def running(holes: Path, request: pytest.FixtureRequest) -> Iterator[subprocess.Popen[str]]:
    command = [str(holes), str(request.param)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as found:
        assert found.stdout and found.stdout.readline() == "ready\n"
        yield found
        found.kill()


def _told(pid: int) -> int:
    uses = process.look(pid, 1.0)["malloc"].values()
    assert all(0 <= use["trim"] <= use["free"] for use in uses)
    return sum(use["trim"] for use in uses)


@pytest.mark.parametrize("running", range(1, 9), indirect=True)
def test_what_a_trim_gives_back_is_known_before(running: subprocess.Popen[str]) -> None:
    assert running.stdin and running.stdout
    told = _told(running.pid)
    running.stdin.write("\n")
    running.stdin.flush()
    before, after = map(int, running.stdout.readline().split())
    given_back = (before - after) * 4 * KIB
    assert told == pytest.approx(given_back, rel=0.1, abs=200 * KIB)
    assert _told(running.pid) < 200 * KIB + 0.02 * given_back, "nothing is left to give back"


@pytest.mark.parametrize("running", [6], indirect=True)
def test_pages_are_counted_whole_and_only_where_they_are(running: subprocess.Popen[str]) -> None:
    line = next(line for line in Path(f"/proc/{running.pid}/maps").read_text().splitlines() if "[heap]" in line)
    start = int(line.split("-")[0], 16)
    page = 4 * KIB
    with resident_pages.of(running.pid) as resident:
        assert resident(start, start + 3 * page) == 3 * page
        assert resident(start + 1, start + 3 * page - 1) == page
        assert resident(start + 1, start + page) == resident(start + page, start) == 0
        assert resident(0, 1 << 20) == 0, "nothing is there"


def test_a_process_that_cannot_be_read(tmp_path: Path) -> None:
    with resident_pages.of(1, str(tmp_path)) as resident:
        assert resident(0, 1 << 30) == 0
