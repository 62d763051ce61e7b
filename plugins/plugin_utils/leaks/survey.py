# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""The one way from the captures in scope to verdicts: on each process, and on each unit on a host.

Reports, assertions, pushes and the console all go this way, so they cannot disagree.
"""

from __future__ import annotations

import itertools
import math
import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import Any, NamedTuple, TypeVar

from ..archive import far_archive
from ..archive.archive import Archive
from ..archive.capture import Capture
from ..base.answering import answering
from ..base.printable import printable
from ..columns.dask_cluster import Cluster
from ..columns.sample_cache import LARGE
from ..columns.series_reader import Reader, reading
from ..model.lives import Lives
from ..model.sampling import MeasureError
from ..model.series import Series
from ..symbols.jit_symbols import JitMaps
from . import workers
from .lives_verdict import verdict_on, verdict_on_generations
from .own_numbers import own_numbers, with_own_numbers
from .scope import OfHost, Scope, by_process, in_scope, of_now, thinned
from .stretch import newest, with_stretch
from .turnover import with_freed
from .verdict import Verdict
from .watched import NOTHING_READ, Watched, verdict_on_host
from .who_holds import with_holders
from .without_agent import beside

# How many processes took one another's place, at least.
LEAST_REPLACED = 3
# So many hosts are worth other processes, at most so many, each of which has so many hosts to come.
_MANY, _MOST, _IN_TURN = 24, 4, 2

Result = TypeVar("Result")


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
    return (host for host, _nothing in finished(archive, reader, scope, warn, _nothing))


def _nothing(_host: Host, _reader: Reader) -> None:
    """Nobody wants more than the host."""


def finished(
    archive: Archive,
    reader: Reader,
    scope: Scope,
    warn: Callable[[str], None],
    finish: Callable[[Host, Reader], Result],
) -> Iterator[tuple[Host, Result]]:
    """The same, each with what ``finish`` (of a module, or a partial of it) makes of it: where many hosts are judged,
    in other processes of this machine."""
    found = _with_twins_told(_with_images_told(in_scope(archive, scope, warn, reader.progress), warn), warn)
    if reader.cluster is None:
        elsewhere = _by_processes(archive, reader, scope.least_span, found, finish)
    else:
        elsewhere = _by_cluster(reader.cluster, archive, reader, scope.least_span, found)
    for (unit, host, captures), judged in elsewhere:
        if judged is None:
            whole = _host(unit, host, len(captures), _processes(captures, reader, scope.least_span, warn))
        else:
            whole = _host(unit, host, len(captures), _seen(archive, reader, captures, judged))
        yield whole, finish(whole, reader) if judged is None or judged.finished is None else judged.finished


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


def _with_twins_told(found: Iterator[OfHost], warn: Callable[[str], None]) -> Iterator[OfHost]:
    """The same. Calls ``warn`` where two hosts may be one."""
    first: dict[tuple[str, str, str], str] = {}
    for unit, host, captures in found:
        last = captures[-1]
        before = first.setdefault((unit, last.process, last.facts.dump.sha256), host)
        if before != host:
            names = f"{printable(before)} and {printable(host)}"
            warn(
                f"{printable(unit)} has the same dump on {names}: if these are two names of one host, name it once in"
                " the inventory, since all that it holds is counted twice"
            )
        yield unit, host, captures


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
    for key, timely in by_process(of_now(captures, warn), warn):
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
    # It began when the last of them did: what ended before that one ran before all of them.
    return replace(last, end=end, verdict=replace(verdict, process=last.process, span=end - start))


def _gained(series: Series) -> float:
    return float(series.bytes[:, -1].sum() - series.bytes[:, 0].sum())


class _Judged(NamedTuple):
    """What another process tells of the processes of a unit on a host: of each, the names of the captures that it has
    read; its warnings, those about images, and what it has ``finished``."""

    processes: list[tuple[Watched, list[str], Series]]
    together: Together | None
    replaced: Watched | None
    warnings: list[str]
    of_images: list[str]
    finished: Any


# Who judges each host; None: nobody else has.
_Elsewhere = Iterator[tuple[OfHost, _Judged | None]]
_Finish = Callable[[Host, Reader], Any]


def _by_processes(
    archive: Archive, reader: Reader, least_span: float, found: Iterator[OfHost], finish: _Finish
) -> _Elsewhere:
    """By other processes of this machine where there are so many hosts that it pays."""
    some = list(itertools.islice(found, _MANY))
    count = min(len(os.sched_getaffinity(0)), _MOST)
    if len(some) < _MANY or count < 2:
        yield from ((one, None) for one in itertools.chain(some, found))
        return
    waiting: deque[tuple[OfHost, Future[_Judged | None] | None]] = deque()
    with answering(count, _judging, archive.where, least_span, not reader.keeps, finish) as ask:
        for unit, host, captures in itertools.chain(some, found):
            # One large dump in memory is enough.
            here = any(capture.facts.dump.size >= LARGE for capture in captures)
            asked = None if here else ask(unit, host, [archive.name_of(capture) for capture in captures])
            waiting.append(((unit, host, captures), asked))
            if len(waiting) > _IN_TURN * count:
                yield _awaited(*waiting.popleft())
        while waiting:
            yield _awaited(*waiting.popleft())


def _awaited(one: OfHost, asked: Future[_Judged | None] | None) -> tuple[OfHost, _Judged | None]:
    return one, None if asked is None else asked.result()


def _by_cluster(
    cluster: Cluster, archive: Archive, reader: Reader, least_span: float, found: Iterator[OfHost]
) -> _Elsewhere:
    """By the workers of a cluster; what becomes of it is made here."""
    every = list(found)
    calls = [
        (archive.where, least_span, not reader.keeps, unit, host, [archive.name_of(capture) for capture in captures])
        for unit, host, captures in every
    ]
    yield from zip(every, cluster.map(_judged, calls), strict=True)


def _seen(archive: Archive, reader: Reader, captures: list[Capture], judged: _Judged) -> _Seen:
    """What another process has told of a unit on a host."""
    named = {archive.name_of(capture): capture for capture in captures}
    maps = {key: reader.maps(timely) for key, timely in by_process(captures, lambda _warning: None)}
    processes = [
        Process(watched, [named[name] for name in read], series, maps[watched.process])
        for watched, read, series in judged.processes
    ]
    for _capture in itertools.chain.from_iterable(process.captures for process in processes):
        reader.progress.capture()
    for warning in judged.warnings:
        reader.warn(warning)
    reader.symbolizer.warnings.extend(judged.of_images)
    return _Seen(processes, judged.together, judged.replaced)


def _judged(where: str, least_span: float, check_mode: bool, unit: str, host: str, names: list[str]) -> _Judged:
    """In a worker: these captures of a unit on a host."""
    with _judging(where, least_span, check_mode, _nothing) as judged:
        return judged(unit, host, names)


@contextmanager
def _judging(
    where: str, least_span: float, check_mode: bool, finish: _Finish
) -> Iterator[Callable[[str, str, list[str]], _Judged]]:
    """In another process: what judges these captures of a unit on a host."""
    archive = far_archive.opened(where)
    warnings: list[str] = []

    def judged(unit: str, host: str, names: list[str]) -> _Judged:
        captures = archive.named(unit, host, names)
        seen = _processes(captures, reader, least_span, reader.warn)
        found = [
            (process.watched, [archive.name_of(capture) for capture in process.captures], replace(process.series))
            for process in seen.processes
        ]
        end = finish(_host(unit, host, len(captures), seen), reader)
        told, of_images = list(warnings), list(reader.symbolizer.warnings)
        warnings.clear()
        reader.symbolizer.warnings.clear()
        return _Judged(found, seen.together, seen.replaced, told, of_images, end)

    with reading(archive, warnings.append, check_mode) as reader:
        yield judged


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
