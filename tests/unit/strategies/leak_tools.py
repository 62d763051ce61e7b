# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""A program in C that forgets blocks of about 1,000 bytes, and the tools that see it."""

from __future__ import annotations

import subprocess
from pathlib import Path

_SOURCE = """\
#include <stdlib.h>
#include <string.h>
#define STAY __attribute__((noinline))
STAY void *take(int size) { void *p = malloc(size); memset(p, 1, size); return p; }
STAY void leak(int blocks) { for (int i = 0; i < blocks; i++) take(1000 + i % 3); }
int main(int count, char **words) { leak(count > 1 ? atoi(words[1]) : 100); free(take(50)); return 0; }
"""


def built(directory: Path, *options: str) -> str:
    """The program, which takes the number of blocks as its argument (100)."""
    source = directory / "leak.c"
    source.write_text(_SOURCE)
    subprocess.run(["gcc", "-g", "-O1", *options, "-o", directory / "leak", source], check=True)
    return str(directory / "leak")


def sanitizer_report(directory: Path, blocks: int, option: str = "leak") -> bytes:
    """What LeakSanitizer or AddressSanitizer says at the program's end."""
    program = built(directory, f"-fsanitize={option}")
    return subprocess.run([program, str(blocks)], stderr=subprocess.PIPE, check=False).stderr


def massif_file(directory: Path, blocks: int) -> Path:
    """Massif's file, with every snapshot in detail."""
    output = directory / "massif.out"
    options = ["--tool=massif", f"--massif-out-file={output}", "--detailed-freq=1", "--peak-inaccuracy=0.0"]
    command = ["valgrind", "-q", *options, built(directory), str(blocks)]
    subprocess.run(command, check=True, capture_output=True)
    return output


def heaptrack_trace(directory: Path, blocks: int) -> Path:
    """heaptrack's own file."""
    command = ["heaptrack", "-o", str(directory / f"trace{blocks}"), built(directory), str(blocks)]
    subprocess.run(command, check=True, capture_output=True, cwd=directory)
    (trace,) = directory.glob(f"trace{blocks}*")
    return trace


def folded_by_heaptrack(trace: Path, folded: Path) -> str:
    """Write the stacks of what was leaked; gives what heaptrack_print says."""
    command = ["heaptrack_print", "-F", str(folded), "--flamegraph-cost-type", "leaked", str(trace)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout
