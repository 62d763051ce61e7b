# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Language runtimes: which one a process runs, and what makes its frames and objects visible to a profiler."""

from __future__ import annotations

import mmap
import os
import re
from typing import Mapping, NamedTuple, Sequence

NAMES = ("jvm", "python", "node", "dotnet", "native")

_EXECUTABLES = {
    "jvm": re.compile(r"java\Z"),
    "python": re.compile(r"(python|pypy)[0-9.]*\Z"),
    "node": re.compile(r"node(js)?(-?[0-9]+)?\Z"),  # node-22 on Fedora, node22 on openSUSE: node is a link to it
    "dotnet": re.compile(r"dotnet\Z"),
}
_LIBRARIES = {"jvm": "/libjvm.so", "dotnet": "/libcoreclr.so", "python": "/libpython3"}


class Aid(NamedTuple):
    """One thing that makes frames or objects visible: a word for an environment variable, which holds options or one
    word alone. A program that does not contain ``needs`` may not start with it. One that is ``asked`` for costs more
    than the others, and is left out unless somebody wants it."""

    name: str
    variable: str
    word: str
    needs: str = ""
    asked: bool = False


_OF_NODE = ("--perf-basic-prof-only-functions", "--interpreted-frames-native-stack")
# Sources: java(1); Python's "perf profiling" howto (3.12) and its PYTHONMALLOC; node(1), NODE_OPTIONS; .NET's
# "DOTNET_PerfMapEnabled".
AIDS: Mapping[str, Sequence[Aid]] = {
    "jvm": (
        # Without it, unwinding ends at the first compiled Java frame.
        Aid("frame-pointers", "JAVA_TOOL_OPTIONS", "-XX:+PreserveFramePointer"),
        Aid("memory-tracking", "JAVA_TOOL_OPTIONS", "-XX:NativeMemoryTracking=summary"),
    ),
    "python": (
        Aid("perf-map", "PYTHONPERFSUPPORT", "1"),
        # Objects up to 512 bytes lie in arenas that CPython maps by itself. A free-threaded one knows no other malloc.
        Aid("objects", "PYTHONMALLOC", "malloc", needs="pymalloc_debug", asked=True),
    ),
    "node": (
        # Not --perf-basic-prof, which also writes isolate-<...>-v8.log into the working directory.
        Aid("perf-map", "NODE_OPTIONS", _OF_NODE[0], needs=_OF_NODE[0]),
        Aid("interpreted-frames", "NODE_OPTIONS", _OF_NODE[1], needs=_OF_NODE[1]),
    ),
    "dotnet": (Aid("perf-map", "DOTNET_PerfMapEnabled", "1"),),
    "native": (),
}
AID_NAMES = tuple(sorted({aid.name for aids in AIDS.values() for aid in aids if not aid.asked}))
ASKED_NAMES = tuple(sorted({aid.name for aids in AIDS.values() for aid in aids if aid.asked}))
VARIABLES = tuple(sorted({aid.variable for aids in AIDS.values() for aid in aids}))


def detect(executable: str, mapped: Sequence[str] = ()) -> str:
    """The runtime of a process, by its executable's name and the libraries that it has mapped."""
    name = os.path.basename(executable)
    for runtime, pattern in _EXECUTABLES.items():
        if pattern.match(name):
            return runtime
    for runtime, library in _LIBRARIES.items():
        if any(library in path for path in mapped):
            return runtime
    return "native"


def additions(
    runtime: str, without: Sequence[str], asked: Sequence[str], executable: str, mapped: Sequence[str]
) -> dict[str, list[str]]:
    """Words to add, by variable, without aids that the user has switched off or the program may not know, and with
    those that they have ``asked`` for.

    It knows what its executable, or a mapped library of its name, contains.
    """
    words: dict[str, list[str]] = {}
    files = [executable, *(path for path in mapped if os.path.basename(path).startswith(f"lib{runtime}"))]
    for aid in AIDS[runtime]:
        wanted = aid.name in asked if aid.asked else aid.name not in without
        if wanted and (not aid.needs or any(_holds(path, aid.needs) for path in files)):
            words.setdefault(aid.variable, []).append(aid.word)
    return words


def _holds(path: str, word: str) -> bool:
    try:
        with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            return content.find(word.encode("ascii") + b"\0") >= 0
    except (OSError, ValueError):  # gone, or empty
        return False


def merge(theirs: str, words: Sequence[str]) -> str:
    """A variable's words followed by ours; an option that is already set, either way, stays as it is, and so does a
    variable that holds one word alone."""
    if theirs.strip() and not all(word.startswith("-") for word in words):
        return theirs
    present = {_option(word) for word in theirs.split()}
    return " ".join([*theirs.split(), *(word for word in words if _option(word) not in present)])


def _option(word: str) -> str:
    """The option that a word sets: ``-XX:+Name``, ``-XX:-Name`` and ``-XX:Name=value`` are one."""
    return re.sub(r"\A-XX:[+-]?", "-XX:", word).partition("=")[0]
