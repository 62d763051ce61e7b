# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Restart a unit and watch it: neither takes longer than it is given, whatever the unit does.

This module is private to the collection.
"""

from __future__ import annotations

import contextlib
import time
from typing import Callable, Iterator, Sequence

from ansible_collections.offheap.profiler.plugins.module_utils.formats.errors import OffheapError
from ansible_collections.offheap.profiler.plugins.module_utils.host import procfs, systemd
from ansible_collections.offheap.profiler.plugins.module_utils.unit import service

_POLL_SECONDS = 0.25
_JOURNAL_LINES = "15"
# A unit that has been up for so long since systemd restarted it is taken for one that stays up.
_SETTLED_SECONDS = 10.0


class Unhealthy(OffheapError):
    """The unit does not run as it should."""


class NoDump(Unhealthy):
    """The unit runs as it should, but no dump of it can be had."""


def obstacle(unit: service.Service, mapped: str | None, clean: bool) -> str | None:
    """Why the unit is not, or not yet, as requested; None if it is."""
    state = unit.text["ActiveState"]
    if state not in ("active", "reloading"):  # somebody may reload it meanwhile
        return f"it is {state} ({unit.text['SubState']}, result {unit.text['Result']})"
    pids = unit.pids()
    if mapped:
        leaders = unit.leaders()
        without = [pid for pid in leaders if not _maps(pid, mapped)]
        if without or not leaders:
            return f"{mapped} is not mapped in its process {', '.join(map(str, without)) or '(there is none)'}"
    if clean:
        ours = service.pids_under_us(pids, unit.name)
        if ours:
            return f"its process {ours[0]} still runs under the profiler"
    return None


def with_journal(name: str, error: Exception) -> str:
    """What is wrong with a unit, and the unit's last lines in the journal."""
    return "\n".join([f"{error}. Its journal ends with:", *systemd.journal("--lines", _JOURNAL_LINES, "--unit", name)])


def ends_again_and_again(unit: service.Service) -> bool:
    """Whether the unit ends soon after each start, and systemd starts it again. Looks on if that is not certain yet."""
    now = unit
    while unit.restarts == now.restarts > 0 and _is_young(now):
        time.sleep(_POLL_SECONDS)
        now = service.load(unit.name)
    return now.restarts > unit.restarts or now.text["SubState"] == "auto-restart"


def _is_young(unit: service.Service) -> bool:
    return unit.text["ActiveState"] == "active" and unit.seconds_up < _SETTLED_SECONDS


def restart(names: Sequence[str], timeout: int) -> None:
    """Restart units, those that depend on one another in the order that systemd knows. Raises Unhealthy."""
    with contextlib.suppress(systemd.SystemdError):  # what systemd has not loaded has nothing to forget
        # After too many starts or crashes it would stop them, and start them only once those are forgotten
        # (StartLimitBurst=).
        systemd.systemctl("reset-failed", "--", *names)
    try:
        systemd.systemctl("restart", "--", *names, timeout=timeout)
    except systemd.SystemdTimeout:
        states = [f"{unit.text['ActiveState']} ({unit.text['SubState']})" for unit in map(service.load, names)]
        raise Unhealthy(
            f"{' and '.join(names)} has not come up {timeout} s after its restart: it is {' and '.join(states)}"
        ) from None
    except systemd.SystemdError as error:
        raise Unhealthy(f"{' or '.join(names)} did not start: {error}") from error


def _maps(pid: int, path: str) -> bool:
    try:
        return service.maps_file(pid, path)
    except procfs.ProcessGone:
        return False


class Watch:
    """A unit that is as required, while it has to stay so. ``unit`` is what systemd last said of it.

    ``look`` is called once, when two thirds of the time are over, so that what it does to the unit is watched too. The
    time that it takes is added.
    """

    def __init__(
        self,
        unit: service.Service,
        mapped: str | None,
        clean: bool,
        seconds: int,
        look: Callable[[service.Service], None] | None = None,
    ) -> None:
        self.unit = unit
        self._mapped = mapped
        self._clean = clean
        self._seconds = seconds
        self._look = look
        self._started = unit.text["InvocationID"]
        self._restarts = unit.restarts
        self._deadline = time.monotonic() + seconds

    @property
    def is_over(self) -> bool:
        """Whether the unit has stayed up for as long as it had to."""
        return self._look is None and time.monotonic() >= self._deadline

    def poll(self) -> None:
        """See whether the unit is still up. Raises Unhealthy with what happened."""
        if self._look and time.monotonic() >= self._deadline - self._seconds / 3:
            look, self._look = self._look, None
            began = time.monotonic()
            try:
                look(self.unit)
            except Unhealthy:
                self._check()  # that the unit has ended says more
                raise
            self._deadline += time.monotonic() - began
        self._check()

    def _check(self) -> None:
        self.unit = service.load(self.unit.name)
        if self.unit.text["InvocationID"] != self._started or self.unit.restarts > self._restarts:
            raise Unhealthy(f"{self.unit.name} was restarted while it was watched (result {self.unit.text['Result']})")
        problem = obstacle(self.unit, self._mapped, self._clean)
        if problem:
            raise Unhealthy(f"{self.unit.name} did not stay up for {self._seconds} s: {problem}")


def come_up(
    name: str, mapped: str | None, clean: bool, timeout: int, restarting: Sequence[str] = ()
) -> service.Service:
    """Restart some units if asked, and wait until one is as required: together for at most ``timeout`` seconds.

    Raises Unhealthy with what happened.
    """
    deadline = time.monotonic() + timeout
    if restarting:
        restart(restarting, timeout)
    unit = service.load(name)
    restarts = unit.restarts
    problem = obstacle(unit, mapped, clean)
    while problem:
        if unit.text["ActiveState"] in ("failed", "inactive") or unit.restarts > restarts:
            raise Unhealthy(f"{unit.name} did not come up: {problem}")
        if time.monotonic() > deadline:
            raise Unhealthy(f"{unit.name} is not as required after {timeout} s: {problem}")
        time.sleep(_POLL_SECONDS)
        unit = service.load(name)
        problem = obstacle(unit, mapped, clean)
    return unit


def outlast(watches: Sequence[Watch]) -> Iterator[tuple[Watch, OffheapError | OSError | None]]:
    """Each watch when it ends, with what went wrong, if anything did.

    However many there are, systemd is asked as often.
    """
    going_on = list(watches)
    while going_on:
        for watch in list(going_on):
            problem = None
            try:
                watch.poll()  # also if its time is over by now: nobody has looked at it yet
            except (OffheapError, OSError) as error:
                problem = error
            if problem or watch.is_over:
                going_on.remove(watch)
                yield watch, problem
        time.sleep(_POLL_SECONDS * len(going_on))


def watch(
    name: str,
    mapped: str | None,
    clean: bool,
    seconds: int,
    timeout: int,
    restarting: bool = False,
    look: Callable[[service.Service], None] | None = None,
) -> service.Service:
    """Restart the unit if asked, wait for the requested state, then check that it lasts for ``seconds``.

    Raises Unhealthy with what happened.
    """
    unit = come_up(name, mapped, clean, timeout, [name] if restarting else ())
    for ended, problem in outlast([Watch(unit, mapped, clean, seconds, look)]):
        if problem:
            raise problem
        unit = ended.unit
    return unit
