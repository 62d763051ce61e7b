# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""A real process under a profiling jemalloc, for tests that need its dumps and the process itself."""

from __future__ import annotations

import contextlib
import glob
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

PROGRAM = "import sys\nkept = [bytes(50000) for _ in range(400)]\nprint('ready', flush=True)\nsys.stdin.read()\n"


def library() -> str:
    """$OFFHEAP_JEMALLOC, or Debian's libjemalloc2."""
    found = [os.environ["OFFHEAP_JEMALLOC"]] if "OFFHEAP_JEMALLOC" in os.environ else []
    found += glob.glob("/usr/lib/*/libjemalloc.so.2")
    assert found, "no profiling jemalloc here: apt-get install libjemalloc2, or name one in OFFHEAP_JEMALLOC"
    return found[0]


@contextlib.contextmanager
def running(spool: Path, program: str = "/usr/bin/python3") -> Iterator[subprocess.Popen[bytes]]:
    """A process that has written dumps into the spool and lives on until the end of the block."""
    conf = f"prof:true,lg_prof_sample:12,lg_prof_interval:22,prof_prefix:{spool}/jeprof"
    process = subprocess.Popen(
        [program, "-c", PROGRAM],
        env={"LD_PRELOAD": library(), "MALLOC_CONF": conf, "PATH": os.environ["PATH"]},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        deadline = time.monotonic() + 10
        while not list(spool.glob("jeprof.*")):
            assert time.monotonic() < deadline, "it wrote no dump"
            time.sleep(0.02)
        yield process
    finally:
        process.kill()
        process.communicate()


def dumps(spool: Path) -> list[Path]:
    """Its dumps, in the order in which they were written."""
    return sorted(spool.glob("jeprof.*.heap"), key=lambda path: int(path.name.split(".")[2]))
