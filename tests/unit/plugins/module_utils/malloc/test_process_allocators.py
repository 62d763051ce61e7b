# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Every allocator of a real process is told, with a way to profile it that works."""

from __future__ import annotations

import glob
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from ansible_collections.offheap.profiler.plugins.module_utils.host import places
from ansible_collections.offheap.profiler.plugins.module_utils.malloc import process_allocators
from ansible_collections.offheap.profiler.plugins.plugin_utils.model.raw import Told
from ansible_collections.offheap.profiler.plugins.plugin_utils.readers import detect
from ansible_collections.offheap.profiler.tests.unit.fakes import programs

# Keeps the compiler from leaving it out.
TEXT = '__attribute__((used)) static const char text{number}[] = "{text}";\n'
SPEAKS, PROFILER = "<jemalloc>: Invalid conf pair", "<jemalloc>: Run jeprof on dump output"
BLOCKS = 300
FORGETS = """
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
extern void *tc_malloc(size_t);
int main(void) {
    for (int i = 0; i < 300; i++) {
        memset(malloc(1024), 1, 1024);
        memset(tc_malloc(1000), 1, 1000);
    }
    puts("forgotten");
    fflush(stdout);
    getchar();
    return 0;
}
"""


def texts(*some: str) -> str:
    return "".join(TEXT.format(number=number, text=text) for number, text in enumerate(some))


def told(pid: int) -> list[tuple[str, str, str]]:
    return [(one["allocator"], Path(one["file"]).name, one["profile"]) for one in process_allocators.of_process(pid)]


def test_ours_is_told_where_opt_is_a_link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "opt").symlink_to("data")
    monkeypatch.setattr(places, "INSTALLED", str(tmp_path / "opt"))
    library = programs.library(tmp_path / "data", "libjemalloc.so.2")
    program = programs.compiled(tmp_path, "plain")
    with programs.running(program, env={"LD_PRELOAD": str(library)}) as pid:
        assert told(pid)[0] == ("jemalloc", "libjemalloc.so.2", "it is this collection's own, and profiles")


def test_two_in_one_process_are_both_told_and_profiled(tmp_path: Path) -> None:
    (jemalloc,) = glob.glob("/usr/lib/*/libjemalloc_pic.a")
    program = programs.compiled(
        tmp_path, "both", FORGETS, jemalloc, "-ltcmalloc", "-lm", "-lpthread", "-lstdc++", "-ldl"
    )
    # As it is told: in the unit, by hand.
    variables = {
        "MALLOC_CONF": f"prof:true,prof_final:true,lg_prof_sample:0,prof_prefix:{tmp_path}/jeprof",
        "HEAPPROFILE": f"{tmp_path}/heap",
    }
    with subprocess.Popen(
        [program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, **variables},
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        assert process.stdout.readline() == b"forgotten\n"
        (first, own), second = told(process.pid)[0][::2], told(process.pid)[1]
        process.stdin.close()
    assert (first, own) == ("jemalloc", "profiled_service_mode: own sets MALLOC_CONF")
    assert second[0] == "tcmalloc" and second[1].startswith("libtcmalloc.so")
    assert second[2] == "set HEAPPROFILE=DIRECTORY/heap in the unit by hand, and name DIRECTORY in offheap_offered"
    (of_jemalloc,), (of_tcmalloc,) = tmp_path.glob("jeprof.*.f.heap"), tmp_path.glob("heap.*.heap")
    for dump, size in (of_jemalloc, 1024), (of_tcmalloc, 1000):
        records = detect.parse(dump.read_bytes(), "x", Told())
        assert (BLOCKS, BLOCKS * size) in zip(records.counts.objects, records.counts.bytes, strict=True)


@pytest.mark.parametrize(
    ("inside", "expected"),
    [
        (
            ["_RJEM_MALLOC_CONF", SPEAKS, PROFILER],
            [("libc", "set LD_PRELOAD to"), ("jemalloc", "profiled_service_mode: own sets _RJEM_MALLOC_CONF")],
        ),
        (["MALLOC_CONF", SPEAKS], [("jemalloc", "--enable-prof")]),
        (
            ["A_MALLOC_CONF", "MALLOC_CONF", SPEAKS, PROFILER],
            [("jemalloc", "set MALLOC_CONF=prof:true"), ("jemalloc", "set A_MALLOC_CONF=prof:true")],
        ),
        (["MALLOC_CONF"], [("libc", "profiled_service_mode: profile")]),
    ],
    ids="prefixed no-profiler two mentioned".split(),
)
def test_what_a_program_has_inside(inside: Sequence[str], expected: list[tuple[str, str]], tmp_path: Path) -> None:
    program = programs.compiled(tmp_path, "program", texts(*inside) + programs.SLEEPS)
    with programs.running(program) as pid:
        found = told(pid)
    assert [one[0] for one in found] == [one[0] for one in expected]
    assert all(words in way for (_name, _file, way), (_expected, words) in zip(found, expected, strict=True)), found


def test_one_of_its_own(tmp_path: Path) -> None:
    source = f"#include <stddef.h>\nvoid *malloc(size_t size) {{ return size ? 0 : 0; }}\n{programs.SLEEPS}"
    with programs.running(programs.compiled(tmp_path, "program", source)) as pid:
        ((name, file, way),) = told(pid)
    assert (name, file) == ("other", "program") and "nothing can take its place" in way


@pytest.mark.parametrize(
    ("library", "name", "way"),
    [
        ("libtcmalloc_minimal.so.4", "tcmalloc", "allocator: own"),
        ("libmimalloc.so.2", "mimalloc", "allocator: own"),
        ("libjemalloc.so.2", "jemalloc", "profile preloads a jemalloc"),
    ],
)
def test_a_library_and_what_another_one_brings(library: str, name: str, way: str, tmp_path: Path) -> None:
    first = programs.library(tmp_path, library)
    code = "int rocks(void) { return 0; }\n"
    brings = programs.library(tmp_path, "librocks.so", texts("_rocks_", "ROCKS_MALLOC_CONF", SPEAKS, PROFILER) + code)
    program = programs.compiled(tmp_path, "sleeps")
    with programs.running(program, env={"LD_PRELOAD": f"{brings} {first}"}) as pid:
        (used, file, how), other = told(pid)
    assert (used, file) == (name, library) and way in how
    assert other == (
        "jemalloc",
        "librocks.so",
        "set ROCKS_MALLOC_CONF=prof:true,prof_prefix:DIRECTORY/jeprof in the unit by hand, and name DIRECTORY in"
        " offheap_offered",
    )
