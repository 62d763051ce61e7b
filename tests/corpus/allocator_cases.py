# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Cases of allocators with profilers of their own, jemalloc and tcmalloc, beside jeprof and google-pprof."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from glob import glob
from pathlib import Path

from ansible_collections.offheap.profiler.tests.corpus import google_tcmalloc, own_readers
from ansible_collections.offheap.profiler.tests.corpus.corpus_case import Case, Own, Writer
from ansible_collections.offheap.profiler.tests.corpus.crowd_programs import built, truth
from ansible_collections.offheap.profiler.tests.unit.strategies import leak_tools

_PYTHON = os.path.realpath(sys.executable)
_ZLIB = (
    "import zlib, sqlite3\nkept = [zlib.decompressobj() for i in range(3000)]\n"
    "[d.decompress(b'x\\x9c') for d in kept]\n"
    "open = [sqlite3.connect(':memory:') for i in range(20)]\n[d.execute('create table t (x)') for d in open]"
)
_HOLDS = "hold_"
_NODE = "const kept = []; for (let i = 0; i < 400; i++) kept.push(require('zlib').createDeflate(), Buffer.alloc(9000))"


def debian(package: str) -> Callable[[], str]:
    """The version of a package of Debian."""
    return lambda: own_readers.said("dpkg-query", "-W", "-f", "${Version}", package)


def _library(name: str) -> str:
    return max(glob(f"/usr/lib/*/{name}"))


JEMALLOC = Writer("jemalloc", debian("libjemalloc2"), "jeprof", "memory that does not go through malloc")
JEPROF = Writer("jeprof", debian("libjemalloc-dev"), "jeprof", "collapsed stacks do not say what their numbers are")
GOOGLE = Writer(
    "google-pprof", debian("google-perftools"), "google-pprof", "collapsed stacks do not say what their numbers are"
)
GOOGLES = Writer(
    "Google's tcmalloc", lambda: f"of libtcmalloc-sys {google_tcmalloc.VERSION}", "go tool pprof", "its interval"
)
MIMALLOC = Writer(
    "mimalloc-pprof",
    lambda: "1.1.1",
    "go tool pprof, and the program's truth",
    "build-ids, so its program has to be where it was",
)
TCMALLOC = Writer("gperftools", debian("libgoogle-perftools4"), "google-pprof", "a time")


def _jemalloc(command: Callable[[], list[str]], options: str, which: int = -1) -> Callable[[Path], Path]:
    def write(directory: Path) -> Path:
        settings = f"prof:true,prof_final:true,prof_prefix:{directory}/p,{options}"
        environment = {**os.environ, "LD_PRELOAD": _library("libjemalloc.so.2"), "MALLOC_CONF": settings}
        subprocess.run(command(), env=environment, check=True, capture_output=True, timeout=100, cwd=directory)
        dumps = sorted(directory.glob("p.*.heap"), key=lambda path: int(path.name.split(".")[2]))
        return dumps[which]

    return write


def _crowd(name: str, many: int = 1) -> Callable[[], list[str]]:
    return lambda: [str(built(name)), str(many)]


def _of_jemalloc(
    name: str,
    command: Callable[[], list[str]],
    options: str,
    measure: str = "inuse_space",
    which: int = -1,
    only: str = "",
) -> Case:
    def own(file: Path) -> Own:
        return own_readers.perl_pprof("jeprof", command()[0], f"--{measure}", only=only, callees=only == _HOLDS)(file)

    return Case(f"jemalloc-{name}", JEMALLOC, options, _jemalloc(command, options, which), own, measure=measure)


def _written_by_jeprof(kind: str) -> Callable[[Path], Path]:
    def write(directory: Path) -> Path:
        heap = _jemalloc(_crowd("crowd_c"), "lg_prof_sample:0")(directory)
        file = directory / f"by.{kind}"
        with file.open("wb") as stream:
            command = ["jeprof", f"--{kind}", "--show_bytes", str(built("crowd_c")), str(heap)]
            subprocess.run(command, stdout=stream, stderr=subprocess.DEVNULL, check=True)
        return file

    return write


def _written_by_google(kind: str) -> Callable[[Path], Path]:
    def write(directory: Path) -> Path:
        heap = _tcmalloc(_crowd("crowd_c"))(directory)
        file = directory / f"by.{kind}"
        with file.open("wb") as stream:
            command = ["google-pprof", f"--{kind}", "--show_bytes", str(built("crowd_c")), str(heap)]
            subprocess.run(command, stdout=stream, stderr=subprocess.DEVNULL, check=True)
        return file

    return write


def _own_of_heap_beside(tool: str) -> Callable[[Path], Own]:
    def own(file: Path) -> Own:
        (heap,) = file.parent.glob("p.*.heap")
        return own_readers.perl_pprof(tool, built("crowd_c"))(heap)

    return own


def _tcmalloc(command: Callable[[], list[str]], which: str = "*.heap", **variables: str) -> Callable[[Path], Path]:
    def write(directory: Path) -> Path:
        settings = {"LD_PRELOAD": _library("libtcmalloc.so.4"), "HEAPPROFILE": str(directory / "p"), **variables}
        environment = {**os.environ, **settings}
        words = [word.replace("HERE", str(directory)) for word in command()]
        subprocess.run(words, env=environment, check=True, capture_output=True, timeout=100)
        return max(directory.glob(which))

    return write


def _of_tcmalloc(
    name: str,
    command: Callable[[], list[str]],
    mode: str,
    which: str = "*.heap",
    measure: str = "inuse_space",
    only: str = "",
    **variables: str,
) -> Case:
    def own(file: Path) -> Own:
        options = [] if "growth" in name else [f"--{measure}"]
        return own_readers.perl_pprof("google-pprof", command()[0], *options, only=only, callees=only == _HOLDS)(file)

    write = _tcmalloc(command, which, **variables)
    return Case(f"gperftools-{name}", TCMALLOC, mode, write, own, measure=measure)


def _saying() -> list[str]:
    return [str(built("crowd_tcmalloc")), "30", "HERE/said.sample", "HERE/said.growth"]


def _of_google(name: str, interval: int, many: int, source: str = "") -> Case:
    def write(directory: Path) -> Path:
        environment = {**os.environ, "INTERVAL": str(interval)}
        subprocess.run([google_tcmalloc.program(), str(many)], check=True, env=environment, cwd=directory)
        return directory / name

    own = own_readers.go_pprof("space", callees=_HOLDS)
    mode = f"{name}, SetProfileSamplingInterval({interval})"
    return Case(f"tcmalloc-{name}-{interval}", GOOGLES, mode, write, own, source)


def _with_mimalloc() -> Path:
    return built("crowd_mimalloc", leak_tools.mimalloc())


def _mimalloc(many: int, **variables: str) -> Callable[[Path], Path]:
    def write(directory: Path) -> Path:
        file = directory / "dump"
        told = {name: value.replace("HERE", str(file)) for name, value in variables.items()}
        subprocess.run([_with_mimalloc(), str(many)], check=True, env={**os.environ, **told})
        return file

    return write


def _of_mimalloc(form: str, interval: int, many: int) -> Case:
    told = {"SAMPLE_INTERVAL": str(interval), "DUMP_FORMAT": form, "DUMP_AT_EXIT": "HERE"}
    write = _mimalloc(many, MIMALLOC_PROF="1", **{f"MIMALLOC_PROF_{name}": value for name, value in told.items()})

    def own(file: Path) -> Own:
        if form == "text":
            return own_readers.go_pprof("space", callees=_HOLDS, program=str(_with_mimalloc()))(file)
        # pprof takes addresses for offsets in the file, and has wrong names.
        total = own_readers.go_pprof()(file).total
        return truth(many, total) if interval == 1 else Own(total)

    return Case(f"mimalloc-{form}-{interval}", MIMALLOC, f"{form}, SAMPLE_INTERVAL={interval}", write, own)


_RATE = {"TCMALLOC_SAMPLE_PARAMETER": "4096"}

CASES = [
    _of_jemalloc("every-allocation", _crowd("crowd_c"), "lg_prof_sample:0"),
    _of_jemalloc("sampled", _crowd("crowd_c", 20), "lg_prof_sample:13"),
    _of_jemalloc("default-interval", _crowd("crowd_calloc", 300), "lg_prof_sample:19"),
    _of_jemalloc(
        "accumulated", _crowd("crowd_cpp", 10), "lg_prof_sample:12,prof_accum:true", "alloc_space", only=_HOLDS
    ),
    _of_jemalloc("cpp", _crowd("crowd_cpp", 10), "lg_prof_sample:12", only=_HOLDS),
    _of_jemalloc("threads", _crowd("crowd_threads", 5), "lg_prof_sample:10"),
    _of_jemalloc("aligned", _crowd("crowd_aligned", 5), "lg_prof_sample:10"),
    _of_jemalloc("while-it-ran", _crowd("crowd_c", 30), "lg_prof_sample:12,lg_prof_interval:20", which=5),
    _of_jemalloc("python", lambda: [_PYTHON, "-c", _ZLIB], "lg_prof_sample:15"),
    _of_jemalloc("node", lambda: ["/usr/bin/node", "-e", _NODE], "lg_prof_sample:15"),
    Case(
        "jeprof-collapsed",
        JEPROF,
        "--collapsed",
        _written_by_jeprof("collapsed"),
        _own_of_heap_beside("jeprof"),
        "live:bytes:1",
    ),
    Case(
        "google-pprof-collapsed",
        GOOGLE,
        "--collapsed",
        _written_by_google("collapsed"),
        _own_of_heap_beside("google-pprof"),
        "live:bytes:1",
    ),
    Case("google-pprof-callgrind", GOOGLE, "--callgrind", _written_by_google("callgrind"), refused="callgrind"),
    Case("jeprof-callgrind", JEPROF, "--callgrind", _written_by_jeprof("callgrind"), refused="callgrind"),
    _of_tcmalloc("heapprofile", _crowd("crowd_c"), "HEAPPROFILE"),
    _of_tcmalloc("allocated", _crowd("crowd_cpp", 3), "HEAPPROFILE", measure="alloc_space"),
    _of_tcmalloc("cpp", _crowd("crowd_cpp", 2), "HEAPPROFILE"),
    _of_tcmalloc("threads", _crowd("crowd_threads", 2), "HEAPPROFILE"),
    _of_tcmalloc("mmap", _crowd("crowd_calloc", 40), "HEAP_PROFILE_MMAP", only=_HOLDS, HEAP_PROFILE_MMAP="true"),
    _of_tcmalloc("python", lambda: [_PYTHON, "-c", _ZLIB], "HEAPPROFILE", only="arena|alias|locale"),
    _of_tcmalloc("sample", _saying, "GetHeapSample", "said.sample", HEAPPROFILE="", **_RATE),
    _of_tcmalloc("growth", _saying, "GetHeapGrowthStacks", "said.growth", HEAPPROFILE=""),
    _of_google("heap", 4096, 20),
    _of_google("heap", 524288, 300),
    _of_google("allocated", 16384, 30),
    _of_google("peak", 131072, 300, "live"),
    _of_mimalloc("text", 1, 1),
    _of_mimalloc("text", 4096, 20),
    _of_mimalloc("proto", 1, 2),
    _of_mimalloc("proto", 65536, 200),
    Case(
        "mimalloc-dhat",
        MIMALLOC,
        "MIMALLOC_DHAT=1",
        _mimalloc(1, MIMALLOC_DHAT="1", MIMALLOC_DHAT_DUMP_AT_EXIT="HERE"),
        refused="MIMALLOC_PROF_DUMP_AT_EXIT",
    ),
    Case(
        "gperftools-sampling-off",
        TCMALLOC,
        "GetHeapSample, sampling off",
        _tcmalloc(_saying, "said.sample", HEAPPROFILE="", TCMALLOC_SAMPLE_PARAMETER="0"),
        refused="TCMALLOC_SAMPLE_PARAMETER",
    ),
]
