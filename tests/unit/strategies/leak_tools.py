# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Programs in C and Python that forget blocks of about 1,000 bytes, and the tools that see it."""

from __future__ import annotations

import glob
import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from ansible_collections.offheap.profiler.tests.unit.strategies import rust_program

_CACHE = Path(__file__).resolve().parents[3] / ".cache"
_SOURCE = """\
#include <stdlib.h>
#include <string.h>
#define STAY __attribute__((noinline))
STAY void *take(int size) { void *p = malloc(size); memset(p, 1, size); return p; }
STAY void leak(int blocks) { for (int i = 0; i < blocks; i++) take(1000 + i % 3); }
int main(int count, char **words) { leak(count > 1 ? atoi(words[1]) : 100); free(take(50)); return 0; }
"""

# memray does not see what ctypes calls. Its own allocator forgets the last block.
_PYTHON = """\
import sys
from memray._test import MemoryAllocator

def take(allocator, size):
    allocator.malloc(size)

def leak(allocator, blocks):
    for number in range(blocks):
        take(allocator, 1000 + number % 3)

leak(MemoryAllocator(), int(sys.argv[1]))
kept = MemoryAllocator()
take(kept, 50)
kept.free()
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
    output = directory / f"massif.{blocks}"
    options = ["--tool=massif", f"--massif-out-file={output}", "--detailed-freq=1", "--peak-inaccuracy=0.0"]
    command = ["valgrind", "-q", *options, built(directory), str(blocks)]
    subprocess.run(command, check=True, capture_output=True)
    return output


def xtree_file(directory: Path, blocks: int) -> Path:
    """What was live at the program's end, as any of valgrind's tools writes it for massif's readers."""
    output = directory / f"xtree.{blocks}.ms"
    options = ["-q", "--xtree-memory=full", f"--xtree-memory-file={output}"]
    subprocess.run(["valgrind", *options, built(directory), str(blocks)], check=True, capture_output=True)
    return output


def dhat_file(directory: Path, blocks: int) -> Path:
    """dhat's file, and what it says beside it (.log)."""
    output = directory / f"dhat.{blocks}.json"
    options = ["--tool=dhat", f"--dhat-out-file={output}", f"--log-file={output.with_suffix('.log')}"]
    subprocess.run(["valgrind", *options, built(directory), str(blocks)], check=True, capture_output=True)
    return output


def memcheck_file(directory: Path, blocks: int, xml: bool = False) -> Path:
    """What memcheck reports at the program's end."""
    output = directory / f"memcheck.{blocks}.{'xml' if xml else 'txt'}"
    how = ["--xml=yes", f"--xml-file={output}"] if xml else [f"--log-file={output}"]
    command = ["valgrind", "--leak-check=full", *how, built(directory), str(blocks)]
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


def gperftools_dump(directory: Path, blocks: int) -> Path:
    """What tcmalloc's profiler dumps at the program's end."""
    (library,) = glob.glob("/usr/lib/*/libtcmalloc.so")
    dump = directory / f"tcmalloc{blocks}"
    environment = {**os.environ, "LD_PRELOAD": library, "HEAPPROFILE": str(dump)}
    subprocess.run([built(directory), str(blocks)], check=True, env=environment, capture_output=True)
    return dump.with_name(f"{dump.name}.0001.heap")


@cache
def mimalloc() -> Path:
    """mimalloc with the profilers of mimalloc-pprof, in place of malloc: an object file, from the C in its crate."""
    directory = _CACHE / "mimalloc"
    directory.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=directory) as made:
        crate = rust_program.sources(Path(rust_program.__file__).parent / "mimalloc_pprof", Path(made) / "crates")
        source = crate / "mimalloc-pprof" / "vendor"
        defined = ["-DMI_MALLOC_OVERRIDE", "-DMI_PPROF=1", "-DMI_DHAT=1", "-DMI_MEMEVT=0", "-DMI_DIAGNOSTICS=0"]
        options: list[str | Path] = [
            "-w",
            "-c",
            *defined,
            "-DMI_OWNER_GATE=0",
            "-DNDEBUG",
            "-I",
            source,
            "-o",
            f"{made}/o",
        ]
        subprocess.run(["gcc", *options, source / "mimalloc-pprof-amalgamated.c"], check=True)
        return Path(made, "o").rename(directory / "mimalloc.o")


def mimalloc_dump(directory: Path, blocks: int, form: str = "text") -> Path:
    """What mimalloc-pprof writes at the program's end: as ``text`` (heap_v2) or ``proto`` (pprof)."""
    dump = directory / f"mimalloc{blocks}.{form}"
    told = {"SAMPLE_INTERVAL": "1", "DUMP_FORMAT": form, "DUMP_AT_EXIT": str(dump)}
    environment = {**os.environ, "MIMALLOC_PROF": "1", **{f"MIMALLOC_PROF_{name}": how for name, how in told.items()}}
    subprocess.run([_with_mimalloc(directory), str(blocks)], check=True, env=environment)
    return dump


def mimalloc_dhat_file(directory: Path, blocks: int) -> Path:
    """What its profiler that imitates dhat writes."""
    file = directory / "mimalloc.json"
    environment = {**os.environ, "MIMALLOC_DHAT": "1", "MIMALLOC_DHAT_DUMP_AT_EXIT": str(file)}
    subprocess.run([_with_mimalloc(directory), str(blocks)], check=True, env=environment)
    return file


def _with_mimalloc(directory: Path) -> str:
    return built(directory, "-fno-omit-frame-pointer", "-pthread", str(mimalloc()))


def memray_file(directory: Path, blocks: int) -> Path:
    """memray's own file."""
    program, file = directory / "leak.py", directory / f"memray{blocks}.bin"
    program.write_text(_PYTHON)
    subprocess.run([sys.executable, "-m", "memray", "run", "-q", "-o", file, program, str(blocks)], check=True)
    return file


def memray_table(directory: Path, blocks: int) -> Path:
    """What memray's own reader gives of it."""
    file = memray_file(directory, blocks)
    table = file.with_suffix(".csv")
    command: list[str | Path] = [sys.executable, "-m", "memray", "transform", "csv", "--leaks", "-o", table, file]
    subprocess.run(command, check=True, capture_output=True)
    return table
