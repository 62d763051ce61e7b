# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Bring the profiler into the units of one host, and put back each that does not bear it.

The first unit is watched to the end before the second one is touched, so that what would break every service breaks
one. The others are restarted one after the other and watched together. After a failure no further unit is begun.

This module is private to the collection.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Callable, NamedTuple, Sequence

from ansible_collections.offheap.profiler.plugins.module_utils.formats.errors import OffheapError
from ansible_collections.offheap.profiler.plugins.module_utils.host import procfs
from ansible_collections.offheap.profiler.plugins.module_utils.unit import (
    drop_in_files,
    enabling,
    health,
    own_jemalloc,
    rollback,
    service,
)
from ansible_collections.offheap.profiler.plugins.module_utils.unit.changes import Changes
from ansible_collections.offheap.profiler.plugins.module_utils.unit.refusal import Refusal

# How long a unit that was put back must stay up.
_BACK_SECONDS = 5
_BACK = (
    "It was rolled back and runs as before. Fix the cause, or leave the unit out of offheap_units, and run this again."
)


@dataclass
class Enabled:
    """What was done for one unit. ``parameters`` are enabling.OPTIONS, and what the rollout itself needs.

    ``problem`` says what is not done, why, and what to do. With a ``refusal``, the short name of a reason, the unit is
    unchanged.
    """

    unit: str
    parameters: dict[str, Any]
    changes: Changes
    wanted: drop_in_files.WantedFiles | None = None
    active: bool = False
    restarted: bool = False
    refusal: str = ""
    problem: str = ""
    warnings: list[str] = field(default_factory=list)
    dumps: list[str] = field(default_factory=list)
    unseen: str = ""
    rss_before: int | None = None
    rss_after: int | None = None

    @property
    def is_to_dump(self) -> bool:
        """Whether a dump of the unit has to be seen."""
        return self.parameters["mode"] == "profile" and bool(self.parameters["agent"])

    @property
    def mapped(self) -> str | None:
        """The library that its processes must have."""
        return str(self.parameters["library"]) if enabling.preloads(self.parameters) else None


class Watchers(NamedTuple):
    """Who else is asked: for a first dump (its paths, or why there is none), and whether the service does its work.

    Both raise Unhealthy. ``goes_on`` tells whether somebody still waits for the outcome.
    """

    see_dump: Callable[[service.Service, bool], tuple[list[str], str]]
    check: Callable[[dict[str, Any]], None]
    goes_on: Callable[[], bool]


def enable(wanted: Sequence[Enabled], watchers: Watchers, check_mode: bool) -> None:
    """Profile the units in their order, and note in each what came of it."""
    watched: dict[health.Watch, Enabled] = {}
    canary = True
    for one in wanted:
        failed = next((other.unit for other in wanted if other.problem and not other.refusal), None)
        if failed and not check_mode:
            one.problem = f"{one.unit} is unchanged: {failed} failed before its turn."
            continue
        if not watchers.goes_on():
            one.problem = f"{one.unit} is unchanged: the controller has gone away."
            continue
        watch = _begin(one, watchers, check_mode)
        if watch and canary:
            _outlast({watch: one}, watchers)
            canary = False
        elif watch:
            watched[watch] = one
    _outlast(watched, watchers)


def _begin(one: Enabled, watchers: Watchers, check_mode: bool) -> health.Watch | None:
    """Write what is missing and, if that needs a restart, do it. None if there is nothing to watch."""
    try:
        unit = service.load(one.unit)
        one.unit, one.active = unit.name, unit.is_running
        one.wanted = enabling.prepare(one.parameters, unit, check_mode)
        one.warnings += filter(None, [enabling.warning(unit)])
        enabling.write(one.changes, unit, one.wanted)
        if not enabling.restart_needed(unit, one.wanted):
            return None
        one.rss_before = _rss(unit)
    except Refusal as refusal:
        one.refusal, one.problem = refusal.reason, f"{one.unit} is unchanged: {refusal}"
        return None
    except (OffheapError, OSError) as error:
        one.problem = str(error)
        return None
    one.restarted = one.changes.any = True
    if check_mode:
        return None
    try:
        unit = health.come_up(unit.name, one.mapped, False, one.parameters["start_timeout"], restart=True)
    except (OffheapError, OSError) as error:
        _put_back(one, error)
        return None
    is_to_look = one.is_to_dump or one.parameters["mode"] == "own"
    look = (lambda unit: _look(one, unit, watchers)) if is_to_look else None
    return health.Watch(unit, one.mapped, False, one.parameters["healthy_seconds"], look)


def _look(one: Enabled, unit: service.Service, watchers: Watchers) -> None:
    if one.wanted and one.parameters["mode"] == "own":
        own_jemalloc.see(unit, one.wanted.injection.environment)
        return
    one.dumps, one.unseen = watchers.see_dump(unit, one.parameters["best_effort"])
    if one.unseen:
        one.warnings.append(f"{one.unit} is left under the profiler, but no dump of it can be had: {one.unseen}")


def _outlast(watched: dict[health.Watch, Enabled], watchers: Watchers) -> None:
    for watch, problem in health.outlast(list(watched)):
        one = watched[watch]
        try:
            if problem:
                raise problem
            watchers.check(one.parameters)
            one.rss_after = _rss(watch.unit)
        except (OffheapError, OSError) as error:
            _put_back(one, error)


def _put_back(one: Enabled, error: Exception) -> None:
    failed = health.with_journal(one.unit, error)
    back = rollback.roll_back(one.unit, False, True, _BACK_SECONDS, one.parameters["start_timeout"])
    outcome = f"{back.sentence()}." if back.problem else _BACK
    one.problem = f"{one.unit} did not stay healthy with the drop-in. {outcome} What failed: {failed}"


def _rss(unit: service.Service) -> int:
    """Resident memory of the unit's processes in bytes (proc(5), VmRSS in kB)."""
    total = 0
    for pid in unit.pids():
        try:
            total += int(procfs.status(pid).get("VmRSS", "0 kB").split()[0]) * 1024
        except procfs.ProcessGone:
            continue
    return total
