# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""One dump analyzed: from the request to the bytes to show or write."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from ..base import libraries
from ..base.durations import moment
from ..export.top import Look
from ..model.samples import Samples
from ..model.sampling import Measure as Counted
from ..model.sampling import whole
from ..views.selection import subtract
from ..views.table import Measure, Table
from .formats import FORMATS, Request, View
from .sources import AnalysisError, Images, Places, Source, open_reader

ALL_THREADS = "*"
_MOST_ROWS = 100


@dataclass(frozen=True)
class Analysis:
    """The output, the table that it shows, and the dump's facts. ``pieces`` can be consumed only once."""

    pieces: Iterator[bytes]
    table: Table
    facts: dict[str, Any]

    @cached_property
    def content(self) -> bytes:
        return b"".join(self.pieces)

    def data(self, look: Look) -> dict[str, Any]:
        """Totals and the first rows for JSON, never more than _MOST_ROWS."""
        rows = self.table.rows(look.cumulative)
        return {
            "measure": self.table.counted,
            "unit": self.table.measure.unit,
            "total": round(self.table.total),
            "total_error": whole(self.table.total_error),
            "sample_interval": self.table.interval,
            "rows": [
                {
                    "name": row.name,
                    "flat": round(row.flat),
                    "cumulative": round(row.cumulative),
                    "error": whole(row.error),
                }
                for row in rows[: min(look.limit, _MOST_ROWS) if look.limit else _MOST_ROWS]
            ],
            "row_count": len(rows),
            "dump": self.facts,
        }


_NO_STACKS = (
    "there are none: the unwinder of this jemalloc has found no caller. Only the totals can be right. Take a build with"
    " another one, such as the role jemalloc's (--enable-prof-libgcc, --enable-prof-libunwind; --enable-prof-frameptr"
    " where the program keeps frame pointers)"
)


def analyze_dump(
    request: Request, dump: Path, base: Path | None, places: Places, warn: Callable[[str], None]
) -> Analysis:
    """Analyze the dump at a path, minus the one at ``base`` if given. Raises ControllerError."""
    libraries.require(*libraries.DUMPS, *FORMATS[request.kind].libraries)
    with open_reader([dump, *([base] if base else [])], places) as reader:
        source = reader.read(dump)
        analysis = analyze(request, source, reader.read(base) if base else None, reader.images)
        for warning in dict.fromkeys(reader.warnings):
            warn(warning)
    return analysis


def analyze(request: Request, source: Source, base: Source | None, images: Images) -> Analysis:
    """Analyze a dump, minus ``base`` if given. Raises ControllerError."""
    if FORMATS[request.kind].needs_function and not request.function:
        raise AnalysisError(f"the format {request.kind} needs 'function', a regular expression")
    samples = source.samples
    for read in [source] if base is None else [source, base]:
        refuse_without(read, request.measure)
    if base is not None:
        if request.thread:
            raise AnalysisError("a thread cannot be compared with a base: thread numbers mean nothing across dumps")
        samples = subtract(samples, base.samples, request.drop_negative)
    if request.thread == ALL_THREADS:
        return _all_threads(request, samples, source, images)
    return _one(request, samples, source, base, images)


def refuse_without(source: Source, measure: Measure) -> None:
    """A dump that does not count what is asked for, where 0 would be no answer. Raises AnalysisError.

    One that has nothing at all has 0 of everything.
    """
    values = source.samples.values
    if values[measure.row].any() or not values.any():
        return
    space, objects = measure.value.replace("objects", "space"), measure.value.replace("space", "objects")
    other = Measure(objects if measure.unit == "bytes" else space)
    if values[other.row].any():
        raise AnalysisError(
            f"{source.path}: counts {other.unit} and no {measure.unit}: set measure to {other.value} (fab: --measure"
            f" {other.value})"
        )
    if measure.accumulated:
        why = "its source does not keep them"
        if _is_of_jemalloc(source):
            why = "jemalloc keeps them only with prof_accum:true"
        if source.samples.measure.caution:
            why = f"inuse_space and inuse_objects stand for its own numbers, {source.samples.measure.caution}"
        raise AnalysisError(f"{source.path}: has no accumulated counts: {why}")


def _one(request: Request, samples: Samples, source: Source, base: Source | None, images: Images) -> Analysis:
    selection = request.selection
    if request.thread:
        if not request.thread.isdecimal():
            raise AnalysisError(f"thread is {request.thread!r}: expected a number, or '{ALL_THREADS}' for each of them")
        selection = replace(selection, thread=int(request.thread))
    table = Table(selection.apply(samples), request.granularity, request.measure)
    facts = _facts(source, base, samples, table, request)
    content = FORMATS[request.kind].render(View(request, table, source, images, facts))
    if isinstance(content, str):
        content = content.encode("utf-8", "replace")
    return Analysis(iter([content]) if isinstance(content, bytes) else content, table, source.facts)


def _all_threads(request: Request, samples: Samples, source: Source, images: Images) -> Analysis:
    if not FORMATS[request.kind].by_thread:
        kinds = ", ".join(kind for kind, shown in FORMATS.items() if shown.by_thread)
        raise AnalysisError(f"thread '{ALL_THREADS}' works only with the formats {kinds}: ask for one thread")
    parts = [
        _one(replace(request, thread=str(uid)), samples, source, None, images).content for uid in samples.thread_uids()
    ]
    if not parts:
        raise AnalysisError(f"{source.path}: has no counts by thread")
    whole = Table(request.selection.apply(samples), request.granularity, request.measure)
    return Analysis(iter([b"\n".join(parts)]), whole, source.facts)


def _is_of_jemalloc(source: Source) -> bool:
    # Imported on demand: that takes longer than reading a small dump.
    from ...module_utils.formats.capture_facts import JEMALLOC

    return source.facts.get("source") == JEMALLOC


def _facts(
    source: Source, base: Source | None, samples: Samples, table: Table, request: Request
) -> list[tuple[str, str]]:
    facts = [("Names", source.facts["names"])] if "names" in source.facts else []
    if len(samples) and not len(samples.stacks) and _is_of_jemalloc(source):
        facts.append(("Stacks", _NO_STACKS))
    facts.append(("Dump", str(source.path)))
    if base is not None:
        facts.append(("Less base", str(base.path)))
    for name in ("unit", "host", "exe", "build_id"):
        if source.facts.get(name):
            facts.append((name.capitalize().replace("_id", "-id"), str(source.facts[name])))
    if source.facts.get("time"):
        facts.append(("Time", moment(source.facts["time"])))
    if request.thread:
        name = source.samples.thread_names.get(int(request.thread), "")
        facts.append(("Thread", f"{request.thread} {name}".strip()))
    selection = request.selection
    for what in ("focus", "ignore", "retain", "exclude"):
        if getattr(selection, what):
            facts.append((what.capitalize(), getattr(selection, what)))
    if samples.measure.caution:
        label = "Live memory" if samples.measure is Counted.LARGEST else "Not live"
        facts.append((label, samples.measure.caution))
    facts.append(("Sample interval", samples.sampling.text))
    whole = float(samples.values[request.measure.row].sum())
    if abs(whole - table.total) >= 1:
        facts.append(("Of", request.measure.text(whole)))
    return facts
