# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Cases of Go's runtime/pprof, beside ``go tool pprof``."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

from ansible_collections.offheap.profiler.tests.corpus import own_readers
from ansible_collections.offheap.profiler.tests.corpus.corpus_case import Case, Writer
from ansible_collections.offheap.profiler.tests.corpus.crowd_programs import PROGRAMS
from ansible_collections.offheap.profiler.tests.unit.strategies import go_program

GO = Writer("Go", lambda: own_readers.said("go", "env", "GOVERSION").strip(), "go tool pprof", "memory of C")
PPROF = Writer("google/pprof", GO.version, "go tool pprof", "a difference is no profile")


def _go(kind: str, rate: int, blocks: int, debug: int = 0) -> Callable[[Path], Path]:
    def write(directory: Path) -> Path:
        PROGRAMS.mkdir(parents=True, exist_ok=True)
        experiment = {"GOEXPERIMENT": "goroutineleakprofile"} if kind == "goroutineleak" else {}
        program = PROGRAMS / "-".join(["leak", *experiment.values()])
        if not program.exists():
            go_program.built(PROGRAMS)
            go_program.go(PROGRAMS, "build", "-o", program.name, "leak.go", **experiment)
        go_program.write_profile(program, directory / "profile", rate, blocks, debug, kind)
        return directory / "profile"

    return write


def _of_go(kind: str, rate: int, blocks: int, debug: int = 0) -> Case:
    mode = f"{kind}, debug={debug}, MemProfileRate {rate}"
    name, write = f"go-{kind}-debug{debug}-rate{rate}", _go(kind, rate, blocks, debug)
    return Case(name, GO, mode, write, own_readers.go_pprof())


def _refused(kind: str, debug: int) -> Case:
    write = _go(kind, 4096, 10, debug)
    return Case(f"go-{kind}-debug{debug}", GO, f"{kind}, debug={debug}", write, refused="/debug/pprof/heap")


def _merged(directory: Path) -> Path:
    for number, blocks in enumerate((2000, 7000)):
        _go("heap", 4096, blocks)(directory).rename(directory / f"{number}.pb.gz")
    subprocess.run(
        ["go", "tool", "pprof", "-proto", "-output=merged.pb.gz", "0.pb.gz", "1.pb.gz"],
        cwd=directory,
        check=True,
        capture_output=True,
    )
    return directory / "merged.pb.gz"


CASES = [
    _of_go("heap", 1, 100),
    _of_go("heap", 4096, 9000),
    _of_go("heap", 524288, 39000),
    _of_go("allocs", 8192, 5000),
    _of_go("heap", 1, 300, 1),
    _of_go("heap", 4096, 8000, 1),
    _of_go("allocs", 16384, 8000, 1),
    _of_go("heap", 65536, 20000, 2),
    Case("pprof-merged", PPROF, "-proto of two files", _merged, own_readers.go_pprof()),
    *(_refused(kind, debug) for kind in ("goroutine", "goroutineleak", "mutex", "block") for debug in (0, 1)),
    _refused("cpu", 0),
]
