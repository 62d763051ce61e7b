# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""From an archive to reports: one for each unit on each host, as data and as files."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from pathlib import Path

from ..archive.archive import Archive, ArchiveError
from ..archive.capture import Capture
from ..base.byte_size import as_text
from ..base.durations import duration, moment, per_day
from ..base.printable import printable
from ..base.progress import Progress
from ..columns.parquet import SamplesError
from ..columns.series_reader import Reader, reading
from ..export import flamegraph, stacks, top
from ..leaks import hints, turnover
from ..leaks.code_paths import Suspect
from ..leaks.hints import Hint
from ..leaks.patterns import Movement
from ..leaks.releases import Seen
from ..leaks.scope import Scope
from ..leaks.survey import Host, Process, finished
from ..leaks.trend import window
from ..leaks.verdict import Answer, Verdict
from ..leaks.watched import last_on_each_host
from ..model.samples import Samples
from ..model.stack_summary import render as short_path
from ..model.stack_summary import sources, with_source
from ..views.table import Granularity, Measure, Table
from . import rss_breakdown
from .fleet import Fleet, Observed

HEADLINES = {
    Answer.LEAK: "Leak",
    Answer.BURSTS: "Comes in bursts",
    Answer.OVERFLOWS: "Fills up beyond its limit",
    Answer.GREW: "Grew",
    Answer.CANNOT_TELL: "Cannot tell",
    Answer.FILLS_UP: "Fills up",
    Answer.NO_LEAK: "No leak",
}


@dataclass(frozen=True)
class Report:
    """What is known about a unit on a host. ``files`` maps name suffixes to the content to write; ``sources`` has for
    each suspect where its functions are in the source, by the newest dump."""

    unit: str
    host: str
    verdict: Verdict
    captures: int
    suspects: list[Suspect]
    files: dict[str, str] = field(default_factory=dict)
    hints: list[list[Hint]] = field(default_factory=list)
    sources: list[list[str]] = field(default_factory=list)

    @property
    def headline(self) -> str:
        """``Leak of 64.0 MiB/day ± 6.0 MiB``, ``No leak``, ``No leak above 3.0 MiB/day``, ``Cannot tell``."""
        verdict = self.verdict
        more = f" of {rate_text(verdict.growth, verdict.error)}" if verdict.answer is Answer.LEAK else ""
        more += f" above {per_day(verdict.bound)}" if verdict.bound else ""
        return HEADLINES[verdict.answer] + more


# So many hosts of a unit without a leak have lines of their own; of more, so many are named.
_EACH, _NAMED = 8, 3


def rate_text(growth: float, error: float) -> str:
    return f"{per_day(growth)} ± {as_text(error)}"


@dataclass(frozen=True)
class Limits:
    """How much of each verdict to report: the number of suspects, and the known causes."""

    top: int = 5
    hints: Sequence[Hint] = ()


def reports(
    archive: Archive,
    scope: Scope,
    limits: Limits,
    warn: Callable[[str], None],
    check_mode: bool,
    fleet: Fleet | None = None,
    progress: Progress | None = None,
    cluster: str = "",
) -> list[Report]:
    """The reports, by unit and host. Data that cannot be read is reported to ``warn`` and left out.

    ``fleet`` gets each host for the report on all of them. In check mode nothing is written to the archive. ``cluster``
    is the address of one that judges. Raises ArchiveError, ClusterError.
    """
    found: list[Report] = []
    with reading(archive, warn, check_mode, progress, cluster) as reader:
        for host, (report, newest) in finished(archive, reader, scope, warn, partial(_report, limits)):
            if fleet is not None and host.processes:
                fleet.add(Observed(host, report.headline, report.suspects, report.hints, report.sources, newest))
            found.append(report)
    return found


def _report(limits: Limits, host: Host, reader: Reader) -> tuple[Report, Samples | None]:
    """The report, and the newest profile of the process that was seen last."""
    report = Report(host.unit, host.host, host.verdict, host.captures, host.verdict.suspects[: limits.top])
    shown = host.decisive
    if shown is None:
        return report, None
    seen = Seen.of(shown.captures[-1].facts)
    report.hints.extend(hints.for_path(limits.hints, suspect.path, seen) for suspect in report.suspects)
    newest = _samples(shown, -1, reader)
    every = list(newest.each_stack_of_frames()) if newest is not None else []
    report.sources.extend(sources(suspect.path, filter(suspect.covers, every)) for suspect in report.suspects)
    if newest is not None:
        first = _first(shown)
        older = _samples(shown, first, reader) if len(shown.captures) > 1 else None
        report.files.update(_files(report, host, shown, newest, older, limits.hints))
    last = host.processes[-1]
    return report, newest if last is shown else _samples(last, -1, reader)


def _first(process: Process) -> int:
    """The position of the capture to compare the newest one with."""
    return window(process.series.times)[0]


def _samples(process: Process, position: int, reader: Reader) -> Samples | None:
    capture = process.captures[position]
    try:
        return reader.samples(capture, process.maps)
    except (ArchiveError, SamplesError) as error:
        reader.warn(f"a capture of {capture.unit} on {capture.host} was left out: {error}")
        return None


def _process(captures: list[Capture]) -> str:
    """The process's number and executable. A dump collected after the process ended no longer names the executable."""
    known = (capture.facts.process.exe for capture in captures)
    exe = next(filter(None, known), next((image.path for image in captures[-1].images), ""))
    return f"{captures[-1].facts.process.pid} {printable(exe)}".rstrip()


def _processes(host: Host) -> list[str]:
    """The unit's processes: those with dumps, of which some have ended, and those without an agent. Empty where the one
    with dumps is all there is."""
    last = last_on_each_host([process.watched for process in host.processes])
    lines = [
        f"{_process(process.captures)}: {'profiled' if process.watched in last else 'profiled, and has ended'}"
        for process in host.processes
    ]
    others = max((one.beside for one in last if one.beside), key=lambda beside: beside.time, default=None)
    if others is not None:
        for one in others.others.largest:
            lines.append(f"{one.pid} {printable(one.exe or one.name or '')}: no agent, {as_text(one.rss)}")
        if (more := others.others.processes - len(others.others.largest)) > 0:
            lines.append(f"{more} more without an agent")
    return lines if len(lines) > 1 else []


def _files(
    report: Report, host: Host, process: Process, newest: Samples, older: Samples | None, known: Sequence[Hint]
) -> dict[str, str]:
    capture = process.captures[-1]
    table = Table(newest, Granularity.FUNCTIONS, Measure.INUSE_SPACE)
    facts = _facts(report, process, table)
    if processes := _processes(host):
        facts.insert(1, ("Processes", "\n".join(processes)))
    page = flamegraph.Page(
        unit=report.unit,
        host=report.host,
        answer=report.verdict.answer.value,
        headline=report.headline,
        reason=report.verdict.reason,
        facts=facts,
        marks=[
            flamegraph.Mark(
                suspect.growth, suspect.error, short_path(suspect.path), suspect.covers, [one.told for one in its_hints]
            )
            for suspect, its_hints in zip(report.suspects, report.hints, strict=True)
        ],
        baseline=_moment(process.captures[_first(process)].time, capture.time) if older is not None else "",
    )
    table_facts = [("Unit", report.unit), ("Host", report.host), *facts]
    table_facts.append(("Verdict", f"{report.headline}: {report.verdict.reason}"))
    for number, suspect in enumerate(report.suspects, 1):
        labels = [frame.label for frame in suspect.path]
        frames = "\n".join(map(with_source, labels, report.sources[number - 1]))
        table_facts.append((f"Suspect {number}", f"{rate_text(suspect.growth, suspect.error)}\n{frames}"))
        if suspect.freed is not None:
            table_facts.append(("Freed", turnover.text(suspect.freed)))
        if suspect.holding is not None:
            table_facts.append(("Held", f"{suspect.holding.text}\n{suspect.holding.next_step}"))
        table_facts += [("Perhaps", hint.text) for hint in report.hints[number - 1]]
    known_facts = rss_breakdown.with_jvm(process.captures, len(process.captures) - 1)
    memory = rss_breakdown.reconcile(known_facts, table.total, newest.sampling, rss_breakdown.first_unsampled(process))
    if memory is not None:
        remarks = hints.for_verdict(known, report.verdict.answer, memory.shares)
        table_facts += [("Perhaps", hint.text) for hint in remarks]
    if report.verdict.changes:
        table_facts.append(("No leak", "\n".join(_change(change) for change in report.verdict.changes)))
    if memory is not None:
        rows = rss_breakdown.text_rows(memory)
        width = max(len(name) for name, _value in rows)
        lines = [f"{name:<{width}}  {value}" for name, value in rows]
        table_facts.append(("Resident", "\n".join([*lines, *memory.notes])))
    return {
        "txt": top.render(table, top.Look(), table_facts),
        "folded": b"".join(stacks.collapsed(table)).decode("utf-8"),
        "html": flamegraph.render(page, newest, older),
    }


def _change(change: Movement) -> str:
    return f"{change.pattern.value} of {as_text(change.size)}: {short_path(change.path)}"


def _facts(report: Report, process: Process, table: Table) -> list[tuple[str, str]]:
    times = process.series.times
    read = "" if len(times) == report.captures else f", {len(times)} read of this process"
    return [
        ("Process", _process(process.captures)),
        ("Captures", f"{report.captures}{read}, over {duration(times[-1] - times[0])}"),
        ("Newest dump", _moment(times[-1])),
        ("Live memory", f"{as_text(table.total)} ± {as_text(table.total_error)}"),
        ("Sample interval", table.samples.sampling.text),
    ]


def _moment(time: float, beside: float | None = None) -> str:
    """A time for people; without the date if it is the same as that of ``beside``."""
    text = moment(time)
    day, _space, hour = text.partition(" ")
    return hour if beside is not None and _moment(beside).startswith(day) else text


def summary(found: Sequence[tuple[Report, Path | None]]) -> list[tuple[Answer | None, str]]:
    """The reports for a terminal: lines, each with the verdict that colours it. A path is that of the page.

    Where many hosts of a unit have no leak, they share a line.
    """
    lines: list[tuple[Answer | None, str]] = []
    width = max((len(report.host) for report, _page in found), default=0)
    for unit, group in groupby(found, key=lambda one: one[0].unit):
        lines.append((None, unit))
        of_unit = list(group)
        healthy = [report for report, _page in of_unit if report.verdict.answer is Answer.NO_LEAK]
        together = len(healthy) > _EACH
        for report, page in of_unit:
            if not together or report.verdict.answer is not Answer.NO_LEAK:
                lines += _of_host(report, page, width)
        if together:
            bound = max(healthy, key=lambda report: report.verdict.bound or math.inf)
            named = f"{', '.join(report.host for report in healthy[:_NAMED])} and {len(healthy) - _NAMED} more"
            lines.append((Answer.NO_LEAK, f"  {len(healthy)} hosts  {bound.headline}: {named}"))
    return lines


def _of_host(report: Report, page: Path | None, width: int) -> Iterator[tuple[Answer | None, str]]:
    yield report.verdict.answer, f"  {report.host:<{width}}  {report.headline}"
    indent = " " * (width + 4)
    rates = [per_day(suspect.growth) for suspect in report.suspects]
    for rate, suspect in zip(rates, report.suspects, strict=True):
        yield None, f"{indent}{rate:>{max(map(len, rates))}}  {short_path(suspect.path)}"
        if suspect.freed is not None:
            yield None, f"{indent}  {turnover.text(suspect.freed)}"
        if suspect.holding is not None:
            yield None, f"{indent}  {suspect.holding.text}"
    for title in dict.fromkeys(hint.title for of_suspect in report.hints for hint in of_suspect):
        yield None, f"{indent}perhaps {title}"
    yield None, f"{indent}{report.verdict.reason}"
    if page is not None:
        yield None, f"{indent}{page}"
