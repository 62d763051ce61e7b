# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""From an archive to reports: one for each unit on each host, as data and as files."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

from ..archive.archive import Archive, ArchiveError, Capture
from ..base.byte_size import as_text
from ..base.durations import duration, per_day
from ..base.errors import ControllerError
from ..base.printable import printable
from ..columns import verified_dump
from ..export import flamegraph, folded, text
from ..leaks import hints
from ..leaks.hints import Hint
from ..leaks.patterns import Change
from ..leaks.trend import evenly_spread, window
from ..leaks.verdict import Answer, Point, Suspect, Verdict, judge
from ..model import profile
from ..model.stack_summary import render as short_path
from ..symbols.jit_symbols import JitMaps
from ..symbols.symbolizer import Symbolizer
from . import rss_breakdown
from .fleet import Fleet, Observed, Process
from .threads import by_thread

# A dump that is larger is not read. Busy processes write a few megabytes.
LARGEST_DUMP = 512 << 20
# Of one process, so much is read: at most a hundred dumps, fewer where they are large, evenly spread over the time.
_MOST_DUMPS = 100
_FEWEST_DUMPS = 8
_MOST_BYTES = 256 << 20

# Seconds since the epoch that no honest host will claim.
_LATEST = 1e11

HEADLINES = {Answer.LEAK: "Leak", Answer.NO_LEAK: "No leak", Answer.CANNOT_TELL: "Cannot tell"}


@dataclass(frozen=True)
class Report:
    """What is known about a unit on a host. ``files`` is what to write (name suffix -> content)."""

    unit: str
    host: str
    verdict: Verdict
    captures: int
    suspects: list[Suspect]
    files: dict[str, str] = field(default_factory=dict)
    hints: list[list[Hint]] = field(default_factory=list)

    @property
    def headline(self) -> str:
        """``Leak of 64.0 MiB/day ± 6.0 MiB``, ``No leak``, ``Cannot tell``."""
        rate = f" of {rate_text(self.verdict.growth, self.verdict.error)}" if self.verdict.answer is Answer.LEAK else ""
        return HEADLINES[self.verdict.answer] + rate


def rate_text(growth: float, error: float) -> str:
    return f"{per_day(growth)} ± {as_text(error)}"


@dataclass(frozen=True)
class Limits:
    """What to report on and how much of it."""

    units: Sequence[str] = ()
    hosts: Sequence[str] = ()
    top: int = 5
    least_span: float = 60.0
    hints: Sequence[Hint] = ()


def reports(
    archive: Archive, symcaches: Path, limits: Limits, warn: Callable[[str], None], fleet: Fleet | None = None
) -> Iterator[Report]:
    """The reports, by unit and host. What cannot be read is told to ``warn`` and left out.

    ``fleet`` is shown each host as it comes, for the report on all of them.
    """
    symbolizer = Symbolizer(archive.image, symcaches)
    told = 0
    for unit, host in ((name, host) for name in archive.units() for host in archive.hosts(name)):
        if (limits.units and unit not in limits.units) or (limits.hosts and host not in limits.hosts):
            continue
        try:  # one by one, so that a damaged capture costs no more than the report on its host
            captures = archive.captures(unit, host)
        except ArchiveError as error:
            warn(str(error))
            continue
        if captures:
            yield _report(unit, host, captures, limits, symbolizer, warn, fleet)
        for warning in symbolizer.warnings[told:]:
            warn(warning)
        told = len(symbolizer.warnings)


def _report(
    unit: str,
    host: str,
    captures: list[Capture],
    limits: Limits,
    symbolizer: Symbolizer,
    warn: Callable[[str], None],
    fleet: Fleet | None,
) -> Report:
    series: dict[str, list[Point]] = {}
    read: dict[str, list[Capture]] = {}
    names: dict[str, JitMaps] = {}
    for process, all_of_it in itertools.groupby(captures, key=lambda capture: capture.process):
        timely = []
        for capture in all_of_it:
            if 0 <= capture.time < _LATEST:
                timely.append(capture)
            else:
                warn(f"a capture of {unit} on {host} was left out: {capture.path} claims an impossible time")
        maps = JitMaps({path: capture.time for capture in timely if (path := capture.perf_map) is not None}, warn)
        names[process] = maps
        for capture in _thinned(timely):
            try:
                point = _read(capture, symbolizer, maps)
            except (OSError, ControllerError) as error:
                warn(f"a capture of {unit} on {host} was left out: {error}")
                continue
            series.setdefault(process, []).append(point)
            read.setdefault(process, []).append(capture)
    verdict = judge(series, limits.least_span)
    if not series:
        verdict = Verdict(Answer.CANNOT_TELL, "none of the captures can be read")
        return Report(unit, host, verdict, len(captures), [])
    process = verdict.process or max(series, key=lambda key: series[key][-1].time)
    report = Report(unit, host, verdict, len(captures), verdict.suspects[: limits.top])
    report.hints.extend(hints.for_path(limits.hints, suspect.path) for suspect in report.suspects)
    remarks = hints.for_verdict(limits.hints, verdict.answer)
    report.files.update(_files(report, series[process], read[process], remarks))
    if fleet is not None:
        by_time = sorted(series, key=lambda key: series[key][-1].time)
        newest = read[by_time[-1]][-1]
        threads = by_thread(verified_dump.read(newest, LARGEST_DUMP), _resolver(newest, symbolizer, names[by_time[-1]]))
        processes = [Process(key, read[key], series[key]) for key in by_time]
        processes[-1] = replace(processes[-1], threads=threads)
        fleet.add(Observed(unit, host, verdict, report.headline, report.suspects, processes, report.hints))
    return report


def _thinned(captures: list[Capture]) -> list[Capture]:
    """The captures of a process by time, evenly thinned where there are more than are worth reading."""
    if not captures:
        return []
    captures = sorted(captures, key=lambda capture: (capture.time, capture.sequence))
    average = max(1, sum(capture.facts.dump.size for capture in captures) // len(captures))
    most = min(max(_MOST_BYTES // average, _FEWEST_DUMPS), _MOST_DUMPS)
    if len(captures) <= most:
        return captures
    return [captures[position] for position in evenly_spread([capture.time for capture in captures], most)]


def _read(capture: Capture, symbolizer: Symbolizer, maps: JitMaps) -> Point:
    """Raises OSError or ControllerError."""
    dump = verified_dump.read(capture, LARGEST_DUMP)
    return Point(capture.time, profile.from_dump(dump, _resolver(capture, symbolizer, maps)))


def _resolver(capture: Capture, symbolizer: Symbolizer, maps: JitMaps) -> profile.Resolver:
    return symbolizer.resolver(capture.facts.build_ids, maps.at(capture.time))


def _process(captures: list[Capture]) -> str:
    """The process's number and executable; what is brought home after its end no longer says the latter."""
    known = (capture.facts.process.exe for capture in captures)
    exe = next(filter(None, known), next((image.path for image in captures[-1].images), ""))
    return f"{captures[-1].facts.process.pid} {printable(exe)}".rstrip()


def _files(report: Report, points: list[Point], captures: list[Capture], remarks: Sequence[Hint]) -> dict[str, str]:
    process = _process(captures)
    now = points[-1].profile
    first = points[window([point.time for point in points])[0]]
    facts = _facts(report, points, process)
    graph = flamegraph.Page(
        unit=report.unit,
        host=report.host,
        answer=report.verdict.answer.value,
        headline=report.headline,
        reason=report.verdict.reason,
        facts=facts,
        suspects=report.suspects,
        baseline=_moment(first.time, points[-1].time) if len(points) > 1 else "",
    )
    table_facts = [("Unit", report.unit), ("Host", report.host), *facts]
    table_facts.append(("Verdict", f"{report.headline}: {report.verdict.reason}"))
    for number, suspect in enumerate(report.suspects, 1):
        frames = "\n".join(frame.label for frame in suspect.path)
        table_facts.append((f"Suspect {number}", f"{rate_text(suspect.growth, suspect.error)}\n{frames}"))
        table_facts += [("Perhaps", hint.text) for hint in report.hints[number - 1]]
    table_facts += [("Perhaps", hint.text) for hint in remarks]
    if report.verdict.changes:
        table_facts.append(("No leak", "\n".join(_change(change) for change in report.verdict.changes)))
    memory = rss_breakdown.reconcile(captures[-1].facts, now.total_bytes, now.sample_interval)
    if memory is not None:
        rows = rss_breakdown.text_rows(memory)
        width = max(len(name) for name, _value in rows)
        lines = [f"{name:<{width}}  {value}" for name, value in rows]
        table_facts.append(("Resident", "\n".join([*lines, *memory.notes])))
    return {
        "txt": text.render(now, table_facts),
        "folded": folded.render(now),
        "html": flamegraph.render(graph, now, first.profile if len(points) > 1 else None),
    }


def _change(change: Change) -> str:
    return f"{change.pattern.value} of {as_text(change.size)}: {short_path(change.path)}"


def _facts(report: Report, points: list[Point], process: str) -> list[tuple[str, str]]:
    now = points[-1].profile
    total = now.total_bytes
    read = "" if len(points) == report.captures else f", {len(points)} read of this process"
    span = points[-1].time - points[0].time
    return [
        ("Process", process),
        ("Captures", f"{report.captures}{read}, over {duration(span)}"),
        ("Newest dump", _moment(points[-1].time)),
        ("Live memory", f"{as_text(total)} ± {as_text(now.error(total))}"),
        ("Sample interval", as_text(now.sample_interval)),
    ]


def _moment(time: float, beside: float | None = None) -> str:
    """A time for people; without its date where that is the date of the other one."""
    text = datetime.fromtimestamp(time, tz=UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    day, _space, hour = text.partition(" ")
    return hour if beside is not None and _moment(beside).startswith(day) else text


def summary(found: Sequence[tuple[Report, Path | None]]) -> list[tuple[Answer | None, str]]:
    """The reports for a terminal: lines, and the verdict that colours a line; a path is that of the page."""
    lines: list[tuple[Answer | None, str]] = []
    width = max((len(report.host) for report, _page in found), default=0)
    unit = ""
    for report, page in found:
        if report.unit != unit:
            unit = report.unit
            lines.append((None, unit))
        verdict = report.verdict
        lines.append((verdict.answer, f"  {report.host:<{width}}  {report.headline}"))
        indent = " " * (width + 4)
        rates = [per_day(suspect.growth) for suspect in report.suspects]
        for rate, suspect in zip(rates, report.suspects, strict=True):
            lines.append((None, f"{indent}{rate:>{max(map(len, rates))}}  {short_path(suspect.path)}"))
        titles = dict.fromkeys(hint.title for of_suspect in report.hints for hint in of_suspect)
        lines += [(None, f"{indent}perhaps {title}") for title in titles]
        lines.append((None, f"{indent}{verdict.reason}"))
        if page is not None:
            lines.append((None, f"{indent}{page}"))
    return lines


__all__ = ["Limits", "Report", "rate_text", "reports", "summary"]
