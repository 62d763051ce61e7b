# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""What people take for a profile of native memory and is none, or not yet: what it is, and what to do.

This module is private to the collection.
"""

from __future__ import annotations

import re

_LEAKED = (
    "then read x.folded as collapsed stacks"
    " (source_measure=live, source_unit=bytes, source_interval=1; fab: --source live:bytes:1)"
)
_ASK_FOR_THE_HEAP = "ask the service for its heap (Go: /debug/pprof/heap)"
_CPU_OF_JAVASCRIPT = "is a CPU profile of JavaScript, which says nothing of memory"
_OF_JAVASCRIPT = "is a heap of JavaScript's own objects, not of native memory"
# A file of blanks alone would take its time.
_LOOKED_AT = 4096
# By how a file begins: what it is, and what to do.
_BEGINNINGS = {
    rb"v 1\d{4} \d\nX ": (
        f"is heaptrack's own: run 'heaptrack_print -F x.folded --flamegraph-cost-type leaked FILE', {_LEAKED}"
    ),
    rb"memray\0": "is memray's own: run 'memray transform csv --leaks -o x.csv FILE', then read x.csv",
    rb"PERFILE2|2ELIFREP": (
        "is perf's own: run 'perf script --show-lost-events -F comm,pid,tid,time,period,event,ip,sym,symoff,dso -i FILE"
        " > x.txt' on the machine that recorded it, then read x.txt"
    ),
    (
        rb"(?:goroutine|threadcreate|goroutineleak|block|mutex) profile: total"
        rb"|--- (?:contentionz?|mutexz?|threadz?|cpuz?)\b"
    ): (f"is a list of threads, goroutines or locks, not of memory: {_ASK_FOR_THE_HEAP}"),
    rb"\0{8}\x03\0{15}|\0{4}\x03\0{7}": f"is a CPU profile of gperftools, not of memory: {_ASK_FOR_THE_HEAP}",
    rb"--- heapz? \d": (
        "is a heap of a JVM's own objects: read a live trace of its native memory instead (docs/live.md)"
    ),
    rb"JAVA PROFILE 1\.0": "is a heap dump of a JVM, with its own objects only: open it in Eclipse MAT or VisualVM",
    rb"(?:#[^\n]{0,200}\n){0,9}\s*(?:version: \d+\s+)?(?:creator: |# callgrind format|events: )": (
        "is callgrind's, of time or made from another profile: read that one, or run massif (valgrind --tool=massif)"
    ),
    rb"= Start\n@ ": "is a log of glibc's mtrace: run 'mtrace PROGRAM FILE' on it, or massif (valgrind --tool=massif)",
    rb"\x80[\x04\x05]\x95(?s:.{8})\x8c\x0btracemalloc": (
        "is a snapshot of Python's tracemalloc, with what Python's own allocators gave: load it with"
        " tracemalloc.Snapshot.load, or profile with memray"
    ),
    rb"\x7fELF": "is a program, a library or a core dump, not a profile",
    rb"\s*<(?:!DOCTYPE|\?xml(?![^>]{0,99}>\s*<valgrindoutput>)|html|svg)": (
        "is a page or a picture: ask for the profile that it was made from"
    ),
    rb"PK\x03\x04|(?s:.{257})ustar": "is an archive of files: unpack it and read the files in it",
    rb"Nettrace|\x14\0\0\0!FastSerialization": (
        "is a trace of .NET, with objects of its own heap only: open it in PerfView or dotnet-gcdump"
    ),
    rb'\s*\{\s*"nodes"': f"{_CPU_OF_JAVASCRIPT}: open it in Chrome's DevTools",
    rb"# CPU Profile\s+\| Duration \|": f"{_CPU_OF_JAVASCRIPT}: it is text, to be read as it is",
    rb'\s*\{\s*"(?:head|snapshot|meta)"': f"{_OF_JAVASCRIPT}: open it in Chrome's DevTools",
    rb'\s*\{\s*"version":\s*\d+,\s*"type":\s*"Inspector"|# Bun Heap Profile': (
        f"{_OF_JAVASCRIPT}: have Bun write it for Chrome's DevTools (--heap-prof, or Bun.generateHeapSnapshot('v8'))"
    ),
    rb'\s*\{\s*"resource_?[pP]rofiles"': "is OpenTelemetry's profiles as JSON: have them written as protobuf",
    rb"\s*(?:\{\s*\"(?!dhatFileVersion\")|\[\s*[\[{])": (
        "is JSON, which no profile of memory here is: ask its tool for pprof or collapsed stacks"
    ),
}


def reason(data: bytes) -> str:
    """Why the data is no profile that can be read; empty if it does not begin like anything known to be none."""
    head = data[:_LOOKED_AT]
    return next((why for beginning, why in _BEGINNINGS.items() if re.match(beginning, head)), "")
