# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""What leaks over all hosts and restarts: the suspects of single processes, merged by their functions and ranked.

Suspects of two processes are the same if their functions are, or if the functions of one begin (at the allocation) with
all those of the other, which needed fewer to show growth.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from statistics import median

from ..archive.archive import Archive
from ..base.progress import Progress
from ..columns.series_reader import reading
from ..model.frame import Frame
from ..model.sampling import CONFIDENCE
from ..model.series import Key
from .code_paths import Suspect
from .scope import Scope
from .survey import survey
from .watched import Watched, last_on_each_host

# The robust standard deviations beyond which a host is an outlier (Iglewicz and Hoaglin's 3.5).
_OUTLIER = 3.5
_LEAST_HOSTS = 4


@dataclass(frozen=True)
class Leak:
    """The same suspect on all hosts. Rates are bytes per day, ``error`` is half of the 95 % interval.

    ``growth`` is the sum over those processes with it that ran last on their host. ``hosts`` has the rates of these
    hosts, ``watched`` is the number of hosts with a verdict. ``outliers`` are hosts whose rate is far from the others'.
    ``fastest`` is the rate and error of the host whose interval has the highest lower end. ``processes`` also counts
    those before restarts. ``share`` is its part of the unit's growth. ``label`` is the label with which it appeared,
    empty unless a process with another label was seen without it before. ``path`` is that of a process that ran last in
    which most of its frames have names.
    """

    unit: str
    key: Key
    growth: float
    error: float
    hosts: dict[str, float]
    fastest: tuple[float, float]
    watched: int
    processes: int
    outliers: list[str]
    share: float
    first_seen: float
    label: str
    path: tuple[Frame, ...]

    @property
    def number(self) -> str:
        """Eight digits that stay the same as long as the path does."""
        return blake2b("\0".join(self.key).encode("utf-8", "replace"), digest_size=4).hexdigest()


def rank(
    archive: Archive,
    warn: Callable[[str], None],
    scope: Scope,
    check_mode: bool = False,
    progress: Progress | None = None,
    cluster: str = "",
) -> tuple[list[Leak], list[Watched]]:
    """The leaks of an archive, the fastest first, and every process that was looked at.

    In check mode nothing is written to the archive. ``cluster`` is the address of one that does the work. Raises
    ArchiveError, ClusterError.
    """
    with reading(archive, warn, check_mode, progress, cluster) as reader:
        hosts = survey(archive, reader, scope, warn)
        watched = [watched for host in hosts for watched in host.judged]
    return leaks_of(watched), watched


def leaks_of(watched: Sequence[Watched]) -> list[Leak]:
    """The leaks of all units from their processes, the fastest first."""
    by_unit: dict[str, list[Watched]] = {}
    for process in watched:
        by_unit.setdefault(process.unit, []).append(process)
    found = [leak for of_unit in by_unit.values() for leak in together(of_unit)]
    return sorted(found, key=lambda leak: leak.growth, reverse=True)


def together(watched: Sequence[Watched]) -> list[Leak]:
    """The leaks of one unit from its processes, the fastest first."""
    found: dict[Key, list[tuple[Watched, Suspect]]] = {}
    having = [(process, suspect) for process in watched for suspect in process.verdict.suspects]
    # The shortest paths first, so that longer ones join them.
    for process, suspect in sorted(having, key=lambda pair: len(pair[1].key)):
        same = next((key for key in found if key and suspect.key[: len(key)] == key), suspect.key)
        found.setdefault(same, []).append((process, suspect))
    judged = [process for process in watched if process.verdict.counts]
    last = last_on_each_host(judged)
    ran_last = {id(process) for process in last}
    all_growth = math.fsum(max(process.verdict.growth, 0.0) for process in last)
    leaks = []
    for key, members in found.items():
        now = [(process, suspect) for process, suspect in members if id(process) in ran_last]
        if now:  # else a restart has ended it
            leak = _leak(key, members, now, judged)
            leaks.append(replace(leak, share=min(leak.growth / all_growth, 1.0) if all_growth > 0 else 0.0))
    return sorted(leaks, key=lambda leak: leak.growth, reverse=True)


def _leak(
    key: Key, members: list[tuple[Watched, Suspect]], now: list[tuple[Watched, Suspect]], judged: list[Watched]
) -> Leak:
    rates: dict[str, float] = {}
    errors: dict[str, float] = {}
    for process, suspect in now:
        rates[process.host] = rates.get(process.host, 0.0) + suspect.growth
        errors[process.host] = math.hypot(errors.get(process.host, 0.0), suspect.error)
    first = min(members, key=lambda pair: pair[1].first_seen)[0]
    having = {(process.host, process.process) for process, _suspect in members}
    without = [process for process in judged if (process.host, process.process) not in having]
    earlier = any(process.label != first.label and process.end <= first.end for process in without)
    return Leak(
        unit=first.unit,
        key=key,
        growth=math.fsum(rates.values()),
        error=math.hypot(*errors.values()),
        hosts=dict(sorted(rates.items(), key=lambda item: -item[1])),
        fastest=max(((rates[host], errors[host]) for host in rates), key=lambda rate: rate[0] - rate[1]),
        watched=len({process.host for process in judged}),
        processes=len(having),
        outliers=_outliers(rates, errors),
        share=0.0,
        first_seen=min(suspect.first_seen for _process, suspect in members),
        label=first.label if earlier else "",
        path=min(now, key=lambda pair: (_nameless(pair[1].path), -pair[1].growth))[1].path,
    )


def _nameless(path: Sequence[Frame]) -> int:
    return sum(not frame.function for frame in path)


def _outliers(rates: dict[str, float], errors: dict[str, float]) -> list[str]:
    """Hosts far from the median rate, by the spread between hosts and by their own error."""
    if len(rates) < _LEAST_HOSTS:
        return []
    middle = median(rates.values())
    spread = 1.4826 * median(abs(rate - middle) for rate in rates.values())
    return sorted(
        host for host, rate in rates.items() if abs(rate - middle) > _OUTLIER * max(spread, errors[host] / CONFIDENCE)
    )
