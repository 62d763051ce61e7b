# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""The one way from an archive to verdicts: which captures are read, and the verdict on each process and host.

Reports, assertions, pushes and the console all go this way, so they cannot disagree.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import NamedTuple

from ..archive import far_archive
from ..archive.archive import Archive
from ..archive.capture import Capture
from ..base.printable import printable
from ..columns.dask_cluster import Cluster
from ..columns.series_reader import Reader, reading
from ..model.lives import Lives
from ..model.sampling import MeasureError
from ..model.series import Series
from ..symbols.jit_symbols import JitMaps
from . import workers
from .ahead import helped
from .lives_verdict import verdict_on, verdict_on_generations
from .monitoring import with_monitoring
from .own_numbers import own_numbers, with_own_numbers
from .scope import OfHost, Scope, by_process, in_scope, thinned
from .stretch import newest, with_stretch
from .turnover import with_freed
from .verdict import Answer, Verdict
from .who_holds import with_holders
from .without_agent import Beside, beside, with_others

# How many processes took one another's place, at least.
LEAST_REPLACED = 3


NOTHING_READ = Verdict(Answer.CANNOT_TELL, "none of the captures can be read")


@dataclass(frozen=True)
class Watched:
    """One process of a unit, judged. ``label`` is the newest capture's, times are seconds since the epoch, ``live`` is
    bytes in the newest capture, ``beside`` what the unit's processes without an agent hold, and ``left`` the bytes that
    the unit's limit or its host left then, None where that is not known."""

    unit: str
    host: str
    process: str
    label: str
    start: float
    end: float
    verdict: Verdict
    live: float = 0.0
    beside: Beside | None = None
    left: float | None = None


@dataclass(frozen=True)
class Process:
    """A process and what its verdict rests on: the captures that were read, ordered by time, their series, and the
    ``maps`` that name its compiled code."""

    watched: Watched
    captures: list[Capture]
    series: Series
    maps: JitMaps


@dataclass(frozen=True)
class Together:
    """Processes that ran side by side until the end, judged as one: ``members`` are theirs, ``watched`` has the name of
    the one that gained most, and ``series`` is their sum."""

    members: list[str]
    watched: Watched
    series: Series


@dataclass(frozen=True)
class Host:
    """A unit on a host: its processes, the one seen last at the end, and the verdict on all of them.

    ``captures`` is how many the archive has; ``together`` is None unless several ran side by side, and ``replaced``
    unless one after another ended too soon to be judged.
    """

    unit: str
    host: str
    captures: int
    processes: list[Process]
    verdict: Verdict
    together: Together | None = None
    replaced: Watched | None = None

    @property
    def judged(self) -> list[Watched]:
        """What the verdict rests on: the processes, or several of them as one."""
        watched = _judged_together([process.watched for process in self.processes], self.together)
        return watched if self.replaced is None else [*watched, self.replaced]

    @property
    def decisive_sum(self) -> Series | None:
        """The sum of the processes that the verdict is about, if it is about several together."""
        one = self.together
        decides = one is not None and one.watched in self.judged and one.watched.process == self.verdict.process
        return one.series if one is not None and decides else None

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
        for unit, host, captures in helped(archive, scope, found) if reader.keeps else found:
            yield _host(unit, host, len(captures), _processes(captures, reader, scope.least_span, warn))
    else:
        yield from _by_cluster(reader.cluster, archive, reader, scope.least_span, list(found))


def _with_images_told(found: Iterator[OfHost], warn: Callable[[str], None]) -> Iterator[OfHost]:
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


class _Seen(NamedTuple):
    """See Host."""

    processes: list[Process]
    together: Together | None
    replaced: Watched | None


def _host(unit: str, host: str, captures: int, seen: _Seen) -> Host:
    processes = sorted(seen.processes, key=lambda process: process.watched.end)
    open_host = Host(unit, host, captures, processes, NOTHING_READ, seen.together, seen.replaced)
    return replace(open_host, verdict=verdict_on_host(open_host.judged))


def _judged_together(watched: list[Watched], together: Together | None) -> list[Watched]:
    """The processes, those that were judged as one replaced by it, unless only one by itself is seen to leak, or they
    were together for too short a time."""
    if together is None:
        return watched
    members, whole = [one for one in watched if one.process in together.members], together.watched.verdict
    if not whole.answer.leaks and any(one.verdict.answer.leaks for one in members):
        return watched
    if not whole.counts and not whole.known_after and any(one.verdict.counts for one in members):
        return watched
    others = [one for one in watched if one not in members]
    return sorted([*others, together.watched], key=lambda one: one.end)


def _processes(captures: list[Capture], reader: Reader, least_span: float, warn: Callable[[str], None]) -> _Seen:
    """The processes of a unit on a host that can be read, judged by themselves and together."""
    processes: list[Process] = []
    sampled: list[tuple[Process, Lives | None]] = []
    for key, timely in by_process(captures, warn):
        maps = reader.maps(timely)
        stretch = newest(timely, least_span)
        series, read = reader.series(thinned(stretch.captures), maps)
        if read:
            lives = reader.lives(stretch.captures, maps)
            judged = verdict_on(key, series, lives, least_span)
            judged = with_holders(judged, reader.holders(stretch.captures, maps) if judged.suspects else None)
            if judged.suspects and lives is None:
                judged = with_freed(judged, series, reader.series([read[0], read[-1]], maps, allocated=True)[0])
            verdict = with_stretch(with_own_numbers(judged, series, own_numbers(read)), stretch)
            processes.append(Process(_watched(key, series, read, verdict), read, series, maps))
            # Of one without sampling nobody knows anything, alone or with others.
            sampled += [(processes[-1], lives)] if stretch.sampled else []
    return _Seen(processes, side_by_side(sampled, least_span), _replaced(sampled))


def side_by_side(found: Sequence[tuple[Process, Lives | None]], least_span: float) -> Together | None:
    """Those that ran side by side until the end, judged as one; None where fewer than two did."""
    chosen = [found[at] for at in workers.beside([(one.watched.start, one.watched.end) for one, _lives in found])]
    if len(chosen) < 2:
        return None
    each = [process.series for process, _lives in chosen]
    times = workers.common_times(each)
    try:
        series = workers.sum_of_series(each, times)
    except MeasureError:
        return None
    lives = [own for _process, own in chosen if own is not None]
    whole = workers.sum_of_lives(lives) if len(lives) == len(chosen) else None
    if lives and whole is None:
        return None  # levels would take a cache for a leak of which lives say that it is none
    own = workers.sum_of_own_numbers([(one.series, own_numbers(one.captures)) for one, _lives in chosen], times)
    worst = max((process for process, _lives in chosen), key=lambda process: _gained(process.series)).watched
    verdict = with_own_numbers(verdict_on(worst.process, series, whole, least_span), series, own)
    members = [process.watched for process, _lives in chosen]
    newest_beside = max((one.beside for one in members if one.beside), key=lambda one: one.time, default=None)
    if newest_beside is not None:
        holds = math.fsum(one.beside.own for one in members if one.beside)
        newest_beside = replace(newest_beside, own=holds)
    watched = replace(
        worst,
        start=series.times[0],
        end=max(one.end for one in members),
        verdict=replace(verdict, reason=f"{verdict.reason}; that is of {len(chosen)} processes together"),
        live=math.fsum(one.live for one in members),
        beside=newest_beside,
    )
    return Together([one.process for one in members], watched, series)


def _replaced(found: Sequence[tuple[Process, Lives | None]]) -> Watched | None:
    """Those that ended too soon to be judged, while others took their place, as one."""
    end = max((process.watched.end for process, _lives in found), default=0.0)
    short = [
        (process, lives)
        for process, lives in found
        if not process.watched.verdict.counts
        and process.watched.end + (process.watched.end - process.watched.start if lives is None else lives.span) < end
    ]
    if len(short) < LEAST_REPLACED:
        return None
    verdict = verdict_on_generations([(process.series, lives) for process, lives in short])
    if verdict is None:
        return None
    last = max((process.watched for process, _lives in short), key=lambda watched: watched.end)
    start = min(process.watched.start for process, _lives in short)
    return replace(last, start=start, end=end, verdict=replace(verdict, process=last.process, span=end - start))


def _gained(series: Series) -> float:
    return float(series.bytes[:, -1].sum() - series.bytes[:, 0].sum())


class _Judged(NamedTuple):
    """What a worker tells of the processes of a unit on a host: of each, the names of the captures that it has read;
    its warnings, and those about images."""

    processes: list[tuple[Watched, list[str], Series]]
    together: Together | None
    replaced: Watched | None
    warnings: list[str]
    of_images: list[str]


def _by_cluster(
    cluster: Cluster,
    archive: Archive,
    reader: Reader,
    least_span: float,
    found: list[OfHost],
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
        yield _host(unit, host, len(captures), _Seen(processes, judged.together, judged.replaced))


def _judged(where: str, unit: str, host: str, names: list[str], least_span: float, check_mode: bool) -> _Judged:
    """In a worker: these captures of a unit on a host."""
    archive = far_archive.opened(where)
    captures = archive.named(unit, host, names)
    warnings: list[str] = []
    with reading(archive, warnings.append, check_mode) as reader:
        seen = _processes(captures, reader, least_span, warnings.append)
        found = [
            (process.watched, [archive.name_of(capture) for capture in process.captures], replace(process.series))
            for process in seen.processes
        ]
        return _Judged(found, seen.together, seen.replaced, list(warnings), list(reader.symbolizer.warnings))


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
        left=own_numbers(read).left,
    )


def verdict_on_host(processes: Sequence[Watched]) -> Verdict:
    """The verdict over all that was judged of a unit on a host, in any order, and on processes without an agent.

    The newest process that can be judged decides, together with those that ran beside it (workers): a leak comes
    first, then growth that the stacks do not explain. Earlier ones are named where they grew to more than these hold.
    """
    if not processes:
        return NOTHING_READ
    ran_last = last_on_each_host(processes)
    return with_monitoring(with_others(_with_agents(processes), [one.beside for one in ran_last if one.beside]))


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
