# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Language runtimes: which one a process is, and what makes its frames visible to a native profiler."""

from __future__ import annotations

import os
import re
from typing import Mapping, NamedTuple, Sequence

NAMES = ("jvm", "python", "node", "dotnet", "native")

_EXECUTABLES = {
    "jvm": re.compile(r"java\Z"),
    "python": re.compile(r"(python|pypy)[0-9.]*\Z"),
    "node": re.compile(r"node(js)?\Z"),
    "dotnet": re.compile(r"dotnet\Z"),
}
_LIBRARIES = {"jvm": "/libjvm.so", "dotnet": "/libcoreclr.so", "python": "/libpython3"}


class Aid(NamedTuple):
    """One thing that makes frames visible: words for a variable of the environment that holds a list of them."""

    name: str
    variable: str
    word: str


# Sources: java(1); Python's "perf profiling" howto (3.12); node(1), --perf-basic-prof; .NET's "DOTNET_PerfMapEnabled".
AIDS: Mapping[str, Sequence[Aid]] = {
    "jvm": (
        # Without it the walk ends at the first compiled Java frame.
        Aid("frame-pointers", "JAVA_TOOL_OPTIONS", "-XX:+PreserveFramePointer"),
        Aid("memory-tracking", "JAVA_TOOL_OPTIONS", "-XX:NativeMemoryTracking=summary"),
    ),
    "python": (Aid("perf-map", "PYTHONPERFSUPPORT", "1"),),
    "node": (Aid("perf-map", "NODE_OPTIONS", "--perf-basic-prof"),),
    "dotnet": (Aid("perf-map", "DOTNET_PerfMapEnabled", "1"),),
    "native": (),
}
AID_NAMES = tuple(sorted({aid.name for aids in AIDS.values() for aid in aids}))
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


def additions(runtime: str, without: Sequence[str]) -> dict[str, list[str]]:
    """Words to add, by variable, without the aids that the user has switched off."""
    words: dict[str, list[str]] = {}
    for aid in AIDS[runtime]:
        if aid.name not in without:
            words.setdefault(aid.variable, []).append(aid.word)
    return words


def merge(theirs: str, words: Sequence[str]) -> str:
    """A variable's words with ours behind them; an option that is already set, either way, stays as it is."""
    present = {_option(word) for word in theirs.split()}
    return " ".join([*theirs.split(), *(word for word in words if _option(word) not in present)])


def _option(word: str) -> str:
    """The option that a word sets: ``-XX:+Name``, ``-XX:-Name`` and ``-XX:Name=value`` are one."""
    return re.sub(r"\A-XX:[+-]?", "-XX:", word).partition("=")[0]
