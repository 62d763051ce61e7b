# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""The agent's walk by remembered rules, beside libgcc's in programs of others."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from ansible_collections.offheap.profiler.tests.agent.builds import EMULATOR, SOURCES
from ansible_collections.offheap.profiler.tests.agent.conftest import COMPILER, EMULATED, PROGRAMS, compiled
from ansible_collections.offheap.profiler.tests.agent.service import Service
from ansible_collections.offheap.profiler.tests.agent.test_unwind import read_stacks

PARTS = ("unwind", "cfi", "ranges", "hotspot", "goroutine", "readable", "maps", "descriptors", "loader")
#: what is installed wherever the tests run, and runs for a second or so
OTHERS = {
    "python": ["python3", "-c", "import json, ssl, sqlite3, decimal, xml.dom.minidom; json.dumps(list(range(20000)))"],
    "perl": ["perl", "-e", "my %h; $h{$_} = [1..5] for 1..20000"],
    "gcc": ["gcc", "-iquote", str(SOURCES), "-O2", "-c", "-o", "/dev/null", str(SOURCES / "cfi.c")],
    "openssl": ["openssl", "req", "-x509", "-newkey", "rsa:1024", "-nodes", "-subj", "/CN=a", "-keyout", "/dev/null"],
    "node": ["node", "-e", 'JSON.stringify(require("fs").readdirSync("/usr/lib"))'],
    "java": ["javac", "-J-XX:+PreserveFramePointer", "-d", ".", str(PROGRAMS / "LeakingInflater.java")],
}


def compared(directory: Path, command: list[str]) -> tuple[int, ...]:
    """Walks compared, those that differ, those that were left to libgcc, and frames."""
    sources = [*(SOURCES / f"{part}.c" for part in PARTS), PROGRAMS / "two_walks.c"]
    options = ["-O2", "-shared", "-fPIC", "-iquote", str(SOURCES)]
    library = compiled("libtwo_walks.so", sources, *options, compiler=COMPILER)
    walks = directory / "walks"
    preloaded = {"LD_PRELOAD": str(library), "WALKS": str(walks)}
    if EMULATED:
        words = [*EMULATOR, *(word for key, value in preloaded.items() for word in ("-E", f"{key}={value}")), *command]
        preloaded = {}
    else:
        words = command
    environment = {**os.environ, **preloaded}
    done = subprocess.run(
        words, env=environment, cwd=directory, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    lines = [tuple(map(int, line.split())) for line in walks.read_text().splitlines()]
    found = tuple(map(sum, zip(*lines, strict=True)))
    assert found[1] == 0, done.stderr  # it has the first that differs
    return found


@pytest.mark.skipif(EMULATED, reason="the programs are of this machine")
@pytest.mark.parametrize("name", OTHERS)
def test_the_same_stacks_in_programs_of_others(tmp_path: Path, name: str) -> None:
    walks, _different, by_libgcc, frames = compared(tmp_path, OTHERS[name])
    assert walks > 100 and frames > 5 * walks
    assert by_libgcc < 0.05 * walks


def test_the_same_stacks_below_frames_of_each_form(tmp_path: Path) -> None:
    program = compiled("odd_frames", [PROGRAMS / "odd_frames.c"], "-O2", "-fomit-frame-pointer", compiler=COMPILER)
    walks, _different, by_libgcc, _frames = compared(tmp_path, [str(program)])
    assert walks > 75 and by_libgcc <= 2  # before main
    if EMULATED:  # a signal's handler returns to code of the emulator, which has no tables, as the kernel's has
        return
    more, _different, hard, _frames = compared(tmp_path, [str(program), "signals"])
    assert more > walks and hard > by_libgcc


@pytest.mark.skipif(EMULATED, reason="the loader puts the second elsewhere")
def test_code_in_the_place_of_other_code_has_its_own_frames(start: Callable[..., Service], tmp_path: Path) -> None:
    swap = compiled("swap", [PROGRAMS / "swap.c"], "-O2", compiler=COMPILER)
    options = ["-O2", "-fomit-frame-pointer", "-shared", "-fPIC"]
    plugins = []
    for size in (600, 920):
        name = f"libroom{size}.so"
        built = compiled(name, [PROGRAMS / "room.c"], *options, f"-DROOM={size}", compiler=COMPILER)
        plugins.append(shutil.copy(built, tmp_path / name))
    service = start(swap, *map(str, plugins), conf="lg_prof_sample:12")
    stdout = service.process.stdout
    assert stdout is not None
    first, second = (int(stdout.readline(), 16) for _plugin in plugins)
    assert first == second, "the loader has put the second elsewhere: this tries nothing"
    leaks = [frames for frames, _size in read_stacks(Path(service.ask("dump")["path"])) if "libroom920.so" in frames]
    callers = {frames[frames.index("libroom920.so") + 1 :][:1] for frames in leaks}
    assert callers == {("swap",)}
