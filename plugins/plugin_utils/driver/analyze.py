# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""One dump looked at in one way: from what was asked for to the bytes to show or write."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path

from ..export import callgrind, calls, disassembly, graph, listing, stacks, top
from ..model.profile import Profile
from ..model.samples import Samples
from ..views.selection import Selection, subtract
from ..views.table import Granularity, Measure, Table
from .sources import AnalysisError, Images, Reader, Source

ALL_THREADS = "*"
# Formats that are lines for people, and so can hold several threads one below the other.
_BY_THREAD = ("text", "tree", "peek", "traces", "list")
_NEED_FUNCTION = ("peek", "list", "disasm")


@dataclass(frozen=True)
class Request:
    """What to show. ``thread`` is empty, a number or ALL_THREADS; ``function`` the pattern of peek, list and disasm."""

    kind: str = "text"
    granularity: Granularity = Granularity.FUNCTIONS
    measure: Measure = Measure.INUSE_SPACE
    selection: Selection = field(default_factory=Selection)
    look: top.Look = field(default_factory=top.Look)
    limits: graph.Limits = field(default_factory=graph.Limits)
    function: str = ""
    thread: str = ""
    drop_negative: bool = False
    source_path: Sequence[Path] = ()


@dataclass(frozen=True)
class Answer:
    """What to write, and the table it was made from. ``pieces`` can be gone through once."""

    pieces: Iterator[bytes]
    table: Table
    title: str

    @cached_property
    def content(self) -> bytes:
        return b"".join(self.pieces)


# Lines for each stack are many times the size of the dump, and so are made one by one.
Content = str | bytes | Iterator[bytes]
Renderer = Callable[[Request, Table, Source, Images, list[tuple[str, str]]], Content]


def analyze(request: Request, source: Source, base: Source | None, images: Images) -> Answer:
    """The dump as asked for, less ``base`` where there is one. Raises ControllerError."""
    if request.kind in _NEED_FUNCTION and not request.function:
        raise AnalysisError(f"the format {request.kind} needs 'function', a regular expression")
    samples = source.samples
    if base is not None:
        if request.thread:
            raise AnalysisError("a thread cannot be compared with a base: jemalloc's numbers say nothing across dumps")
        samples = subtract(samples, base.samples, request.drop_negative)
    if request.measure.accumulated and not samples.values[request.measure.row].any():
        raise AnalysisError(
            f"{source.path}: has no accumulated numbers: jemalloc counts them only with prof_accum:true"
        )
    if request.thread == ALL_THREADS:
        return _all_threads(request, samples, source, images)
    return _one(request, samples, source, base, images)


def _one(request: Request, samples: Samples, source: Source, base: Source | None, images: Images) -> Answer:
    selection = request.selection
    if request.thread:
        if not request.thread.isdecimal():
            raise AnalysisError(f"thread is {request.thread!r}: expected a number, or '{ALL_THREADS}' for each of them")
        selection = replace(selection, thread=int(request.thread))
    table = Table(selection.apply(samples), request.granularity, request.measure)
    facts = _facts(source, base, samples, table, request)
    content = RENDERERS[request.kind](request, table, source, images, facts)
    if isinstance(content, str):
        content = content.encode("utf-8", "replace")
    return Answer(iter([content]) if isinstance(content, bytes) else content, table, source.path.name)


def _all_threads(request: Request, samples: Samples, source: Source, images: Images) -> Answer:
    if request.kind not in _BY_THREAD:
        raise AnalysisError(f"thread '{ALL_THREADS}' goes with the formats {', '.join(_BY_THREAD)}: ask for one thread")
    parts = [
        _one(replace(request, thread=str(uid)), samples, source, None, images).content for uid in samples.thread_uids()
    ]
    if not parts:
        raise AnalysisError(f"{source.path}: has no numbers by thread")
    whole = Table(request.selection.apply(samples), request.granularity, request.measure)
    return Answer(iter([b"\n".join(parts)]), whole, source.path.name)


def _facts(
    source: Source, base: Source | None, samples: Samples, table: Table, request: Request
) -> list[tuple[str, str]]:
    facts = [("Dump", str(source.path))]
    if base is not None:
        facts.append(("Less base", str(base.path)))
    for name in ("unit", "host", "exe", "build_id"):
        if source.facts.get(name):
            facts.append((name.capitalize().replace("_id", "-id"), str(source.facts[name])))
    if source.facts.get("time"):
        moment = datetime.fromtimestamp(min(source.facts["time"], 1e11), tz=UTC)
        facts.append(("Time", moment.strftime("%Y-%m-%d %H:%M:%S UTC")))
    if request.thread:
        name = source.samples.thread_names.get(int(request.thread), "")
        facts.append(("Thread", f"{request.thread} {name}".strip()))
    selection = request.selection
    for what in ("focus", "ignore", "retain", "exclude"):
        if getattr(selection, what):
            facts.append((what.capitalize(), getattr(selection, what)))
    facts.append(("Sample interval", request.measure.INUSE_SPACE.text(samples.interval)))
    whole = float(samples.values[request.measure.row].sum())
    if abs(whole - table.total) >= 1:
        facts.append(("Of", request.measure.text(whole)))
    return facts


def as_profile(table: Table) -> Profile:
    """The profile of a table's samples, with the number that was asked for as its live bytes."""
    profile = table.samples.to_profile()
    objects, size = profile.objects, profile.bytes
    if table.measure.accumulated:
        objects, size = profile.accum_objects, profile.accum_bytes
    if table.measure.unit == "objects":
        size = objects
    return replace(profile, objects=array("d", objects), bytes=array("d", size))


def _flamegraph(
    request: Request, table: Table, source: Source, _images: Images, facts: list[tuple[str, str]]
) -> str | bytes:
    from ..export import flamegraph

    if request.measure.unit == "objects":
        raise AnalysisError("the flame graph shows bytes: ask for inuse_space or alloc_space, or for collapsed stacks")
    page = flamegraph.Page(
        unit=str(source.facts.get("unit") or source.path.name),
        host=str(source.facts.get("host") or "an unknown host"),
        answer="",
        headline=top.total_line(table, request.look),
        reason="",
        facts=facts,
    )
    return flamegraph.render(page, as_profile(table))


def _dot(request: Request, table: Table, source: Source) -> str:
    return graph.dot(table, str(source.facts.get("exe") or source.path.name), request.limits)


def _picture(
    request: Request, table: Table, source: Source, _images: Images, _facts: list[tuple[str, str]]
) -> str | bytes:
    return graph.picture(_dot(request, table, source), request.kind)


def _pprof(
    _request: Request, table: Table, source: Source, _images: Images, facts: list[tuple[str, str]]
) -> str | bytes:
    from ..export import pprof

    about = pprof.About(_time(source), source.executable[0], [f"{name}: {value}" for name, value in facts])
    return pprof.render(table.samples, about)


def _speedscope(
    _request: Request, table: Table, source: Source, _images: Images, _facts: list[tuple[str, str]]
) -> str | bytes:
    from ..export import speedscope

    return speedscope.render(table.samples, source.path.name)


def _firefox(
    _request: Request, table: Table, source: Source, _images: Images, _facts: list[tuple[str, str]]
) -> str | bytes:
    from ..export import firefox

    return firefox.render(table.samples, source.path.name, _time(source))


def _json(
    _request: Request, table: Table, source: Source, _images: Images, _facts: list[tuple[str, str]]
) -> str | bytes:
    from ..export import document

    return document.render(table.samples, source.facts)


def _time(source: Source) -> float:
    return float(source.facts.get("time") or 0.0)


def _find_source(request: Request) -> Callable[[str], Path | None]:
    """A source file under the given directories, by as much of the end of its path as fits; else where it was built."""

    def find(path: str) -> Path | None:
        parts = [part for part in Path(path).parts[1:] if part not in ("..", "/")]
        for directory in request.source_path:
            for start in range(len(parts)):
                candidate = directory.joinpath(*parts[start:])
                if candidate.is_file():
                    return candidate
        candidate = Path(path)
        return candidate if not request.source_path and candidate.is_absolute() and candidate.is_file() else None

    return find


# Exporters whose own imports take longer than a small dump are imported when they are asked for.
RENDERERS: dict[str, Renderer] = {
    "text": lambda request, table, _source, _images, facts: top.render(table, request.look, facts),
    "tree": lambda request, table, _source, _images, facts: calls.tree(table, request.look, facts),
    "peek": lambda request, table, _source, _images, facts: calls.peek(table, request.function, request.look, facts),
    "traces": lambda request, table, _source, _images, facts: stacks.traces(table, request.look, facts),
    "collapsed": lambda _request, table, _source, _images, _facts: stacks.collapsed(table),
    "callgrind": lambda request, table, source, _images, _facts: callgrind.render(
        table.samples, request.measure, str(source.facts.get("exe") or "")
    ),
    "list": lambda request, table, _source, _images, _facts: listing.render(
        table, request.function, request.look, _find_source(request)
    ),
    "disasm": lambda request, table, _source, images, _facts: disassembly.render(
        table, request.function, request.look, images.find
    ),
    "dot": lambda request, table, source, _images, _facts: _dot(request, table, source),
    "flamegraph": _flamegraph,
    "pprof": _pprof,
    "speedscope": _speedscope,
    "firefox": _firefox,
    "json": _json,
    **{kind: _picture for kind in graph.PICTURES},
}
TEXTUAL = ("text", "tree", "peek", "traces", "collapsed", "callgrind", "list", "disasm", "dot")

__all__ = [
    "ALL_THREADS",
    "RENDERERS",
    "TEXTUAL",
    "AnalysisError",
    "Answer",
    "Reader",
    "Request",
    "analyze",
    "as_profile",
]
