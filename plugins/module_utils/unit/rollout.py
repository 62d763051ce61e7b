# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Bring the profiler into the units of one host, and put back each that does not bear it.

The first unit is watched to the end before the second one is touched, and so are the next ones until one is well: what
would break every service breaks one at a time. The others are restarted one after the other and watched together. A
unit that fails keeps no other from its turn. Units that systemd restarts with one another are handled as one.

This module is private to the collection.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Callable, NamedTuple, Sequence

from ansible_collections.offheap.profiler.plugins.module_utils.formats import preload
from ansible_collections.offheap.profiler.plugins.module_utils.formats.errors import OffheapError
from ansible_collections.offheap.profiler.plugins.module_utils.host import procfs
from ansible_collections.offheap.profiler.plugins.module_utils.unit import (
    dependents,
    drop_in_files,
    enabling,
    health,
    own_jemalloc,
    preflight,
    programs,
    rollback,
    service,
)
from ansible_collections.offheap.profiler.plugins.module_utils.unit.changes import Changes
from ansible_collections.offheap.profiler.plugins.module_utils.unit.refusal import Refusal

# How long a unit that was put back must stay up.
_BACK_SECONDS = 5
_TRIES = 3
_BACK = (
    "It was rolled back and runs as before. Fix the cause, or leave the unit out of offheap_units, and run this again."
)
_UNWELL = "did not stay healthy with the drop-in"
_UNSEEN = "ran well with the drop-in, but cannot be profiled"


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
    dependents: list[str] = field(default_factory=list)
    restarted: bool = False
    refusal: str = ""
    problem: str = ""
    warnings: list[str] = field(default_factory=list)
    dumps: list[str] = field(default_factory=list)
    unseen: str = ""
    programs: list[dict[str, Any]] = field(default_factory=list)
    rss_before: int | None = None
    rss_after: int | None = None

    @property
    def is_to_dump(self) -> bool:
        """Whether a dump of the unit has to be seen."""
        return self.parameters["mode"] == "profile" and bool(self.parameters["agent"])

    @property
    def sees(self) -> str:
        """Of which program, and how much of the unit's memory, there will be dumps; empty where nobody can know."""
        return programs.sentence(self.programs, self._program)

    @property
    def _program(self) -> str:
        return self.wanted.injection.environment.get(preload.EXECUTABLE, "") if self.wanted else ""

    def look_at_programs(self, unit: service.Service) -> None:
        """See which of its processes have an agent, or will have one."""
        if self.wanted and self._program and unit.is_running:
            children = preload.CHILDREN in self.wanted.injection.environment
            self.programs = programs.seen(unit, self._program, children)

    @property
    def mapped(self) -> str | None:
        """The library that its processes must have."""
        return (self.wanted.injection.library or None) if self.wanted else None


class Watchers(NamedTuple):
    """Who else is asked: for a first dump (paths, and why there is none, or none of some processes; ``tell`` puts that
    into a sentence), and whether the service does its work.

    Both raise Unhealthy. ``goes_on`` tells whether somebody still waits for the outcome.
    """

    see_dump: Callable[[service.Service, bool], tuple[list[str], str]]
    tell: Callable[[str, list[str], str], str]
    check: Callable[[dict[str, Any]], None]
    goes_on: Callable[[], bool]


def enable(wanted: Sequence[Enabled], watchers: Watchers, check_mode: bool) -> None:
    """Profile the units in their order, and note in each what came of it."""
    watched: dict[health.Watch, list[Enabled]] = {}
    canary = True
    for one in wanted:
        _meet(one)
    try:
        with preflight.proven_once():
            for together in _together([one for one in wanted if not one.problem]):
                if not watchers.goes_on():
                    for one in together:
                        one.problem = f"{one.unit} is unchanged: the controller has gone away."
                    continue
                watches = _begin(together, watchers, check_mode)
                if watches and canary:
                    canary = not _outlast(watches, watchers)
                else:
                    watched.update(watches)
    finally:  # whatever becomes of another
        _outlast(watched, watchers)


def _meet(one: Enabled) -> None:
    """See what the unit is, and what runs with it, before any other is touched."""
    try:
        unit = service.load(one.unit)
        one.unit, one.active = unit.name, unit.is_running
        one.dependents = dependents.running(unit) if unit.is_running else []
    except (OffheapError, OSError) as error:
        one.problem = str(error)


def _together(wanted: Sequence[Enabled]) -> list[list[Enabled]]:
    """The units in their order; those of which one restarts another are one, in the place of the first."""
    groups: list[list[Enabled]] = []
    for one in wanted:
        own = [group for group in groups if any(_is_tied_to(one, member) for member in group)]
        if own:
            first, *others = own
            first += [one, *(other for group in others for other in group)]
            groups = [group for group in groups if group not in others]
        else:
            groups.append([one])
    return groups


def _is_tied_to(one: Enabled, member: Enabled) -> bool:
    """Whether a restart of either restarts both."""
    return member.unit in one.dependents or one.unit in member.dependents


def _begin(together: list[Enabled], watchers: Watchers, check_mode: bool) -> dict[health.Watch, list[Enabled]]:
    """Write what is missing and, if that needs a restart, do it. Empty if there is nothing to watch."""
    restarted = [one for one in together if _write(one, watchers, check_mode)]
    names = [one.unit for one in restarted]
    watches: dict[health.Watch, list[Enabled]] = {}
    for one in [] if check_mode else restarted:
        try:
            unit = health.come_up(one.unit, one.mapped, False, one.parameters["start_timeout"], names)
            names = []  # at once for all
            _bring_back(one)
        except (OffheapError, OSError) as error:
            _put_back(restarted, _down(restarted) or one, error)
            return {}
        is_to_look = one.is_to_dump or one.parameters["mode"] == "own"
        look = partial(_look, one, watchers) if is_to_look else None
        watches[health.Watch(unit, one.mapped, False, one.parameters["healthy_seconds"], look)] = [
            one,
            *(other for other in restarted if other is not one),
        ]
    return watches


def _down(restarted: list[Enabled]) -> Enabled | None:
    """Of units that were restarted at once, the first that is down."""
    with contextlib.suppress(OffheapError):
        return next((one for one in restarted if not service.load(one.unit).is_running), None)
    return None


def _write(one: Enabled, watchers: Watchers, check_mode: bool) -> bool:
    """Whether the unit has to be restarted for what is written now."""
    try:
        unit, one.wanted = _prepare(one, check_mode)
        one.warnings += enabling.warnings(unit, one.wanted)
        one.look_at_programs(unit)
        is_to_restart = enabling.restart_needed(unit, one.wanted)
        if is_to_restart:
            preflight.check_restart(unit)
            _check_before(one, watchers)
        enabling.write(one.changes, unit, one.wanted)
        if not is_to_restart:
            return False
        one.rss_before = _resident(unit)
    except Refusal as refusal:
        one.refusal, one.problem = refusal.reason, f"{one.unit} is unchanged: {refusal}"
        return False
    except (OffheapError, OSError) as error:
        one.problem = str(error)
        return False
    one.restarted = one.changes.any = True
    return True


def _check_before(one: Enabled, watchers: Watchers) -> None:
    """What fails already would be blamed on the profiler, after two restarts for nothing. Raises Refusal."""
    try:
        watchers.check(one.parameters)
    except health.Unhealthy as error:
        raise Refusal(
            "not-well",
            f"{error}, before anything was touched, so nobody could tell whether profiling harms it. Correct the health"
            " check, or get the service well first",
        ) from error


def _prepare(one: Enabled, check_mode: bool) -> tuple[service.Service, drop_in_files.WantedFiles]:
    """Look again if a process of it ends meanwhile."""
    for _try in range(_TRIES):
        with contextlib.suppress(procfs.ProcessGone):
            unit = service.load(one.unit)
            return unit, enabling.prepare(one.parameters, unit, check_mode)
    raise Refusal("already-failing", "its processes end while they are looked at; get it running first")


def _bring_back(one: Enabled) -> None:
    down = dependents.bring_back(one.dependents)
    if down:
        raise health.Unhealthy(dependents.sentence(down, one.unit))


def _look(one: Enabled, watchers: Watchers, unit: service.Service) -> None:
    if one.wanted and one.parameters["mode"] == "own":
        own_jemalloc.see(unit, one.wanted.injection.environment)
        return
    one.dumps, one.unseen = watchers.see_dump(unit, one.parameters["best_effort"])
    if one.unseen:
        one.warnings.append(watchers.tell(one.unit, one.dumps, one.unseen))


def _outlast(watched: dict[health.Watch, list[Enabled]], watchers: Watchers) -> bool:
    """Watch until all is over, and put back what fails. Returns whether all is well."""
    well = True
    for watch, problem in health.outlast(list(watched)):
        one, *others = watched[watch]
        if one.problem:
            continue  # put back with another
        try:
            if problem:
                raise problem
            watchers.check(one.parameters)
            _bring_back(one)
            one.rss_after = _resident(watch.unit)
            one.look_at_programs(watch.unit)
        except (OffheapError, OSError) as error:
            well = False
            _put_back([one, *others], one, error)
    return well


def _put_back(together: list[Enabled], failed: Enabled, error: Exception) -> None:
    """Those that restart one another are put back as one, so that none is under the profiler beside one that is not."""
    told = health.with_journal(failed.unit, error)
    ran = sorted({name for one in together for name in one.dependents})
    for one in together[1:] and together:
        with contextlib.suppress(OffheapError, OSError):  # found and told again below
            rollback.take_out(Changes(check_mode=False), service.load(one.unit))
    back = {}
    for one in together:
        timeout = one.parameters["start_timeout"]
        back[one.unit] = rollback.put_back(one.unit, _BACK_SECONDS, timeout, ran)
    for one in together:
        done = back[one.unit]
        outcome = f"{done.sentence()}." if done.problem else _BACK
        if one is failed:
            what = _UNSEEN if isinstance(error, health.NoDump) else _UNWELL
            one.problem = f"{one.unit} {what}. {outcome} What failed: {told}"
        else:
            one.problem = f"{one.unit} restarts together with {failed.unit}, which failed. {outcome}"


def _resident(unit: service.Service) -> int:
    """What the unit's processes have in memory, in bytes."""
    return sum(map(procfs.resident, unit.pids()))
