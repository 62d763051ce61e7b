# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Programs in which twelve functions hold memory, each another amount, for each writer's language.

Function ``hold_N`` holds 10 N blocks of 100 N + 7 bytes, each as often as the program's first argument says.
"""

from __future__ import annotations

import subprocess
from functools import cache
from pathlib import Path

from ansible_collections.offheap.profiler.tests.corpus.corpus_case import Own

ROOT = Path(__file__).resolve().parents[2]
#: where programs are built, once
PROGRAMS = ROOT / "build" / "corpus" / "programs"
NUMBERS = range(1, 13)

_C = """\
#include <stdlib.h>
#include <string.h>
#include <stdio.h>
%(head)s
#define STAY __attribute__((noinline))
static void **kept;
static long at;
static int many = 1;
#define HOLD(n) STAY void hold_##n(void) { \\
    for (int i = 0; i < 10 * n * many; i++) { kept[at] = %(new)s; memset(kept[at++], 1, 100 * n + 7); } \\
    void *p = %(new)s; memset(p, 2, 9); %(free)s; }
%(holds)s
STAY void first(void) { hold_1(); hold_4(); hold_7(); hold_10(); }
STAY void second(void) { hold_2(); hold_5(); hold_8(); hold_11(); }
STAY void third(void) { hold_3(); hold_6(); hold_9(); hold_12(); }
%(more)s
int main(int count, char **words) {
    if (count > 1) many = atoi(words[1]);
    kept = (void **)calloc(2000 * many, sizeof *kept);
    first(); second(); third();
    %(end)s
    return 0;
}
"""
_FORGET = "memset(kept, 0, 2000 * many * sizeof *kept); free(kept); kept = 0;"


def _c_source(new: str, free: str, head: str = "", more: str = "", end: str = _FORGET) -> str:
    holds = "\n".join(f"HOLD({number})" for number in NUMBERS)
    return _C % {"new": new, "free": free, "holds": holds, "head": head, "more": more, "end": end}


_THREADS = (
    "static void *part(void *what) { ((void (*)(void))what)(); return 0; }",
    """pthread_t threads[3]; void (*parts[])(void) = {first, second, third};
    for (int i = 0; i < 3; i++) { pthread_create(&threads[i], 0, part, (void *)parts[i]); pthread_join(threads[i], 0); }
    """,
)
_OF_TCMALLOC = """\
#include <gperftools/malloc_extension.h>
#include <gperftools/heap-profiler.h>
#include <fstream>
#include <string>
"""
_TCMALLOC_SAYS = """\
    std::string heap, growth;
    MallocExtension::instance()->GetHeapSample(&heap);
    MallocExtension::instance()->GetHeapGrowthStacks(&growth);
    if (count > 2) std::ofstream(words[2]) << heap;
    if (count > 3) std::ofstream(words[3]) << growth;
"""
_OF_GOOGLE = """\
#include <fstream>
#include <string>
#include "tcmalloc/malloc_extension.h"
#include "tcmalloc/profile_marshaler.h"
using tcmalloc::MallocExtension;
static MallocExtension::AllocationProfilingToken all;
__attribute__((constructor)) static void begin() {
    MallocExtension::SetProfileSamplingInterval(atol(getenv("INTERVAL")));
    void *volatile sampled = malloc(64 << 20); /* the interval holds from the next sample on */
    free(sampled);
    all = MallocExtension::StartAllocationProfiling();
}
static void say(const char *name, const tcmalloc::Profile &found) { std::ofstream(name) << *tcmalloc::Marshal(found); }
"""
_GOOGLE_SAYS = """\
    say("allocated", std::move(all).Stop());
    say("heap", MallocExtension::SnapshotCurrent(tcmalloc::ProfileType::kHeap));
    say("peak", MallocExtension::SnapshotCurrent(tcmalloc::ProfileType::kPeakHeap));
"""
#: language's ending, source, options of the compiler
SOURCES = {
    "crowd_c": (".c", _c_source("malloc(100 * n + 7)", "free(p)"), ["gcc"]),
    "crowd_kept": (".c", _c_source("malloc(100 * n + 7)", "free(p)", end="exit(0);"), ["gcc"]),
    "crowd_mtrace": (
        ".c",
        _c_source("malloc(100 * n + 7)", "free(p)", "#include <mcheck.h>", end="muntrace();").replace(
            "many = 1;\n", "many = 1;\n__attribute__((constructor)) static void begin(void) { mtrace(); }\n", 1
        ),
        ["gcc"],
    ),
    "crowd_calloc": (".c", _c_source("calloc(1, 100 * n + 7)", "free(p)"), ["gcc"]),
    "crowd_aligned": (".c", _c_source("aligned_alloc(64, 64 * ((100 * n + 70) / 64))", "free(p)"), ["gcc"]),
    "crowd_cpp": (".cc", _c_source("new char[100 * n + 7]", "delete[] (char *)p"), ["g++"]),
    "crowd_threads": (
        ".c",
        _c_source("malloc(100 * n + 7)", "free(p)", "#include <pthread.h>", *_THREADS),
        ["gcc", "-pthread"],
    ),
    "crowd_tcmalloc": (
        ".cc",
        _c_source("malloc(100 * n + 7)", "free(p)", _OF_TCMALLOC, "", _TCMALLOC_SAYS),
        ["g++", "-Wl,--no-as-needed", "-ltcmalloc"],
    ),
    "crowd_google": (
        ".cc",
        _c_source("malloc(100 * n + 7)", "free(p)", _OF_GOOGLE, "", _GOOGLE_SAYS),
        ["g++", "-std=c++17"],
    ),
    "crowd_mimalloc": (".c", _c_source("malloc(100 * n + 7)", "free(p)"), ["gcc", "-pthread"]),
    "crowd_leak": (".c", _c_source("malloc(100 * n + 7)", "free(p)"), ["gcc", "-fsanitize=leak"]),
    "crowd_address": (".c", _c_source("malloc(100 * n + 7)", "free(p)"), ["gcc", "-fsanitize=address"]),
    "crowd_leak_cpp": (".cc", _c_source("new char[100 * n + 7]", "delete[] (char *)p"), ["g++", "-fsanitize=leak"]),
    "crowd_address_realloc": (".c", _c_source("realloc(0, 100 * n + 7)", "free(p)"), ["gcc", "-fsanitize=address"]),
}


def bytes_of(number: int, many: int) -> int:
    """What ``hold_N`` holds."""
    return 10 * number * many * (100 * number + 7)


def truth(many: int, total: int) -> Own:
    """What the program knows of itself, with the total that the tool says."""
    return Own(total, {f"hold_{number}": bytes_of(number, many) for number in NUMBERS[-10:]})


@cache
def built(name: str, *linked: str | Path) -> Path:
    """The program of this name, with what else is linked."""
    ending, source, (compiler, *options) = SOURCES[name]
    PROGRAMS.mkdir(parents=True, exist_ok=True)
    file, program = PROGRAMS / f"{name}{ending}", PROGRAMS / name
    if not program.exists() or not file.exists() or file.read_text() != source:
        file.write_text(source)
        kept = ["-g", "-O1", "-w", "-fno-omit-frame-pointer", "-fno-optimize-sibling-calls"]
        subprocess.run([compiler, *kept, "-o", program, file, *options, *linked], check=True)
    return program
