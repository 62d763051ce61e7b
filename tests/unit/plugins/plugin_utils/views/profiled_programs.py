# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Programs of many kinds that write dumps, on which jeprof and we are compared."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from ansible_collections.offheap.profiler.tests.lab.nspawnlab.aptsource import unpack_packages
from ansible_collections.offheap.profiler.tests.unit.plugins.plugin_utils.readers.test_jeprof import (
    JAVA_PROGRAM,
    PYTHON_PROGRAM,
    _libjemalloc,
)

CACHE = Path(__file__).resolve().parents[5] / ".cache"

C_PROGRAM = """\
#include <stdlib.h>
#include <pthread.h>
#define STAY __attribute__((noinline))
#define HERE __asm__ volatile("")
static void *keep[40000];
STAY static void *small(int i) { void *p = malloc(16 + i % 900); HERE; return p; }
static inline __attribute__((always_inline)) void *inner(int i) { void *p = malloc(3000 + i % 500); HERE; return p; }
static inline __attribute__((always_inline)) void *outer(int i) { void *p = inner(i); HERE; return p; }
STAY static void *large(int i) { void *p = calloc(1, 70000 + 1000 * (i % 100)); HERE; return p; }
STAY static void *deep(int n, int i) { void *p = n ? deep(n - 1, i) : realloc(0, 5000); HERE; return p; }
static void *work(void *base) {
    for (int i = 0; i < 10000; i++)
        ((void **)base)[i] = i % 100 == 0 ? large(i) : i % 7 == 0 ? deep(i % 5, i) : i % 3 ? small(i) : outer(i);
    HERE;
    return 0;
}
int main(void) {
    pthread_t threads[THREADS];
    for (int i = 0; i < THREADS; i++) pthread_create(&threads[i], 0, work, keep + 10000 * i);
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], 0);
    for (int i = 0; i < 10000 * THREADS; i += 3) free(keep[i]);
    return 0;
}
"""
CXX_PROGRAM = """\
#include <map>
#include <memory>
#include <string>
#include <vector>
namespace shop {
template <typename T> struct Shelf {
    std::vector<std::unique_ptr<T>> goods;
    __attribute__((noinline)) void add(int n) { for (int i = 0; i < n; i++) goods.push_back(std::make_unique<T>()); }
};
struct Box { char bytes[3000]; };
}
int main() {
    static shop::Shelf<shop::Box> boxes;
    static shop::Shelf<std::string> names;
    static std::map<int, std::string> index;
    boxes.add(2000); names.add(20000);
    for (int i = 0; i < 20000; i++) index[i] = std::string(40 + i % 100, 'x');
    return 0;
}
"""
PLUGIN = """\
#include <stdlib.h>
void *keep[5000];
__attribute__((noinline)) void *NAME(int i) { void *p = malloc(2000 + i % 500); __asm__ volatile(""); return p; }
void fill(void) { for (int i = 0; i < 5000; i++) keep[i] = NAME(i); }
"""
HOST_PROGRAM = """\
#include <dlfcn.h>
#include <stdlib.h>
int main(int argc, char **argv) {
    for (int i = 1; i < argc; i++) {
        void *plugin = dlopen(argv[i], RTLD_NOW);
        if (!plugin) return 1;
        ((void (*)(void))dlsym(plugin, "fill"))();
        if (i == 1) dlclose(plugin);
    }
    return 0;
}
"""
NODE_PROGRAM = "const kept = []; for (let i = 0; i < 300; i++) kept.push(Buffer.alloc(20000 + i, 1)); kept.length;"


@dataclass(frozen=True)
class Kind:
    """How to build and start a program: ``command`` gets a directory to build in.

    ``jemalloc`` is a release of RELEASES, by default the one that is installed here.
    """

    name: str
    command: Callable[[Path], list[str]]
    sample: int = 13
    accum: bool = True
    jemalloc: str = ""


# Debian's suites with these releases. A release built for a newer C library than ours runs with that library.
RELEASES = {"5.2.1": ("bullseye", ["libjemalloc2"]), "5.3.1": ("sid", ["libjemalloc2", "libc6"])}


def _c(*options: str, threads: int = 1, strip: bool = False) -> Callable[[Path], list[str]]:
    def build(directory: Path) -> list[str]:
        return [_compile(directory, "program.c", C_PROGRAM, f"-DTHREADS={threads}", "-pthread", *options, strip=strip)]

    return build


def _cxx(*options: str, strip: bool = False) -> Callable[[Path], list[str]]:
    return lambda directory: [_compile(directory, "program.cc", CXX_PROGRAM, *options, strip=strip)]


def _compile(directory: Path, name: str, source: str, *options: str, strip: bool = False) -> str:
    (directory / name).write_text(source)
    output = directory / name.partition(".")[0]
    compiler = "g++" if name.endswith(".cc") else "gcc"
    command = [compiler, "-O1", "-Wl,--build-id", "-o", str(output), str(directory / name), *options]
    subprocess.run(command, check=True, capture_output=True)
    if strip:
        subprocess.run(["strip", output], check=True)
    return str(output)


def _plugins(directory: Path) -> list[str]:
    libraries = []
    for name in ("first", "second"):
        _compile(directory, f"{name}.c", PLUGIN, f"-DNAME=of_{name}", "-shared", "-fPIC", "-g")
        libraries.append(str((directory / name).rename(directory / f"lib{name}.so")))
    return [_compile(directory, "host.c", HOST_PROGRAM, "-g"), *libraries]


def _java(directory: Path) -> list[str]:
    (directory / "Leak.java").write_text(JAVA_PROGRAM)
    return [os.path.realpath(_installed("java", "default-jdk-headless")), "-Xmx64m", str(directory / "Leak.java")]


def _node(_directory: Path) -> list[str]:
    return [os.path.realpath(_installed("node", "nodejs")), "-e", NODE_PROGRAM]


def _python(_directory: Path) -> list[str]:
    return [os.path.realpath(sys.executable), "-c", PYTHON_PROGRAM]


def _installed(program: str, package: str) -> str:
    found = shutil.which(program)
    if found is None:
        pytest.fail(f"no {program}: apt-get install {package}")
    return found


KINDS = [
    Kind("c", _c("-g")),
    Kind("c-no-pie", _c("-g", "-no-pie")),
    Kind("c-stripped", _c(strip=True)),
    Kind("c-symbols-only", _c()),
    Kind("c-threads", _c("-g", threads=4)),
    Kind("c-without-accum", _c("-g", threads=2), accum=False),
    Kind("c-every-allocation", _c("-g"), sample=0),
    Kind("cxx", _cxx("-g")),
    Kind("cxx-optimised", _cxx("-g", "-O2")),
    Kind("cxx-stripped", _cxx(strip=True)),
    Kind("c-jemalloc-5.2.1", _c("-g", threads=2), jemalloc="5.2.1"),
    Kind("cxx-jemalloc-5.3.1", _cxx("-g"), jemalloc="5.3.1"),
    Kind("dlopen-dlclose", _plugins),
    Kind("python", _python),
    Kind("java", _java, sample=16),
    Kind("node", _node, sample=15),
]


def run(kind: Kind, directory: Path) -> tuple[str, Path]:
    """(the program, the dump that it wrote at exit)"""
    command = kind.command(directory)
    program = command[0]
    library = _libjemalloc()
    if kind.jemalloc:
        library, loader = release(kind.jemalloc)
        command = [*loader, *command]
    settings = f"prof:true,lg_prof_sample:{kind.sample},prof_final:true,prof_prefix:{directory}/p"
    settings += ",prof_accum:true" if kind.accum else ""
    environment = {**os.environ, "LD_PRELOAD": library, "MALLOC_CONF": settings}
    subprocess.run(command, env=environment, check=True, capture_output=True, timeout=120)
    dumps = sorted(directory.glob("p.*.heap"), key=lambda path: path.stat().st_size)
    assert dumps, "jemalloc wrote no dump"
    assert os.path.realpath(library).encode() in dumps[-1].read_bytes(), "another library wrote the dump"
    return program, dumps[-1]


def release(version: str) -> tuple[str, list[str]]:
    """The library of a release, and the command that starts a program with the C library that it needs."""
    suite, packages = RELEASES[version]
    root = _without_blanks(unpack_packages(suite, packages, CACHE / "debian" / f"{suite}-jemalloc"))
    library = next(root.glob("usr/lib/*/libjemalloc.so.2"))
    # The library contains its version, as mallctl("version") gives it.
    found = re.search(rb"\0(\d+\.\d+\.\d+)-\d+-g[0-9a-f]+\0", library.read_bytes())
    assert found and found[1].decode() == version, f"{suite} has another release: {found and found[1]!r}"
    loader = next(root.glob("usr/lib/*/ld-linux*.so.*"), None)
    return str(library), [str(loader), "--library-path", str(library.parent)] if loader else []


def _without_blanks(directory: Path) -> Path:
    """The directory under a name that LD_PRELOAD can hold."""
    if not re.search(r"[\s:]", str(directory)):
        return directory
    link = Path(tempfile.mkdtemp()) / directory.name
    link.symlink_to(directory)
    return link
