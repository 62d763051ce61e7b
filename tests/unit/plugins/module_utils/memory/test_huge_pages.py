# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""What was never written of huge pages, by real processes that write a part of them."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from ansible_collections.offheap.profiler.plugins.module_utils.host import procfs, regions
from ansible_collections.offheap.profiler.plugins.module_utils.memory import glibc_chunks, huge_pages
from ansible_collections.offheap.profiler.tests.unit.fakes import programs

MIB = 1 << 20
HUGE = 2 * MIB
COUNT = 64
#: writes to so many pages of 4 KiB in each of 64 huge pages
PROGRAM = r"""
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>
enum { HUGE = 2 << 20, COUNT = 64 };
int main(int words, char **word) {
    char *mapped = mmap(NULL, (COUNT + 1) * (size_t)HUGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (words != 2 || mapped == MAP_FAILED || madvise(mapped, (COUNT + 1) * (size_t)HUGE, MADV_HUGEPAGE))
        return 1;
    mapped += HUGE - (size_t)mapped % HUGE;
    for (size_t i = 0; i < COUNT; i++)
        for (int page = 0; page < atoi(word[1]); page++)
            mapped[i * HUGE + (size_t)page * 4096] = 1;
    puts("ready");
    fflush(stdout);
    return (int)getchar();
}
"""

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or "[never]" in Path("/sys/kernel/mm/transparent_hugepage/enabled").read_text(),
    reason="only root may look, where the kernel gives huge pages",
)


def looked(directory: Path, pages: int) -> huge_pages.Unwritten | None:
    program = programs.compiled(directory, "huge", PROGRAM)
    with subprocess.Popen([program, str(pages)], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout and process.stdout.readline() == b"ready\n"
        resident = procfs.resident(process.pid)
        with glibc_chunks.looking_into(process.pid) as peek:
            found = huge_pages.look(process.pid, list(regions.read(process.pid)), peek)
        # It may have begun to read meanwhile.
        assert procfs.resident(process.pid) - resident <= 64 << 10, "nothing was brought into memory"
        process.communicate(b"x")
    return found


@pytest.mark.parametrize("pages", [1, 128, 512])
def test_what_was_never_written_is_told(pages: int, tmp_path: Path) -> None:
    found = looked(tmp_path, pages)
    assert found is not None and found.held == pytest.approx(COUNT * HUGE, rel=0.1)
    assert found.unwritten == pytest.approx(found.held * (512 - pages) / 512, abs=max(found.error, MIB))


def test_it_is_not_known_where_pages_have_another_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sysconf", lambda _name: 65536)
    assert looked(tmp_path, 1) is None


def test_it_is_not_known_of_what_may_not_be_read(tmp_path: Path) -> None:
    region = regions.Region(0, 64 * MIB, "rw-p", "", 64 * MIB, 64 * MIB, 0, 64 * MIB)
    assert huge_pages.look(1, [region], lambda _address, _length: b"", str(tmp_path)) is None
    assert huge_pages.look(1, [], lambda _address, _length: b"", str(tmp_path)) == (0, 0, 0)
