# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""The one way from an archive to verdicts: which captures are read, and the verdict on each process and host.

Reports, assertions, pushes and the console all go this way, so they cannot disagree.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import NamedTuple

from ..archive import far_archive
from ..archive.archive import Archive
from ..archive.capture import Capture
from ..base.printable import printable
from ..base.progress import Progress
from ..columns.dask_cluster import Cluster
from ..columns.series_reader import Reader, reading
from ..model.series import Series, evenly_spread
from ..symbols.jit_symbols import JitMaps
from .lives_verdict import verdict_on
from .own_numbers import beyond_the_stacks, replaced, until_the_limit
from .stretch import Stretch, newest
from .verdict import LEAST_SPAN, Answer, Verdict
from .without_agent import Beside, beside, with_others

# How much is read of one process: at most a hundred dumps, fewer if they are large, spread evenly over the time.
_MOST_DUMPS = 100
_FEWEST_DUMPS = 8
_MOST_BYTES = 256 << 20
# Seconds since the epoch that no honest host will claim.
_LATEST = 1e11


# A unit, a host, and their captures.
_OfHost = tuple[str, str, list[Capture]]


@dataclass(frozen=True)
class Scope:
    """What to look at: these units and hosts (none: all), and processes watched for at least ``least_span`` seconds."""

    units: Sequence[str] = ()
    hosts: Sequence[str] = ()
    least_span: float = LEAST_SPAN


@dataclass(frozen=True)
class Watched:
    """One process of a unit, judged. ``label`` is the newest capture's, times are seconds since the epoch, ``live`` is
    bytes in the newest capture, ``beside`` what the unit's processes without an agent hold."""

    unit: str
    host: str
    process: str
    label: str
    start: float
    end: float
    verdict: Verdict
    live: float = 0.0
    beside: Beside | None = None


@dataclass(frozen=True)
class Process:
    """A process and what its verdict rests on: the captures that were read, ordered by time, their series, and the
    ``maps`` that name its compiled code."""

    watched: Watched
    captures: list[Capture]
    series: Series
    maps: JitMaps


@dataclass(frozen=True)
class Host:
    """A unit on a host: its processes, the one seen last at the end, and the verdict on all of them.

    ``captures`` is how many the archive has.
    """

    unit: str
    host: str
    captures: int
    processes: list[Process]
    verdict: Verdict

    @property
    def decisive(self) -> Process | None:
        """The process that the verdict is about, else the one seen last."""
        chosen = (process for process in self.processes if process.watched.process == self.verdict.process)
        return next(chosen, self.processes[-1] if self.processes else None)


def survey(archive: Archive, reader: Reader, scope: Scope, warn: Callable[[str], None]) -> Iterator[Host]:
    """Each unit on each host of an archive, ordered by name.

    Leaves out what it cannot read, and calls ``warn``. Raises ArchiveError if the archive cannot be written to, and
    ClusterError.
    """
    found = _with_images_told(in_scope(archive, scope, warn, reader.progress), warn)
    if reader.cluster is None:
        for unit, host, captures in found:
            yield _host(unit, host, captures, list(_processes(captures, reader, scope.least_span, warn)))
    else:
        yield from _by_cluster(reader.cluster, archive, reader, scope.least_span, list(found))


def _with_images_told(found: Iterator[_OfHost], warn: Callable[[str], None]) -> Iterator[_OfHost]:
    """The same. Calls ``warn`` at the end if hosts differ in the file that they run under a build-id."""
    first: dict[str, tuple[str, str]] = {}
    differing: dict[str, str] = {}
    for unit, host, captures in found:
        # Captures of a process share these objects.
        images = {id(image): image for capture in captures for image in capture.images}
        for image in images.values():
            if not image.sha256 or image.build_id in differing:
                continue
            sha256, before = first.setdefault(image.build_id, (image.sha256, host))
            if sha256 != image.sha256 and before != host:
                name = printable(PurePosixPath(image.path).name)
                differing[image.build_id] = f"{name} with build-id {image.build_id} differs between {before} and {host}"
        yield unit, host, captures
    if differing:
        told, *others = differing.values()
        more = f" (and so do {len(others)} more)" if others else ""
        warn(f"{told}{more}, as if stripped, prelinked or forged on one; functions on each are named by its own file")


def in_scope(
    archive: Archive, scope: Scope, warn: Callable[[str], None], progress: Progress | None = None
) -> Iterator[tuple[str, str, list[Capture]]]:
    """The captures of each unit on each host, ordered by name. Calls ``warn`` for units and hosts that have none."""
    for sentence in archive.absent(scope.units, scope.hosts):
        warn(sentence)
    chosen = [
        (unit, host)
        for unit in archive.units()
        if not scope.units or unit in scope.units
        for host in archive.hosts(unit)
        if not scope.hosts or host in scope.hosts
    ]
    progress = progress or Progress()
    for number, (unit, host) in enumerate(chosen, 1):
        progress.at(f"reading {unit} on {host}, {number} of {len(chosen)}")
        if captures := archive.captures(unit, host, warn):
            yield unit, host, captures


def by_process(captures: list[Capture], warn: Callable[[str], None]) -> Iterator[tuple[str, list[Capture]]]:
    """The captures of each process of a unit on a host, without those with an impossible time."""
    for key, members in itertools.groupby(captures, key=lambda capture: capture.process):
        timely = []
        for capture in members:
            if 0 <= capture.time < _LATEST:
                timely.append(capture)
            else:
                warn(
                    f"a capture of {capture.unit} on {capture.host} was left out:"
                    f" {capture.path} claims an impossible time"
                )
        yield key, timely


def _host(unit: str, host: str, captures: list[Capture], processes: list[Process]) -> Host:
    processes.sort(key=lambda process: process.watched.end)
    verdict = verdict_on_host([process.watched for process in processes])
    return Host(unit, host, len(captures), processes, verdict)


def _processes(
    captures: list[Capture], reader: Reader, least_span: float, warn: Callable[[str], None]
) -> Iterator[Process]:
    """The processes of a unit on a host that can be read, judged."""
    for key, timely in by_process(captures, warn):
        maps = reader.maps(timely)
        stretch = newest(timely, least_span)
        series, read = reader.series(thinned(stretch.captures), maps)
        if read:
            judged = verdict_on(key, series, reader.lives(stretch.captures, maps), least_span)
            verdict = with_stretch(with_own_numbers(judged, series, read), stretch)
            yield Process(_watched(key, series, read, verdict), read, series, maps)


class _Judged(NamedTuple):
    """What a worker tells of the processes of a unit on a host: of each, the names of the captures that it has read;
    its warnings, and those about images."""

    processes: list[tuple[Watched, list[str], Series]]
    warnings: list[str]
    of_images: list[str]


def _by_cluster(
    cluster: Cluster,
    archive: Archive,
    reader: Reader,
    least_span: float,
    found: list[tuple[str, str, list[Capture]]],
) -> Iterator[Host]:
    by_name = [{archive.name_of(capture): capture for capture in captures} for _unit, _host, captures in found]
    calls = [
        (archive.where, unit, host, list(names), least_span, not reader.keeps)
        for (unit, host, _captures), names in zip(found, by_name, strict=True)
    ]
    answers = cluster.map(_judged, calls)
    for number, ((unit, host, captures), names, judged) in enumerate(zip(found, by_name, answers, strict=True), 1):
        reader.progress.at(f"judged {unit} on {host}, {number} of {len(found)}")
        maps = {key: reader.maps(timely) for key, timely in by_process(captures, lambda _warning: None)}
        processes = [
            Process(watched, [names[name] for name in read], series, maps[watched.process])
            for watched, read, series in judged.processes
        ]
        for warning in judged.warnings:
            reader.warn(warning)
        reader.symbolizer.warnings.extend(judged.of_images)
        yield _host(unit, host, captures, processes)


def _judged(where: str, unit: str, host: str, names: list[str], least_span: float, check_mode: bool) -> _Judged:
    """In a worker: these captures of a unit on a host."""
    archive = far_archive.opened(where)
    captures = archive.named(unit, host, names)
    warnings: list[str] = []
    with reading(archive, warnings.append, check_mode) as reader:
        found = [
            (process.watched, [archive.name_of(capture) for capture in process.captures], replace(process.series))
            for process in _processes(captures, reader, least_span, warnings.append)
        ]
        return _Judged(found, list(warnings), list(reader.symbolizer.warnings))


def thinned(captures: list[Capture]) -> list[Capture]:
    """The captures of a process, oldest first, evenly thinned if there are more than are worth reading."""
    average = max(1, sum(capture.facts.dump.size for capture in captures) // max(len(captures), 1))
    most = min(max(_MOST_BYTES // average, _FEWEST_DUMPS), _MOST_DUMPS)
    if len(captures) <= most:
        return captures
    return [captures[position] for position in evenly_spread([capture.time for capture in captures], most)]


def _watched(key: str, series: Series, read: list[Capture], verdict: Verdict) -> Watched:
    return Watched(
        unit=read[-1].unit,
        host=read[-1].host,
        process=key,
        label=read[-1].facts.label or "",
        start=series.times[0],
        end=series.times[-1],
        verdict=verdict,
        live=float(series.bytes[:, -1].sum()),
        beside=beside(read),
    )


def with_own_numbers(verdict: Verdict, series: Series, read: list[Capture]) -> Verdict:
    """What the process's own numbers say comes first. Where they grow by more than the stacks, it is no "no leak"; by
    much less, no leak."""
    if verdict.answer.leaks and (why := replaced(read, series, verdict.growth)) is not None:
        return replace(verdict, answer=Answer.CANNOT_TELL, reason=f"{why}; {verdict.reason}", suspects=[])
    if verdict.answer.leaks and (lasts := until_the_limit(read)) is not None:
        verdict = replace(verdict, reason=f"{verdict.reason}; {lasts}")
    watched_enough = verdict.answer is not Answer.CANNOT_TELL or verdict.known_after > 0
    found = beyond_the_stacks(read, series) if watched_enough else None
    if found is None:
        return verdict
    reason = f"{found.text}; {verdict.reason}"
    if verdict.answer not in (Answer.NO_LEAK, Answer.CANNOT_TELL):
        return replace(verdict, reason=reason)
    return replace(verdict, answer=Answer.CANNOT_TELL, reason=reason, unexplained=found.growth)


def with_stretch(verdict: Verdict, stretch: Stretch) -> Verdict:
    """The verdict, with what was left out because sampling was switched off. Without sampling it is none."""
    if not stretch.sampled:
        return Verdict(
            Answer.CANNOT_TELL, stretch.caution, process=verdict.process, points=verdict.points, span=verdict.span
        )
    return replace(verdict, reason=f"{verdict.reason}; {stretch.caution}") if stretch.caution else verdict


def verdict_on_host(processes: Sequence[Watched]) -> Verdict:
    """The verdict over all processes of a unit on a host, in any order, and on those without an agent.

    The newest process that can be judged decides, together with those that ran beside it (workers): a leak comes
    first, then growth that the stacks do not explain. Earlier ones are named where they grew to more than these hold.
    """
    if not processes:
        return Verdict(Answer.CANNOT_TELL, "none of the captures can be read")
    ran_last = last_on_each_host(processes)
    return with_others(_with_agents(processes), [one.beside for one in ran_last if one.beside])


def _with_agents(processes: Sequence[Watched]) -> Verdict:
    """The verdict over the processes with an agent."""
    judged = [process for process in processes if process.verdict.counts]
    if not judged:
        newest_first = sorted(processes, key=lambda process: process.end, reverse=True)
        return max((one.verdict for one in newest_first), key=lambda verdict: (verdict.points, verdict.span))
    beside = last_on_each_host(judged)
    leaking = [process.verdict for process in beside if process.verdict.answer.leaks]
    if leaking:
        return _add_up(leaking)
    newest = max(processes, key=lambda process: process.end)
    if newest not in judged and newest.verdict.known_after:
        # It has grown, and nobody knows yet what that is: one before it that did not leak says nothing of it.
        return newest.verdict
    verdict = max((process.verdict for process in beside), key=lambda verdict: (verdict.unexplained, *_graver(verdict)))
    # One that grew to less than what these hold without growing may have filled a cache until a restart cut it off.
    most = max(process.live for process in beside)
    earlier = [one for one in judged if one not in beside and one.verdict.answer.leaks and one.live > most]
    if earlier:
        last = max(earlier, key=lambda process: process.end).process
        number = "an earlier process" if len(earlier) == 1 else f"{len(earlier)} earlier processes"
        grew = f"{number} (newest: {last}) grew steadily, to more than is live now"
        return replace(verdict, reason=f"{verdict.reason}; but {grew}")
    return verdict


def _graver(verdict: Verdict) -> tuple[int, float]:
    """The gravest answer is the largest, and of those the one that was watched for longest."""
    return -list(Answer).index(verdict.answer), verdict.span


def last_on_each_host(judged: Sequence[Watched]) -> list[Watched]:
    """The process that ran last on each host and those that ran beside it (workers), the latest first."""
    newest: dict[str, Watched] = {}
    for process in sorted(judged, key=lambda process: process.end):
        newest[process.host] = process
    found = [process for process in judged if process.end >= newest[process.host].start]
    return sorted(found, key=lambda process: process.end, reverse=True)


def _add_up(leaking: list[Verdict]) -> Verdict:
    """One verdict for processes that leak side by side: the worst one's, with the growth of all."""
    worst = max(leaking, key=lambda verdict: verdict.growth)
    if len(leaking) == 1:
        return worst
    growth = math.fsum(verdict.growth for verdict in leaking)
    error = math.sqrt(math.fsum(verdict.error**2 for verdict in leaking))
    reason = f"{worst.reason} in process {worst.process}, the worst of {len(leaking)} that leak"
    return replace(worst, growth=growth, error=error, reason=reason)
