# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""The output formats for a dump: what each needs and how it is rendered."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ..export import callgrind, calls, disassembly, graph, source_listing, stacks, top
from ..views.selection import Selection
from ..views.table import Granularity, Measure, Table
from .sources import AnalysisError, Images, Source

# A line for each stack takes many times the dump's size, so such formats yield line by line.
Content = str | bytes | Iterator[bytes]


@dataclass(frozen=True)
class Request:
    """What to show. ``thread`` is empty, a number or ALL_THREADS; ``function`` is for peek, list and disasm."""

    kind: str = "text"
    granularity: Granularity = Granularity.FUNCTIONS
    measure: Measure = Measure.INUSE_SPACE
    selection: Selection = field(default_factory=Selection)
    look: top.Look = field(default_factory=top.Look)
    limits: graph.GraphLimits = field(default_factory=graph.GraphLimits)
    function: str = ""
    thread: str = ""
    drop_negative: bool = False
    source_path: Sequence[Path] = ()


@dataclass(frozen=True)
class View:
    """Everything a format may show. ``facts`` are (name, value) pairs in display order."""

    request: Request
    table: Table
    source: Source
    images: Images
    facts: list[tuple[str, str]]

    @property
    def time(self) -> float:
        """When the dump was written, in seconds since the epoch; 0 if unknown."""
        return float(self.source.facts.get("time") or 0.0)

    @property
    def program(self) -> str:
        """The path of the program, or an empty string."""
        return str(self.source.facts.get("exe") or "")

    def find_source(self, path: str) -> Path | None:
        """The first file below ``source_path`` that matches the end of ``path``, the longest match first, or None.

        The path comes from a host's debug information, which is no reason to open a file of this machine.
        """
        parts = [part for part in Path(path).parts[1:] if part not in ("..", "/")]
        for directory in self.request.source_path:
            for start in range(len(parts)):
                candidate = directory.joinpath(*parts[start:])
                if candidate.is_file():
                    return candidate
        return None


@dataclass(frozen=True)
class Format:
    """How to render a format, and its properties.

    ``is_text``: a terminal can show it. ``by_thread``: it is text for people, so several threads can follow each other.
    ``needs_function``: it shows only the requested functions. ``libraries``: import names.
    """

    render: Callable[[View], Content]
    is_text: bool = False
    by_thread: bool = False
    needs_function: bool = False
    libraries: tuple[str, ...] = ()


def _text(view: View) -> str:
    return top.render(view.table, view.request.look, view.facts)


def _tree(view: View) -> str:
    return calls.tree(view.table, view.request.look, view.facts)


def _peek(view: View) -> str:
    return calls.peek(view.table, view.request.function, view.request.look, view.facts)


def _traces(view: View) -> str:
    return stacks.traces(view.table, view.request.look, view.facts)


def _collapsed(view: View) -> Iterator[bytes]:
    return stacks.collapsed(view.table)


def _callgrind(view: View) -> str:
    return callgrind.render(view.table.samples, view.request.measure, view.program)


def _listing(view: View) -> str:
    return source_listing.render(view.table, view.request.function, view.request.look, view.find_source)


def _disassembly(view: View) -> str:
    return disassembly.render(view.table, view.request.function, view.request.look, view.images.find)


def _dot(view: View) -> str:
    return graph.dot(view.table, view.program or view.source.path.name, view.request.limits)


def _picture(view: View) -> bytes:
    return graph.picture(_dot(view), view.request.kind)


# These exporters are imported on demand: their imports take longer than a small dump.
def _flamegraph(view: View) -> str:
    from ..export import flamegraph

    if view.request.measure.unit == "objects":
        raise AnalysisError("the flame graph shows bytes: ask for inuse_space or alloc_space, or for collapsed stacks")
    page = flamegraph.Page(
        unit=str(view.source.facts.get("unit") or view.source.path.name),
        host=str(view.source.facts.get("host") or "an unknown host"),
        answer="",
        headline=top.total_line(view.table, view.request.look),
        reason="",
        facts=view.facts,
    )
    return flamegraph.render(page, view.table.samples, row=view.table.measure.row)


def _pprof(view: View) -> bytes:
    from ..export import pprof

    comments = [f"{name}: {value}" for name, value in view.facts]
    return pprof.render(view.table.samples, pprof.About(view.time, view.source.executable[0], comments))


def _speedscope(view: View) -> Content:
    from ..export import speedscope

    return speedscope.render(view.table.samples, view.source.path.name)


def _firefox(view: View) -> Content:
    from ..export import firefox

    return firefox.render(view.table.samples, view.source.path.name, view.time)


def _json(view: View) -> Content:
    from ..export import document

    return document.render(view.table.samples, view.source.facts)


FORMATS = {
    "text": Format(_text, is_text=True, by_thread=True),
    "tree": Format(_tree, is_text=True, by_thread=True),
    "peek": Format(_peek, is_text=True, by_thread=True, needs_function=True),
    "traces": Format(_traces, is_text=True, by_thread=True),
    "collapsed": Format(_collapsed, is_text=True),
    "callgrind": Format(_callgrind, is_text=True),
    "list": Format(_listing, is_text=True, by_thread=True, needs_function=True),
    "disasm": Format(_disassembly, is_text=True, needs_function=True),
    "dot": Format(_dot, is_text=True),
    "flamegraph": Format(_flamegraph, libraries=("jinja2",)),
    "pprof": Format(_pprof, libraries=("google.protobuf",)),
    "speedscope": Format(_speedscope),
    "firefox": Format(_firefox),
    "json": Format(_json),
    **{kind: Format(_picture) for kind in graph.PICTURES},
}
