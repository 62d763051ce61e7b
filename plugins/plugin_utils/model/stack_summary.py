# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""A stack for people: its telling frames in one line, leaf first; and where in the source its functions are."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence

from ..base.printable import printable
from .frame import Frame, Kind
from .series import without_repeats

ARROW = " ← "
_MOST = 5
_MOST_LINES = 5  # of a function, as on the page
_MANAGED = (Kind.JAVA, Kind.PYTHON, Kind.JS)
# Code that comes with a language, by the start of the class name or of the file path.
_JAVA_LIBRARY = ("java.", "javax.", "jdk.", "sun.", "com.sun.", "kotlin.", "kotlinx.", "scala.", "groovy.lang.")
_LIBRARY_FILE = ("<frozen ", "node:", "internal/")
_LIBRARY_DIRECTORY = ("/site-packages/", "/dist-packages/", "/node_modules/", "/lib/python")
# Frames between the parts of a program that its author did not write.
_GLUE = ("std::", "__gnu_cxx::", "operator new")
_SYSTEM_LIBRARY = ("libc.so", "libc-", "libstdc++.so", "libpthread", "ld-linux", "ld-musl", "libgcc_s.so")


def render(path: Sequence[Frame], most: int = _MOST) -> str:
    """``inflate ← java.util.zip.Inflater.inflate ← java.util.zip.GZIPInputStream.read ← Frontend.serveAsset``

    Leaves out frames without a symbol and those of the C++ standard library if there are others to show. It names a
    library that has no symbol at all in the path (a stripped one), since the culprit may be in there. A path through a
    language with a runtime shows only one native function, the one that allocates. If the program has frames of its
    own, the libraries above them show only their first and last function.
    """
    named = {frame.module for frame in path if frame.function}
    managed = [frame for frame in path if frame.kind in _MANAGED]
    if managed:
        native = [frame for frame in path[: path.index(managed[0])] if _tells(frame, named)]
        own = next((position for position, frame in enumerate(managed) if not _is_library(frame)), None)
        library = managed[:own] if own is None else [*managed[:own][:1], *managed[:own][-1:]]
        shown = [*native[:1], *library, *(managed[own:] if own is not None else ())]
    else:
        shown = [frame for frame in path if frame.kind is Kind.JIT or _tells(frame, named)]
        if not any(_is_own_name(frame.function) for frame in shown):
            shown = []
    telling = [frame.group for frame in shown]
    telling = telling or [frame.label for frame in path] or ["[no stack]"]
    names = without_repeats(telling)
    return ARROW.join([*names[:most], *(["…"] if len(names) > most else [])])


def sources(path: Sequence[Frame], stacks: Iterable[Sequence[Frame]]) -> list[str]:
    """At which lines these stacks are in each function of a path: ``/src/shop.c:6, 7``, or a file alone. Empty where no
    debug information says it, or where the function is in several files."""
    lines: dict[str, dict[str, set[int]]] = defaultdict(lambda: defaultdict(set))
    for stack in stacks:
        for frame in stack:
            if frame.file:
                lines[frame.label][frame.file].add(frame.line)
    return [_source(lines[frame.label]) if frame.label in lines else "" for frame in path]


def with_source(name: str, source: str) -> str:
    """``keep  (/src/shop.c:7)``"""
    return f"{name}  ({source})" if source else name


def _source(files: dict[str, set[int]]) -> str:
    (file, seen), *others = files.items()
    known = sorted(seen - {0})
    shown = ", ".join(map(str, known[:_MOST_LINES])) + (", …" if len(known) > _MOST_LINES else "")
    return "" if others else printable(f"{file}:{shown}" if shown else file)


def _is_library(frame: Frame) -> bool:
    """Whether a frame belongs to a library, the language's own or another, and not to the program."""
    if frame.kind is Kind.JAVA:
        return frame.function.startswith(_JAVA_LIBRARY) or "$$Lambda" in frame.function
    return frame.file.startswith(_LIBRARY_FILE) or any(part in frame.file for part in _LIBRARY_DIRECTORY)


def _is_own_name(function: str) -> bool:
    return bool(function) and not function.startswith(_GLUE)


def _tells(frame: Frame, named: Collection[str]) -> bool:
    """Whether a native frame is worth a place: it has a name of its own, or ``named`` lacks its whole module."""
    if frame.function:
        return _is_own_name(frame.function)
    return bool(frame.module) and frame.module not in named and not frame.module.startswith(_SYSTEM_LIBRARY)
