# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""The data behind the report on a fleet: what was seen of each unit on each host, in one shape.

The page uses it, and other programs as the JSON file. Times are seconds since the epoch, sizes bytes, rates bytes per
day. It is kept small: curves have a point for each dump, but only some dumps, evenly spread over time, keep stacks, and
of those only the largest.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ...module_utils.formats.capture_facts import CaptureFacts
from ...module_utils.formats.jvm_memory import JvmMemory
from ..archive.capture import Capture
from ..base import libraries
from ..base.durations import DAY
from ..base.printable import printable
from ..export.flamegraph import FORMAT
from ..export.stack_tree import Frames, Held, StackTree, differences
from ..leaks.code_paths import Suspect
from ..leaks.hints import Hint
from ..leaks.holding import Holding
from ..leaks.life_curve import LifeCurve
from ..leaks.own_numbers import told_size
from ..leaks.ranking import Leak, together
from ..leaks.survey import Host
from ..leaks.verdict import Answer, Verdict
from ..leaks.watched import Watched, last_on_each_host
from ..model.samples import BYTES, Samples
from ..model.sampling import CONFIDENCE, EXACT, Measure, Sampling, coarsest, whole
from ..model.series import Series, evenly_spread
from ..model.stack_summary import render as short_path
from . import told_processes
from .rss_breakdown import Unsampled, first_unsampled, reconcile, with_jvm
from .sizes import SizeClass, by_size
from .threads import by_name

if TYPE_CHECKING:
    import numpy as np

    from ..model.samples import Integers
else:
    np = libraries.optional("numpy")

# Dumps per process that keep their stacks; those of all hosts that are calm, and of all others; and numbers and nodes
# overall: a page of at most 8 MB for 2,000 hosts.
_MOST_DUMPS = 48
_MOST_OF_ALL = 4000
_MOST_NUMBERS = 1_200_000
_MOST_NODES = 100_000
_FEWEST_PATHS = 50
_ORDER = {answer: number for number, answer in enumerate(Answer)}
_MOST_FRAMES = 64
_MOST_SUSPECTS = 10
# A suspect that holds this share of its memory in the first dump already began before it.
_HELD_BEFORE = 0.2


@dataclass(frozen=True)
class Observed:
    """A unit on a host and what was found.

    ``suspects`` are those to show, ``hints`` the known causes of each, ``sources`` where its functions are in the
    source, ``newest`` the newest profile in full.
    """

    host: Host
    headline: str
    suspects: Sequence[Suspect]
    hints: Sequence[Sequence[Hint]] = ()
    sources: Sequence[Sequence[str]] = ()
    newest: Samples | None = None


@dataclass
class _Kept:
    """What remains of an ``Observed`` once its profiles are in the tree."""

    data: dict[str, Any]
    verdict: Verdict
    dumps: list[tuple[dict[str, Any], Held]] = field(default_factory=list)
    threads: list[tuple[dict[str, Any], Held]] = field(default_factory=list)
    suspects: list[tuple[dict[str, Any], set[int]]] = field(default_factory=list)

    def thin(self, most: int) -> None:
        """Keep at most so many dumps of each process: its first, its newest, and others evenly between. A calm host has
        no threads then."""
        if most >= _MOST_DUMPS:
            return
        if self.verdict.answer.is_calm:
            self.threads = []
        kept: list[int] = []
        for process in range(len(self.data["processes"])):
            own = [number for number, (dump, _held) in enumerate(self.dumps) if dump["process"] == process]
            kept += {own[round(step * (len(own) - 1) / (most - 1))] for step in range(most)} if len(own) > most else own
        position = {number: at for at, number in enumerate(sorted(kept))}
        self.dumps = [self.dumps[number] for number in position]
        points = self.data["points"]
        points["dump"] = [position.get(dump) for dump in points["dump"]]


@dataclass(frozen=True)
class _Judged:
    """What the verdict is about, a process or several together: its series, and the tree's number of each stack."""

    series: Series
    paths: Integers

    def sizes(self, paths: set[int]) -> list[float]:
        """What these paths hold in each dump, in bytes."""
        chosen = np.isin(self.paths, list(paths))
        sizes: list[float] = self.series.bytes[chosen].sum(axis=0).tolist()
        return sizes


class Fleet:
    """Takes hosts one by one, so that only one host's profiles are in memory, and gives the data at the end."""

    def __init__(self) -> None:
        self._frames = Frames()
        self._trees: dict[str, StackTree] = {}
        self._hosts: dict[str, list[_Kept]] = {}
        self._sampling: dict[str, Sampling] = {}
        self._measure: dict[str, Measure] = {}  # of units with something else than live memory
        self._watched: dict[str, list[Watched]] = {}

    def add(self, seen: Observed) -> None:
        """Take what was seen of a unit on a host."""
        unit, host, verdict = seen.host.unit, seen.host.host, seen.host.verdict
        tree = self._trees.setdefault(unit, StackTree(self._frames))
        kept = _Kept({"host": host, **_verdict(seen)}, verdict)
        points: dict[str, list[Any]] = {
            name: [] for name in ("time", "process", "live", "error", "rss", "heap", "trigger", "dump")
        }
        judged: list[_Judged] = []
        each: list[_Judged] = []
        as_one = seen.host.decisive_sum
        if as_one is not None:
            judged.append(_Judged(as_one, tree.paths(stack.frames for stack in as_one.stacks)))
        self._watched.setdefault(unit, []).extend(seen.host.judged)
        for number, process in enumerate(seen.host.processes):
            series = process.series
            shown = set(evenly_spread(series.times, _MOST_DUMPS))
            first = first_unsampled(process)
            paths = tree.paths(stack.frames for stack in series.stacks)
            each.append(_Judged(series, paths))
            if process.watched.process == verdict.process and not as_one:
                judged.append(each[-1])
            for position, (capture, time) in enumerate(zip(process.captures, series.times, strict=True)):
                live = float(series.bytes[:, position].sum())
                _add_point(points, number, capture, live, series.sampling, len(kept.dumps), position in shown)
                if position in shown:
                    held = tree.hold(paths, series.bytes[:, position])
                    memory = _memory(with_jvm(process.captures, position), live, series.sampling, first)
                    kept.dumps.append(({"time": time, "process": number, "memory": memory}, held))
            self._sampling[unit] = coarsest([self._sampling.get(unit, EXACT), series.sampling])
            if series.measure is not Measure.LIVE:
                self._measure[unit] = series.measure
        if seen.newest is not None:
            paths = tree.paths(seen.newest.each_stack_of_frames())
            for group in by_name(seen.newest):
                held = tree.hold(paths, np.array(group.bytes), whole=float(seen.newest.values[BYTES].sum()))
                told = {"name": printable(group.name), "count": group.count, "live": round(held.total)}
                kept.threads.append((told, held))
        own = {path for one in (*judged, *each) for path in one.paths.tolist()}
        start = judged[0].series.times[0] if judged else 0.0
        pairs = [(process.watched, one) for process, one in zip(seen.host.processes, each, strict=True)]
        earlier = [(watched, one) for watched, one in reversed(pairs) if watched.end < start]
        for suspect, known, sources in zip(seen.suspects, seen.hints, seen.sources, strict=True):
            oldest, having = _oldest(suspect, judged, earlier)
            unseen = all(watched.end >= having[0].series.times[0] for watched, _one in earlier)
            since = _since(oldest, tree.matching(oldest.covers, own), having, unseen)
            told = {**_suspect(suspect, known, sources), **since}
            kept.suspects.append((told, tree.matching(suspect.covers, own)))
        shown_process = seen.host.decisive
        kept.data["sizes"] = [] if shown_process is None else [_size(one) for one in by_size(shown_process.series)]
        kept.data["points"] = points
        one = seen.host.together
        kept.data["together"] = one.members if one is not None and as_one is not None else []
        last = last_on_each_host([process.watched for process in seen.host.processes])
        kept.data["processes"] = [
            told_processes.process(process, process.watched not in last) for process in seen.host.processes
        ]
        kept.data["others"] = told_processes.others([one.beside for one in last if one.beside])
        self._hosts.setdefault(unit, []).append(kept)

    def data(self) -> dict[str, Any]:
        """All of it, by unit, those that lose most first. Nothing can be added afterwards."""
        every = [host for hosts in self._hosts.values() for host in hosts]
        for calm in (False, True):
            alike = [host for host in every if host.verdict.answer.is_calm is calm]
            most = max(_MOST_OF_ALL // max(sum(len(host.data["processes"]) for host in alike), 1), 2)
            for host in alike:
                host.thin(most)
        dumps = sum(len(host.dumps) + len(host.threads) for hosts in self._hosts.values() for host in hosts)
        most_paths = max(_FEWEST_PATHS, _MOST_NUMBERS // max(dumps, 1) // 2)
        units = [self._unit(unit, hosts, most_paths) for unit, hosts in self._hosts.items()]
        units.sort(key=lambda unit: (-unit["leaking"] * unit["growth"], -unit["leaking"], unit["unit"]))
        times = [time for unit in units for host in unit["hosts"] for time in host["points"]["time"]]
        return {
            "format": FORMAT,
            "from": min(times, default=None),
            "to": max(times, default=None),
            "confidence": CONFIDENCE,
            "units": units,
            "frames": self._frames.columns(),
        }

    def _sizes(self, unit: str) -> str:
        """What the sizes of a unit are, as sentences."""
        caution = self._measure.get(unit, Measure.LIVE).caution
        not_live = f" Some are of memory {caution}." if caution else ""
        return self._sampling.get(unit, EXACT).remark + not_live

    def _unit(self, unit: str, hosts: list[_Kept], most_paths: int) -> dict[str, Any]:
        tree = self._trees[unit]
        wanted = {path for host in hosts for _data, paths in host.suspects for path in paths}
        left_out = tree.grow(wanted, most_paths, _MOST_NODES)
        hosts = sorted(hosts, key=lambda host: (_ORDER[host.verdict.answer], -host.verdict.growth, host.data["host"]))
        for host in hosts:
            host.data["dumps"] = [{**dump, **tree.by_node(held)} for dump, held in host.dumps]
            host.data["threads"] = [{**thread, **tree.by_node(held)} for thread, held in host.threads]
            host.data["suspects"] = [
                {**suspect, "nodes": differences(tree.leaves(paths))} for suspect, paths in host.suspects
            ]
        leaking = [host for host in hosts if host.verdict.answer is Answer.LEAK]
        answers = [host.verdict.answer for host in hosts]
        growth, error = _mean([(host.verdict.growth, host.verdict.error) for host in leaking])
        starts = [
            (suspect["since"], suspect["since_ever"])
            for host in leaking
            for suspect in host.data["suspects"]
            if suspect["since"] is not None
        ]
        since, ever = min(starts, default=(None, False))
        return {
            "unit": unit,
            "answer": min(answers, key=_ORDER.__getitem__).value,
            "leaking": len(leaking),
            "growth": growth,
            "error": error,
            "since": since,
            "since_ever": ever,
            "suspects": _over_hosts(self._watched[unit], [host for host in hosts if host.verdict.answer.leaks]),
            "interval": self._sampling.get(unit, EXACT).known_interval,
            "measure": self._measure.get(unit, Measure.LIVE).value,
            "sizes": self._sizes(unit),
            "left_out": left_out,
            "hosts": [host.data for host in hosts],
            "tree": tree.columns(),
        }


def _verdict(seen: Observed) -> dict[str, Any]:
    verdict = seen.host.verdict
    return {
        "answer": verdict.answer.value,
        "headline": seen.headline,
        "reason": verdict.reason,
        "growth": round(verdict.growth),
        "error": round(verdict.error),
        "process": verdict.process,
        "bound": round(verdict.bound or (verdict.limits[0].rate if verdict.limits else 0.0)),
        "others_lives": _lives(verdict.others),
    }


def _size(found: SizeClass) -> dict[str, int]:
    sizes = {"older": found.older, "live": found.live, "count": found.count}
    return {"least": found.least, **{name: round(value) for name, value in sizes.items()}}


def _add_point(
    points: dict[str, list[Any]],
    number: int,
    capture: Capture,
    live: float,
    sampling: Sampling,
    dump: int,
    is_shown: bool,
) -> None:
    memory = capture.facts.memory
    jvm = JvmMemory.told(capture.facts.jvm or {})
    row = {
        "time": capture.time,
        "process": number,
        "live": round(live),
        "error": whole(sampling.error(live)),
        "rss": None if (rss := told_size(memory.get("rss"))) is None else round(rss),
        "heap": jvm.heap_committed if jvm.heap_resident is None else jvm.heap_resident,
        "trigger": _trigger(capture),
        "dump": dump if is_shown else None,
    }
    for name, value in row.items():
        points[name].append(value)


def _trigger(capture: Capture) -> str | None:
    """What made the agent dump, unless it was its schedule or somebody's command."""
    reason = (capture.facts.agent or {}).get("reason")
    return None if reason in (None, "schedule", "command") else printable(str(reason))


def _memory(facts: CaptureFacts, live: float, sampling: Sampling, first: Unsampled | None) -> dict[str, Any] | None:
    found = reconcile(facts, live, sampling, first)
    if found is None:
        return None
    return {
        "rss": found.rss,
        "notes": found.notes,
        "parts": [
            {
                "name": part.name,
                "bytes": round(part.bytes),
                "origin": part.origin.value,
                "meaning": part.meaning,
                "error": whole(part.error),
            }
            for part in found.parts
        ],
    }


def _oldest(
    suspect: Suspect, judged: Sequence[_Judged], earlier: Sequence[tuple[Watched, _Judged]]
) -> tuple[Suspect, Sequence[_Judged]]:
    """A suspect in the first process that had it, and that process: a restart does not begin what was there before it.

    ``earlier`` are the processes that had ended before, the latest first. One that was judged and did not have it ends
    the search.
    """
    oldest, having = suspect, judged
    for watched, one in earlier:
        same = [before for before in watched.verdict.suspects if before.is_same(suspect)]
        if same:
            oldest, having = same[0], [one]
        elif watched.verdict.counts and watched.end < having[0].series.times[0]:
            break
    return oldest, having


def _since(suspect: Suspect, paths: set[int], judged: Sequence[_Judged], unseen: bool) -> dict[str, Any]:
    """``since`` is when it held nothing, going back at its rate. ``since_ever``: that was before the second dump, and
    what was before the first is ``unseen``, so nobody saw it begin; ``since`` is then the first."""
    times = [time for one in judged for time in one.series.times]
    sizes = [size for one in judged for size in one.sizes(paths)]
    if not times or suspect.growth <= 0:
        return {"since": None, "since_ever": False}
    since = max(times[-1] - sizes[-1] / (suspect.growth / DAY), times[0])
    ever = unseen and (since <= times[min(1, len(times) - 1)] or sizes[0] > _HELD_BEFORE * sizes[-1])
    return {"since": times[0] if ever else since, "since_ever": ever}


def _suspect(suspect: Suspect, known: Sequence[Hint], sources: Sequence[str]) -> dict[str, Any]:
    return {
        "path": [printable(frame.label) for frame in suspect.path[:_MOST_FRAMES]],
        "sources": list(sources[:_MOST_FRAMES]),
        "short": short_path(suspect.path),
        "growth": round(suspect.growth),
        "error": round(suspect.error),
        "live": round(suspect.live),
        "stacks": suspect.stacks,
        "share": round(suspect.share, 3),
        "lives": _lives(suspect.lives),
        "held": _held(suspect.holding),
        "freed": None if suspect.freed is None else round(suspect.freed, 4),
        "hints": [hint.told for hint in known],
    }


def _held(holding: Holding | None) -> dict[str, Any] | None:
    if holding is None:
        return None
    parts = [
        {"kind": part.kind, "by": part.by, "share": round(part.share, 4), "way": list(part.way)}
        for part in holding.parts
    ]
    return {"text": holding.text, "next": holding.next_step, "time": holding.time, "parts": parts}


def _lives(curve: LifeCurve | None) -> dict[str, Any] | None:
    if curve is None:
        return None
    return {
        "ages": [round(age, 3) for age in curve.ages],
        "alive": [round(share, 4) for share in curve.alive],
        "born": [round(size) for size in curve.born],
        "began": curve.began,
        "now": curve.now,
    }


def _over_hosts(watched: Sequence[Watched], leaking: Sequence[_Kept]) -> list[dict[str, Any]]:
    """The suspects of all hosts, each path once: its hosts, its average rate, and the version it appeared with."""
    each = [suspect for host in leaking for suspect, _paths in host.suspects]
    hints: dict[str, list[dict[str, str]]] = {}  # hosts may run releases with different causes
    for suspect in each:
        known = hints.setdefault(suspect["short"], [])
        known += [hint for hint in suspect["hints"] if hint not in known]
    held = {suspect["short"]: suspect["held"] for suspect in each if suspect["held"]}
    sources: dict[tuple[str, str], str] = {}
    for one in reversed(each):  # the build on the host that leaks most
        sources.update(((one["short"], name), at) for name, at in zip(one["path"], one["sources"], strict=True))
    found: dict[str, list[Leak]] = {}
    for leak in together(watched):  # builds of a library may differ in frames that a short path omits
        found.setdefault(short_path(leak.path), []).append(leak)
    merged = []
    for short, leaks in list(found.items())[:_MOST_SUSPECTS]:
        hosts = list(dict.fromkeys(host for leak in leaks for host in leak.hosts))
        path = [printable(frame.label) for frame in leaks[0].path[:_MOST_FRAMES]]
        merged.append(
            {
                "short": short,
                "path": path,
                "sources": [sources.get((short, name), "") for name in path],
                "hosts": hosts,
                "outliers": [host for leak in leaks for host in leak.outliers],
                "growth": round(math.fsum(leak.growth for leak in leaks) / len(hosts)),
                "error": round(math.hypot(*(leak.error for leak in leaks)) / len(hosts)),
                "label": printable(leaks[0].label),
                "held": held.get(short),
                "hints": hints.get(short, []),
            }
        )
    return merged


def _mean(rates: Sequence[tuple[float, float]]) -> tuple[int, int]:
    """The mean of rates and its error, as for independent measurements."""
    if not rates:
        return 0, 0
    error = math.hypot(*(error for _rate, error in rates)) / len(rates)
    return round(math.fsum(rate for rate, _error in rates) / len(rates)), round(error)
