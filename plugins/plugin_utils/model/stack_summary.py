# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""A stack in one line, for people: its telling frames, leaf first."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from .frame import Frame, Kind

ARROW = " ← "
_MOST = 5
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
    names = [label for position, label in enumerate(telling) if position == 0 or telling[position - 1] != label]
    return ARROW.join([*names[:most], *(["…"] if len(names) > most else [])])


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
