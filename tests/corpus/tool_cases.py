# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Cases of tools that watch a program on a test machine: valgrind's, the sanitizers, heaptrack, memray."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from ansible_collections.offheap.profiler.tests.corpus import own_readers
from ansible_collections.offheap.profiler.tests.corpus.allocator_cases import debian
from ansible_collections.offheap.profiler.tests.corpus.corpus_case import Case, Own, Writer
from ansible_collections.offheap.profiler.tests.corpus.crowd_programs import NUMBERS, built, bytes_of, truth

MASSIF = Writer("massif", debian("valgrind"), "ms_print", "a stack for what lies below its threshold")
LSAN = Writer(
    "LeakSanitizer", debian("libasan8"), "its own summary, and the program's truth", "what something still points to"
)
HEAPTRACK = Writer(
    "heaptrack", debian("heaptrack"), "heaptrack_print", "numbers of allocations in its collapsed stacks"
)
MEMRAY = Writer(
    "memray", lambda: own_readers.said(sys.executable, "-m", "memray", "--version").split()[-1], "FileReader"
)
_OF_THE_LEAK = "live:bytes:1"


def _valgrind(tool: str, name: str, many: int, *options: str) -> Callable[[Path], Path]:
    def write(directory: Path) -> Path:
        file, words = directory / f"{tool}.out", [option.replace("HERE", str(directory)) for option in options]
        command = ["valgrind", f"--tool={tool}", f"--log-file={directory}/log", *words, str(built(name)), str(many)]
        subprocess.run(command, check=True, capture_output=True)
        return file if file.exists() else directory / "log"

    return write


def _massif(
    name: str, program: str, many: int, *options: str, own: Callable[[Path], Own] = own_readers.ms_print
) -> Case:
    mode = " ".join(options) or "no options"
    write = _valgrind("massif", program, many, "--massif-out-file=HERE/massif.out", *options)
    return Case(f"massif-{name}", MASSIF, f"{mode}; {program}", write, own)


def _pages(file: Path) -> Own:
    """Its total: ms_print charges pages to the allocator's mmap, we to who called the allocator."""
    return Own(own_readers.ms_print(file).total)


def _sanitizer(program: str, many: int) -> Case:
    def write(directory: Path) -> Path:
        file = directory / "report.txt"
        with file.open("wb") as stream:
            subprocess.run([built(program), str(many)], stderr=stream, check=False)
        return file

    def own(file: Path) -> Own:
        total = re.search(r"SUMMARY: \w+: (\d+) byte", file.read_text())
        assert total
        return truth(many, int(total[1]))

    return Case(f"sanitizer-{program}", LSAN, f"-fsanitize of {program}", write, own)


def _trace(directory: Path, program: str, many: int) -> Path:
    command = ["heaptrack", "-o", str(directory / "trace"), str(built(program)), str(many)]
    subprocess.run(command, check=True, capture_output=True, cwd=directory)
    (trace,) = directory.glob("trace.*")
    return trace


def _folded(program: str, many: int, what: str) -> Callable[[Path], Path]:
    def write(directory: Path) -> Path:
        folded = directory / "folded"
        options = ["-F", str(folded), "--flamegraph-cost-type", what]
        own_readers.said("heaptrack_print", *options, _trace(directory, program, many))
        return folded

    return write


def _of_heaptrack(what: str) -> Callable[[Path], Own]:
    def own(file: Path) -> Own:
        (trace,) = file.parent.glob("trace.*")
        return own_readers.heaptrack_print(trace, what)

    return own


_HELD = """\
import sys
from memray._test import MemoryAllocator
kept = []
def take(size):
    kept.append(MemoryAllocator())
    kept[-1].METHOD(size)
%s
many = int(sys.argv[1])
%s
for one in kept[::2]:
    one.free()
"""
_HOLD = "def hold_{0}():\n    for i in range({0} * many):\n        take(100 * {0} + 7)\n"


def _memray(method: str, many: int, leaks: bool, *options: str) -> Callable[[Path], Path]:
    def write(directory: Path) -> Path:
        program, file = directory / "held.py", directory / "memray.bin"
        holds = "".join(_HOLD.format(number) for number in NUMBERS)
        calls = "".join(f"hold_{number}()\n" for number in NUMBERS)
        program.write_text(_HELD.replace("METHOD", method) % (holds, calls))
        memray = [sys.executable, "-m", "memray"]
        subprocess.run([*memray, "run", "-q", *options, "-o", file, program, str(many)], check=True)
        table = file.with_suffix(".csv")
        subprocess.run([*memray, "transform", "csv", *(["--leaks"] if leaks else []), "-o", table, file], check=True)
        return table

    return write


def _of_memray(name: str, method: str, many: int, leaks: bool, *options: str) -> Case:
    mode = f"{method}, {'--leaks' if leaks else 'peak'} {' '.join(options)}".strip()
    return Case(
        f"memray-{name}", MEMRAY, mode, _memray(method, many, leaks, *options), own_readers.memray_reader(leaks)
    )


DHAT = Writer("dhat", debian("valgrind"), "dh_view.html's code", "a time")
MEMCHECK = Writer("memcheck", debian("valgrind"), "its own summary, and the program's truth", "a sum, in XML")
TRACEMALLOC = Writer("tracemalloc", lambda: sys.version.split()[0], "tracemalloc.Snapshot.load")
_SNAPSHOT = """\
import tracemalloc
tracemalloc.start(5)
kept = [b"x" * size for size in range(999)]
tracemalloc.take_snapshot().dump("s")
"""


def _dhat(name: str, program: str, many: int, measure: str = "inuse_space") -> Case:
    write = _valgrind("dhat", program, many, "--dhat-out-file=HERE/dhat.out")
    return Case(f"dhat-{name}", DHAT, f"{measure}; {program}", write, own_readers.dh_view(measure), measure=measure)


def _memcheck(name: str, program: str, many: int, form: str, *options: str) -> Case:
    file = "--xml-file=HERE/memcheck.out" if form == "xml" else "--log-file=HERE/memcheck.out"
    write = _valgrind("memcheck", program, many, *options, file)

    def own(found: Path) -> Own:
        lost = sum(bytes_of(number, many) for number in NUMBERS)
        return truth(many, lost if form == "xml" else own_readers.memcheck_summary(found))

    return Case(f"memcheck-{name}", MEMCHECK, f"{' '.join(options)}; {program}", write, own)


def _snapshot(directory: Path) -> Path:
    subprocess.run([sys.executable, "-c", _SNAPSHOT], check=True, cwd=directory)
    return directory / "s"


CASES = [
    _dhat("threads", "crowd_threads", 1),
    _dhat("cpp", "crowd_cpp", 3),
    _dhat("allocated", "crowd_calloc", 2, "alloc_space"),
    _memcheck("text", "crowd_c", 1, "txt", "--leak-check=full"),
    _memcheck("reachable", "crowd_kept", 2, "txt", "--leak-check=full", "--show-leak-kinds=all"),
    _memcheck("xml", "crowd_cpp", 2, "xml", "--leak-check=full", "--xml=yes"),
    Case("tracemalloc-snapshot", TRACEMALLOC, "Snapshot.dump", _snapshot, refused="tracemalloc"),
    _massif("last", "crowd_threads", 1, "--detailed-freq=1"),
    _massif("peak", "crowd_c", 1, "--detailed-freq=1000", "--peak-inaccuracy=0.0"),
    _massif("whole-threshold", "crowd_threads", 2, "--detailed-freq=1", "--threshold=0"),
    _massif("pages", "crowd_threads", 20, "--pages-as-heap=yes", "--detailed-freq=1", own=_pages),
    _massif("calloc", "crowd_calloc", 3, "--detailed-freq=1", "--threshold=0"),
    _massif("cpp", "crowd_cpp", 3, "--detailed-freq=1"),
    _massif("depth", "crowd_threads", 3, "--detailed-freq=1", "--depth=2"),
    _sanitizer("crowd_leak", 1),
    _sanitizer("crowd_address", 2),
    _sanitizer("crowd_leak_cpp", 3),
    _sanitizer("crowd_address_realloc", 4),
    Case(
        "heaptrack-leaked",
        HEAPTRACK,
        "-F, leaked, in C",
        _folded("crowd_threads", 1, "leaked"),
        _of_heaptrack("leaks"),
        _OF_THE_LEAK,
    ),
    Case(
        "heaptrack-cpp",
        HEAPTRACK,
        "-F, leaked, in C++",
        _folded("crowd_cpp", 2, "leaked"),
        _of_heaptrack("leaks"),
        _OF_THE_LEAK,
    ),
    Case(
        "heaptrack-own",
        HEAPTRACK,
        "its own file",
        lambda directory: _trace(directory, "crowd_c", 1),
        refused="heaptrack_print -F",
    ),
    _of_memray("malloc", "malloc", 1, True),
    _of_memray("calloc", "calloc", 2, True),
    _of_memray("valloc", "valloc", 1, True),
    _of_memray("peak", "malloc", 3, False),
    _of_memray("python-allocators", "malloc", 1, True, "--trace-python-allocators"),
    Case(
        "memray-own",
        MEMRAY,
        "its own file",
        lambda directory: _memray("malloc", 5, True)(directory).with_suffix(".bin"),
        refused="memray transform csv",
    ),
]
