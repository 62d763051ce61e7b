# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Take the profiler out of a unit, whatever has become of the unit since it was enabled.

Each unit is rolled back on its own: what stops at one must not keep another under the profiler.

This module is private to the collection.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import NamedTuple, Sequence

from ansible_collections.offheap.profiler.plugins.module_utils.formats import unit_name
from ansible_collections.offheap.profiler.plugins.module_utils.formats.errors import OffheapError
from ansible_collections.offheap.profiler.plugins.module_utils.host import places
from ansible_collections.offheap.profiler.plugins.module_utils.unit import (
    dependents,
    drop_in,
    drop_in_files,
    health,
    service,
    spool_directory,
    timer,
)
from ansible_collections.offheap.profiler.plugins.module_utils.unit.changes import Changes
from ansible_collections.offheap.profiler.plugins.module_utils.unit.refusal import UnitError

_POLL_SECONDS = 0.25
#: lies in the directory of a unit's sockets while we restart the unit: if it is still there, the unit did not come up
_RESTARTING = "restarting"


class RolledBack(NamedTuple):
    """What was done for one unit. ``problem`` says what is not done, why, and what to do; empty if all is done.

    With ``is_out`` nothing of ours is left in the unit, whatever else is wrong with it. ``note`` is what is as it was.
    """

    unit: str
    changes: Changes
    restarted: bool
    problem: str
    is_out: bool = True
    note: str = ""

    def sentence(self) -> str:
        """The outcome in words."""
        if self.problem and not self.is_out:
            return f"{self.unit} is not rolled back: {self.problem}"
        if self.problem:
            return f"{self.unit} is rolled back, but {self.problem}"
        if self.restarted:
            return f"{self.unit} is rolled back, and was restarted without the profiler{self.note}"
        return f"{self.unit} is rolled back, and needed no restart{self.note}"


def units() -> list[str]:
    """The units of which something of ours lies on this host: a drop-in or what is left of one, a spool, a socket, or
    what a timer runs.
    """
    traces = [name for place in (places.SPOOLS, places.SOCKETS, places.TAKING) for name in drop_in_files.names(place)]
    found = set(filter(unit_name.is_service, traces))
    for place in (places.PERSISTENT, places.UNTIL_REBOOT):
        for name in drop_in_files.names(place):
            if name.endswith(".d") and drop_in_files.installed(name[:-2]):
                found.add(name[:-2])
    return sorted(found)


def take_out(changes: Changes, unit: service.Service) -> list[int]:
    """Remove our files, and the timer that takes profiles. Returns the processes that still run under them."""
    under_us: set[int] = set()
    for name in unit.names:
        timer.stop(changes, name)
        found = drop_in_files.installed(name)
        library = next((str(drop_in.read_record(path).get("library", "")) for path in found), None)
        drop_in_files.remove(changes, name)
        under_us.update(service.pids_under_us(unit.pids(), name, library))
    drop_in_files.reload(changes, unit)
    return sorted(under_us)


@dataclass
class _Begun:
    """A unit of which nothing of ours is left but what still runs, under any of its ``names``. ``together`` are the
    units that its restart takes along.

    After a restart there is a ``watch``, or the ``error`` that kept the unit from coming up; ``looped`` is whether it
    ended again and again before, which one that ``was_well`` did not, ``failed`` whether systemd had given it up.
    """

    name: str
    names: list[str]
    check_mode: bool
    changes: Changes
    together: list[str]
    was_well: bool
    restarted: bool = False
    looped: bool = False
    failed: bool = False
    watch: health.Watch | None = None
    error: Exception | None = None


def roll_back_each(
    names: Sequence[str], check_mode: bool, always_restart: bool, seconds: int, timeout: int
) -> list[RolledBack]:
    """Remove what is ours of these units, and restart each if it runs under that, or did until our own restart failed.

    ``always_restart`` restarts them in any case, ``timeout`` limits a restart, and ``seconds`` is how long a unit must
    then stay up. What a restart takes along runs again. One follows the other; those that take no other unit along are
    watched together. Never raises for the state of a unit: that is the ``problem`` of its result.
    """
    done: list[RolledBack] = []
    going_on: list[_Begun] = []
    for name in names:
        if going_on and _takes_others_along(name):
            done += _outlast(going_on)
            going_on = []
        going_on.append(_begin(name, check_mode, always_restart, seconds, timeout))
        if going_on[-1].together:
            done += _outlast(going_on)
            going_on = []
    return done + _outlast(going_on)


def put_back(name: str, seconds: int, timeout: int, ran_with_it: Sequence[str]) -> RolledBack:
    """As ``roll_back_each``, one unit that was well without us, restarted in any case; what ``ran_with_it`` before runs
    again, too."""
    return _outlast([_begin(name, False, True, seconds, timeout, ran_with_it, was_well=True)])[0]


def _takes_others_along(name: str) -> bool:
    try:
        return bool(dependents.running(service.load(name)))
    except (OffheapError, OSError):
        return False  # it is told when its turn comes


def _begin(
    name: str,
    check_mode: bool,
    always_restart: bool,
    seconds: int,
    timeout: int,
    ran_with_it: Sequence[str] = (),
    was_well: bool = False,
) -> _Begun:
    begun = _Begun(name, [name], check_mode, Changes(check_mode), list(ran_with_it), was_well)
    try:
        unit = service.load(name)
        begun.name, begun.names, begun.failed = unit.name, unit.names, unit.text["ActiveState"] == "failed"
        if not check_mode and any(map(drop_in_files.installed, unit.names)):
            _keep_trace(unit.name)
        carrying = take_out(begun.changes, unit)
        if always_restart or carrying or (not unit.is_running and _was_taken_down(unit)):
            begun.together = sorted({*ran_with_it, *dependents.running(unit)})
            _restart(begun, carrying, seconds, timeout)
    except (OffheapError, OSError) as error:
        begun.error = error
    return begun


def _outlast(going_on: Sequence[_Begun]) -> list[RolledBack]:
    """What came of these units, when they have stayed up for as long as they must."""
    by_watch = {begun.watch: begun for begun in going_on if begun.watch}
    for watch, problem in health.outlast(list(by_watch)):
        by_watch[watch].error = problem
    return [_end(begun) for begun in going_on]


def _end(begun: _Begun) -> RolledBack:
    note, down = "", []
    try:
        if isinstance(begun.error, health.Unhealthy) and begun.looped and _is_out(begun.name):
            note = "; it ends and is started again and again, as it did before"
        elif begun.error:
            raise begun.error
        elif begun.failed and not begun.restarted:
            note = f"; it had failed before: look at 'systemctl status {begun.name}', and start it"
        if not begun.check_mode:
            _check_none_is_left(begun.name)
        if begun.restarted and not begun.check_mode:
            down = dependents.bring_back(begun.together)
        for name in begun.names:
            _remove_sockets(begun.changes, name)
    except (OffheapError, OSError) as error:
        is_out = begun.restarted and not begun.check_mode and _is_out(begun.name)
        more = dependents.sentence(_still_down(begun.together), begun.name) if is_out else ""
        return RolledBack(
            begun.name, begun.changes, begun.restarted, f"{error}. {more}" if more else str(error), is_out
        )
    return RolledBack(begun.name, begun.changes, begun.restarted, dependents.sentence(down, begun.name), note=note)


def _is_out(name: str) -> bool:
    """Whether nothing of the unit is under the profiler, nor will be."""
    try:
        return not drop_in_files.installed(name) and not service.pids_under_us(service.load(name).pids(), name)
    except (OffheapError, OSError):
        return False  # nobody knows


def _still_down(together: Sequence[str]) -> list[str]:
    try:
        return dependents.stopped(together)
    except OffheapError:
        return []


def _restart(begun: _Begun, carrying: list[int], seconds: int, timeout: int) -> None:
    """Replace the processes that run under the profiler. Raises OffheapError if that cannot be."""
    unit = service.load(begun.name)  # as systemd has it now, without our drop-in
    if carrying and unit.text["Type"] == "oneshot":
        if not begun.check_mode:
            _wait_for_the_end(unit, timeout)
        return
    spared = [pid for pid in carrying if unit.spares_processes and pid != unit.main_pid]
    if carrying and spared == carrying:
        _check_none_is_left(unit.name)
        return
    begun.restarted = begun.changes.any = True
    if begun.check_mode:
        return
    _check_start(unit, carrying)
    begun.looped = not begun.was_well and health.ends_again_and_again(unit)
    _remember_restart(unit.name)
    clean = not unit.spares_processes
    begun.watch = health.Watch(health.come_up(unit.name, None, clean, timeout, [unit.name]), None, clean, seconds)


def _check_none_is_left(name: str) -> None:
    """Raises UnitError if a process goes on under the profiler."""
    unit = service.load(name)
    left = service.pids_under_us(unit.pids(), name)
    if left:
        raise UnitError(
            f"its processes {_listed(left)} outlive every restart (KillMode={unit.text['KillMode']}) and go on under"
            " the profiler. End them when it suits, then run this again"
        )
    away = service.pids_away(unit)
    if away:
        raise UnitError(
            f"its processes {_listed(away)} have left its control group, as into a session (pam_systemd(8)), and go on"
            " under the profiler. End them when it suits, then run this again"
        )


def _check_start(unit: service.Service, carrying: list[int]) -> None:
    """Refuse the restart of a unit that would not come up again: better under the profiler than down."""
    state = unit.text["LoadState"]
    goes_on = f"Its processes {_listed(carrying)} go on under the profiler" if carrying else "It stays down"
    if state != "loaded":
        raise UnitError(
            f"systemd could not start it again (its unit file is {state}). {goes_on}. Bring its unit file back and run"
            f" this again, or stop it with 'systemctl stop {unit.name}'"
        )
    if unit.start_obstacle:
        raise UnitError(
            f"systemd could not start it again: {unit.start_obstacle}. {goes_on}. Correct the unit and run this again"
        )


def _wait_for_the_end(unit: service.Service, timeout: int) -> None:
    """Let a job end by itself: a restart would break it off, and do its work twice."""
    deadline = time.monotonic() + timeout
    while True:
        left = service.pids_under_us(service.load(unit.name).pids(), unit.name)
        if not left:
            return
        if time.monotonic() > deadline:
            raise UnitError(
                f"its job (Type=oneshot) goes on under the profiler in the processes {_listed(left)}, and a restart"
                " would break it off. Run this again when it has ended"
            )
        time.sleep(_POLL_SECONDS)


def _was_taken_down(unit: service.Service) -> bool:
    """Whether a restart of ours stopped the unit and could not start it. Only root's word counts for that."""
    where = places.sockets_of(unit.name)
    return (
        unit.text["LoadState"] == "loaded"
        and os.path.isfile(os.path.join(where, _RESTARTING))
        and os.lstat(where).st_uid == 0
    )


def _keep_trace(name: str) -> None:
    """Until all is done, something says that the unit is to be rolled back: its directory for sockets."""
    if not os.path.lexists(places.sockets_of(name)):
        for path in (places.SOCKETS, places.sockets_of(name)):
            places.make(path)


def _remember_restart(name: str) -> None:
    _remove_sockets(Changes(check_mode=False), name)
    _keep_trace(name)
    with open(os.path.join(places.sockets_of(name), _RESTARTING), "xb"):
        pass


def _listed(pids: list[int]) -> str:
    return ", ".join(map(str, pids))


def _remove_sockets(changes: Changes, name: str) -> None:
    """systemd removes them only with a unit that has our drop-in, and this one no longer does."""
    path = places.sockets_of(name)
    if os.path.islink(path):
        changes.do(lambda: os.unlink(path))
        path = os.path.join(places.PRIVATE_SOCKETS, os.path.basename(path))
    if os.path.isdir(path):
        changes.do(lambda: spool_directory.remove(path))
    elif os.path.lexists(path):
        changes.do(lambda: os.unlink(path))
